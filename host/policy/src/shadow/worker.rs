//! The thread of a shadow: it tells its instance the changes, asks it, compares and counts.
//!
//! # Invariants
//! 1. After a fault the instance is dropped, and its successor is told everything before it is
//!    asked ([`Runner`]).
//! 2. A call has the same limits as in force: fuel, epochs, memory ([`pointsman_component::Limits`];
//!    `a_shadow_that_never_returns_is_ended_as_any_call_is_and_quarantined`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use pointsman_component::Fault;
use pointsman_core::rows::Extent;
use pointsman_core::{Hook, Micros, Moment, Relay};

use super::report::{DecisionText, Disagreement};
use super::{InForce, Link, ShadowQuestion};
use crate::compare::{ComparedDecision, DecisionPair, Judged, Likeness, compare, walks_beside};
use crate::host::{DumpedCall, FaultDump};
use crate::patience::Patience;
use crate::runner::{Answered, Output, Runner};

/// The worker's side of a shadow.
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

    /// Works until nobody asks any more or the policy has faulted too often.
    pub(super) fn run(mut self, questions: &Receiver<ShadowQuestion>) {
        while let Ok(put) = questions.recv() {
            if self.link.over.load(Ordering::Acquire) || self.is_spent() {
                return;
            }
            self.work(put);
            // Last, so that nothing is counted any more once nothing is pending.
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

    fn work(&mut self, mut put: ShadowQuestion) {
        if !self.runner.is_up() && put.extent != Extent::Everything {
            // The question was put before the driver learned that a fresh instance must be told
            // everything.
            self.link.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let kinds = self.runner.description.needs.of(put.question.hook());
        self.relay.pass(kinds, put.extent, &mut put.changes);
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

    fn dump(&self, put: &ShadowQuestion, fault: &Fault) -> FaultDump {
        let asked = DumpedCall::Question(put.question.clone());
        FaultDump {
            round: Some(put.at.round),
            ..self.runner.dump((self.number, put.at.now), asked, fault)
        }
    }

    /// Leaves the logged lines and `dump` for the driver to fetch.
    fn leave(&mut self, now: Micros, dump: Option<FaultDump>) {
        let Output {
            lines,
            lines_dropped,
            woken: _,
            briefed: _,
            retired: _,
        } = self.runner.take_output();
        let mut output = self.link.output();
        output.add_log(now, lines, lines_dropped);
        if let Some(dump) = dump {
            output.keep(dump);
        }
        if !output.is_empty() {
            self.link.has_output.store(true, Ordering::Release);
        }
    }

    fn take(&mut self, put: &ShadowQuestion, answered: &Answered) {
        let needs = &self.runner.description.needs;
        self.relay
            .named
            .by_reply(needs, &put.question, &answered.reply);
        let hook = put.question.hook();
        let compared = put.in_force.as_ref().map(|in_force| {
            let walks = walks_beside(&in_force.walks, &answered.reply);
            let one = Judged {
                reply: &in_force.reply,
                walks: &in_force.walks,
            };
            let other = Judged {
                reply: &answered.reply,
                walks: &walks,
            };
            (in_force, compare(&put.question, one, other))
        });
        let mut report = self.link.lock();
        report.answers[hook] += 1;
        report.latency[hook].count(answered.nanos);
        if let Some(fuel) = answered.fuel_in_all() {
            report.fuel[hook].count(fuel);
        }
        let Some((in_force, decisions)) = compared else {
            return;
        };
        for pair in &decisions {
            let reason = text(&in_force.reasons, &pair.in_force);
            report.count(hook, reason.as_deref(), pair);
            if pair.likeness() == Likeness::Different {
                report.example(self.example((put.at, hook), in_force, pair));
            }
        }
    }

    fn example(
        &self,
        (at, hook): (Moment, Hook),
        in_force: &InForce,
        pair: &DecisionPair,
    ) -> Disagreement {
        Disagreement {
            at,
            hook,
            about: pair.about.to_string(),
            in_force: DecisionText {
                policy: in_force.policy,
                choice: pair.in_force.choice.to_string(),
                reason: text(&in_force.reasons, &pair.in_force),
            },
            shadow: DecisionText {
                policy: self.number,
                choice: pair.other.choice.to_string(),
                reason: text(&self.runner.description.reasons, &pair.other),
            },
        }
    }

    /// Counts a fault, and has the next instance told everything.
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

/// The reason of a decision, in the words of the policy that made it.
fn text(reasons: &[String], decision: &ComparedDecision) -> Option<String> {
    let reason = decision.reason?;
    reasons.get(usize::from(reason)).cloned()
}
