//! A canary: a policy whose answers count for a share of the tenants.
//!
//! Which tenants these are follows from their names alone: the same ones after a restart and on
//! another host, and those of a smaller share are among those of a larger one. Where the canary
//! fails, the policy in force answers for them too.
//!
//! # Invariants
//! 1. Each request is asked about by one of the two, and the later one knows what became of the
//!    requests before it (`tests/tests/canary.rs`).
//! 2. The tenants of a share are among those of any larger one (`tests/tests/canary.rs`).
//!
//! See `host/docs/adr/0009-shadows-elsewhere-canaries-by-tenant.md`.

use pointsman_core::rows::NameKind;
use pointsman_core::{Hook, HookSet, Micros, RequestId, View};

use crate::component::Digest;
use crate::host::chain::Arm;
use crate::host::member::Tenure;
use crate::host::{BindError, PolicyHost};
use crate::mode::{Mode, Percent};

/// A policy that is tried on a share of the tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Which policy.
    pub policy: u32,
    /// The share.
    pub share: Percent,
}

impl Canary {
    /// Whether the tenant of this name is among those who try it.
    #[must_use]
    pub fn has(&self, tenant: &str) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = Digest::of(tenant.as_bytes()).0;
        let place = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        // A hundred slices of all the places there are, the first `share` of which are its own.
        (u128::from(place) * 100) >> 64 < u128::from(self.share.of_hundred())
    }

    fn arm_of(&self, view: &View<'_>, request: RequestId) -> Arm {
        let row = view.request(request);
        let name = row.and_then(|row| view.name(NameKind::Tenant, row.tenant.0));
        match name {
            Some(name) if self.has(name) => Arm::Canary,
            Some(_) | None => Arm::Steady,
        }
    }
}

impl PolicyHost {
    /// Lets `policy` answer for `share` of the tenants, beside the policy in force for `hooks`, and
    /// in the place of an earlier canary. Where it is in force itself, the one behind it is again.
    /// Call it between two rounds.
    ///
    /// # Errors
    /// If there is no such policy, or it lacks one of the hooks, or a hook's answers are about all
    /// requests at once; then nothing is changed.
    pub fn bind_canary(
        &mut self,
        now: Micros,
        policy: u32,
        hooks: HookSet,
        share: Percent,
    ) -> Result<(), BindError> {
        if let Some(hook) = hooks.iter().find(|hook| !hook.is_by_request()) {
            return Err(BindError::NoCanary(hook));
        }
        self.check_exported(policy, hooks)?;
        self.check_listed(policy)?;
        self.end_shadow(now, policy);
        if let Some(member) = self.members.get_mut(&policy)
            && !hooks.is_empty()
        {
            member.tenure = Tenure::Bound;
        }
        for hook in hooks.iter() {
            self.chains[hook].put_canary(Canary { policy, share });
        }
        self.retire(now);
        Ok(())
    }

    /// Puts `policy` in force for the hooks for which it is a canary or a shadow; those hooks. A
    /// shadow begins with the state of whom it displaces, where that has the same name and state
    /// version, and is told everything at its first question. Call it between two rounds.
    ///
    /// # Errors
    /// If there is no such policy, or it is neither, or it is in quarantine.
    pub fn promote(&mut self, now: Micros, policy: u32) -> Result<HookSet, BindError> {
        self.check_exported(policy, HookSet::EMPTY)?;
        self.check_listed(policy)?;
        let tried = self.tried(policy);
        let hooks = tried.union(self.shadowed(policy));
        if hooks.is_empty() {
            return Err(BindError::NotOnTrial(policy));
        }
        self.end_shadow(now, policy);
        self.hand_over(now, policy, hooks);
        self.bind(now, policy, hooks)?;
        Ok(hooks)
    }

    /// The policy that is tried on a share of the tenants for `hook`.
    #[must_use]
    pub fn canary(&self, hook: Hook) -> Option<Canary> {
        self.chains[hook].canary
    }

    /// The hooks for which `policy` is a canary.
    #[must_use]
    pub fn tried(&self, policy: u32) -> HookSet {
        self.held(|chain| chain.is_tried(policy))
    }

    /// How far the answers of `policy` count.
    #[must_use]
    pub fn mode(&self, policy: u32) -> Option<Mode> {
        self.members.get(&policy)?;
        let mut canaries = self.chains.iter().filter_map(|(_, chain)| chain.canary);
        Some(if !self.shadowed(policy).is_empty() {
            Mode::Shadow
        } else if let Some(canary) = canaries.find(|canary| canary.policy == policy) {
            Mode::Canary(canary.share)
        } else {
            Mode::Enforce
        })
    }

    /// Who answers for requests of which [`Self::run_of`] has made one run.
    pub(super) fn arm(&self, view: &View<'_>, hook: Hook, first: Option<RequestId>) -> Arm {
        match (self.canary(hook), first) {
            (Some(canary), Some(first)) => canary.arm_of(view, first),
            (Some(_) | None, _) => Arm::Steady,
        }
    }

    /// How many of these requests, from the first on, are for the same policy.
    pub(super) fn run_of(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let (Some(canary), Some(first)) = (self.canary(hook), requests.first()) else {
            return requests.len();
        };
        let arm = canary.arm_of(view, *first);
        let same = requests.iter().skip(1);
        1 + same
            .take_while(|id| canary.arm_of(view, **id) == arm)
            .count()
    }
}
