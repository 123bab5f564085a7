//! The sequences that hold a block, counted by executor.

use std::collections::BTreeMap;

use pointsman_events::ExecutorId;

/// The number of leases that list a block, by the executor of each. Nearly every block is held on
/// one executor only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Holders {
    #[default]
    Nobody,
    On(ExecutorId, u32),
    /// On two executors or more.
    OnSeveral(BTreeMap<ExecutorId, u32>),
}

/// A change of the blocks that an executor uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The block came to the executor, or left it.
    Changed,
    /// Others hold it there as well.
    Same,
}

impl Holders {
    pub(crate) fn count(&self) -> u32 {
        match self {
            Holders::Nobody => 0,
            Holders::On(_, n) => *n,
            Holders::OnSeveral(by_executor) => by_executor.values().sum(),
        }
    }

    pub(crate) fn is_on(&self, executor: ExecutorId) -> bool {
        match self {
            Holders::Nobody => false,
            Holders::On(on, _) => *on == executor,
            Holders::OnSeveral(by_executor) => by_executor.contains_key(&executor),
        }
    }

    pub(crate) fn add(&mut self, executor: ExecutorId) -> Use {
        match self {
            Holders::Nobody => *self = Holders::On(executor, 1),
            Holders::On(on, n) if *on == executor => {
                *n += 1;
                return Use::Same;
            }
            Holders::On(on, n) => {
                *self = Holders::OnSeveral(BTreeMap::from([(*on, *n), (executor, 1)]));
            }
            Holders::OnSeveral(by_executor) => {
                let n = by_executor.entry(executor).or_default();
                *n += 1;
                if *n > 1 {
                    return Use::Same;
                }
            }
        }
        Use::Changed
    }

    /// Takes a holder off.
    ///
    /// # Panics
    /// If no sequence on the executor holds the block.
    pub(crate) fn remove(&mut self, executor: ExecutorId) -> Use {
        const HELD: &str = "a lease lists blocks that its sequence holds";
        match self {
            Holders::On(on, n) if *on == executor => {
                *n -= 1;
                if *n > 0 {
                    return Use::Same;
                }
                *self = Holders::Nobody;
            }
            Holders::OnSeveral(by_executor) => {
                let n = by_executor.get_mut(&executor).expect(HELD);
                *n -= 1;
                if *n > 0 {
                    return Use::Same;
                }
                by_executor.remove(&executor);
                if by_executor.len() == 1
                    && let Some((on, n)) = by_executor.pop_first()
                {
                    *self = Holders::On(on, n);
                }
            }
            Holders::Nobody | Holders::On(..) => panic!("{HELD}"),
        }
        Use::Changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_once_on_each_executor_that_holds_it() {
        let (a, b) = (ExecutorId(0), ExecutorId(1));
        let mut holders = Holders::default();
        let added = [a, a, b, b, a].map(|executor| holders.add(executor));
        let (changed, same) = (Use::Changed, Use::Same);
        assert_eq!(added, [changed, same, changed, same, same]);
        assert_eq!(holders.count(), 5);
        let removed = [a, b, b].map(|executor| holders.remove(executor));
        assert_eq!(removed, [same, same, changed]);
        assert_eq!(holders, Holders::On(a, 2));
        assert_eq!(
            [a, a].map(|executor| holders.remove(executor)),
            [same, changed]
        );
        assert_eq!(holders, Holders::Nobody);
    }
}
