//! Policies that lost their last hook, and instances that faulted: they wait to be dropped.
//!
//! Dropping a store returns its memories to the system, which takes up to a millisecond. So it is
//! kept here until the owner takes it to a thread that nobody waits for.
//!
//! # Bounds
//! [`KEPT_MAX`] of each; above that they are dropped at once.

use std::collections::VecDeque;
use std::fmt;

use pointsman_component::Instance;

use super::PolicyHost;
use super::member::Member;

/// Policies and instances to be dropped. Drop them on a thread that nobody waits for.
#[derive(Default)]
pub struct Retired {
    members: Vec<Member>,
    instances: Vec<Box<dyn Instance>>,
}

/// The names of policies that are gone, for what is told of them afterwards.
#[derive(Debug, Default)]
pub(super) struct GoneNames(VecDeque<(u32, String)>);

/// Number of names that are kept. What is told of a policy is told soon.
const NAMES_MAX: usize = 64;

impl GoneNames {
    pub(super) fn put(&mut self, number: u32, name: &str) {
        if self.0.len() >= NAMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((number, name.to_owned()));
    }

    pub(super) fn get(&self, number: u32) -> Option<&str> {
        let mut names = self.0.iter();
        let (_, name) = names.find(|(gone, _)| *gone == number)?;
        Some(name)
    }
}

/// Number of policies, and of instances, kept for [`PolicyHost::poll_retired`].
const KEPT_MAX: usize = 16;

impl PolicyHost {
    /// Returns the policies that lost their last hook and the instances that faulted since the last
    /// call; `None` if there are none.
    pub fn poll_retired(&mut self) -> Option<Retired> {
        let retired = std::mem::take(&mut self.shared.retired);
        (!retired.is_empty()).then_some(retired)
    }
}

impl Retired {
    /// True if there is nothing to drop.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.instances.is_empty()
    }

    pub(super) fn put_member(&mut self, member: Member) {
        if self.members.len() < KEPT_MAX {
            self.members.push(member);
        }
    }

    pub(super) fn put_instance(&mut self, instance: Box<dyn Instance>) {
        if self.instances.len() < KEPT_MAX {
            self.instances.push(instance);
        }
    }
}

impl fmt::Debug for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<u32> = self.members.iter().map(|member| member.number).collect();
        f.debug_struct("Retired")
            .field("policies", &numbers)
            .field("instances", &self.instances.len())
            .finish()
    }
}
