//! Policies that take each other's place while a run goes on.

use std::fmt;

use pointsman_core::rows::AskedRequest;
use pointsman_core::{
    Answer, Asked, ExecutorId, FaultKind, Micros, NoPolicies, Policies, PolicyFault, Question,
    Reply, RequestId, routing,
};
use pointsman_sim::Adversary;
use pointsman_sim::draws::mix;

use crate::case::Policy;

/// The policies of a case, of which the one in force answers.
pub(crate) struct Swapped {
    /// Policies to come, the next one last.
    left: Vec<(u64, Policy)>,
    in_force: Box<dyn Policies>,
}

impl fmt::Debug for Swapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swapped")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Swapped {
    pub(crate) fn new(policies: &[(u64, Policy)]) -> Self {
        Self {
            left: policies.iter().rev().cloned().collect(),
            in_force: Box::new(NoPolicies),
        }
    }
}

impl Policies for Swapped {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        while let Some((at, _)) = self.left.last()
            && Micros(at * 1000) <= asked.at.now
        {
            if let Some((_, next)) = self.left.pop() {
                self.in_force = put_in_force(next);
            }
        }
        self.in_force.ask(asked)
    }
}

fn put_in_force(policy: Policy) -> Box<dyn Policies> {
    match policy {
        Policy::BuiltIn => Box::new(NoPolicies),
        Policy::Random { seed, sanity } => Box::new(AtRandom { seed, sanity }),
        Policy::Holds => Box::new(Always(routing::Choice::Hold(None))),
        Policy::HoldsOnPurpose => Box::new(Always(routing::Choice::Hold(Some(Micros(u64::MAX))))),
        Policy::NewestFirst { executor } => {
            Box::new(Always(routing::Choice::Place(vec![ExecutorId(executor)])))
        }
        Policy::Faults => Box::new(Faulty),
    }
}

/// A policy that answers at random, by the time and the question alone: what it says later stays the same when
/// something is left out of a case.
struct AtRandom {
    seed: u64,
    sanity: u32,
}

impl Policies for AtRandom {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let hook = asked.question.hook() as u64;
        let seed = mix(self.seed ^ mix(asked.at.now.0 ^ mix(hook)));
        Adversary::new(seed, self.sanity).ask(asked)
    }
}

/// A policy with one verdict for all requests, of which it puts the newest first. It evicts nobody.
struct Always(routing::Choice);

impl Policies for Always {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        match &asked.question {
            Question::Routing(requests) => {
                let verdict = routing::Verdict {
                    choice: self.0.clone(),
                    reason: 0,
                };
                Answer::by(0, Reply::Routing(vec![verdict; requests.len()]))
            }
            Question::Priority(requests) => {
                let newest = requests.iter().rev();
                let order: Vec<RequestId> =
                    newest.map(|asked: &AskedRequest| asked.request).collect();
                Answer::by(0, Reply::Priority(order))
            }
            Question::Preemption(_) => Answer::by(0, Reply::Preemption(None)),
            Question::Admission { .. } | Question::Budget { .. } | Question::Arrangement { .. } => {
                Answer::unbound()
            }
        }
    }
}

/// A policy that fails whenever it is asked.
struct Faulty;

impl Policies for Faulty {
    fn ask(&mut self, _: &Asked<'_>) -> Answer<Reply> {
        Answer {
            faults: vec![PolicyFault {
                policy: 0,
                kind: FaultKind::Trap,
                detail: "planned".into(),
            }],
            ..Answer::unbound()
        }
    }
}
