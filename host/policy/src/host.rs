//! The policies of one host: the chain of each hook, the order of asking, and fallbacks.
//!
//! The core's machine asks the [`PolicyHost`]. For each hook it holds the policy in force and the
//! one that this displaced; where neither answers, the core's built-in rule decides. A policy is
//! told what changed, then asked. After a fault its instance is dropped, and the next policy in line
//! answers until the back-off is over and a fresh instance is there that knows what there is
//! ([`Restarts`]). A swap is cheap, since [`crate::start`] has done the slow part elsewhere.
//!
//! # Invariants
//! 1. A question has exactly one answer or none, and a fault is reported with the answer to the
//!    question that it happened at (`host::tests`).
//! 2. Policy numbers are never reused.
//!
//! # Determinism
//! Nothing here reads a clock: back-off and windows use the `now` of the questions.
//!
//! # Not here
//! The choice of a file for a hook (the server), and the check of an answer (the core).

mod ask;
mod canary;
mod chain;
mod closed;
mod commit;
mod dump;
mod eject;
mod event;
mod log_pace;
pub(crate) mod member;
mod probation;
mod quarantine;
mod rebound;
mod record;
mod rehearse;
mod retired;
mod shadow;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use pointsman_component::{Digest, PolicyDescription};
use pointsman_core::{Hook, HookMap, HookSet, Micros};

use crate::patience::Patience;
use crate::policy::Snapshot;
use crate::runner::{Restarts, Runner};
use crate::shadow::Shadow;
pub use canary::{Canary, CanaryCounts};
use chain::Chain;
pub use closed::{CannotClose, OnFailure};
pub use commit::{Assignment, Commit, CommitError, Committed, Install};
use dump::Dumps;
pub use dump::{DumpedCall, FaultDump, MirrorDigest};
use event::Events;
pub use event::{PolicyEvent, PolicyEventKind};
use member::{Member, Shared};
use probation::Trial;
pub use probation::{Probation, ProbationProgress, RollbackWhy};
pub use quarantine::Cause;
use rebound::Answerers;
pub use record::{AnswerCost, Began, BriefedElsewhere, LastAsked};
use retired::GoneNames;
pub use retired::Retired;
pub use status::{PolicyStats, PolicyStatus, Quarantined};

/// The policies of one host.
pub struct PolicyHost {
    members: BTreeMap<u32, Member>,
    chains: HookMap<Chain>,
    /// The answerers of each hook when [`Self::take_rebound`] was last called.
    answered: HookMap<Answerers>,
    quarantine: VecDeque<Quarantined>,
    on_failure: HookMap<OnFailure>,
    /// The embedded default of each hook.
    defaults: HookMap<Option<u32>>,
    shadows: Vec<Shadow>,
    /// Hooks that nobody answers for before another policy is bound.
    closed: HookSet,
    shared: Shared,
    next_number: u32,
    gone: GoneNames,
}

/// A reason why a policy was not added, bound or swapped in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The policy faulted too often or was rolled back, with the same settings and limits.
    #[error("policy with fingerprint {0} is in quarantine")]
    Quarantined(Digest),
    /// No policy has this number, or it was retired.
    #[error("no policy {0}")]
    Unknown(u32),
    /// The policy does not export the hook.
    #[error("policy does not export {}", .0.as_str())]
    NotExported(Hook),
    /// Every number has been used.
    #[error("no policy number left")]
    NumbersExhausted,
    /// The hook's answers are about all requests at once, so no share of the tenants can try a
    /// policy.
    #[error("{} cannot be tried by a share of the tenants: it is about all requests at once", .0.as_str())]
    NoCanary(Hook),
    /// The policy is neither canary nor shadow.
    #[error("policy {0} is neither canary nor shadow")]
    NotOnTrial(u32),
    /// The largest number of shadows is reached.
    #[error("there are {0} shadows, end one first")]
    TooManyShadows(usize),
    /// The thread of a shadow could not be started.
    #[error("no thread for the shadow: {0}")]
    NoThread(String),
}

impl PolicyHost {
    /// Makes a host without policies.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self {
            members: BTreeMap::new(),
            chains: HookMap::default(),
            answered: HookMap::default(),
            quarantine: VecDeque::new(),
            on_failure: HookMap::default(),
            closed: HookSet::EMPTY,
            defaults: HookMap::default(),
            shadows: Vec::new(),
            shared: Shared {
                patience,
                restarts: Restarts::AtTheQuestion,
                events: Events::new(patience.events_max),
                dumps: Dumps::default(),
                retired: Retired::default(),
                last: LastAsked::default(),
            },
            next_number: 0,
            gone: GoneNames::default(),
        }
    }

    /// Has fresh instances of the policies that are added from now on made as `restarts` says.
    #[must_use]
    pub fn with_restarts(mut self, restarts: Restarts) -> Self {
        self.shared.restarts = restarts;
        self
    }

    // === Binding ===

    /// Adds a policy and returns its number. It holds no hook yet.
    ///
    /// # Errors
    /// If the policy is in quarantine.
    pub fn add(&mut self, policy: Runner) -> Result<u32, BindError> {
        if self.is_listed(&policy.source) {
            return Err(BindError::Quarantined(policy.source.fingerprint()));
        }
        let number = self.next_number;
        self.next_number = number.checked_add(1).ok_or(BindError::NumbersExhausted)?;
        let member = Member::new(number, policy, &self.shared);
        self.members.insert(number, member);
        Ok(number)
    }

    /// Puts `policy` in force for `hooks`, and the policies that it displaces behind it. Call it
    /// between two rounds.
    ///
    /// # Errors
    /// If there is no such policy, or it lacks one of the hooks; then nothing changes.
    pub fn bind(&mut self, now: Micros, policy: u32, hooks: HookSet) -> Result<(), BindError> {
        self.check_exported(policy, hooks)?;
        if !hooks.is_empty() {
            self.put(now, policy, hooks);
            self.retire(now);
        }
        Ok(())
    }

    /// Puts `policy`, if it is there, in force for `hooks`, which it exports. Policies that lose their last
    /// hook by this are members until [`Self::retire`] is called.
    fn put(&mut self, now: Micros, policy: u32, hooks: HookSet) {
        let member = self.members.get_mut(&policy);
        let Some(member) = member.filter(|_| !hooks.is_empty()) else {
            return;
        };
        member.was_bound = true;
        self.end_shadow(now, policy);
        for hook in hooks.iter() {
            self.chains[hook].put(policy);
            self.closed.remove(hook);
        }
    }

    /// Puts `new` in force for each hook of `old` that it exports, and `old` behind it. For the
    /// other hooks the policy behind `old` takes over. Returns the hooks that `new` got.
    ///
    /// # Errors
    /// If there is no such policy; then nothing changes.
    pub fn swap(&mut self, now: Micros, old: u32, new: u32) -> Result<HookSet, BindError> {
        let held = self.in_force(old);
        if !self.members.contains_key(&old) {
            return Err(BindError::Unknown(old));
        }
        let member = self.members.get(&new).ok_or(BindError::Unknown(new))?;
        let (taken, left): (Vec<Hook>, Vec<Hook>) = held
            .iter()
            .partition(|hook| member.runner.hooks.contains(*hook));
        let (taken, left) = (HookSet::from_iter(taken), HookSet::from_iter(left));
        for hook in left.iter() {
            self.chains[hook].remove(old);
        }
        self.bind(now, new, taken)?;
        if let Some(member) = self.members.get_mut(&new) {
            member.gave_up = Some((old, left));
        }
        Ok(taken)
    }

    /// Takes all hooks from `policy` and drops it.
    pub fn remove(&mut self, now: Micros, policy: u32) {
        for chain in self.chains.values_mut() {
            chain.remove(policy);
        }
        self.drop_member(now, policy);
    }

    fn drop_member(&mut self, now: Micros, policy: u32) {
        self.end_shadow(now, policy);
        let Some(mut member) = self.members.remove(&policy) else {
            return;
        };
        member.end_log(&mut self.shared, now);
        for default in self.defaults.values_mut() {
            default.take_if(|number| *number == policy);
        }
        self.gone.put(policy, member.runner.name());
        self.shared.retired.put_member(member);
        let kind = PolicyEventKind::Retired;
        self.shared.events.push(now, policy, kind);
    }

    /// Drops the policies that lost their last hook and are neither default nor shadow.
    fn retire(&mut self, now: Micros) {
        let idle: Vec<u32> = self
            .members
            .values()
            .filter(|member| {
                let number = member.number;
                member.was_bound
                    && !self.chains.iter().any(|(_, chain)| chain.holds(number))
                    && !self.is_default(number)
                    && !self.shadows.iter().any(|shadow| shadow.number == number)
            })
            .map(|member| member.number)
            .collect();
        for policy in idle {
            self.drop_member(now, policy);
        }
    }

    fn check_exported(&self, policy: u32, hooks: HookSet) -> Result<(), BindError> {
        let member = self.members.get(&policy);
        let member = member.ok_or(BindError::Unknown(policy))?;
        check_exports(&member.runner, hooks)
    }

    /// Takes a snapshot of `policy`, and returns it, or else the last one, for [`Runner::restore`]
    /// of its successor.
    pub fn handover(&mut self, now: Micros, policy: u32) -> Option<Snapshot> {
        let member = self.members.get_mut(&policy)?;
        let fault = member.save(&mut self.shared, now);
        let snapshot = member.runner.snapshot();
        self.settle(now, policy, &fault.unwrap_or_default());
        snapshot
    }

    // === Outputs ===

    /// Returns the oldest event that was not polled.
    pub fn poll_event(&mut self) -> Option<PolicyEvent> {
        self.fetch_shadow_output();
        self.shared.events.pop()
    }

    /// Number of events that were dropped because nobody polled.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        self.shared.events.dropped()
    }

    /// The status of all policies, by number.
    pub fn status(&self) -> impl Iterator<Item = PolicyStatus> {
        self.members.values().map(|member| PolicyStatus {
            number: member.number,
            name: member.runner.name().to_owned(),
            description: member.runner.description.clone(),
            digest: member.runner.digest(),
            fingerprint: member.runner.source.fingerprint(),
            hooks: member.runner.hooks,
            in_force: self.in_force(member.number),
            behind: self.held(|chain| chain.behind == Some(member.number)),
            mode: self.mode(member.number).unwrap_or_default(),
            on_trial: self
                .tried(member.number)
                .union(self.shadowed(member.number)),
            probation: member.trial.as_ref().map(Trial::progress),
            down_until: member.runner.down_until(),
            counters: member.runner.counters(),
            stats: member.stats.clone(),
        })
    }

    /// The policy in force for `hook`.
    #[must_use]
    pub fn holder(&self, hook: Hook) -> Option<u32> {
        self.chains[hook].in_force
    }

    /// The hooks for which `policy` is in force.
    #[must_use]
    pub fn in_force(&self, policy: u32) -> HookSet {
        self.held(|chain| chain.in_force == Some(policy))
    }

    fn held(&self, by: impl Fn(&Chain) -> bool) -> HookSet {
        let held = self.chains.iter().filter(|(_, chain)| by(chain));
        held.map(|(hook, _)| hook).collect()
    }

    /// The numbers of all policies, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// The hooks that a policy exports.
    #[must_use]
    pub fn hooks(&self, policy: u32) -> Option<HookSet> {
        Some(self.runner(policy)?.hooks)
    }

    /// The name by which the operator knows a policy. One that was dropped a short time ago still has
    /// its name: what it did is told afterwards.
    #[must_use]
    pub fn name(&self, policy: u32) -> Option<&str> {
        let runner = self.runner(policy);
        let name = runner.map(Runner::name);
        name.or_else(|| self.gone.get(policy))
    }

    /// A policy's description of itself.
    #[must_use]
    pub fn description(&self, policy: u32) -> Option<&PolicyDescription> {
        Some(&self.runner(policy)?.description)
    }

    /// The text of a reason that an answer of `policy` gave.
    #[must_use]
    pub fn reason(&self, policy: u32, reason: u16) -> Option<&str> {
        self.description(policy)?.reason(reason)
    }
}

impl fmt::Debug for PolicyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyHost")
            .field("policies", &self.members.keys())
            .field("chains", &self.chains)
            .field("quarantine", &self.quarantine)
            .finish_non_exhaustive()
    }
}

/// Refuses hooks of which `policy` lacks one.
fn check_exports(policy: &Runner, hooks: HookSet) -> Result<(), BindError> {
    match hooks.iter().find(|hook| !policy.hooks.contains(*hook)) {
        Some(missing) => Err(BindError::NotExported(missing)),
        None => Ok(()),
    }
}
