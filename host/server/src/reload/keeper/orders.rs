//! Orders carried out, all the way or not at all.

use pointsman_core::{Hook, HookSet};
use pointsman_policy::{Digest, Mode};

use super::{Ended, PolicyKeeper};
use crate::driver::message::{Commit, CommitError, Stand};
use crate::reload::binding::Place;
use crate::reload::order::{Carried, Order, OrderError, Placed};
use crate::reload::pass::Pass;
use crate::reload::port::PolicyPort;
use crate::reload::report::{Step, Trigger};
use crate::state::{Bound, ModeOrder, Remembered};

/// Orders carried out in one pass; the others are next.
const ORDERS_PER_PASS: usize = 64;

impl<P: PolicyPort> PolicyKeeper<P> {
    /// Carries out what was ordered since the last pass.
    pub(super) fn obey_all(&mut self, pass: &mut Pass) -> Result<(), Ended> {
        for _ in 0..ORDERS_PER_PASS {
            let Ok(Placed { order, answer }) = self.inbox.try_recv() else {
                break;
            };
            pass.cause = Trigger::Order;
            let done = self.obey(order, pass);
            pass.cause = Trigger::Folder;
            let ended = done == Err(OrderError::Ended);
            // Before it is answered, so that whoever then looks sees what came of it.
            self.note(pass.take_done());
            self.publish();
            // Whoever gave it may have left meanwhile.
            drop(answer.send(done.map(|()| self.carried())));
            if ended {
                return Err(Ended);
            }
        }
        Ok(())
    }

    fn carried(&self) -> Carried {
        let holders = self.roster.holders();
        let holder = |hook: &Hook| holders.get(hook).map(|name| (*name).to_owned());
        let holders = Hook::ALL.into_iter().map(|hook| (hook, holder(&hook)));
        Carried {
            holders: holders.collect(),
        }
    }

    fn obey(&mut self, order: Order, pass: &mut Pass) -> Result<(), OrderError> {
        match order {
            Order::Bind { hook, policy: None } => {
                let unbind = |state: &mut Remembered| {
                    state.bindings.remove(&hook);
                };
                self.carry_out_order(unbind, None, pass)
            }
            Order::Bind {
                hook,
                policy: Some(policy),
            } => self.bind(hook, &policy, pass),
            Order::Mode { policy, mode } => self.set_mode(&policy, mode, pass),
            Order::Promote { policy } => self.promote(&policy, pass),
            Order::Rollback { policy } => self.roll_back(&policy, pass),
            Order::Eject { hooks } => {
                let eject = |state: &mut Remembered| {
                    let ejected = hooks.iter().map(|hook| (hook, Bound::Embedded));
                    state.bindings.extend(ejected);
                };
                self.carry_out_order(eject, None, pass)
            }
            Order::Release { fingerprint } => self.release(fingerprint, pass),
        }
    }

    /// Changes what is ordered, and brings that about. Where `wanted` does not come to stand as it
    /// shall, everything is as before.
    fn carry_out_order(
        &mut self,
        change: impl FnOnce(&mut Remembered),
        wanted: Option<(&str, Stand)>,
        pass: &mut Pass,
    ) -> Result<(), OrderError> {
        let before = self.state.remembered().clone();
        self.state.change(change);
        self.reconcile_order(pass)?;
        let Some((name, stand)) = wanted else {
            return Ok(());
        };
        if self.roster.stands(name, stand) {
            return Ok(());
        }
        self.state.change(|state| {
            state.bindings = before.bindings;
            state.modes = before.modes;
        });
        self.reconcile_order(pass)?;
        let refusal = self.roster.get(name).and_then(|it| it.refusal.as_ref());
        Err(match refusal {
            Some(refusal) => OrderError::Failed {
                step: refusal.step,
                why: refusal.why.clone(),
            },
            None => OrderError::Failed {
                step: Step::Bind,
                why: "another policy has it; `pointsman policy status` says who".to_owned(),
            },
        })
    }

    fn reconcile_order(&mut self, pass: &mut Pass) -> Result<(), OrderError> {
        self.reconcile(pass).map_err(|Ended| OrderError::Ended)
    }

    // === Each of them ===

    fn bind(&mut self, hook: Hook, name: &str, pass: &mut Pass) -> Result<(), OrderError> {
        let (mode, hooks) = self.known(name)?;
        if !hooks.contains(hook) {
            let policy = name.to_owned();
            return Err(OrderError::NotExported { policy, hook });
        }
        if mode != Mode::Enforce {
            let policy = name.to_owned();
            return Err(OrderError::NotEnforced { policy, mode });
        }
        let to = Bound::Policy(name.to_owned());
        let bind = |state: &mut Remembered| {
            state.bindings.insert(hook, to);
        };
        let stand = Stand::Enforce([hook].into_iter().collect());
        self.carry_out_order(bind, Some((name, stand)), pass)
    }

    fn set_mode(&mut self, name: &str, mode: Mode, pass: &mut Pass) -> Result<(), OrderError> {
        let (_, hooks) = self.known(name)?;
        let instead_of = self.of_file(name)?;
        let tried: HookSet = hooks.iter().filter(|hook| hook.is_by_request()).collect();
        let stand = match mode {
            Mode::Enforce => None,
            Mode::Shadow => Some(Stand::Shadow(hooks)),
            Mode::Canary(_) if tried.is_empty() => {
                return Err(OrderError::NoCanary(name.to_owned()));
            }
            Mode::Canary(share) => Some(Stand::Canary(tried, share)),
        };
        let order = |state: &mut Remembered| {
            let order = ModeOrder { mode, instead_of };
            state.modes.insert(name.to_owned(), order);
        };
        self.carry_out_order(order, stand.map(|stand| (name, stand)), pass)
    }

    fn promote(&mut self, name: &str, pass: &mut Pass) -> Result<(), OrderError> {
        let (mode, hooks) = self.known(name)?;
        if mode == Mode::Enforce {
            return Err(OrderError::InForce(name.to_owned()));
        }
        let instead_of = self.of_file(name)?;
        let order = |state: &mut Remembered| {
            let mode = Mode::Enforce;
            let order = ModeOrder { mode, instead_of };
            state.modes.insert(name.to_owned(), order);
        };
        // Where the rule does not give it a hook by itself, that is ordered too.
        let mut then = self.state.remembered().clone();
        order(&mut then);
        let bindings = self.roster.bindings(&then);
        let by_rule = bindings.held_by(name, Place::Folder);
        let others = hooks.iter().filter(|hook| !by_rule.contains(*hook));
        let others: Vec<Hook> = others.collect();
        let order = |state: &mut Remembered| {
            order(state);
            for hook in others {
                state.bindings.insert(hook, Bound::Policy(name.to_owned()));
            }
        };
        self.carry_out_order(order, Some((name, Stand::Enforce(hooks))), pass)
    }

    fn roll_back(&mut self, name: &str, pass: &mut Pass) -> Result<(), OrderError> {
        self.known(name)?;
        self.of_file(name)?;
        let standing = self.roster.get(name).and_then(|known| known.serving());
        let is_idle = |stand| matches!(stand, Stand::Enforce(_));
        let number = match standing {
            Some(it) if !it.held.is_empty() || !is_idle(it.stand) => it.number,
            Some(_) | None => return Err(OrderError::Idle(name.to_owned())),
        };
        let why = "rolled back by order".to_owned();
        let commit = Commit {
            roll_back: vec![(number, why)],
            ..Commit::default()
        };
        self.commit_order(commit, pass)?;
        self.reconcile_order(pass)
    }

    fn release(&mut self, fingerprint: Digest, pass: &mut Pass) -> Result<(), OrderError> {
        let mut listed = self.state.remembered().quarantine.iter();
        let entry = listed.find(|entry| entry.fingerprint == fingerprint);
        let digest = entry.ok_or(OrderError::NotQuarantined(fingerprint))?.digest;
        let commit = Commit {
            release: vec![fingerprint],
            ..Commit::default()
        };
        self.commit_order(commit, pass)?;
        for name in self.roster.refused(digest) {
            self.roster.entry(&name).shut = HookSet::EMPTY;
            self.folder.retake(&name);
        }
        let embedded = self.embedded.iter().copied();
        for policy in embedded
            .filter(|policy| Digest::of(policy.wasm) == digest)
            .collect::<Vec<_>>()
        {
            self.roster.entry(policy.name).refusal = None;
            self.take_embedded(policy, pass);
        }
        self.reconcile_order(pass)
    }

    fn commit_order(&mut self, commit: Commit, pass: &mut Pass) -> Result<(), OrderError> {
        match self.port.commit(commit) {
            Ok(committed) => {
                self.heed(committed, None, pass);
                Ok(())
            }
            Err(CommitError::Closed) => Err(OrderError::Ended),
            Err(error @ (CommitError::Bind(_) | CommitError::Install { .. })) => {
                Err(OrderError::Failed {
                    step: Step::Bind,
                    why: error.to_string(),
                })
            }
        }
    }

    // === What they are about ===

    /// How far the answers of a policy count, and what it exports.
    fn known(&self, name: &str) -> Result<(Mode, HookSet), OrderError> {
        let known = self.roster.get(name);
        let version = known.and_then(|known| {
            let mode = known.mode(name, self.state.remembered())?;
            Some((mode, known.current()?.hooks))
        });
        version.ok_or_else(|| OrderError::NoPolicy(name.to_owned()))
    }

    /// What its file says about the mode of a policy.
    fn of_file(&self, name: &str) -> Result<Mode, OrderError> {
        let known = self.roster.get(name);
        let version = known.and_then(|known| known.version(Place::Folder));
        let version = version.ok_or_else(|| OrderError::Embedded(name.to_owned()))?;
        Ok(version.mode)
    }
}
