//! The list of policies that are not added again, and how they get on it.
//!
//! # Invariants
//! 1. A policy on the list holds no hook, and is not added before it is released
//!    (`too_many_faults_in_the_window_put_a_policy_in_quarantine`,
//!    `what_was_rolled_back_is_not_added_again_before_it_is_released`).
//!
//! # Bounds
//! [`crate::Patience::quarantine_max`] entries; past it the oldest is forgotten.

use pointsman_core::{Micros, Strike};

use super::PolicyHost;
use super::chain::Arm;
use super::event::PolicyEventKind;
use super::status::Quarantined;
use crate::component::Digest;
use crate::host::BindError;

/// Why a policy is on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It faulted too often.
    Faulted,
    /// It was rolled back: it did not stand its probation, or somebody said so.
    RolledBack,
}

impl PolicyHost {
    /// Policies that are not added again, oldest first.
    pub fn quarantined(&self) -> impl Iterator<Item = &Quarantined> {
        self.quarantine.iter()
    }

    /// Those of them that were rolled back.
    pub fn rolled_back(&self) -> impl Iterator<Item = &Quarantined> {
        let listed = self.quarantined();
        listed.filter(|entry| entry.cause == Cause::RolledBack)
    }

    /// Puts entries back that an earlier run wrote down.
    pub fn restore_quarantine(&mut self, entries: impl IntoIterator<Item = Quarantined>) {
        for entry in entries {
            self.note_quarantined(entry);
        }
    }

    /// Lets the policy with `fingerprint` be added again; whether it was on the list.
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

    /// Puts `policy`, which is still a member, on the list.
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
            digest: member.runner.source.digest(),
            name: member.runner.description.name.clone(),
            at: now,
            cause,
            detail: detail.to_owned(),
        };
        self.note_quarantined(entry);
    }

    /// Draws the consequences of what `policy` just did: ends its probation, or takes it out of
    /// everything if it has faulted too often. `detail` tells of its last fault.
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
        self.shut_after(now, policy);
        self.remove(now, policy);
    }

    /// Under whoever answers a liveness bound ran out. One that is down already is not struck
    /// again: it has not been asked since.
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
        let kind = PolicyEventKind::Struck { hook, clock };
        self.shared.events.push(now, policy, kind);
        let detail = format!("let a bound run out at {}: {clock:?}", hook.as_str());
        self.settle(now, policy, &detail);
    }

    pub(super) fn is_listed(&self, fingerprint: Digest) -> bool {
        let mut listed = self.quarantine.iter();
        listed.any(|entry| entry.fingerprint == fingerprint)
    }

    /// What is still a member may be on the list: a shadow that has ended.
    pub(super) fn check_listed(&self, policy: u32) -> Result<(), BindError> {
        let member = self.members.get(&policy);
        match member.map(|member| member.runner.source.fingerprint()) {
            Some(fingerprint) if self.is_listed(fingerprint) => {
                Err(BindError::Quarantined(fingerprint))
            }
            Some(_) | None => Ok(()),
        }
    }
}
