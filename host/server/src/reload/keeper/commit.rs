//! From what is to what shall be: plans, made commits.

use std::sync::Arc;

use pointsman_core::Micros;
use pointsman_policy::{BindError, Restored, StartedPolicy};

use super::{Ended, PolicyKeeper};
use crate::driver::message::{Commit, CommitError, Install};
use crate::metrics;
use crate::reload::binding::Bindings;
use crate::reload::pass::Pass;
use crate::reload::port::PolicyPort;
use crate::reload::prepare::{self, Attempt, Failure};
use crate::reload::report::{Outcome, Step};
use crate::reload::roster::{Lost, Plan, Version};
use crate::reload::tell;

/// Why a plan was not carried out.
enum Obstacle {
    /// A version of that policy is of no use.
    Failed(String, Failure),
    /// The host has something else than was believed.
    Mistaken,
    /// The host has ended.
    Ended,
}

impl<P: PolicyPort> PolicyKeeper<P> {
    /// Brings about what the binding rule says.
    pub(super) fn reconcile(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        // Each round that fails does without one more version, and a policy has a few at most.
        for _ in 0..=4 * self.roster.len() {
            let bindings = self.roster.bindings(&self.bound);
            let plan = self.roster.plan(&bindings);
            if plan.is_empty() {
                if bindings.conflicts != self.conflicts {
                    tell::conflicts(&bindings.conflicts);
                    self.conflicts = bindings.conflicts;
                }
                break;
            }
            match self.carry_out(plan, &bindings, pass) {
                Ok(lost) => self.lose(lost, pass),
                Err(Obstacle::Failed(name, failure)) => {
                    let known = self.roster.entry(&name);
                    if let Some(failed) = known.current().cloned() {
                        known.do_without(&failed);
                    }
                    self.refuse(&name, failure, pass);
                }
                Err(Obstacle::Mistaken) => self.ask_host(pass)?,
                Err(Obstacle::Ended) => return Err(Ended),
            }
        }
        Ok(())
    }

    /// Makes `plan` one commit. What the host turns out to have dropped.
    fn carry_out(
        &mut self,
        plan: Plan,
        bindings: &Bindings,
        pass: &mut Pass,
    ) -> Result<Vec<Lost>, Obstacle> {
        let mut versions = Vec::new();
        let mut commit = Commit {
            install: Vec::new(),
            bind: plan.bind,
            remove: plan.remove,
        };
        for install in plan.install {
            let (name, version) = (install.name, install.version);
            let policy = self.ready(&name, &version, pass)?;
            let hooks = install.hooks;
            commit.install.push(Install { policy, hooks });
            versions.push((name, version));
        }
        let mut put: Vec<u32> = commit.bind.iter().map(|(number, _)| *number).collect();
        let committed = self
            .port
            .commit(commit)
            .map_err(|error| obstacle(&error, &versions))?;
        for ((name, version), number) in versions.into_iter().zip(committed.installed) {
            self.roster.stand(&name, number, version);
            put.push(number);
        }
        let serving = self.roster.serving(bindings);
        let is_lost = |number| serving.contains(&number);
        let lost = self.roster.note(&committed.held, is_lost);
        let pause = Micros(committed.pause_micros);
        for (name, standing) in self.roster.standing() {
            if put.contains(&standing.number) {
                pass.attempt(name).digest = Some(standing.version.source.digest());
                pass.finish(name, Outcome::InForce(standing.held), Some(pause));
            }
        }
        let pause = std::time::Duration::from_micros(pause.0);
        self.metrics
            .policy_transaction(metrics::Transaction::Committed { pause });
        // Here, where nobody waits: to free their memories takes its time.
        drop(committed.retired);
        Ok(lost)
    }

    /// An instance of `version` that knows what its predecessor learned and what there is.
    fn ready(
        &self,
        name: &str,
        version: &Arc<Version>,
        pass: &mut Pass,
    ) -> Result<StartedPolicy, Obstacle> {
        let kept = pass.take(name);
        let attempt = pass.attempt(name);
        attempt.digest = Some(version.source.digest());
        let failed = |failure| Obstacle::Failed(name.to_owned(), failure);
        let mut started = match kept {
            Some(ready) if Arc::ptr_eq(&ready.version, version) => ready.started,
            Some(_) | None => prepare::start(version, attempt).map_err(failed)?,
        };
        let restored = self.restore(name, &mut started, attempt);
        attempt.restored = Some(restored.map_err(failed)?);
        let kinds = started.description().feed;
        let briefed = attempt.time(Step::Observe, || {
            let briefing = self.port.brief(kinds)?;
            Some(started.brief(briefing))
        });
        match briefed {
            Some(Ok(())) => Ok(started),
            Some(Err(error)) => Err(failed(Failure::new(Step::Observe, &error))),
            None => Err(Obstacle::Ended),
        }
    }

    /// Offers `started` the state of the newest of `name` that the host has.
    fn restore(
        &self,
        name: &str,
        started: &mut StartedPolicy,
        attempt: &mut Attempt,
    ) -> Result<Restored, Failure> {
        let known = self.roster.get(name);
        let predecessor = known.and_then(|known| known.standing.last());
        let restored = attempt.time(Step::Restore, || {
            let snapshot = predecessor.and_then(|old| self.port.handover(old.number));
            snapshot.map_or(Ok(Restored::Cold), |state| started.restore(&state))
        });
        restored.map_err(|error| Failure::new(Step::Restore, &error))
    }
}

fn obstacle(error: &CommitError, versions: &[(String, Arc<Version>)]) -> Obstacle {
    match error {
        CommitError::Closed => Obstacle::Ended,
        CommitError::Bind(refused) => {
            let is_it = |version: &Version| {
                *refused == BindError::Quarantined(version.source.fingerprint())
            };
            let its = versions.iter().find(|(_, version)| is_it(version));
            its.map_or(Obstacle::Mistaken, |(name, _)| {
                Obstacle::Failed(name.clone(), Failure::new(Step::Bind, error))
            })
        }
    }
}
