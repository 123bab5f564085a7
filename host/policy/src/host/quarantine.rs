//! The quarantine: the list of policies that are not added again, and the causes for it.
//!
//! # Invariants
//! 1. A policy on the list holds no hook, and is not added before it is released
//!    (`too_many_faults_in_the_window_put_a_policy_in_quarantine`,
//!    `what_was_rolled_back_is_not_added_again_before_it_is_released`).
//!
//! # Bounds
//! [`crate::Patience::quarantine_max`] entries; above that the oldest is dropped.

use pointsman_component::Digest;
use pointsman_core::{Micros, Strike};

use super::PolicyHost;
use super::chain::Arm;
use super::event::PolicyEventKind;
use super::status::Quarantined;
use crate::host::BindError;
use crate::policy::PolicySource;

/// The cause for which a policy is on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The policy faulted too often.
    Faulted,
    /// The policy was rolled back, by its probation or by order.
    RolledBack,
}

impl PolicyHost {
    /// The policies that are not added again, oldest first.
    pub fn quarantined(&self) -> impl Iterator<Item = &Quarantined> {
        self.quarantine.iter()
    }

    /// The policies on the list that were rolled back.
    pub fn rolled_back(&self) -> impl Iterator<Item = &Quarantined> {
        let listed = self.quarantined();
        listed.filter(|entry| entry.cause == Cause::RolledBack)
    }

    /// Restores entries that an earlier run of the server stored.
    pub fn restore_quarantine(&mut self, entries: impl IntoIterator<Item = Quarantined>) {
        for entry in entries {
            self.note_quarantined(entry);
        }
    }

    /// Removes the policy with `fingerprint` from the list; returns whether it was there.
    pub fn release(&mut self, fingerprint: Digest) -> bool {
        let before = self.quarantine.len();
        self.quarantine
            .retain(|entry| entry.fingerprint != fingerprint);
        self.quarantine.len() < before
    }

    fn note_quarantined(&mut self, entry: Quarantined) {
        self.release(entry.fingerprint);
        let max = usize::try_from(self.shared.patience.quarantine_max).unwrap_or(usize::MAX);
        if self.quarantine.len() >= max {
            self.quarantine.pop_front();
        }
        self.quarantine.push_back(entry);
    }

    /// Puts `policy` on the list, while it is still a member.
    pub(super) fn note_quarantined_as(
        &mut self,
        now: Micros,
        policy: u32,
        cause: Cause,
        detail: &str,
    ) {
        let Some(member) = self.members.get(&policy) else {
            return;
        };
        let entry = Quarantined {
            fingerprint: member.runner.source.fingerprint(),
            limits: Some(*member.runner.source.limits()),
            digest: member.runner.source.digest(),
            name: member.runner.name().to_owned(),
            at: now,
            cause,
            detail: detail.to_owned(),
        };
        self.note_quarantined(entry);
    }

    /// Acts on the last call to `policy`: ends its probation, or drops it if it has faulted too
    /// often. `detail` describes its last fault.
    pub(super) fn settle(&mut self, now: Micros, policy: u32, detail: &str) {
        self.judge(now, policy, detail);
        let faults_max = usize::try_from(self.shared.patience.faults_max).unwrap_or(usize::MAX);
        let Some(member) = self.members.get(&policy) else {
            return;
        };
        let faults = member.runner.faults();
        if faults < faults_max {
            return;
        }
        self.note_quarantined_as(now, policy, Cause::Faulted, detail);
        let kind = PolicyEventKind::Quarantined { faults };
        self.shared.events.push(now, policy, kind);
        self.close_after(now, policy);
        self.remove(now, policy);
    }

    /// Strikes the policy that answers, because a liveness bound ran out. A policy that is down is
    /// not struck again: it has not been asked since.
    pub(super) fn strike(&mut self, strike: &Strike, arm: Arm) {
        let Strike {
            at: now,
            hook,
            clock,
            request: _,
        } = *strike;
        let Some(policy) = self.askable(hook).iter(arm).next() else {
            return;
        };
        let Some(member) = self.members.get_mut(&policy) else {
            return;
        };
        if member.runner.down_until().is_some() {
            return;
        }
        member.strike(now, &mut self.shared);
        let name = member.runner.name().to_owned();
        let kind = PolicyEventKind::Struck { hook, clock };
        self.shared.events.push(now, policy, kind);
        let (hook, clock) = (hook.as_str(), clock.as_str());
        let detail = format!("{name} let a bound run out at {hook}: {clock}");
        self.settle(now, policy, &detail);
    }

    pub(super) fn is_listed(&self, source: &PolicySource) -> bool {
        let mut listed = self.quarantine.iter();
        listed.any(|entry| entry.keeps_out(source))
    }

    /// Refuses a policy on the list. A shadow that has ended is a member and may be on it.
    pub(super) fn check_listed(&self, policy: u32) -> Result<(), BindError> {
        let member = self.members.get(&policy);
        match member.map(|member| &member.runner.source) {
            Some(source) if self.is_listed(source) => {
                Err(BindError::Quarantined(source.fingerprint()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
