//! Round robin: executors that take requests in turn, whatever their load.

use std::collections::BTreeMap;

/// The turns that executors take with the requests of each model: after the executor chosen last
/// comes the next in attach order.
///
/// Each model has turns of its own. With turns in common, models served in different places would
/// move each other's on. Requests that name no model count as one more model.
///
/// ```
/// use pointsman_sdk::Turns;
///
/// let mut turns = Turns::default();
/// let mut next = || {
///     let turn = turns.of(None);
///     let chosen = [3, 5, 8].into_iter().min_by_key(|&id| turn(id)).unwrap();
///     turns.took(None, chosen);
///     chosen
/// };
/// assert_eq!([next(), next(), next(), next()], [3, 5, 8, 3]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The executor chosen last, by model.
    last: BTreeMap<Option<u32>, u32>,
}

/// The turn of an executor with the requests of a model; executors whose turn is to come are next,
/// in attach order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The executor was attached after the one chosen last.
    ToCome,
    /// The executor was chosen last, or attached before that one.
    Had,
}

// === impl Turns ===

impl Turns {
    /// Bytes of one entry of a snapshot: a flag for the model, the model, the executor.
    const ENTRY_BYTES: usize = 9;

    /// The executor that took the last request of a model.
    #[must_use]
    pub fn last(&self, model: Option<u32>) -> Option<u32> {
        self.last.get(&model).copied()
    }

    /// A function that tells the turn of an executor with the requests of a model.
    pub fn of(&self, model: Option<u32>) -> impl Fn(u32) -> Turn + use<> {
        let last = self.last(model);
        move |executor| Turn::of(executor, last)
    }

    /// Notes that an executor took a request of a model.
    pub fn took(&mut self, model: Option<u32>, executor: u32) {
        self.last.insert(model, executor);
    }

    /// The bytes of all turns, for [`Policy::snapshot`](crate::Policy::snapshot).
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.last.len() * Self::ENTRY_BYTES);
        for (model, executor) in &self.last {
            bytes.push(u8::from(model.is_some()));
            bytes.extend(model.unwrap_or(0).to_le_bytes());
            bytes.extend(executor.to_le_bytes());
        }
        bytes
    }

    /// The turns of a snapshot, for [`Policy::restore`](crate::Policy::restore).
    ///
    /// # Errors
    ///
    /// If [`Self::snapshot`] did not make the bytes.
    pub fn restore(bytes: &[u8]) -> Result<Self, String> {
        let (entries, rest) = bytes.as_chunks::<{ Self::ENTRY_BYTES }>();
        if !rest.is_empty() {
            return Err(format!(
                "a snapshot of {} bytes is no multiple of {}",
                bytes.len(),
                Self::ENTRY_BYTES
            ));
        }
        let entry = |&[named, m0, m1, m2, m3, e0, e1, e2, e3]: &[u8; Self::ENTRY_BYTES]| {
            let model = match named {
                0 => None,
                1 => Some(u32::from_le_bytes([m0, m1, m2, m3])),
                other => return Err(format!("a snapshot entry begins with {other}")),
            };
            Ok((model, u32::from_le_bytes([e0, e1, e2, e3])))
        };
        let last = entries.iter().map(entry).collect::<Result<_, String>>()?;
        Ok(Self { last })
    }
}

// === impl Turn ===

impl Turn {
    /// The turn of an executor after `last` was chosen.
    #[must_use]
    #[inline]
    pub fn of(executor: u32, last: Option<u32>) -> Self {
        match last {
            Some(last) if executor <= last => Self::Had,
            Some(_) | None => Self::ToCome,
        }
    }

    /// Text for a person about an executor with this turn.
    #[must_use]
    pub fn note(self) -> &'static str {
        match self {
            Self::ToCome => "its turn is still to come",
            Self::Had => "had its turn",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn the_turn_goes_on_where_the_last_executor_left() {
        let mut turns = Turns::default();
        turns.took(Some(1), 5);
        let next = |turns: &Turns, model| {
            let turn = turns.of(model);
            [3, 4, 8].into_iter().min_by_key(|&id| turn(id))
        };
        assert_eq!(next(&turns, Some(1)), Some(8));
        assert_eq!(next(&turns, Some(2)), Some(3));
        assert_eq!(next(&turns, None), Some(3));
    }

    #[test]
    fn a_snapshot_restores_every_turn() {
        let mut turns = Turns::default();
        turns.took(None, 3);
        turns.took(Some(0), 1);
        turns.took(Some(70_000), u32::MAX);
        assert_eq!(Turns::restore(&turns.snapshot()), Ok(turns));
    }

    #[test]
    fn a_snapshot_it_did_not_make_is_refused() {
        assert_eq!(
            Turns::restore(&[1, 2, 3]),
            Err("a snapshot of 3 bytes is no multiple of 9".to_owned())
        );
        assert_eq!(
            Turns::restore(&[7, 0, 0, 0, 0, 0, 0, 0, 0]),
            Err("a snapshot entry begins with 7".to_owned())
        );
    }
}
