//! The kinds of rows that a policy is told: [`RowKind`], sets of them, and what each hook needs.

use std::fmt;

use crate::hook::{Hook, HookMap};

/// A kind of rows: a flag of `feed` in `wit/hooks.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    /// The texts behind ids.
    Name,
    /// Lasting facts of executors.
    Executor,
    /// Loads of executors.
    Load,
    /// Models' presences on executors.
    Residency,
    /// KV pools of devices.
    Device,
    /// Models and their counts.
    Model,
    /// Tenants and their use.
    Tenant,
    /// Requests that have not started.
    Waiting,
    /// Placed requests.
    Sequence,
    /// Requests that ended on an executor.
    Completion,
}

impl RowKind {
    /// Every kind, in the order of the flags.
    pub const ALL: [RowKind; 10] = [
        RowKind::Name,
        RowKind::Executor,
        RowKind::Load,
        RowKind::Residency,
        RowKind::Device,
        RowKind::Model,
        RowKind::Tenant,
        RowKind::Waiting,
        RowKind::Sequence,
        RowKind::Completion,
    ];

    /// The flag's name in the WIT.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RowKind::Name => "names",
            RowKind::Executor => "executors",
            RowKind::Load => "loads",
            RowKind::Residency => "residencies",
            RowKind::Device => "devices",
            RowKind::Model => "models",
            RowKind::Tenant => "tenants",
            RowKind::Waiting => "waiting",
            RowKind::Sequence => "sequences",
            RowKind::Completion => "completed",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A set of kinds of rows.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RowKinds(u16);

impl RowKinds {
    /// The empty set.
    pub const EMPTY: RowKinds = RowKinds(0);

    /// The set of every kind.
    pub const ALL: RowKinds = RowKinds((1 << RowKind::ALL.len()) - 1);

    /// Tells whether `kind` is in the set.
    #[must_use]
    pub fn contains(self, kind: RowKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Tells whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds `kind` to the set.
    pub fn insert(&mut self, kind: RowKind) {
        self.0 |= kind.bit();
    }

    /// The kinds that are in one of the two sets, or in both.
    #[must_use]
    pub fn union(self, other: RowKinds) -> RowKinds {
        RowKinds(self.0 | other.0)
    }

    /// The set without `kind`.
    #[must_use]
    pub fn without(self, kind: RowKind) -> RowKinds {
        RowKinds(self.0 & !kind.bit())
    }

    /// The kinds in the set, in the order of the flags.
    pub fn iter(self) -> impl Iterator<Item = RowKind> {
        RowKind::ALL
            .into_iter()
            .filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<RowKind> for RowKinds {
    fn from_iter<I: IntoIterator<Item = RowKind>>(kinds: I) -> Self {
        let mut set = Self::EMPTY;
        for kind in kinds {
            set.insert(kind);
        }
        set
    }
}

impl fmt::Debug for RowKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The kinds of rows that each hook of a policy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Needs {
    /// The kinds that a decision reads, by hook. None for a hook that the policy does not have.
    pub decisions: HookMap<RowKinds>,
    /// The kinds that an explanation reads. Copies of the policy are told them, and the policy in
    /// force is not.
    pub explanation: RowKinds,
}

impl Needs {
    /// The needs of a policy all of whose hooks read `kinds`.
    #[must_use]
    pub fn every(kinds: RowKinds) -> Self {
        Self {
            decisions: HookMap::from_fn(|_| kinds),
            explanation: kinds,
        }
    }

    /// The kinds that a decision of `hook` reads.
    #[must_use]
    pub fn of(&self, hook: Hook) -> RowKinds {
        self.decisions[hook]
    }

    /// The kinds that any decision reads.
    #[must_use]
    pub fn decided(&self) -> RowKinds {
        let kinds = self.decisions.iter().map(|(_, kinds)| *kinds);
        kinds.fold(RowKinds::EMPTY, RowKinds::union)
    }

    /// The kinds that a decision or an explanation reads.
    #[must_use]
    pub fn all(&self) -> RowKinds {
        self.decided().union(self.explanation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_bit_and_all_of_them_are_the_whole_set() {
        let mut set = RowKinds::EMPTY;
        for kind in RowKind::ALL {
            assert!(!set.contains(kind));
            assert!(!RowKinds::ALL.without(kind).contains(kind));
            set.insert(kind);
            assert!(set.contains(kind));
        }
        assert_eq!(set, RowKinds::ALL);
        assert_eq!(set.iter().collect::<Vec<_>>(), RowKind::ALL);
    }

    #[test]
    fn what_is_only_explained_is_no_part_of_what_is_decided() {
        let mut needs = Needs::default();
        needs.decisions[Hook::Routing] = RowKinds::from_iter([RowKind::Load]);
        needs.decisions[Hook::Admission] = RowKinds::from_iter([RowKind::Tenant]);
        needs.explanation = RowKinds::from_iter([RowKind::Name]);
        let decided = RowKinds::from_iter([RowKind::Load, RowKind::Tenant]);
        assert_eq!(needs.decided(), decided);
        assert_eq!(needs.all(), decided.union(needs.explanation));
    }
}
