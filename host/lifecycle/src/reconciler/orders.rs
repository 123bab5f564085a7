//! Orders carried out, all the way or not at all.

use pointsman_component::Digest;
use pointsman_interface::{Hook, HookSet};
use pointsman_policy::{Assignment, Commit, Mode};
use pointsman_state::{BoundTo, ModeOrder, Remembered};

use super::Reconciler;
use super::prepare::kept_out;
use crate::binding::Place;
use crate::order::{Order, OrderError};
use crate::port::{HostEnded, PolicyPort};
use crate::report::{ReloadStep, Trigger};
use crate::transactions::Failure;

/// The most orders carried out in one pass; the others are next.
const ORDERS_PER_PASS: usize = 64;

impl<P: PolicyPort> Reconciler<P> {
    /// Carries out the orders since the last pass.
    pub(super) fn obey_all(&mut self) -> Result<(), HostEnded> {
        for _ in 0..ORDERS_PER_PASS {
            let Ok((order, answer)) = self.inbox.try_recv() else {
                break;
            };
            self.transactions.cause = Trigger::Order;
            let done = self.obey(order);
            self.transactions.cause = Trigger::Folder;
            let has_ended = done == Err(OrderError::HostEnded);
            // Before the answer, so that its receiver sees what came of the order.
            self.tell();
            self.publish();
            // The giver of the order may have left meanwhile.
            drop(answer.send(done));
            if has_ended {
                return Err(HostEnded);
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Order) -> Result<(), OrderError> {
        match order {
            Order::Bind { hook, policy: None } => {
                let unbind = |state: &mut Remembered| {
                    state.bindings.remove(&hook);
                };
                self.carry_out_order(unbind)
            }
            Order::Bind {
                hook,
                policy: Some(policy),
            } => self.bind(hook, &policy),
            Order::Mode { policy, mode } => self.set_mode(&policy, mode),
            Order::Promote { policy } => self.promote(&policy),
            Order::Rollback { policy } => self.roll_back(&policy),
            Order::Eject { hooks } => {
                let eject = |state: &mut Remembered| {
                    let ejected = hooks.iter().map(|hook| (hook, BoundTo::Embedded));
                    state.bindings.extend(ejected);
                };
                self.carry_out_order(eject)
            }
            Order::Release { fingerprint } => self.release(fingerprint),
        }
    }

    /// Changes the orders in force, and reconciles.
    fn carry_out_order(&mut self, change: impl FnOnce(&mut Remembered)) -> Result<(), OrderError> {
        self.state.change(change);
        Ok(self.reconcile()?)
    }

    /// Changes the orders in force by one about the policy `name`, and reconciles. If the policy cannot
    /// be put there, or does not get the `wanted` assignment, everything is as before, its version
    /// included.
    fn carry_out_order_about(
        &mut self,
        name: &str,
        wanted: Option<Assignment>,
        change: impl FnOnce(&mut Remembered),
    ) -> Result<(), OrderError> {
        // Versions that can be judged are, so that what fails below is the order.
        self.reconcile()?;
        let before = self.state.remembered().clone();
        self.state.change(change);
        let failure = self.reconcile_for(Some(name))?;
        let has_it = |wanted| self.registry.is_installed(name, wanted);
        if failure.is_none() && wanted.is_none_or(has_it) {
            return Ok(());
        }
        self.state.change(|state| {
            state.bindings = before.bindings;
            state.modes = before.modes;
        });
        if let Some(failure) = &failure {
            self.note_refused(name, failure.clone());
        }
        self.reconcile()?;
        let Failure { step, why } = failure.unwrap_or_else(|| Failure {
            step: ReloadStep::Bind,
            why: "another policy has it; `pointsman policy status` says who".to_owned(),
        });
        Err(OrderError::Failed { step, why })
    }

    // === Each of them ===

    fn bind(&mut self, hook: Hook, name: &str) -> Result<(), OrderError> {
        let policy = name.to_owned();
        let (mode, hooks) = self.known(name)?;
        if !hooks.contains(hook) {
            return Err(OrderError::NotExported { policy, hook });
        }
        if mode != Mode::Enforce {
            return Err(OrderError::NotEnforced { policy, mode });
        }
        let bind = |state: &mut Remembered| {
            state.bindings.insert(hook, BoundTo::Policy(policy));
        };
        let wanted = Assignment::Enforce([hook].into_iter().collect());
        self.carry_out_order_about(name, Some(wanted), bind)
    }

    fn set_mode(&mut self, name: &str, mode: Mode) -> Result<(), OrderError> {
        let (_, hooks) = self.known(name)?;
        let instead_of = self.mode_of_file(name)?;
        self.check_going_on(name)?;
        let checked = mode.check(hooks);
        checked.map_err(|_no_hook| OrderError::NoCanary(name.to_owned()))?;
        let wanted = match mode {
            // The binding rule says which hooks it gets, if any.
            Mode::Enforce => None,
            Mode::Shadow => Some(Assignment::Shadow(hooks)),
            Mode::Canary(share) => {
                let tried = hooks.iter().filter(|hook| hook.is_by_request());
                Some(Assignment::Canary(tried.collect(), share))
            }
        };
        let order = |state: &mut Remembered| {
            let order = ModeOrder { mode, instead_of };
            state.modes.insert(name.to_owned(), order);
        };
        self.carry_out_order_about(name, wanted, order)
    }

    fn promote(&mut self, name: &str) -> Result<(), OrderError> {
        let (mode, hooks) = self.known(name)?;
        if mode == Mode::Enforce {
            return Err(OrderError::InForce(name.to_owned()));
        }
        let instead_of = self.mode_of_file(name)?;
        self.check_going_on(name)?;
        let order = |state: &mut Remembered| {
            let mode = Mode::Enforce;
            let order = ModeOrder { mode, instead_of };
            state.modes.insert(name.to_owned(), order);
        };
        // Where the rule does not give it a hook by itself, that is ordered too.
        let mut then = self.state.remembered().clone();
        order(&mut then);
        let bindings = self.registry.bindings(&then);
        let by_rule = bindings.held_by(name, Place::Folder);
        let others = hooks.iter().filter(|hook| !by_rule.contains(*hook));
        let others: Vec<Hook> = others.collect();
        let order = |state: &mut Remembered| {
            order(state);
            for hook in others {
                let to = BoundTo::Policy(name.to_owned());
                state.bindings.insert(hook, to);
            }
        };
        self.carry_out_order_about(name, Some(Assignment::Enforce(hooks)), order)
    }

    fn roll_back(&mut self, name: &str) -> Result<(), OrderError> {
        self.known(name)?;
        self.mode_of_file(name)?;
        let serving = self.registry.get(name).and_then(|entry| entry.serving());
        let is_tried = |assignment| !matches!(assignment, Assignment::Enforce(_));
        let number = match serving {
            Some(it) if !it.held.is_empty() || is_tried(it.assignment) => it.number,
            Some(_) | None => return Err(OrderError::Idle(name.to_owned())),
        };
        self.commit_order(Commit {
            roll_back: vec![(number, "rolled back by order".to_owned())],
            ..Commit::default()
        })?;
        Ok(self.reconcile()?)
    }

    fn release(&mut self, fingerprint: Digest) -> Result<(), OrderError> {
        let mut listed = self.state.remembered().quarantine.iter();
        let entry = listed.find(|entry| entry.fingerprint == fingerprint);
        let entry = entry.ok_or(OrderError::NotQuarantined(fingerprint))?;
        let digest = entry.digest;
        // A shadow that has ended is asked no more: it makes place for a fresh one.
        let remove = self.registry.ended_shadows(entry);
        self.commit_order(Commit {
            release: vec![fingerprint],
            remove,
            ..Commit::default()
        })?;
        for name in self.registry.refused(digest) {
            let entry = self.registry.entry(&name);
            entry.closed = HookSet::EMPTY;
            // A promotion was of the version that is out, unless an older one has it still: what is
            // released is tried as its file says.
            if entry.version(Place::Folder).is_none() {
                self.state.change(|state| {
                    let order = state.modes.get(&name);
                    if order.is_some_and(|order| order.mode == Mode::Enforce) {
                        state.modes.remove(&name);
                        let to = BoundTo::Policy(name.clone());
                        state.bindings.retain(|_, bound| *bound != to);
                    }
                });
            }
            self.folder.retake(&name);
        }
        for policy in self.embedded.clone() {
            if Digest::of(policy.wasm) == digest {
                self.registry.entry(policy.name).refusal = None;
                self.take_embedded(policy);
            }
        }
        Ok(self.reconcile()?)
    }

    fn commit_order(&mut self, commit: Commit) -> Result<(), OrderError> {
        match self.port.commit(commit)? {
            Ok(committed) => {
                self.heed(committed, None);
                Ok(())
            }
            Err(error) => Err(OrderError::Failed {
                step: ReloadStep::Bind,
                why: error.to_string(),
            }),
        }
    }

    // === The policies they are about ===

    /// The mode of a policy, and the policy's hooks.
    fn known(&self, name: &str) -> Result<(Mode, HookSet), OrderError> {
        let entry = self.registry.get(name);
        let known = entry.and_then(|entry| {
            let mode = entry.mode(name, self.state.remembered())?;
            Some((mode, entry.current()?.hooks))
        });
        known.ok_or_else(|| self.unknown(name))
    }

    /// The reason why no order can be about `name`: its only version is refused, or there is none.
    fn unknown(&self, name: &str) -> OrderError {
        let entry = self.registry.get(name);
        let Some(refusal) = entry.and_then(|entry| entry.refusal.as_ref()) else {
            return OrderError::NoPolicy(name.to_owned());
        };
        let mut quarantine = self.state.remembered().quarantine.iter().rev();
        let listed = quarantine.find(|it| it.name == name && Some(it.digest) == refusal.digest);
        // A version that is kept out was in force. What is refused for another reason is no version.
        let listed = listed.filter(|_| refusal.step == ReloadStep::Serve);
        let (step, why) = match listed.map(kept_out) {
            Some(Failure { step, why }) => (step, why),
            None => (refusal.step, refusal.why.clone()),
        };
        OrderError::Failed { step, why }
    }

    /// The mode of a policy as its file says it.
    fn mode_of_file(&self, name: &str) -> Result<Mode, OrderError> {
        let entry = self.registry.get(name);
        let version = entry.and_then(|entry| entry.version(Place::Folder));
        let is_refused = entry.is_some_and(|entry| entry.refusal.is_some());
        match version {
            Some(version) => Ok(version.mode),
            None if is_refused => Err(self.unknown(name)),
            None => Err(OrderError::Embedded(name.to_owned())),
        }
    }

    /// Refuses a shadow that its faults have ended. The host still has it, so that nothing would change.
    fn check_going_on(&self, name: &str) -> Result<(), OrderError> {
        let serving = self.registry.get(name).and_then(|entry| entry.serving());
        let shadow = serving.filter(|it| matches!(it.assignment, Assignment::Shadow(_)));
        match shadow.and_then(|it| self.in_quarantine(&it.version)) {
            Some(Failure { step, why }) => Err(OrderError::Failed { step, why }),
            None => Ok(()),
        }
    }
}

impl From<HostEnded> for OrderError {
    fn from(HostEnded: HostEnded) -> Self {
        Self::HostEnded
    }
}
