//! Policies that take each other's place while a run goes on.

use std::fmt;

use pointsman_core::rows::AskedRequest;
use pointsman_core::{
    Answer, Asked, Author, Bounds, ExecutorId, FaultKind, Hook, HookSet, Machine, Micros,
    NoPolicies, Policies, PolicyFault, Question, Refusal, Reply, RequestId, Strike, View, routing,
};
use pointsman_policy::Mode;
use pointsman_sim::Adversary;
use pointsman_sim::draws::mix;

use crate::case::{Policy, millis};
use crate::hosted::Hosted;
use crate::run::Vouched;

/// The policies of a case, of which the one in force answers.
pub(crate) struct Swapped {
    /// Policies to come, the next one last.
    left: Vec<(u64, Policy)>,
    in_force: InForce,
    hosted: Hosted,
}

/// The policies that answer.
enum InForce {
    /// A policy of this test, alone.
    Native(Box<dyn Policies>),
    /// The policies of the host.
    Hosted,
}

impl fmt::Debug for Swapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swapped")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl Swapped {
    pub(crate) fn new(policies: &[(u64, Policy)], bounds: Bounds, vouched: Vouched) -> Self {
        Self {
            left: policies.iter().rev().cloned().collect(),
            in_force: InForce::Native(Box::new(NoPolicies)),
            hosted: Hosted::new(bounds, vouched),
        }
    }

    /// Puts in force what is due at `now`. Call it between two rounds. Returns the hooks that others answer
    /// for since the last call.
    pub(crate) fn change(&mut self, now: Micros, machine: &Machine) -> HookSet {
        let mut changed = HookSet::EMPTY;
        while let Some((_, policy)) = self.left.pop_if(|(at, _)| millis(*at) <= now) {
            if let Some(in_force) = self.put_in_force(now, machine, policy) {
                self.in_force = in_force;
                changed = Hook::ALL.into_iter().collect();
            }
        }
        changed.union(self.hosted.take_rebound(now))
    }

    /// Fails with the first thing that must not be, and was.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.hosted.check()
    }

    /// Carries out a change. Returns the policies that answer then; none for a shadow, which answers nothing.
    fn put_in_force(&mut self, now: Micros, machine: &Machine, policy: Policy) -> Option<InForce> {
        let native: Box<dyn Policies> = match policy {
            Policy::BuiltIn => Box::new(NoPolicies),
            Policy::Random { seed, sanity } => Box::new(AtRandom { seed, sanity }),
            Policy::Holds => Box::new(Always(routing::Choice::Hold(None))),
            Policy::HoldsOnPurpose => {
                Box::new(Always(routing::Choice::Hold(Some(Micros(u64::MAX)))))
            }
            Policy::NewestFirst { executor } => {
                Box::new(Always(routing::Choice::Place(vec![ExecutorId(executor)])))
            }
            Policy::Faults => Box::new(Faulty),
            Policy::Defaults => {
                self.hosted.begin(now, machine);
                return Some(InForce::Hosted);
            }
            Policy::Component(component) => {
                self.hosted.put(now, machine, &component);
                return (component.mode != Mode::Shadow).then_some(InForce::Hosted);
            }
            Policy::Removed(hook) => {
                self.hosted.remove(now, hook);
                return Some(InForce::Hosted);
            }
            Policy::Ejected(hook) => {
                self.hosted.eject(now, hook);
                return Some(InForce::Hosted);
            }
            Policy::FailsClosed => {
                self.hosted.fail_closed(now);
                return Some(InForce::Hosted);
            }
        };
        Some(InForce::Native(native))
    }

    fn answering(&mut self) -> &mut dyn Policies {
        match &mut self.in_force {
            InForce::Native(native) => native.as_mut(),
            InForce::Hosted => &mut self.hosted,
        }
    }
}

impl Policies for Swapped {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        self.answering().ask(asked)
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        match &self.in_force {
            InForce::Native(native) => native.run(view, hook, requests),
            InForce::Hosted => self.hosted.run(view, hook, requests),
        }
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.answering().refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        self.answering().struck(view, strike);
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
        if let Question::Routing(requests) = &asked.question {
            let verdict = routing::Verdict {
                choice: self.0.clone(),
                reason: 0,
            };
            Answer::by(0, Reply::Routing(vec![verdict; requests.len()]))
        } else if let Question::Priority(requests) = &asked.question {
            let newest = requests.iter().rev();
            let order: Vec<RequestId> = newest.map(|asked: &AskedRequest| asked.request).collect();
            Answer::by(0, Reply::Priority(order))
        } else if let Question::Preemption(_) = asked.question {
            Answer::by(0, Reply::Preemption(None))
        } else {
            Answer::unbound()
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
