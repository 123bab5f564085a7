//! From the present policies to the wanted ones: plans, made commits.

use std::sync::Arc;

use pointsman_interface::Hook;
use pointsman_policy::{Assignment, CommitError, Committed, Install, Restored, Runner};

use super::Reconciler;
use crate::binding::{Bindings, Place};
use crate::port::{HostEnded, PolicyPort};
use crate::preparer;
use crate::registry::{Origin, Plan, Version, Wanted};
use crate::report::{ReloadStep, TransactionOutcome};
use crate::tell;
use crate::transactions::Failure;

/// A version of a policy that could not be put in force, and the reason.
#[derive(Debug)]
struct Unfit {
    name: String,
    version: Arc<Version>,
    failure: Failure,
}

impl<P: PolicyPort> Reconciler<P> {
    /// Judges the changes that are ready, puts the answer of the binding rule in force, and does without the
    /// versions that cannot be.
    pub(super) fn reconcile(&mut self) -> Result<(), HostEnded> {
        self.take_changes();
        self.reconcile_for(None).map(drop)
    }

    /// Puts the answer of the binding rule in force, as an order about the policy `ordered` makes it.
    /// Where that policy's version cannot be put there, the order is at fault, and not the version:
    /// returns the reason then, and leaves everything to the caller.
    pub(super) fn reconcile_for(
        &mut self,
        ordered: Option<&str>,
    ) -> Result<Option<Failure>, HostEnded> {
        // Each round that fails does without one more version, and a policy has a few at most.
        for _ in 0..=4 * self.registry.len() {
            let bindings = self.registry.bindings(self.state.remembered());
            let plan = self.registry.plan(&bindings);
            if plan.is_empty() {
                self.remember_holders(&bindings);
                if bindings.conflicts != self.conflicts {
                    tell::conflicts(&bindings.conflicts);
                    self.conflicts = bindings.conflicts;
                }
                break;
            }
            let Some(unfit) = self.carry_out(plan, &bindings)? else {
                continue;
            };
            if ordered == Some(unfit.name.as_str()) {
                return Ok(Some(unfit.failure));
            }
            self.refuse_version(&unfit.name, &unfit.version, unfit.failure);
        }
        Ok(None)
    }

    /// Remembers the files that hold and try a hook, for the next life of the server. A hook that
    /// several claim and none holds stays with the one that had it.
    fn remember_holders(&mut self, bindings: &Bindings) {
        self.state.change(|state| {
            for hook in Hook::ALL {
                match bindings.holders.get(&hook) {
                    Some(holder) if holder.place == Place::Folder => {
                        state.holders.insert(hook, holder.name.clone());
                    }
                    Some(_) | None => {}
                }
                let mut trials = bindings.trials.iter();
                let tries = trials.find(|(_, trial)| match trial {
                    Assignment::Canary(hooks, _) => hooks.contains(hook),
                    Assignment::Enforce(_) | Assignment::Shadow(_) => false,
                });
                if let Some((name, _)) = tries {
                    state.canaries.insert(hook, name.clone());
                }
            }
        });
    }

    /// Makes `plan` one commit, or returns a version with which that cannot be done.
    fn carry_out(&mut self, plan: Plan, bindings: &Bindings) -> Result<Option<Unfit>, HostEnded> {
        let Plan {
            mut commit,
            install,
        } = plan;
        for wanted in &install {
            match self.instance(wanted)? {
                Ok(policy) => {
                    commit.install.push(Install {
                        policy,
                        assignment: wanted.assignment,
                        default_of: wanted.default_of,
                        probation: self.has_to_prove_itself(wanted).then_some(self.probation),
                    });
                }
                Err(failure) => return Ok(Some(Unfit::new(wanted, failure))),
            }
        }
        let put: Vec<u32> = commit.bind.iter().map(|(number, _)| *number).collect();
        let on_failure = commit.on_failure;
        match self.port.commit(commit)? {
            Ok(committed) => {
                self.registry.on_failure = on_failure.unwrap_or(self.registry.on_failure);
                self.settle(committed, (install, put), bindings);
                Ok(None)
            }
            Err(error) => self.heed_refusal(&error, &install),
        }
    }

    /// Takes note of a refused commit: a version cannot be put in force, and is returned, or the host
    /// has other policies than was believed.
    fn heed_refusal(
        &mut self,
        error: &CommitError,
        install: &[Wanted],
    ) -> Result<Option<Unfit>, HostEnded> {
        if let CommitError::Install { at, .. } = error
            && let Some(wanted) = install.get(*at)
        {
            let failure = Failure::new(ReloadStep::Bind, error);
            return Ok(Some(Unfit::new(wanted, failure)));
        }
        self.ask_host()?;
        Ok(None)
    }

    /// Takes note of the commit, which installed versions and `put` others elsewhere.
    fn settle(
        &mut self,
        mut committed: Committed,
        (install, mut put): (Vec<Wanted>, Vec<u32>),
        bindings: &Bindings,
    ) {
        let pause = committed.pause;
        let installed = std::mem::take(&mut committed.installed);
        for (wanted, number) in install.into_iter().zip(installed) {
            self.registry.install(number, wanted);
            put.push(number);
        }
        let serving = self.registry.serving(bindings);
        // Before a version is called proven or lost: what was just put there has its own record.
        let held = committed.held.clone();
        self.registry.begin_probation(&committed.on_probation, &put);
        self.heed(committed, Some(&serving));
        for (name, installed) in self.registry.installed() {
            if put.contains(&installed.number) && held.iter().any(|it| it.0 == installed.number) {
                let outcome = match installed.assignment {
                    Assignment::Enforce(_) if installed.held.is_empty() => {
                        let why = bindings.idle_because(name);
                        TransactionOutcome::Idle { why }
                    }
                    Assignment::Enforce(_) => TransactionOutcome::InForce(installed.held),
                    Assignment::Canary(hooks, share) => TransactionOutcome::Canary(hooks, share),
                    Assignment::Shadow(hooks) => TransactionOutcome::Shadow(hooks),
                };
                let digest = installed.version.source.digest();
                self.transactions.attempt(name).digest = Some(digest);
                self.transactions.end(name, outcome, Some(pause));
            }
        }
        self.port.count_committed(pause);
    }

    /// True if `wanted` has yet to prove itself, unlike a version that an earlier life of the
    /// server saw proven.
    fn has_to_prove_itself(&self, wanted: &Wanted) -> bool {
        let version = &wanted.version;
        let answers_count = match wanted.assignment {
            Assignment::Enforce(hooks) => !hooks.is_empty(),
            Assignment::Canary(..) | Assignment::Shadow(_) => false,
        };
        let is_new = match version.origin {
            Origin::File(_) => {
                let remembered = self.state.remembered();
                remembered.last_good.get(&wanted.name) != Some(&version.as_last_good())
            }
            Origin::Embedded | Origin::LastGood(_) => false,
        };
        answers_count && is_new
    }

    // === Handing over ===

    /// An instance of `wanted` that has its predecessor's state and has been told the machine's
    /// rows; or the step at which it fails.
    fn instance(&mut self, wanted: &Wanted) -> Result<Result<Runner, Failure>, HostEnded> {
        let mut started = match self.successor(wanted) {
            Ok(started) => started,
            Err(failure) => return Ok(Err(failure)),
        };
        let needs = started.description().needs;
        let attempt = self.transactions.attempt(&wanted.name);
        let port = &self.port;
        let briefed = attempt.time(ReloadStep::Observe, || {
            let briefing = port.brief(needs)?;
            Ok(started.brief(briefing))
        })?;
        let briefed = briefed.map_err(|error| Failure::new(ReloadStep::Observe, &error));
        Ok(briefed.map(|()| started))
    }

    /// An instance of `wanted` that has its predecessor's state.
    fn successor(&mut self, wanted: &Wanted) -> Result<Runner, Failure> {
        let Wanted { name, version, .. } = wanted;
        let started = self.registry.take_started(name, version);
        let prepared = started.map(|(attempt, prepared)| {
            self.transactions.resume(name, attempt);
            prepared.started
        });
        let attempt = self.transactions.attempt(name);
        attempt.digest = Some(version.source.digest());
        let mut started = match prepared {
            Some(started) => started,
            None => preparer::start(version, attempt)?,
        };
        let predecessor = self.registry.predecessor(name, wanted.assignment.hooks());
        let port = &self.port;
        let restored = attempt.time(ReloadStep::Restore, || {
            let snapshot = predecessor.and_then(|old| port.handover(old));
            snapshot.map_or(Ok(Restored::Cold), |state| started.restore(&state))
        });
        let restored = restored.map_err(|error| Failure::new(ReloadStep::Restore, &error))?;
        attempt.restored = Some(restored);
        Ok(started)
    }
}

// === impl Unfit ===

impl Unfit {
    fn new(wanted: &Wanted, failure: Failure) -> Self {
        Self {
            name: wanted.name.clone(),
            version: Arc::clone(&wanted.version),
            failure,
        }
    }
}
