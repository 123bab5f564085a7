//! One scheduling round: admission, order, routing, then shortages and budgets.
//!
//! An answer is data. Each action in it is checked by the interlock, and applied or refused; where
//! there is no usable answer the built-in rule decides. Nothing a policy says can make a round fail
//! or go on without end: each request is asked about at most once per hook and round.
//!
//! | file | part of the round |
//! |---|---|
//! | `admission` | arrivals |
//! | `queues` | the order of parked requests, and of those in the queues of executors |
//! | `clocks` | the clocks that bound a policy |
//! | `routing` | order and placement |
//! | `shortages` | evictions for requests that lack room |
//! | `budgets` | tokens per step |
//! | `arrangements` | the order in which engines serve their sequences |
//! | `built_in` | the rules where no policy answers |
//! | `feasibility` | a memory of requests that some executor could take |
//!
//! # Another policy takes over
//! Most answers are asked for in each round, or act once and are over. The others stand until
//! something happens in the fleet or to a request, and would outlive the policy that gave them. One that
//! rested after a fault takes over from those who stood in for it:
//!
//! | hook | what stands by an answer | when another policy takes over |
//! |---|---|---|
//! | `admission` | nothing: an arrival is decided once | |
//! | `priority` | the order of the queue of an executor | asked for anew |
//! | `routing` | a request that is held, where nothing else makes a round due | a round is due |
//! | `preemption` | the pause after an answer that freed nothing | ends |
//! | `budget` | budgets of devices, and arrangements of engines | asked for anew |
//!
//! # Invariants
//! 1. Nothing that an answer has brought about is undone when another policy takes over: who is
//!    placed, evicted, parked or turned away is so (`pointsman-sim`, `tests/rebinding.rs`).

mod admission;
mod arrangements;
mod budgets;
mod built_in;
mod clocks;
mod feasibility;
mod queues;
mod routing;
mod shortages;

use std::collections::BTreeSet;

use crate::policies::Policies;
use pointsman_events::rows::Moment;
use pointsman_events::{
    Answer, Author, Decided, ExecutorId, Fact, Hook, Micros, PlacedIn, Question, Refusal, Reply,
    RequestId, Round, Strike,
};

use crate::asked::Asked;
use crate::view::View;

use super::Machine;
use feasibility::Feasibility;

/// A round in progress: the machine, its policies, and what has happened so far.
struct OngoingRound<'a> {
    machine: &'a mut Machine,
    policies: &'a mut dyn Policies,
    at: Moment,
    /// Requests that were let into the queue or the parking list.
    admitted: Vec<RequestId>,
    /// Requests that some executor could have taken when their order was asked for.
    asked: Vec<RequestId>,
    /// The same in the order in which they were tried.
    ordered: Vec<RequestId>,
    /// Placements of these.
    placements: Vec<(RequestId, ExecutorId)>,
    /// Requests that are held where nothing could take them: not on purpose, whatever the answer says.
    without_room: BTreeSet<RequestId>,
    /// The requests that some executor could take since the last placement.
    feasibility: Feasibility,
}

impl Machine {
    /// Makes one scheduling round, if something changed that could change its answers; otherwise
    /// only time passes.
    pub fn decide(&mut self, now: Micros, policies: &mut dyn Policies) {
        self.out.pass(now);
        self.fire_timers();
        self.look_for_servers();
        if !std::mem::take(&mut self.out.due) {
            return;
        }
        self.out.at.round = Round(self.out.at.round.0 + 1);
        let round = OngoingRound {
            at: self.out.at,
            machine: self,
            policies,
            admitted: Vec::new(),
            asked: Vec::new(),
            ordered: Vec::new(),
            placements: Vec::new(),
            without_room: BTreeSet::new(),
            feasibility: Feasibility::default(),
        };
        round.run();
        // What left the queue in this round made room in it.
        let has_room = self.requests.room(&self.config) > 0;
        self.out.due |= has_room && !self.requests.parking().is_empty();
    }

    /// Has a new policy asked for all that stands by an answer of the one before, in a round that is due
    /// where there is such a thing.
    pub(super) fn policy_changed(&mut self, hook: Hook) {
        let stands = match hook {
            Hook::Admission => false,
            Hook::Priority => self.ledger.order_queues_anew(),
            Hook::Routing => !self.requests.queue().is_empty(),
            Hook::Preemption => {
                self.out.timers.open_evict_gates();
                !self.requests.queue().is_empty()
            }
            Hook::Budget => {
                let (budgets, arrangements) =
                    (self.ledger.allot_anew(), self.ledger.arrange_anew());
                budgets || arrangements
            }
        };
        self.out.due |= stands;
    }
}

impl OngoingRound<'_> {
    fn run(mut self) {
        self.unpark();
        self.ask_admission();
        self.place_overdue();
        self.ask_order_and_routing();
        self.count_overtaken();
        self.relieve();
        self.watch_feasible();
        self.order_device_queues();
        self.ask_budgets();
        self.ask_arrangements();
    }

    /// Asks a question about the machine as it is now, and notes the faults that came first.
    fn ask<T>(
        &mut self,
        question: Question<'_>,
        typed: impl FnOnce(Answer<Reply>) -> Answer<T>,
    ) -> Answer<T> {
        let hook = question.hook();
        let asked = Asked {
            view: View::new(self.machine),
            at: self.at,
            question,
        };
        let mut answer = typed(self.policies.ask(&asked));
        for fault in answer.faults.drain(..) {
            self.machine.out.fact(Fact::Fault(hook, fault));
        }
        answer
    }

    /// The number of these requests, from the first on, that one policy is asked about together.
    fn run_of(&self, hook: Hook, requests: &[RequestId]) -> usize {
        let run = self.policies.run(&View::new(self.machine), hook, requests);
        run.clamp(1, requests.len())
    }

    /// Notes that an answer, or an action in it, was refused, and tells its author.
    fn refuse(&mut self, author: Author, hook: Hook, refusal: Refusal) {
        self.policies.refused(author, hook, &refusal);
        self.machine.out.fact(Fact::Refused(author, hook, refusal));
    }

    /// Tells the policies that a liveness bound ran out.
    fn strike(&mut self, strike: Strike) {
        self.policies.struck(&View::new(self.machine), &strike);
    }

    fn place(&mut self, id: RequestId, on: (ExecutorId, PlacedIn), by: Decided) {
        self.machine.place(id, on, by);
        self.placements.push((id, on.0));
        self.feasibility = Feasibility::default();
    }
}
