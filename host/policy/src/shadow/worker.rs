//! The thread of a shadow: tells, asks, compares and counts.
//!
//! # Invariants
//! 1. An instance that faulted is dropped and its successor told everything before it is asked.
//! 2. A call is bounded as in force: fuel, epochs, memory ([`crate::Limits`];
//!    `a_shadow_that_never_returns_is_ended_as_any_call_is_and_quarantined`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use pointsman_core::rows::Extent;
use pointsman_core::{Hook, Micros, Moment, Relay, Reply};

use super::compare::{Compared, Decision, compare};
use super::report::{Disagreement, Said, Same};
use super::{InForce, Link, Put};
use crate::host::member::Member;
use crate::host::{Culprit, DumpedCall, FaultDump};
use crate::instance::{Fault, Instance, PolicyDescription};
use crate::limits::Patience;
use crate::policy::{PolicySource, observe_all};
use crate::stats::Stopwatch;

/// The far side of a shadow.
pub(super) struct Worker {
    number: u32,
    source: PolicySource,
    description: PolicyDescription,
    patience: Patience,
    link: Arc<Link>,
    instance: Option<Box<dyn Instance>>,
    /// Instances so far.
    generation: u32,
    relay: Relay,
    /// Whether it has been told everything.
    knows: Knows,
    /// When it faulted, within the window.
    faults: VecDeque<Micros>,
}

/// What an instance has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    Nothing,
    AllThereIs,
}

/// What came of a question.
struct Answered {
    reply: Reply,
    fuel: Option<u64>,
    nanos: u64,
}

impl Worker {
    pub(super) fn new(
        member: &Member,
        instance: Option<Box<dyn Instance>>,
        link: Arc<Link>,
        patience: Patience,
    ) -> Self {
        Self {
            number: member.number,
            source: member.source.clone(),
            description: member.description.clone(),
            patience,
            link,
            generation: u32::from(instance.is_some()),
            instance,
            relay: Relay::default(),
            knows: Knows::Nothing,
            faults: VecDeque::new(),
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
        u32::try_from(self.faults.len()).map_or(true, |faults| faults >= self.patience.faults_max)
    }

    fn work(&mut self, mut put: Put) {
        if self.knows == Knows::Nothing && put.extent != Extent::Everything {
            // This was put before the driver heard that there is a fresh instance.
            self.link.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.relay.pass(put.extent, &mut put.changes);
        let answered = self.ask(&put);
        let fault = answered.as_ref().err();
        let dump = fault.map(|fault| self.dump(&put, fault));
        self.leave(put.at.now, dump);
        match answered {
            Ok(answered) => self.take(&put, &answered),
            Err(fault) => self.fault(put.at.now, fault),
        }
    }

    fn ask(&mut self, put: &Put) -> Result<Answered, Fault> {
        let instance = match &mut self.instance {
            Some(instance) => instance,
            empty @ None => {
                self.generation = self.generation.saturating_add(1);
                empty.insert(self.source.warm(None)?.instance)
            }
        };
        if !put.changes.is_empty() || put.extent == Extent::Everything {
            let told = (put.at.now, put.extent);
            observe_all(instance.as_mut(), self.source.limits(), told, &put.changes)?;
        }
        self.knows = Knows::AllThereIs;
        let stopwatch = Stopwatch::start();
        let reply = ask(instance.as_mut(), put.at, &put.question)?;
        Ok(Answered {
            reply,
            fuel: instance.last_fuel(),
            nanos: stopwatch.nanos(),
        })
    }

    fn dump(&self, put: &Put, fault: &Fault) -> FaultDump {
        let culprit = Culprit {
            number: self.number,
            generation: self.generation,
            description: &self.description,
            source: &self.source,
        };
        FaultDump {
            round: Some(put.at.round),
            ..culprit.dump(put.at.now, put.question.clone(), fault)
        }
    }

    /// Leaves what it has logged, and `dump`, for the driver to fetch.
    fn leave(&mut self, now: Micros, dump: Option<FaultDump>) {
        let mut left = self.link.left();
        if let Some(instance) = &mut self.instance {
            left.fetch_log(now, instance.as_mut());
        }
        if let Some(dump) = dump {
            left.keep(dump);
        }
        if !left.is_empty() {
            self.link.has_left.store(true, Ordering::Release);
        }
    }

    fn take(&mut self, put: &Put, answered: &Answered) {
        let Some(question) = put.question.question() else {
            return;
        };
        let named = &mut self.relay.named;
        named.by_reply(&question.requests(), &answered.reply);
        let hook = question.hook();
        let compared = put.in_force.as_ref().map(|in_force| {
            let decisions = compare(&put.question, &in_force.reply, &answered.reply);
            (in_force, decisions)
        });
        let mut report = self.link.lock();
        report.answers.count(hook);
        report.latency.count(hook, answered.nanos);
        if let Some(fuel) = answered.fuel {
            report.fuel.count(hook, fuel);
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
                reason: text(&self.description.reasons, &decision.shadow),
            },
        }
    }

    /// Drops the instance; the next one is told everything.
    fn fault(&mut self, now: Micros, fault: Fault) {
        self.instance = None;
        self.knows = Knows::Nothing;
        while let Some(first) = self.faults.front()
            && now.since(*first).0 >= self.patience.window_micros
        {
            self.faults.pop_front();
        }
        self.faults.push_back(now);
        let mut report = self.link.lock();
        if self.is_spent() {
            let faults = self.faults.len();
            report.end(&format!("{faults} faults, the last one: {fault}"));
            self.link.over.store(true, Ordering::Release);
        }
        report.fault(fault);
        drop(report);
        self.link.forgot.store(true, Ordering::Release);
    }
}

/// Why, in the words of the policy that said so.
fn text(reasons: &[String], decision: &Decision) -> Option<String> {
    let reason = decision.reason?;
    reasons.get(usize::from(reason)).cloned()
}

fn ask(instance: &mut dyn Instance, at: Moment, call: &DumpedCall) -> Result<Reply, Fault> {
    Ok(match call {
        DumpedCall::Admission { arrivals, room } => {
            Reply::from(instance.admit(at, arrivals, *room)?)
        }
        DumpedCall::Priority(requests) => Reply::from(instance.order(at, requests)?),
        DumpedCall::Routing(cached) => Reply::from(instance.route(at, cached)?),
        DumpedCall::Preemption(shortage) => Reply::from(instance.evict(at, shortage)?),
        DumpedCall::Budget {
            device,
            tokens_total,
        } => Reply::from(instance.allot(at, *device, *tokens_total)?),
        DumpedCall::Snapshot => Reply::Preemption(None),
    })
}
