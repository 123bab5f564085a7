//! What is to be dropped: policies that have lost their last hook, and instances that faulted.
//!
//! Dropping a store gives its memories back to the system, which takes up to a millisecond. It is
//! kept here until somebody takes it where nobody waits.
//!
//! # Bounds
//! [`SCRAP_MAX`] of each; past it they are dropped on the spot.

use std::fmt;

use super::PolicyHost;
use super::member::Member;
use crate::instance::Instance;

/// Policies and instances that are no more. Dropping them takes its time: do it where nobody waits.
#[derive(Default)]
pub struct Retired {
    members: Vec<Member>,
    instances: Vec<Box<dyn Instance>>,
}

/// Of each, kept for [`PolicyHost::poll_retired`].
const SCRAP_MAX: usize = 16;

/// What nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Scrap(Retired);

impl Scrap {
    pub(crate) fn put_member(&mut self, member: Member) {
        if self.0.members.len() < SCRAP_MAX {
            self.0.members.push(member);
        }
    }

    pub(crate) fn put_instance(&mut self, instance: Box<dyn Instance>) {
        if self.0.instances.len() < SCRAP_MAX {
            self.0.instances.push(instance);
        }
    }
}

impl PolicyHost {
    /// The policies that have lost their last hook, and the instances that faulted, since the last
    /// call; absent: none.
    pub fn poll_retired(&mut self) -> Option<Retired> {
        let retired = std::mem::take(&mut self.shared.scrap.0);
        (!retired.is_empty()).then_some(retired)
    }
}

impl Retired {
    /// Whether there is nothing to drop.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.instances.is_empty()
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
