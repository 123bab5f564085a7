//! Canaries: policies whose answers count for a share of the tenants.
//!
//! A tenant's name alone decides whether it belongs to a share: the same tenants do after a restart
//! and on another host, and a larger share contains a smaller one. Where the canary fails, the
//! policy in force answers for its tenants too.
//!
//! # Invariants
//! 1. Each request is asked about by one of the two policies, and the one that is asked later knows
//!    the outcome of the earlier requests (`tests/tests/canary.rs`).
//! 2. The tenants of a share are among those of any larger one (`tests/tests/canary.rs`).
//!
//! See `host/docs/adr/0009-shadows-elsewhere-canaries-by-tenant.md`.

use pointsman_core::rows::NameKind;
use pointsman_core::{Hook, HookSet, Micros, RequestId, View};

use crate::component::Digest;
use crate::host::chain::Arm;
use crate::host::{BindError, PolicyHost};
use crate::mode::{Mode, Percent};

/// A policy that a share of the tenants tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Number of the policy.
    pub policy: u32,
    /// Share of the tenants.
    pub share: Percent,
}

impl Canary {
    /// True if the tenant with this name tries the canary.
    #[must_use]
    pub fn has(&self, tenant: &str) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = Digest::of(tenant.as_bytes()).0;
        let place = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        // A hundred slices of the places there are; the first `share` of them are the canary's.
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
    /// in place of an earlier canary. Where `policy` itself is in force, the policy behind it takes
    /// over. Call it between two rounds.
    ///
    /// # Errors
    /// If there is no such policy, or it lacks one of the hooks, or a hook's answers are about all
    /// requests at once; then nothing changes.
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
            member.was_bound = true;
        }
        for hook in hooks.iter() {
            self.chains[hook].put_canary(Canary { policy, share });
        }
        self.retire(now);
        Ok(())
    }

    /// Puts `policy` in force for the hooks for which it is a canary or a shadow, and returns these
    /// hooks. A shadow starts with the state of the policy that it displaces, if that has the same
    /// name and state version, and is told everything at its first question. Call it between two
    /// rounds.
    ///
    /// # Errors
    /// If there is no such policy, or it is neither canary nor shadow, or it is in quarantine.
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

    /// The canary of `hook`.
    #[must_use]
    pub fn canary(&self, hook: Hook) -> Option<Canary> {
        self.chains[hook].canary
    }

    /// The hooks for which `policy` is a canary.
    #[must_use]
    pub fn tried(&self, policy: u32) -> HookSet {
        self.held(|chain| chain.is_tried(policy))
    }

    /// The mode of `policy`.
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

    /// The arm that answers about requests of which [`Self::run_of`] made one run.
    pub(super) fn arm(&self, view: &View<'_>, hook: Hook, first: Option<RequestId>) -> Arm {
        match (self.canary(hook), first) {
            (Some(canary), Some(first)) => canary.arm_of(view, first),
            (Some(_) | None, _) => Arm::Steady,
        }
    }

    /// Number of requests, from the first on, that the same policy is asked about.
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
