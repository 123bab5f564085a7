//! The shadows of a host, and the questions that they are passed.
//!
//! # Bounds
//! [`SHADOWS_MAX`] shadows that have not ended, each with a thread of its own. Within a commit those
//! that go run beside those that take their places.
//!
//! # Not here
//! The thread of a shadow, and the comparison ([`crate::shadow`]).

use pointsman_core::{HookSet, Micros, Reply};

use super::PolicyHost;
use super::event::PolicyEventKind;
use super::member::{Asking, Member, Shared};
use super::quarantine::Cause;
use crate::host::BindError;
use crate::shadow::{Shadow, ShadowOutput, ShadowReport};

/// Largest number of shadows at a time.
pub(super) const SHADOWS_MAX: usize = 4;

impl PolicyHost {
    /// Makes `policy` a shadow for `hooks`: it answers the same questions on a thread of its own,
    /// and its answers are only compared. It holds no hook any more. For a shadow this changes its
    /// hooks, and its counters go on.
    ///
    /// # Errors
    /// If there is no such policy, it lacks one of the hooks, or it is in quarantine; if there are
    /// too many shadows, or the thread cannot be started.
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
        if self.shadow_places(&[]) == 0 {
            return Err(BindError::TooManyShadows(SHADOWS_MAX));
        }
        self.begin_shadow(now, policy, hooks)?;
        self.retire(now);
        Ok(())
    }

    /// The number of shadows for which there is a place, once those `leaving` have gone.
    pub(super) fn shadow_places(&self, leaving: &[u32]) -> usize {
        let taken = self
            .shadows
            .iter()
            .filter(|shadow| !shadow.has_ended() && !leaving.contains(&shadow.number));
        SHADOWS_MAX.saturating_sub(taken.count())
    }

    /// Makes `policy` a shadow, for which there is a place. It stays a member without any other hook.
    pub(super) fn begin_shadow(
        &mut self,
        now: Micros,
        policy: u32,
        hooks: HookSet,
    ) -> Result<(), BindError> {
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
        member.was_bound = true;
        member.trial = None;
        for chain in self.chains.values_mut() {
            chain.remove(policy);
        }
        Ok(())
    }

    /// Ends the shadow `policy`; its thread ends after its current call. The policy holds nothing
    /// then, and is dropped as soon as another one is bound.
    pub fn end_shadow(&mut self, now: Micros, policy: u32) {
        self.fetch_shadow_output();
        let before = self.shadows.len();
        self.shadows.retain(|shadow| shadow.number != policy);
        if self.shadows.len() < before
            && let Some(member) = self.members.get_mut(&policy)
        {
            member.runner.take_back(now);
        }
    }

    /// Fetches the log lines and fault dumps of all shadows.
    pub(super) fn fetch_shadow_output(&mut self) {
        for shadow in &self.shadows {
            if let Some(member) = self.members.get_mut(&shadow.number)
                && let Some(output) = shadow.take_output()
            {
                member.take_output(&mut self.shared, output);
            }
        }
    }

    /// The hooks for which `policy` is a shadow.
    #[must_use]
    pub fn shadowed(&self, policy: u32) -> HookSet {
        let shadow = self.shadows.iter().find(|shadow| shadow.number == policy);
        shadow.map_or(HookSet::EMPTY, |shadow| shadow.hooks)
    }

    /// The report of the shadow `policy` so far.
    #[must_use]
    pub fn shadow_report(&self, policy: u32) -> Option<ShadowReport> {
        let shadow = self.shadows.iter().find(|shadow| shadow.number == policy)?;
        Some(shadow.report())
    }

    /// Passes a question on to the shadows of its hook, with the answer in force, if there is one.
    pub(super) fn show(&mut self, asking: &Asking<'_>, answered: Option<(u32, &Reply)>) {
        let hook = asking.question.hook();
        if !self
            .shadows
            .iter()
            .any(|shadow| shadow.hooks.contains(hook))
        {
            return;
        }
        let walks = answered.map(|(_, reply)| asking.rows.walks(asking.question, reply));
        let mut ended = Vec::new();
        for shadow in &mut self.shadows {
            if !shadow.hooks.contains(hook) {
                continue;
            }
            let in_force = answered.zip(walks.clone());
            let in_force = in_force.map(|((policy, reply), walks)| (policy, reply.clone(), walks));
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

    /// Gives `policy`, which is about to displace the policies in force for `hooks`, the state of
    /// one of them, if it has none and one of them is of the same kind.
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

impl Member {
    /// Takes over the log lines and fault dumps of the policy as a shadow.
    fn take_output(&mut self, shared: &mut Shared, output: ShadowOutput) {
        self.log(shared, output.at, (output.lines, output.lines_dropped));
        for dump in output.dumps {
            shared.dumps.keep(|| dump);
        }
        shared.dumps.count_dropped(output.dumps_dropped);
    }
}
