//! One policy of the host: its runner, its counters and its record.
//!
//! # Invariants
//! 1. A policy is not asked before its back-off is over (`host::tests`).

use pointsman_component::{Fault, LogLine};
use pointsman_core as core;
use pointsman_core::{FaultKind, Hook, HookSet, Micros, Moment, PolicyFault, Refusal, Reply};

use crate::host::chain::Arm;
use crate::host::dump::{DumpedCall, Dumps, FaultDump, MirrorDigest};
use crate::host::event::{Events, PolicyEventKind};
use crate::host::log_pace::LogPace;
use crate::host::probation::{Booked, Record, Trial};
use crate::host::record::{AnswerCost, Began, LastAsked};
use crate::host::retired::Retired;
use crate::host::status::PolicyStats;
use crate::patience::Patience;
use crate::runner::{Answered, Output, Restarts, Rows, Runner, Saved};

/// A question on its way down a chain.
pub(crate) struct Asking<'a> {
    pub(crate) question: &'a core::Question<'a>,
    pub(crate) at: Moment,
    pub(crate) rows: &'a dyn Rows,
    pub(crate) arm: Arm,
}

/// State that all policies of a host share.
pub(crate) struct Shared {
    pub(crate) patience: Patience,
    pub(crate) restarts: Restarts,
    pub(crate) events: Events,
    pub(crate) dumps: Dumps,
    pub(crate) retired: Retired,
    /// Results of the current or last question.
    pub(crate) last: LastAsked,
}

/// A policy of the host.
pub(crate) struct Member {
    pub(crate) number: u32,
    pub(crate) runner: Runner,
    pub(crate) stats: PolicyStats,
    /// Fuel and refusals, with which a successor is compared.
    pub(crate) record: Record,
    /// The probation, while the policy is on it.
    pub(crate) trial: Option<Trial>,
    /// The policy that this one displaced, and its hooks that this one did not take.
    pub(crate) gave_up: Option<(u32, HookSet)>,
    /// Questions until the next snapshot.
    until_save: u32,
    log_pace: LogPace,
    /// True once it has held a hook.
    pub(crate) was_bound: bool,
}

impl Member {
    pub(crate) fn new(number: u32, mut runner: Runner, shared: &Shared) -> Self {
        runner.join_host(shared.patience, shared.restarts);
        Self {
            number,
            runner,
            stats: PolicyStats::default(),
            record: Record::default(),
            trial: None,
            gave_up: None,
            until_save: shared.patience.snapshot_every,
            log_pace: LogPace::default(),
            was_bound: false,
        }
    }

    /// True while it is too early to ask it.
    pub(crate) fn rests(&mut self, shared: &mut Shared, asking: &Asking<'_>) -> bool {
        let rests = self.runner.rests(asking.at.now, asking.rows);
        if rests {
            self.pass_on(shared, asking.at.now);
        }
        rests
    }

    /// Tells the policy what has changed, then asks it. Call it only if it does not rest.
    pub(crate) fn ask(
        &mut self,
        shared: &mut Shared,
        asking: &Asking<'_>,
    ) -> Result<Reply, PolicyFault> {
        if let Some(reply) = self.runner.spare(asking.question) {
            return Ok(reply);
        }
        let now = asking.at.now;
        let answered = self
            .runner
            .ask_with(asking.rows, asking.at, asking.question);
        self.pass_on(shared, now);
        match answered {
            Ok(answered) => {
                shared.last.cost = Some(AnswerCost {
                    policy: self.number,
                    fuel: answered.fuel_in_all(),
                    nanos: answered.nanos,
                });
                Ok(self.book(asking, answered))
            }
            Err(fault) => {
                shared.dumps.keep(|| {
                    let kinds = self.runner.description.needs.decided();
                    let asked = DumpedCall::Question(asking.question.clone().into_owned());
                    FaultDump {
                        round: Some(asking.at.round),
                        mirror: Some(MirrorDigest::of_rows(asking.rows, kinds)),
                        ..self.runner.dump((self.number, now), asked, &fault)
                    }
                });
                self.note_fault(&fault);
                Err(PolicyFault {
                    policy: self.number,
                    kind: fault.kind,
                    detail: fault.detail(),
                })
            }
        }
    }

    /// Passes on the results of calls besides their answers.
    fn pass_on(&mut self, shared: &mut Shared, now: Micros) {
        let Output {
            woken,
            briefed,
            lines,
            lines_dropped,
            retired,
        } = self.runner.take_output();
        if let Some(woken) = woken {
            shared.last.began.push(Began {
                policy: self.number,
                generation: woken.generation,
                state: woken.state,
                was_briefed: woken.was_briefed,
            });
            let kind = PolicyEventKind::Restarted {
                generation: woken.generation,
                restored: woken.restored,
            };
            shared.events.push(now, self.number, kind);
        }
        let briefed = briefed.map(|briefed| (self.number, briefed));
        shared.last.briefed.extend(briefed);
        self.log(shared, now, (lines, lines_dropped));
        for instance in retired {
            shared.retired.put_instance(instance);
        }
    }

    /// Passes on the lines that the policy logged, at its pace, and the number of dropped ones.
    pub(super) fn log(
        &mut self,
        shared: &mut Shared,
        now: Micros,
        (mut lines, dropped): (Vec<LogLine>, u64),
    ) {
        let dropped = self.log_pace.pass(now, &mut lines, dropped);
        shared.events.log(now, self.number, lines, dropped);
    }

    /// Passes on the number of dropped lines that was not told yet, before the policy goes.
    pub(super) fn end_log(&mut self, shared: &mut Shared, now: Micros) {
        let dropped = self.log_pace.take_untold();
        shared.events.log(now, self.number, Vec::new(), dropped);
    }

    /// Counts an answered question.
    fn book(&mut self, asking: &Asking<'_>, answered: Answered) -> Reply {
        let fuel_in_all = answered.fuel_in_all();
        let Answered {
            reply,
            fuel,
            told_fuel,
            nanos,
        } = answered;
        let hook = asking.question.hook();
        self.stats.answers[hook] += 1;
        self.stats.latency[hook].count(nanos);
        if let Some(fuel) = fuel_in_all {
            self.stats.fuel[hook].count(fuel);
        }
        let booked = Booked {
            hook,
            rows: u64::try_from(asking.question.rows()).unwrap_or(u64::MAX),
            fuel,
            told_fuel,
        };
        self.record.book(booked);
        if let Some(trial) = &mut self.trial {
            trial.book(booked);
        }
        reply
    }

    /// Counts a refusal by the interlock.
    pub(crate) fn count_refusal(&mut self, hook: Hook, refusal: &Refusal) {
        self.stats.refusals[hook] += 1;
        self.stats.refusal_last = Some(*refusal);
        let rows = self.record.book_refusal(hook, refusal);
        if let Some(trial) = &mut self.trial {
            trial.book_refusal(rows);
        }
    }

    /// Counts a fault, and keeps it for operators.
    fn note_fault(&mut self, fault: &Fault) {
        self.count_fault(fault.kind);
        self.stats.fault_last = Some(fault.clone());
    }

    fn count_fault(&mut self, kind: FaultKind) {
        *self.stats.faults.entry(kind).or_default() += 1;
        if let Some(trial) = &mut self.trial {
            trial.book_fault();
        }
    }

    /// Counts a strike as a fault, and drops the instance: its state is not trusted any more. The
    /// next instance is told everything.
    pub(crate) fn strike(&mut self, now: Micros, shared: &mut Shared) {
        self.runner.back_off(now);
        self.count_fault(FaultKind::Struck);
        self.pass_on(shared, now);
    }

    /// Replaces the instance by a fresh one, which is offered `state`. [`Restarts`] says when it is made.
    pub(crate) fn restart(&mut self, state: Option<Vec<u8>>, now: Micros, shared: &mut Shared) {
        self.runner.restart(state, now);
        self.pass_on(shared, now);
    }

    /// Tells the policy what it has not been told yet, saves its state, and forgets what it was
    /// told.
    pub(crate) fn renew(
        &mut self,
        shared: &mut Shared,
        rows: &dyn Rows,
        now: Micros,
    ) -> Result<(), Fault> {
        if self.runner.down_until().is_some() {
            self.runner.forget_told();
            // The next instance may have been told elsewhere what came before.
            self.runner.remake();
            return Ok(());
        }
        if let Err(fault) = self.runner.catch_up(rows, now) {
            self.note_fault(&fault);
            self.pass_on(shared, now);
            return Err(fault);
        }
        self.save(shared, now);
        self.runner.forget_told();
        Ok(())
    }

    /// Counts an answered question, and saves the state when it is time. Returns the fault at that,
    /// in one line.
    pub(crate) fn save_in_turn(&mut self, shared: &mut Shared, now: Micros) -> Option<String> {
        self.until_save = self.until_save.saturating_sub(1);
        if self.until_save > 0 {
            return None;
        }
        self.until_save = shared.patience.snapshot_every;
        self.save(shared, now)
    }

    /// Saves the state, unless that has ended. Returns the fault at that, in one line.
    pub(crate) fn save(&mut self, shared: &mut Shared, now: Micros) -> Option<String> {
        let (why, fault) = match self.runner.save(now) {
            Ok(Saved::Skipped | Saved::Kept) => return None,
            Ok(Saved::TooLarge(bytes)) => {
                let max = self.runner.source.limits().snapshot_bytes;
                (format!("{bytes} bytes, {max} are allowed"), None)
            }
            Err(fault) => {
                let kind = PolicyEventKind::Faulted(fault.clone());
                shared.events.push(now, self.number, kind);
                let who = (self.number, now);
                shared
                    .dumps
                    .keep(|| self.runner.dump(who, DumpedCall::Snapshot, &fault));
                self.note_fault(&fault);
                self.pass_on(shared, now);
                (fault.to_string(), Some(fault.to_string()))
            }
        };
        let kind = PolicyEventKind::SnapshotsEnded { why };
        shared.events.push(now, self.number, kind);
        fault
    }
}
