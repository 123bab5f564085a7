//! The thread of a shadow: tells, asks, compares and counts.
//!
//! # Invariants
//! 1. An instance that faulted is dropped and its successor told everything before it is asked.
//! 2. A call is bounded as in force: fuel, epochs, memory ([`crate::Limits`];
//!    `a_shadow_that_never_returns_is_ended_as_any_call_is_and_quarantined`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use pointsman_core::rows::Extent;
use pointsman_core::{Hook, Micros, Moment, Relay};

use super::compare::{Compared, Decision, compare};
use super::report::{Disagreement, Said, Same};
use super::{InForce, Link, Put};
use crate::host::{DumpedCall, FaultDump};
use crate::instance::Fault;
use crate::limits::Patience;
use crate::runner::{Answered, Output, Runner};

/// The far side of a shadow.
pub(super) struct Worker {
    number: u32,
    runner: Runner,
    patience: Patience,
    link: Arc<Link>,
    relay: Relay,
}

impl Worker {
    pub(super) fn new(number: u32, runner: Runner, link: Arc<Link>, patience: Patience) -> Self {
        Self {
            number,
            runner,
            patience,
            link,
            relay: Relay::default(),
        }
    }

    /// Works until nobody asks any more, or it has faulted too often.
    pub(super) fn run(mut self, questions: &Receiver<Put>) {
        while let Ok(put) = questions.recv() {
            if self.link.over.load(Ordering::Acquire) || self.is_spent() {
                return;
            }
            self.work(put);
            // Only now, so that nothing is counted any more once nothing waits.
            self.link.pending.fetch_sub(1, Ordering::AcqRel);
            if self.is_spent() {
                return;
            }
        }
    }

    fn is_spent(&self) -> bool {
        let faults = u32::try_from(self.runner.faults());
        faults.map_or(true, |faults| faults >= self.patience.faults_max)
    }

    fn work(&mut self, mut put: Put) {
        if !self.runner.is_up() && put.extent != Extent::Everything {
            // This was put before the driver heard that there is a fresh instance.
            self.link.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.relay.pass(put.extent, &mut put.changes);
        let told = (put.extent, put.changes.as_slice());
        let answered = self.runner.ask_told(told, put.at, &put.question);
        let fault = answered.as_ref().err();
        let dump = fault.map(|fault| self.dump(&put, fault));
        self.leave(put.at.now, dump);
        match answered {
            Ok(answered) => self.take(&put, &answered),
            Err(fault) => self.fault(fault),
        }
    }

    fn dump(&self, put: &Put, fault: &Fault) -> FaultDump {
        let asked = DumpedCall::Question(put.question.clone());
        FaultDump {
            round: Some(put.at.round),
            ..self.runner.dump((self.number, put.at.now), asked, fault)
        }
    }

    /// Leaves what it has logged, and `dump`, for the driver to fetch.
    fn leave(&mut self, now: Micros, dump: Option<FaultDump>) {
        let Output {
            lines,
            lines_dropped,
            woken: _,
            retired: _,
        } = self.runner.take_output();
        let mut left = self.link.left();
        left.add_log(now, lines, lines_dropped);
        if let Some(dump) = dump {
            left.keep(dump);
        }
        if !left.is_empty() {
            self.link.has_left.store(true, Ordering::Release);
        }
    }

    fn take(&mut self, put: &Put, answered: &Answered) {
        self.relay.named.by_reply(&put.question, &answered.reply);
        let hook = put.question.hook();
        let compared = put.in_force.as_ref().map(|in_force| {
            let decisions = compare(&put.question, &in_force.reply, &answered.reply);
            (in_force, decisions)
        });
        let mut report = self.link.lock();
        report.answers[hook] += 1;
        report.latency[hook].count(answered.nanos);
        if let Some(fuel) = answered.fuel {
            report.fuel[hook].count(fuel);
        }
        let Some((in_force, decisions)) = compared else {
            return;
        };
        for decision in &decisions {
            let reason = text(&in_force.reasons, &decision.in_force);
            report.compared(hook, reason.as_deref(), decision.same());
            if decision.same() == Same::No {
                report.example(self.example((put.at, hook), in_force, decision));
            }
        }
    }

    fn example(
        &self,
        (at, hook): (Moment, Hook),
        in_force: &InForce,
        decision: &Compared,
    ) -> Disagreement {
        Disagreement {
            at,
            hook,
            about: decision.about.to_string(),
            in_force: Said {
                policy: in_force.policy,
                choice: decision.in_force.choice.to_string(),
                reason: text(&in_force.reasons, &decision.in_force),
            },
            shadow: Said {
                policy: self.number,
                choice: decision.shadow.choice.to_string(),
                reason: text(&self.runner.description.reasons, &decision.shadow),
            },
        }
    }

    /// Counts a fault. The next instance is told everything.
    fn fault(&mut self, fault: Fault) {
        let mut report = self.link.lock();
        if self.is_spent() {
            let faults = self.runner.faults();
            report.end(&format!("{faults} faults, the last one: {fault}"));
            self.link.over.store(true, Ordering::Release);
        }
        report.fault(fault);
        drop(report);
        self.link.forgot.store(true, Ordering::Release);
    }
}

/// The reason in the words of the policy that gave it.
fn text(reasons: &[String], decision: &Decision) -> Option<String> {
    let reason = decision.reason?;
    reasons.get(usize::from(reason)).cloned()
}
