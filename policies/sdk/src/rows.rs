//! A table of rows in id order.
//!
//! Ids are minted in ascending order, so that a row's id is its position until one before it has
//! gone, and close above it afterwards. A look-up tries that position first and searches the rows
//! before it otherwise. Adding the newest appends; removing moves the rows behind it, which is rare.
//!
//! # Invariants
//! 1. Ids strictly ascend (`tests::any_order_of_changes_keeps_rows_in_id_order`).

/// Rows by ascending id.
#[derive(Clone, Debug)]
pub(crate) struct Rows<T> {
    rows: Vec<(u32, T)>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<T> Rows<T> {
    /// The position of the row of `id`, or the one it would go to.
    #[inline]
    fn search(&self, id: u32) -> Result<usize, usize> {
        let guess = usize::try_from(id).unwrap_or(usize::MAX);
        match self.rows.get(guess) {
            Some(&(found, _)) if found == id => Ok(guess),
            // Ids ascend and do not repeat: none stands at a position greater than itself.
            Some(_) => self.rows[..guess].binary_search_by_key(&id, |row| row.0),
            None => self.rows.binary_search_by_key(&id, |row| row.0),
        }
    }

    #[inline]
    pub(crate) fn position(&self, id: u32) -> Option<usize> {
        self.search(id).ok()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.position(id).map(|at| &self.rows[at].1)
    }

    #[inline]
    pub(crate) fn at(&self, position: usize) -> Option<(u32, &T)> {
        self.rows.get(position).map(|row| (row.0, &row.1))
    }

    /// The row of `id`, made where it is missing.
    pub(crate) fn entry(&mut self, id: u32) -> &mut T
    where
        T: Default,
    {
        let at = self.search(id).unwrap_or_else(|at| {
            self.rows.insert(at, (id, T::default()));
            at
        });
        &mut self.rows[at].1
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let at = self.position(id)?;
        Some(&mut self.rows[at].1)
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let at = self.position(id)?;
        Some(self.rows.remove(at).1)
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &T)> + ExactSizeIterator {
        self.rows.iter().map(|row| (row.0, &row.1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Rows;

    #[test]
    fn any_order_of_changes_keeps_rows_in_id_order() {
        let mut rows: Rows<u32> = Rows::default();
        let mut model = BTreeMap::new();
        // A linear congruential walk over few ids: rows come, are replaced, go and come again.
        let mut state = 1_u32;
        for step in 0..4000_u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = (state >> 16) % 40;
            if state >> 30 == 0 {
                assert_eq!(rows.remove(id), model.remove(&id));
            } else {
                *rows.entry(id) = step;
                model.insert(id, step);
            }
            let expected: Vec<_> = model.iter().map(|(&id, row)| (id, row)).collect();
            assert_eq!(rows.iter().collect::<Vec<_>>(), expected);
            for id in 0..41 {
                assert_eq!(rows.get(id), model.get(&id));
            }
        }
    }

    #[test]
    fn an_id_far_above_the_number_of_rows_is_found() {
        let mut rows: Rows<u32> = Rows::default();
        *rows.entry(u32::MAX) = 1;
        *rows.entry(7) = 2;
        assert_eq!(rows.get(u32::MAX), Some(&1));
        assert_eq!(rows.get(7), Some(&2));
        assert_eq!(rows.position(7), Some(0));
        assert_eq!(rows.get(0), None);
    }
}
