//! The decisions that policies make: [`Hook`], and sets and tables of hooks.

use std::fmt;
use std::ops::{Index, IndexMut};

/// A decision a policy can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Hook {
    /// Admission of an arrival: into the queue, to the parking list, or not at all.
    Admission,
    /// Order in which waiting requests are tried.
    Priority,
    /// Executor on which a request runs.
    Routing,
    /// Placed sequences that give way.
    Preemption,
    /// Tokens that each engine of a device may schedule in a step, and the order in which its
    /// sequences get them.
    Budget,
}

impl Hook {
    /// Every hook, in the order in which a round asks them.
    pub const ALL: [Hook; 5] = [
        Hook::Admission,
        Hook::Priority,
        Hook::Routing,
        Hook::Preemption,
        Hook::Budget,
    ];

    /// The hook's interface name in the WIT.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Admission => "admission",
            Hook::Priority => "priority",
            Hook::Routing => "routing",
            Hook::Preemption => "preemption",
            Hook::Budget => "budget",
        }
    }

    /// The hook with this interface name.
    #[must_use]
    pub fn named(name: &str) -> Option<Hook> {
        Hook::ALL.into_iter().find(|hook| hook.as_str() == name)
    }

    /// True where an answer speaks of each request by itself, so that two policies can share
    /// the requests between them.
    #[must_use]
    pub fn is_by_request(self) -> bool {
        match self {
            Hook::Admission | Hook::Routing => true,
            Hook::Priority | Hook::Preemption | Hook::Budget => false,
        }
    }

    /// The kinds of answers that the hook has, by what they do, as [`Reply::kinds`](crate::Reply::kinds)
    /// finds them in a reply. None for an order, which is always the same kind.
    #[must_use]
    pub fn answers(self) -> &'static [&'static str] {
        match self {
            Hook::Admission => &["admits", "parks", "sheds", "displaces"],
            Hook::Priority => &[],
            Hook::Routing => &["places", "holds", "gives up"],
            Hook::Preemption => &["evicts"],
            Hook::Budget => &["allots", "arranges"],
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of hooks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HookSet(u8);

impl HookSet {
    /// The empty set.
    pub const EMPTY: HookSet = HookSet(0);

    /// Tells whether `hook` is in the set.
    #[must_use]
    pub fn contains(self, hook: Hook) -> bool {
        self.0 & hook.bit() != 0
    }

    /// Tells whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds `hook` to the set.
    pub fn insert(&mut self, hook: Hook) {
        self.0 |= hook.bit();
    }

    /// Takes `hook` out of the set.
    pub fn remove(&mut self, hook: Hook) {
        self.0 &= !hook.bit();
    }

    /// The hooks that are in one of the two sets, or in both.
    #[must_use]
    pub fn union(self, other: HookSet) -> HookSet {
        HookSet(self.0 | other.0)
    }

    /// The hooks in the set, in the order of a round.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL
            .into_iter()
            .filter(move |hook| self.contains(*hook))
    }
}

impl FromIterator<Hook> for HookSet {
    fn from_iter<I: IntoIterator<Item = Hook>>(hooks: I) -> Self {
        let mut set = Self::EMPTY;
        for hook in hooks {
            set.insert(hook);
        }
        set
    }
}

impl fmt::Debug for HookSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// One value for each hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HookMap<T>([T; Hook::ALL.len()]);

impl<T> HookMap<T> {
    /// The value that `make` gives for each hook.
    pub fn from_fn(make: impl FnMut(Hook) -> T) -> Self {
        Self(Hook::ALL.map(make))
    }

    /// The hooks with their values, in the order of a round.
    pub fn iter(&self) -> impl Iterator<Item = (Hook, &T)> {
        Hook::ALL.into_iter().zip(&self.0)
    }

    /// The values, in the order of a round.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl HookMap<u64> {
    /// The sum over all hooks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl<T> Index<Hook> for HookMap<T> {
    type Output = T;

    fn index(&self, hook: Hook) -> &T {
        &self.0[hook as usize]
    }
}

impl<T> IndexMut<Hook> for HookMap<T> {
    fn index_mut(&mut self, hook: Hook) -> &mut T {
        &mut self.0[hook as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hook_has_its_own_place_in_sets_and_tables() {
        let mut set = HookSet::EMPTY;
        let mut map = HookMap::from_fn(Hook::as_str);
        for hook in Hook::ALL {
            assert!(!set.contains(hook));
            set.insert(hook);
            assert_eq!(map[hook], hook.as_str());
            assert_eq!(Hook::named(map[hook]), Some(hook));
            map[hook] = "";
        }
        assert_eq!(set, Hook::ALL.into_iter().collect());
        assert!(map.iter().all(|(_, name)| name.is_empty()));
        assert_eq!(Hook::named("routeing"), None);
    }
}
