//! Whose turn it is: the executor chosen last, per model. Carried over a reload.

use std::collections::BTreeMap;

/// Bytes of one entry of a snapshot: whether there is a model, the model, the executor.
const ENTRY_BYTES: usize = 9;

/// The executor chosen last, by model; `None` for requests that name no model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    last: BTreeMap<Option<u32>, u32>,
}

impl Rotation {
    pub(crate) fn last(&self, model: Option<u32>) -> Option<u32> {
        self.last.get(&model).copied()
    }

    pub(crate) fn chosen(&mut self, model: Option<u32>, executor: u32) {
        self.last.insert(model, executor);
    }

    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.last.len() * ENTRY_BYTES);
        for (model, executor) in &self.last {
            bytes.push(u8::from(model.is_some()));
            bytes.extend(model.unwrap_or(0).to_le_bytes());
            bytes.extend(executor.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn restore(bytes: &[u8]) -> Result<Self, String> {
        let entries = bytes.chunks_exact(ENTRY_BYTES);
        if !entries.remainder().is_empty() {
            return Err(format!(
                "a snapshot of {} bytes is no multiple of {ENTRY_BYTES}",
                bytes.len()
            ));
        }
        let mut last = BTreeMap::new();
        for entry in entries {
            let number = |at: usize| {
                u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
            };
            let model = match entry[0] {
                0 => None,
                1 => Some(number(1)),
                other => return Err(format!("a snapshot entry begins with {other}")),
            };
            last.insert(model, number(5));
        }
        Ok(Self { last })
    }
}

#[cfg(test)]
mod tests {
    use super::Rotation;

    #[test]
    fn a_snapshot_restores_every_turn() {
        let mut rotation = Rotation::default();
        rotation.chosen(None, 3);
        rotation.chosen(Some(0), 1);
        rotation.chosen(Some(70_000), u32::MAX);
        assert_eq!(Rotation::restore(&rotation.snapshot()), Ok(rotation));
    }

    #[test]
    fn a_snapshot_it_did_not_make_is_refused() {
        assert!(Rotation::restore(&[1, 2, 3]).is_err());
        assert!(Rotation::restore(&[7, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
