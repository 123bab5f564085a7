//! Fixtures of this crate's tests: a scripted [`Instance`].

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pointsman_component::{
    Candidate, Digest, Fault, Instance, Limits, LogLevel, LogLine, PolicyDescription,
};
use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{
    Bounds, ExecutorId, FaultKind, Hook, HookSet, Micros, Moment, Needs, Question, Reply, RowKind,
    RowKinds, admission, routing,
};
use serde_json::Map;

use crate::policy::PolicySource;

/// A call at which a scripted policy can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    Make,
    Observe,
    Admit,
    Order,
    Snapshot,
    Restore,
}

/// The behaviour and the calls of a scripted policy, shared by all its instances.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) description: PolicyDescription,
    pub(crate) hooks: HookSet,
    pub(crate) refuses_settings: Option<String>,
    pub(crate) refuses_state: Option<String>,
    pub(crate) failing: Vec<Failing>,
    pub(crate) state: Vec<u8>,
    /// Fuel of each call but `observe`.
    pub(crate) fuel: u64,
    /// Fuel of each `observe`.
    pub(crate) observe_fuel: u64,
    /// Number of lines that it logs with each question.
    pub(crate) lines: usize,
    /// Calls of all instances, in order.
    pub(crate) calls: Vec<String>,
    /// A gate that each `configure` waits at until it is let through; absent: none does.
    pub(crate) gate: Option<Gate>,
    /// A gate that each `observe` of everything waits at until it is let through; absent: none does.
    pub(crate) gate_of_everything: Option<Gate>,
}

/// The end of a channel that lets one through for each message.
pub(crate) type Gate = Arc<Mutex<Receiver<()>>>;

/// Time after which a gate opens by itself, so that a test which nobody lets through ends.
const GATE_WAIT: Duration = Duration::from_secs(20);

/// A handle to a scripted policy.
#[derive(Clone, Debug)]
pub(crate) struct Handle(Arc<Mutex<Script>>);

/// A policy named `name` that orders requests newest first.
pub(crate) fn scripted(name: &str) -> Handle {
    Handle(Arc::new(Mutex::new(Script {
        description: PolicyDescription {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            summary: "For tests.".to_owned(),
            needs: Needs::every(told_to_all()),
            reasons: vec!["because".to_owned()],
            state_version: 1,
            orders_one: true,
            settings: Vec::new(),
        },
        hooks: HookSet::from_iter([Hook::Priority]),
        refuses_settings: None,
        refuses_state: None,
        failing: Vec::new(),
        state: vec![7],
        fuel: 11,
        observe_fuel: 0,
        lines: 1,
        calls: Vec::new(),
        gate: None,
        gate_of_everything: None,
    })))
}

fn gated() -> (Sender<()>, Gate) {
    let (open, gate) = mpsc::channel();
    (open, Arc::new(Mutex::new(gate)))
}

/// Waits at a gate, if there is one, until it is let through.
fn pass(gate: Option<Gate>) {
    if let Some(gate) = gate {
        let _let_through = gate.lock().unwrap().recv_timeout(GATE_WAIT);
    }
}

/// The rows that a scripted policy is told, unless it is told otherwise.
fn told_to_all() -> RowKinds {
    let others = [RowKind::Waiting, RowKind::Sequence, RowKind::Completion];
    others.into_iter().fold(RowKinds::ALL, RowKinds::without)
}

impl Handle {
    /// Changes the script.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.0.lock().unwrap());
    }

    pub(crate) fn fail(&self, failing: &[Failing]) {
        self.set(|script| script.failing = failing.to_vec());
    }

    /// Has each `configure` from now on wait for a message through the returned sender.
    pub(crate) fn gate(&self) -> Sender<()> {
        let (open, gate) = gated();
        self.set(|script| script.gate = Some(gate));
        open
    }

    /// Has each `observe` of everything from now on wait for a message through the returned sender.
    pub(crate) fn gate_of_everything(&self) -> Sender<()> {
        let (open, gate) = gated();
        self.set(|script| script.gate_of_everything = Some(gate));
        open
    }

    /// True while a source or an instance of it is left.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Takes the calls since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().calls)
    }

    pub(crate) fn source(&self) -> PolicySource {
        self.source_with(Limits::default())
    }

    pub(crate) fn source_with(&self, limits: Limits) -> PolicySource {
        let handle = self.clone();
        let name = self.0.lock().unwrap().description.name.clone();
        PolicySource::native(
            Digest::of(name.as_bytes()),
            move || {
                let handle = handle.clone();
                let is_told = false;
                Box::new(Scripted { handle, is_told })
            },
            &Map::new(),
            limits,
        )
    }

    fn call(&self, call: String, failing: Option<Failing>) -> Result<(), Fault> {
        let mut script = self.0.lock().unwrap();
        script.calls.push(call);
        if failing.is_some_and(|at| script.failing.contains(&at)) {
            return Err(Fault::new(
                FaultKind::Trap,
                format!("scripted at {failing:?}"),
            ));
        }
        Ok(())
    }
}

struct Scripted {
    handle: Handle,
    /// True after an `observe`, until the next question.
    is_told: bool,
}

impl Instance for Scripted {
    fn hooks(&self) -> HookSet {
        self.handle.0.lock().unwrap().hooks
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        Ok(self.handle.0.lock().unwrap().description.clone())
    }

    fn configure(&mut self, settings: &str, _: &Bounds) -> Result<Result<(), String>, Fault> {
        self.handle
            .call(format!("configure {settings}"), Some(Failing::Make))?;
        let (refusal, gate) = {
            let script = self.handle.0.lock().unwrap();
            (script.refuses_settings.clone(), script.gate.clone())
        };
        pass(gate);
        Ok(refusal.map_or(Ok(()), Err))
    }

    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault> {
        self.is_told = true;
        let call = format!("observe {now} {extent:?} {}", changes.len());
        self.handle.call(call, Some(Failing::Observe))?;
        if extent == Extent::Everything {
            let gate = self.handle.0.lock().unwrap().gate_of_everything.clone();
            pass(gate);
        }
        Ok(())
    }

    fn ask(&mut self, _: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        self.is_told = false;
        if let Question::Admission { arrivals, .. } = question {
            self.handle.call("admit".to_owned(), Some(Failing::Admit))?;
            let admit = admission::Verdict {
                choice: admission::Choice::Admit,
                reason: 0,
            };
            return Ok(Reply::Admission(vec![admit; arrivals.len()]));
        }
        if let Question::Priority(requests) = question {
            self.handle.call("order".to_owned(), Some(Failing::Order))?;
            let newest_first = requests.iter().rev().map(|asked| asked.request);
            return Ok(Reply::Priority(newest_first.collect()));
        }
        if let Question::Routing(requests) = question {
            self.handle.call("route".to_owned(), None)?;
            let nowhere = routing::Verdict {
                // An executor that does not exist.
                choice: routing::Choice::Place(vec![ExecutorId(99)]),
                reason: 0,
            };
            return Ok(Reply::Routing(vec![nowhere; requests.len()]));
        }
        Err(Fault::not_exported(question.hook().as_str()))
    }

    fn explains(&self) -> bool {
        self.handle.0.lock().unwrap().hooks.contains(Hook::Routing)
    }

    fn explain(
        &mut self,
        _: Moment,
        request: &Request,
        _: &Cached,
    ) -> Result<Vec<Candidate>, Fault> {
        self.handle.call("explain".to_owned(), None)?;
        Ok(vec![Candidate {
            executor: ExecutorId(4),
            eligible: true,
            cost: -1,
            note: format!("for {}", request.id),
        }])
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        self.handle
            .call("snapshot".to_owned(), Some(Failing::Snapshot))?;
        Ok(self.handle.0.lock().unwrap().state.clone())
    }

    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault> {
        self.handle
            .call(format!("restore {state:?}"), Some(Failing::Restore))?;
        let refusal = self.handle.0.lock().unwrap().refuses_state.clone();
        Ok(refusal.map_or(Ok(()), Err))
    }

    fn last_fuel(&self) -> Option<u64> {
        let script = self.handle.0.lock().unwrap();
        Some(if self.is_told {
            script.observe_fuel
        } else {
            script.fuel
        })
    }

    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        let lines = self.handle.0.lock().unwrap().lines;
        out.extend((0..lines).map(|_| LogLine {
            level: LogLevel::Info,
            message: "said".to_owned(),
        }));
        2
    }
}
