//! Which policies are shadows, and what they are shown.
//!
//! # Bounds
//! [`SHADOWS_MAX`] shadows, each with a thread of its own.
//!
//! # Not here
//! The thread, and what it compares ([`crate::shadow`]).

use pointsman_core::{HookSet, Micros, Reply};

use super::PolicyHost;
use super::event::PolicyEventKind;
use super::member::{Asking, Shared, Tenure};
use super::quarantine::Cause;
use crate::host::BindError;
use crate::shadow::{Left, Shadow, ShadowReport};

/// Shadows at a time.
const SHADOWS_MAX: usize = 4;

impl PolicyHost {
    /// Lets `policy` answer what is asked of `hooks`, on a thread of its own, and compares: its
    /// answers are never used. It holds no hook any more. Called again, it is shown other hooks,
    /// and goes on counting.
    ///
    /// # Errors
    /// If there is no such policy, it lacks one of the hooks, or is in quarantine; if there are
    /// as many shadows as there may be, or there is no thread for it.
    pub fn bind_shadow(
        &mut self,
        now: Micros,
        policy: u32,
        hooks: HookSet,
    ) -> Result<(), BindError> {
        self.check_exported(policy, hooks)?;
        self.check_listed(policy)?;
        if let Some(shadow) = self.shadows.iter_mut().find(|s| s.number == policy) {
            shadow.hooks = hooks;
            return Ok(());
        }
        if self.shadows.len() >= SHADOWS_MAX {
            return Err(BindError::TooManyShadows(SHADOWS_MAX));
        }
        let patience = self.shared.patience;
        let Some(member) = self.members.get_mut(&policy) else {
            return Err(BindError::Unknown(policy));
        };
        match Shadow::spawn((policy, hooks), member.runner.lend(), patience) {
            Ok(shadow) => self.shadows.push(shadow),
            Err(error) => {
                member.runner.take_back(now);
                return Err(BindError::NoThread(error.to_string()));
            }
        }
        member.tenure = Tenure::Bound;
        member.trial = None;
        for chain in self.chains.values_mut() {
            chain.remove(policy);
        }
        self.retire(now);
        Ok(())
    }

    /// Ends the shadow that `policy` is, if it is one; its thread ends once its call has. It holds
    /// nothing then, and goes as soon as another policy is bound.
    pub fn end_shadow(&mut self, now: Micros, policy: u32) {
        self.hear_shadows();
        let before = self.shadows.len();
        self.shadows.retain(|shadow| shadow.number != policy);
        if self.shadows.len() < before
            && let Some(member) = self.members.get_mut(&policy)
        {
            member.runner.take_back(now);
        }
    }

    /// Fetches what the shadows have logged, and the dumps of their faults.
    pub(super) fn hear_shadows(&mut self) {
        for shadow in &self.shadows {
            if let Some(left) = shadow.take_left() {
                self.shared.hear(shadow.number, left);
            }
        }
    }

    /// The hooks for which `policy` is a shadow.
    #[must_use]
    pub fn shadowed(&self, policy: u32) -> HookSet {
        let shadow = self.shadows.iter().find(|shadow| shadow.number == policy);
        shadow.map_or(HookSet::EMPTY, |shadow| shadow.hooks)
    }

    /// What came of the shadow that `policy` is, so far.
    #[must_use]
    pub fn shadow_report(&self, policy: u32) -> Option<ShadowReport> {
        let shadow = self.shadows.iter().find(|shadow| shadow.number == policy)?;
        Some(shadow.report())
    }

    /// Passes a question on to the shadows of its hook, with the answer in force, if there is one.
    pub(super) fn show(&mut self, asking: &Asking<'_>, answered: Option<(u32, &Reply)>) {
        let hook = asking.question.hook();
        let mut ended = Vec::new();
        for shadow in &mut self.shadows {
            if !shadow.hooks.contains(hook) {
                continue;
            }
            let in_force = answered.map(|(policy, reply)| (policy, reply.clone()));
            let member = answered.and_then(|(policy, _)| self.members.get(&policy));
            let reasons = member.map(|member| member.runner.description.reasons.as_slice());
            if let Some(why) = shadow.put(asking, in_force, reasons.unwrap_or_default()) {
                ended.push((shadow.number, why));
            }
        }
        for (policy, why) in ended {
            self.note_quarantined_as(asking.at.now, policy, Cause::Faulted, &why);
            let kind = PolicyEventKind::ShadowEnded { why };
            self.shared.events.push(asking.at.now, policy, kind);
        }
    }

    /// Gives `policy`, which is about to displace whoever is in force for `hooks`, the state of one
    /// of them, if it has none and one of theirs is its own kind.
    pub(super) fn hand_over(&mut self, now: Micros, policy: u32, hooks: HookSet) {
        for hook in hooks.iter() {
            let Some(old) = self.holder(hook) else {
                continue;
            };
            let snapshot = self.handover(now, old);
            if let (Some(member), Some(snapshot)) = (self.members.get_mut(&policy), snapshot)
                && member.runner.begin_with(snapshot)
            {
                return;
            }
        }
    }
}

impl Shared {
    /// Takes what the shadow `policy` has left.
    fn hear(&mut self, policy: u32, left: Left) {
        self.events
            .log(left.at, policy, left.lines, left.lines_dropped);
        for dump in left.dumps {
            self.dumps.keep(|| dump);
        }
        self.dumps.count_dropped(left.dumps_dropped);
    }
}
