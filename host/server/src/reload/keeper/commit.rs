//! From what is to what shall be: plans, made commits.

use pointsman_core::Micros;
use pointsman_policy::{Restored, Runner};

use super::{Ended, PolicyKeeper};
use crate::driver::message::{Commit, CommitError, Committed, Install, Stand};
use crate::metrics;
use crate::reload::attempt::{Attempt, Failure};
use crate::reload::binding::Bindings;
use crate::reload::pass::Pass;
use crate::reload::port::PolicyPort;
use crate::reload::prepare;
use crate::reload::report::{Outcome, Step};
use crate::reload::roster::{Origin, Plan, Wanted};
use crate::reload::tell;

/// Why a plan was not carried out.
enum Obstacle {
    /// A version of a policy is of no use.
    Failed(Wanted, Failure),
    /// The host has something else than was believed.
    Mistaken,
    /// The host has ended.
    Ended,
}

impl<P: PolicyPort> PolicyKeeper<P> {
    /// Brings about what the binding rule says.
    pub(super) fn reconcile(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        self.present_made(pass);
        // Each round that fails does without one more version, and a policy has a few at most.
        for _ in 0..=4 * self.roster.len() {
            let bindings = self.roster.bindings(self.state.remembered());
            let plan = self.roster.plan(&bindings);
            if plan.is_empty() {
                if bindings.conflicts != self.conflicts {
                    tell::conflicts(&bindings.conflicts);
                    self.conflicts = bindings.conflicts;
                }
                break;
            }
            match self.carry_out(plan, &bindings, pass) {
                Ok(()) => {}
                Err(Obstacle::Failed(wanted, failure)) => {
                    self.refuse_version(&wanted.name, &wanted.version, failure, pass);
                }
                Err(Obstacle::Mistaken) => {
                    self.ask_host(pass)?;
                }
                Err(Obstacle::Ended) => return Err(Ended),
            }
        }
        Ok(())
    }

    /// Makes `plan` one commit.
    fn carry_out(
        &mut self,
        plan: Plan,
        bindings: &Bindings,
        pass: &mut Pass,
    ) -> Result<(), Obstacle> {
        let mut commit = Commit {
            bind: plan.bind,
            remove: plan.remove,
            eject: plan.eject,
            on_failure: plan.on_failure,
            shut: plan.shut,
            ..Commit::default()
        };
        let mut installs = Vec::new();
        for wanted in plan.install {
            match self.ready(&wanted, pass) {
                Ok(policy) => commit.install.push(Install {
                    policy,
                    stand: wanted.stand,
                    default_of: wanted.default_of,
                    probation: self.is_to_be_proven(&wanted).then_some(self.probation),
                }),
                Err(Some(failure)) => return Err(Obstacle::Failed(wanted, failure)),
                Err(None) => return Err(Obstacle::Ended),
            }
            installs.push(wanted);
        }
        let put: Vec<u32> = commit.bind.iter().map(|(number, _)| *number).collect();
        let on_failure = commit.on_failure;
        let committed = match self.port.commit(commit) {
            Ok(committed) => committed,
            Err(error) => return Err(obstacle(error, installs)),
        };
        if let Some(on_failure) = on_failure {
            self.roster.note_on_failure(on_failure);
        }
        self.settle(committed, (installs, put), bindings, pass);
        Ok(())
    }

    /// The commit was made: what was installed and `put` stands now.
    fn settle(
        &mut self,
        mut committed: Committed,
        (installs, mut put): (Vec<Wanted>, Vec<u32>),
        bindings: &Bindings,
        pass: &mut Pass,
    ) {
        let pause = Micros(committed.pause_micros);
        let installed = std::mem::take(&mut committed.installed);
        for (wanted, number) in installs.into_iter().zip(installed) {
            self.roster.stand(number, wanted);
            put.push(number);
        }
        let serving = self.roster.serving(bindings);
        // Before anybody is called proven or lost: what was just put there has its own record.
        let held = committed.held.clone();
        let on_probation = committed.on_probation.clone();
        self.roster.note_probation(&on_probation, &put);
        self.heed(committed, Some(&serving), pass);
        for (name, standing) in self.roster.standing() {
            if put.contains(&standing.number) && held.iter().any(|it| it.0 == standing.number) {
                let outcome = match standing.stand {
                    Stand::Enforce(_) if standing.held.is_empty() => Outcome::Idle,
                    Stand::Enforce(_) => Outcome::InForce(standing.held),
                    Stand::Canary(hooks, share) => Outcome::Canary(hooks, share),
                    Stand::Shadow(hooks) => Outcome::Shadow(hooks),
                };
                pass.attempt(name).digest = Some(standing.version.source.digest());
                pass.finish(name, outcome, Some(pause));
            }
        }
        let pause = std::time::Duration::from_micros(pause.0);
        self.metrics
            .policy_transaction(metrics::Transaction::Committed { pause });
    }

    /// Whether it has yet to prove itself. What an earlier life of the server saw proven has not.
    fn is_to_be_proven(&self, wanted: &Wanted) -> bool {
        let version = &wanted.version;
        let answers_count = match wanted.stand {
            Stand::Enforce(hooks) => !hooks.is_empty(),
            Stand::Canary(..) | Stand::Shadow(_) => false,
        };
        let is_new = match version.origin {
            Origin::File(_) => {
                let good = self.state.remembered().good.get(&wanted.name);
                good.is_none_or(|good| {
                    good.digest != version.source.digest() || good.sidecar != version.sidecar
                })
            }
            Origin::Embedded | Origin::Kept(_) => false,
        };
        answers_count && is_new
    }

    // === Handing over ===

    /// An instance of what is wanted that knows what its predecessor learned and what there is.
    /// Without a failure: the host has ended.
    fn ready(&self, wanted: &Wanted, pass: &mut Pass) -> Result<Runner, Option<Failure>> {
        let Wanted { name, version, .. } = wanted;
        let kept = pass.take(name);
        let attempt = pass.attempt(name);
        attempt.digest = Some(version.source.digest());
        let mut started = match kept {
            Some(ready) if ready.version.is_same(version) => ready.started,
            Some(_) | None => prepare::start(version, attempt)?,
        };
        attempt.restored = Some(self.restore(wanted, &mut started, attempt)?);
        let kinds = started.description().feed;
        let briefed = attempt.time(Step::Observe, || {
            let briefing = self.port.brief(kinds)?;
            Some(started.brief(briefing))
        });
        match briefed {
            Some(Ok(())) => Ok(started),
            Some(Err(error)) => Err(Some(Failure::new(Step::Observe, &error))),
            None => Err(None),
        }
    }

    /// Offers `started` the state of the newest of its name that the host has, or else of whom it
    /// will displace.
    fn restore(
        &self,
        wanted: &Wanted,
        started: &mut Runner,
        attempt: &mut Attempt,
    ) -> Result<Restored, Failure> {
        let (Stand::Enforce(hooks) | Stand::Canary(hooks, _) | Stand::Shadow(hooks)) = wanted.stand;
        let predecessor = self.roster.predecessor(&wanted.name, hooks);
        let restored = attempt.time(Step::Restore, || {
            let snapshot = predecessor.and_then(|old| self.port.handover(old));
            snapshot.map_or(Ok(Restored::Cold), |state| started.restore(&state))
        });
        restored.map_err(|error| Failure::new(Step::Restore, &error))
    }
}

fn obstacle(error: CommitError, mut installs: Vec<Wanted>) -> Obstacle {
    let failure = Failure::new(Step::Bind, &error);
    match error {
        CommitError::Closed => Obstacle::Ended,
        CommitError::Bind(_) => Obstacle::Mistaken,
        CommitError::Install { at, .. } if at < installs.len() => {
            Obstacle::Failed(installs.swap_remove(at), failure)
        }
        CommitError::Install { .. } => Obstacle::Mistaken,
    }
}
