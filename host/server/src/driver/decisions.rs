//! How the newest requests were decided: what was asked, what was answered, what was made of it.
//!
//! `Ear` hears the questions of a turn, `Decisions` puts them and the machine's facts together
//! per request.
//!
//! # Invariants
//! 1. What is remembered changes no decision: answers pass unchanged, and nothing here is read by
//!    a policy or the machine.
//!
//! # Bounds
//! The newest `admin.decisions-max` requests, the oldest go first. Of each the first and the last
//! `STEPS_MAX` / 2 steps, texts cut at `TEXT_CHARS_MAX` characters, lists at `NAMED_MAX`: at
//! most 12 KiB (`tests::a_case_is_small`).

mod ear;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pointsman_core::rows::{Cached, Request};
use pointsman_core::{
    Author, Decided, EvictHow, ExecutorId, Fact, FaultKind, Hook, Micros, Outcome, PlacedIn,
    RefusalCause, RequestId, RequeuedWhy, Round, Stamped, admission,
};
use pointsman_policy::PolicyHost;

use super::message::TicketId;

/// Steps that are remembered of one request.
pub const STEPS_MAX: usize = 32;
/// Executors of an answer that are remembered.
pub const NAMED_MAX: usize = 8;
/// Executors that a request may allow and still be remembered whole.
const ALLOWED_MAX: usize = 256;
/// Characters of a text.
const TEXT_CHARS_MAX: usize = 128;
/// Authors whose words are kept at hand.
const AUTHORS_MAX: usize = 64;

/// How one request was decided.
#[derive(Clone, Debug)]
pub struct Case {
    /// How HTTP names it.
    pub ticket: TicketId,
    /// How the machine names it.
    pub request: RequestId,
    /// Whose it is.
    pub tenant: String,
    /// For which model.
    pub model: String,
    /// As policies saw it when it arrived; absent: it allows too many executors.
    pub row: Option<Arc<Request>>,
    /// What happened to it, in order.
    pub steps: Vec<Step>,
    /// Steps between the first and the last ones that were forgotten.
    pub forgotten: u32,
    /// How it ended; absent: it has not.
    pub outcome: Option<Outcome>,
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: Micros,
    /// In which round.
    pub round: Round,
    /// What.
    pub what: What,
    /// How often in a row, in as many rounds.
    pub times: u32,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A policy was asked about it, and answered.
    Asked(Box<Heard>),
    /// It was let into the queue.
    Admitted(By),
    /// It waits outside the queue.
    Parked(By),
    /// It is in the queue now.
    Unparked,
    /// It is not served, by decision.
    TurnedAway(By),
    /// It is not placed yet, by decision, until then at the latest.
    Held(Option<Micros>, By),
    /// It has a place.
    Placed(ExecutorId, PlacedIn, By),
    /// The interlock refused an answer about it.
    Refused(Hook, Option<ExecutorId>, RefusalCause, By),
    /// A liveness bound ran out for it.
    Struck(Hook),
    /// Its engine took it up.
    Started(ExecutorId),
    /// It has to leave, for that one's sake.
    Evicted(ExecutorId, RequestId, EvictHow, By),
    /// It waits for a place again.
    Requeued(RequeuedWhy),
    /// It ended.
    Ended(Outcome),
}

/// A question about a request, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which decision.
    pub hook: Hook,
    /// Requests that were asked about together.
    pub together: usize,
    /// What was cached of its prompt, where that was said.
    pub cached: Option<Cached>,
    /// What was answered about it; absent: nothing that could be used.
    pub answer: Option<Verdict>,
    /// Who answered, and why.
    pub by: By,
    /// Who failed before.
    pub faults: Vec<(u32, FaultKind)>,
}

/// An answer about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// May it wait.
    Admission(admission::Choice),
    /// Where does it go: the first of the executors, and how many there were.
    Place(Vec<ExecutorId>, usize),
    /// It is held.
    Hold(Option<Micros>),
    /// It is given up.
    GiveUp,
    /// So many give way to it.
    Evict(usize),
}

/// Who decided, in words that last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// Who.
    pub author: Option<Arc<Words>>,
    /// Index into its reasons.
    pub reason: u16,
}

/// A policy's words, which outlast it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its reasons.
    pub reasons: Vec<String>,
}

/// Everything that is remembered.
#[derive(Debug)]
pub(super) struct Decisions {
    max: usize,
    cases: BTreeMap<RequestId, Case>,
    tickets: BTreeMap<TicketId, RequestId>,
    authors: BTreeMap<u32, Arc<Words>>,
    /// In the order in which facts about them come, as a rule.
    heard: VecDeque<Sound>,
}

/// A question about a request as it was heard.
#[derive(Debug)]
struct Sound {
    request: RequestId,
    at: Micros,
    round: Round,
    hook: Hook,
    together: usize,
    cached: Option<Cached>,
    answer: Option<Verdict>,
    author: Author,
    reason: u16,
    faults: Vec<(u32, FaultKind)>,
}

/// Hears what is asked.
#[derive(Debug)]
pub(super) struct Ear<'a>(&'a mut Decisions);

/// A request that has arrived.
pub(super) struct Arrival<'a> {
    pub(super) ticket: TicketId,
    pub(super) request: RequestId,
    pub(super) tenant: &'a str,
    pub(super) model: &'a str,
    pub(super) row: Option<Arc<Request>>,
}

// === impl Decisions ===

impl Decisions {
    /// Of the newest `max` requests.
    pub(super) fn new(max: u32) -> Self {
        Self {
            max: usize::try_from(max).unwrap_or(usize::MAX),
            cases: BTreeMap::new(),
            tickets: BTreeMap::new(),
            authors: BTreeMap::new(),
            heard: VecDeque::new(),
        }
    }

    /// To listen with while the machine decides.
    pub(super) fn ear(&mut self) -> Ear<'_> {
        Ear(self)
    }

    /// A request has arrived.
    pub(super) fn arrived(&mut self, arrival: Arrival<'_>) {
        if self.max == 0 {
            return;
        }
        let whole = |row: &Arc<Request>| {
            row.allowed
                .as_ref()
                .is_none_or(|allowed| allowed.len() <= ALLOWED_MAX)
        };
        let case = Case {
            ticket: arrival.ticket,
            request: arrival.request,
            tenant: cut(arrival.tenant),
            model: cut(arrival.model),
            row: arrival.row.filter(whole),
            steps: Vec::new(),
            forgotten: 0,
            outcome: None,
        };
        self.tickets.insert(case.ticket, case.request);
        self.cases.insert(case.request, case);
        while self.cases.len() > self.max {
            if let Some((_, oldest)) = self.cases.pop_first() {
                self.tickets.remove(&oldest.ticket);
            }
        }
    }

    /// Something happened. Call it with the facts in order, then [`Self::rest`].
    pub(super) fn fact(&mut self, stamped: &Stamped, policies: &PolicyHost) {
        if self.max == 0 {
            return;
        }
        let Some((request, hook)) = about(&stamped.fact) else {
            return;
        };
        if let Some(hook) = hook {
            self.catch_up(request, hook, policies);
        }
        let Some(what) = self.step_of(&stamped.fact, policies) else {
            return;
        };
        let step = Step {
            at: stamped.now,
            round: stamped.round,
            what,
            times: 1,
        };
        self.add(request, step);
    }

    /// What was heard and led to nothing.
    pub(super) fn rest(&mut self, policies: &PolicyHost) {
        for sound in std::mem::take(&mut self.heard) {
            self.note(sound, policies);
        }
    }

    /// How the request of `ticket` was decided.
    pub(super) fn of(&self, ticket: TicketId) -> Option<&Case> {
        self.cases.get(self.tickets.get(&ticket)?)
    }

    /// The newest `last`, the newest first.
    pub(super) fn newest(&self, last: usize) -> Vec<Case> {
        self.cases.values().rev().take(last).cloned().collect()
    }

    /// Notes what was asked about `request` up to a question of `hook`, of which a fact follows.
    fn catch_up(&mut self, request: RequestId, hook: Hook, policies: &PolicyHost) {
        let about = |sound: &Sound| sound.request == request && sound.hook == hook;
        let idx = self.heard.iter().position(about);
        if let Some(sound) = idx.and_then(|idx| self.heard.remove(idx)) {
            self.note(sound, policies);
        }
    }

    fn note(&mut self, sound: Sound, policies: &PolicyHost) {
        let heard = Heard {
            hook: sound.hook,
            together: sound.together,
            cached: sound.cached,
            answer: sound.answer,
            by: self.by(sound.author, sound.reason, policies),
            faults: sound.faults,
        };
        let step = Step {
            at: sound.at,
            round: sound.round,
            what: What::Asked(Box::new(heard)),
            times: 1,
        };
        self.add(sound.request, step);
    }

    fn add(&mut self, request: RequestId, step: Step) {
        let Some(case) = self.cases.get_mut(&request) else {
            return;
        };
        if let What::Ended(outcome) = step.what {
            case.outcome = Some(outcome);
        }
        case.add(step);
    }

    fn step_of(&mut self, fact: &Fact, policies: &PolicyHost) -> Option<What> {
        let mut by = |decided: &Decided| self.by(decided.author, decided.reason, policies);
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts are about no request, or nothing that was decided"
        )]
        Some(match fact {
            Fact::Admitted(_, decided) => What::Admitted(by(decided)),
            Fact::Parked(_, decided) => What::Parked(by(decided)),
            Fact::Unparked(_) => What::Unparked,
            Fact::TurnedAway(_, decided) => What::TurnedAway(by(decided)),
            Fact::Held(_, until, decided) => What::Held(*until, by(decided)),
            Fact::Placed {
                executor,
                into,
                by: decided,
                ..
            } => What::Placed(*executor, *into, by(decided)),
            Fact::Started(_, executor) => What::Started(*executor),
            Fact::Evicted {
                executor,
                needy,
                how,
                by: decided,
                ..
            } => What::Evicted(*executor, *needy, *how, by(decided)),
            Fact::Requeued(_, why) => What::Requeued(*why),
            Fact::Refused(author, hook, refusal) => {
                let by = self.by(*author, 0, policies);
                What::Refused(*hook, refusal.executor, refusal.cause, by)
            }
            Fact::Strike(_, hook, _) => What::Struck(*hook),
            Fact::Ended(_, outcome) => What::Ended(*outcome),
            _ => return None,
        })
    }

    fn by(&mut self, author: Author, reason: u16, policies: &PolicyHost) -> By {
        let Author::Policy(number) = author else {
            return By {
                author: None,
                reason,
            };
        };
        if let Some(words) = self.authors.get(&number) {
            return By {
                author: Some(Arc::clone(words)),
                reason,
            };
        }
        while self.authors.len() >= AUTHORS_MAX {
            // The words stay with those who quote them.
            self.authors.pop_first();
        }
        let said = policies.description(number);
        let words = Arc::new(Words {
            number,
            name: said.map_or_else(|| "(retired)".to_owned(), |said| cut(&said.name)),
            reasons: said.map_or_else(Vec::new, |said| said.reasons.clone()),
        });
        self.authors.insert(number, Arc::clone(&words));
        By {
            author: Some(words),
            reason,
        }
    }
}

/// Whom a fact is about, and which question it answers, if one.
fn about(fact: &Fact) -> Option<(RequestId, Option<Hook>)> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "other facts are about no request, or nothing that was decided"
    )]
    Some(match fact {
        Fact::Admitted(request, _) | Fact::Parked(request, _) => (*request, Some(Hook::Admission)),
        Fact::TurnedAway(request, by) => {
            let asked = by.author != Author::BuiltIn;
            (*request, asked.then_some(Hook::Admission))
        }
        Fact::Held(request, ..) | Fact::Placed { request, .. } => (*request, Some(Hook::Routing)),
        Fact::Unparked(request)
        | Fact::Started(request, _)
        | Fact::Evicted {
            victim: request, ..
        }
        | Fact::Requeued(request, _)
        | Fact::Strike(_, _, request)
        | Fact::Ended(request, _) => (*request, None),
        Fact::Refused(_, hook, refusal) => (refusal.request?, Some(*hook)),
        _ => return None,
    })
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

// === impl Case ===

impl Case {
    /// What was last said to be cached of its prompt.
    pub(super) fn cached(&self, request: RequestId) -> Cached {
        let last = self.steps.iter().rev().find_map(|step| match &step.what {
            What::Asked(heard) => heard.cached.clone(),
            What::Admitted(_)
            | What::Parked(_)
            | What::Unparked
            | What::TurnedAway(_)
            | What::Held(..)
            | What::Placed(..)
            | What::Refused(..)
            | What::Struck(_)
            | What::Started(_)
            | What::Evicted(..)
            | What::Requeued(_)
            | What::Ended(_) => None,
        });
        last.unwrap_or(Cached {
            request,
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        })
    }

    /// The executors in it; some several times.
    pub(super) fn executors(&self) -> Vec<ExecutorId> {
        let mut executors = Vec::new();
        for step in &self.steps {
            match &step.what {
                What::Asked(heard) => {
                    let overlaps = heard.cached.iter().flat_map(|cached| &cached.overlaps);
                    executors.extend(overlaps.map(|overlap| overlap.executor));
                    if let Some(Verdict::Place(named, _)) = &heard.answer {
                        executors.extend(named);
                    }
                }
                What::Placed(executor, ..)
                | What::Started(executor)
                | What::Evicted(executor, ..) => {
                    executors.push(*executor);
                }
                What::Refused(_, executor, ..) => executors.extend(*executor),
                What::Admitted(_)
                | What::Parked(_)
                | What::Unparked
                | What::TurnedAway(_)
                | What::Held(..)
                | What::Struck(_)
                | What::Requeued(_)
                | What::Ended(_) => {}
            }
        }
        executors
    }

    /// Adds a step; one that only repeats those before it counts on, and past the bound one in
    /// the middle goes.
    fn add(&mut self, step: Step) {
        // A question and what came of it, again: a request that is held round after round.
        for back in [1, 2] {
            let idx = self.steps.len().checked_sub(back);
            if let Some(before) = idx.and_then(|idx| self.steps.get_mut(idx))
                && before.what == step.what
            {
                before.times = before.times.saturating_add(1);
                before.round = step.round;
                return;
            }
        }
        if self.steps.len() == STEPS_MAX {
            self.steps.remove(STEPS_MAX / 2);
            self.forgotten = self.forgotten.saturating_add(1);
        }
        self.steps.push(step);
    }
}

impl By {
    /// Who decided.
    #[must_use]
    pub fn name(&self) -> &str {
        self.author.as_ref().map_or("built-in", |words| &words.name)
    }

    /// Why, in its words.
    #[must_use]
    pub fn why(&self) -> &str {
        let reasons = self.author.as_ref().map(|words| &words.reasons);
        let reason = reasons.and_then(|reasons| reasons.get(usize::from(self.reason)));
        reason.map_or("", String::as_str)
    }
}
