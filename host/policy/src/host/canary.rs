//! Canaries: policies whose answers count for a share of the tenants, of the sessions, or of the requests.
//!
//! A tenant's name or a session's key alone decides whether it belongs to a share: the same do after a
//! restart and on another host, and a larger share contains a smaller one. Where the canary fails, the
//! policy in force answers for its share too.
//!
//! # Invariants
//! 1. Each request is asked about by one of the two policies, and the one that is asked later knows
//!    the outcome of the earlier requests (`tests/tests/policies/canary.rs`).
//! 2. The tenants of a share are among those of any larger one (`tests/tests/policies/canary.rs`).
//!
//! See `host/docs/adr/0009-shadows-elsewhere-canaries-by-tenant.md`.

use pointsman_component::Digest;
use pointsman_core::rows::{NameKind, Request};
use pointsman_core::{Hook, HookSet, Micros, RequestId, View};

use crate::host::chain::Arm;
use crate::host::{BindError, PolicyHost};
use crate::mode::{CanaryShare, CanaryUnit, Mode};

/// A policy that a share of what is decided tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Number of the policy.
    pub policy: u32,
    /// Its share.
    pub share: CanaryShare,
}

/// The numbers of requests that a canary's hooks were asked about, each as often as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanaryCounts {
    /// Requests in the canary's share.
    pub tried: u64,
    /// Requests outside it.
    pub others: u64,
}

impl CanaryCounts {
    /// True if nothing was counted.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Canary {
    /// True if the tenant, session or request of this name, in bytes, tries the canary.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = Digest::of(name).0;
        let place = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        // A hundred slices of the places there are; the first `share` of them are the canary's.
        (u128::from(place) * 100) >> 64 < u128::from(self.share.percent.of_hundred())
    }

    fn arm_of(&self, view: &View<'_>, request: RequestId) -> Arm {
        let row = view.request(request);
        if row.is_some_and(|row| self.has_request(view, row)) {
            Arm::Canary
        } else {
            Arm::Steady
        }
    }

    /// True if a request tries the canary.
    pub(super) fn has_request(&self, view: &View<'_>, request: &Request) -> bool {
        let itself = || self.has(&request.id.0.to_be_bytes());
        match self.share.of {
            CanaryUnit::Tenants => {
                let name = view.name(NameKind::Tenant, request.tenant.0);
                name.is_some_and(|name| self.has(name.as_bytes()))
            }
            CanaryUnit::Sessions => match request.session {
                Some(session) => self.has(&session.0.to_be_bytes()),
                None => itself(),
            },
            CanaryUnit::Requests => itself(),
        }
    }
}

impl PolicyHost {
    /// Lets `policy` answer for its `share`, beside the policy in force for `hooks`, and
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
        share: CanaryShare,
    ) -> Result<(), BindError> {
        check_by_request(hooks)?;
        self.check_exported(policy, hooks)?;
        self.check_listed(policy)?;
        self.put_canary(now, Canary { policy, share }, hooks);
        self.retire(now);
        Ok(())
    }

    /// Lets a policy, if it is there, be the canary for `hooks`, which it exports. Policies that lose their
    /// last hook by this are members until [`Self::retire`] is called.
    pub(super) fn put_canary(&mut self, now: Micros, canary: Canary, hooks: HookSet) {
        let Some(member) = self.members.get_mut(&canary.policy) else {
            return;
        };
        member.was_bound |= !hooks.is_empty();
        self.end_shadow(now, canary.policy);
        for hook in hooks.iter() {
            self.chains[hook].put_canary(canary);
        }
    }

    /// Puts `policy` in force for the hooks for which it is a canary or a shadow, and returns these
    /// hooks. A shadow starts with the state of the policy that it displaces, if that has the same
    /// name and state version, and is told everything before it is asked. Call it between two
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

    /// Counts the requests of a question for the canary of its hook, if it has one.
    pub(super) fn count_for_canary(&mut self, hook: Hook, arm: Arm, requests: usize) {
        let canary = self.canary(hook).map(|canary| canary.policy);
        let member = canary.and_then(|number| self.members.get_mut(&number));
        let Some(counts) = member.map(|member| &mut member.stats.canary) else {
            return;
        };
        let requests = u64::try_from(requests).unwrap_or(u64::MAX);
        match arm {
            Arm::Canary => counts.tried = counts.tried.saturating_add(requests),
            Arm::Steady => counts.others = counts.others.saturating_add(requests),
        }
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

/// Refuses hooks at which no canary can be asked.
pub(super) fn check_by_request(hooks: HookSet) -> Result<(), BindError> {
    match hooks.iter().find(|hook| !hook.is_by_request()) {
        Some(hook) => Err(BindError::NoCanary(hook)),
        None => Ok(()),
    }
}
