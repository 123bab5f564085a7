//! The comparison of two answers to one question, decision by decision: of a shadow's with the one in
//! force, and of another policy's with the one that a journal has.
//!
//! Decisions are compared by their effect. Of placements that is the executor on which the request
//! would be placed, which need not be the first one that an answer names; lists that lead to the same
//! executor and differ otherwise are [`Likeness::Fallbacks`]. Holds are compared as such, and victims
//! as a set. If only one of the two answers has a decision, the two differ.
//!
//! # Invariants
//! 1. Each row of a question is one decision, even if an answer says nothing about it
//!    (`what_one_says_nothing_of_differs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pointsman_core::{
    Allotment, Arrangement, EvictHow, Eviction, ExecutorId, Question, Reply, RequestId, View, Walk,
    admission, routing,
};
use pointsman_notation::Time;

/// One decision, made by two policies.
#[derive(Debug)]
pub struct DecisionPair {
    /// Subject of the decision.
    pub about: About,
    /// The decision that counts, or counted.
    pub in_force: ComparedDecision,
    /// The decision that is only compared.
    pub other: ComparedDecision,
}

/// The degree to which two decisions are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// Nothing differs.
    Same,
    /// The request goes to the same executor; only the executors that would be tried before or after
    /// it differ.
    Fallbacks,
    /// The effects differ.
    Different,
}

/// One policy's decision.
#[derive(Clone, Debug)]
pub struct ComparedDecision {
    /// Effect of the decision.
    pub choice: ComparedChoice,
    /// Index into the policy's reasons.
    pub reason: Option<u16>,
}

/// An answer, with what would come of its placements.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The answer.
    pub reply: &'a Reply,
    /// The way of each request of a routing question; empty for other questions.
    pub walks: &'a [Walk],
}

/// The subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A request.
    Request(RequestId),
    /// A place in the order, from 1.
    Rank(usize),
    /// An executor.
    Executor(ExecutorId),
}

/// The effect of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the answers of the hooks")]
pub enum ComparedChoice {
    Admission(admission::Choice),
    /// The executors of a placement as they are named, and the one among them where the request goes;
    /// absent: none of them can take it.
    Place(Vec<ExecutorId>, Option<ExecutorId>),
    Hold,
    GiveUp,
    Next(RequestId),
    Evict(ExecutorId, BTreeSet<(RequestId, Leaves)>),
    EvictNobody,
    Tokens(u32),
    Arrange(Arrangement),
    /// The answer says nothing about the subject.
    Nothing,
}

/// [`EvictHow`] with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named like the cases of `EvictHow`")]
pub enum Leaves {
    Recompute,
    Swap,
}

/// The ways of the requests of a routing question, where `reply` sends them; empty for another one.
#[must_use]
pub fn walks(view: &View<'_>, question: &Question<'_>, reply: &Reply) -> Vec<Walk> {
    let (Question::Routing(cached), Reply::Routing(verdicts)) = (question, reply) else {
        return Vec::new();
    };
    let requests = cached.iter().map(|cached| cached.request);
    let placed = verdicts.iter().map(|verdict| executors(&verdict.choice));
    view.walks(requests.zip(placed))
}

/// The ways of the requests of another answer to the same question, as far as is known from those of
/// the one in force: an executor that it found to have no room has none, and any other one has some.
#[must_use]
pub fn walks_beside(in_force: &[Walk], reply: &Reply) -> Vec<Walk> {
    let Reply::Routing(verdicts) = reply else {
        return Vec::new();
    };
    let walks = verdicts.iter().zip(in_force).map(|(verdict, known)| {
        let is_passed = |id: &&ExecutorId| known.passed.contains(id);
        let executors = executors(&verdict.choice);
        Walk {
            passed: executors.iter().take_while(is_passed).copied().collect(),
            to: executors.iter().find(|id| !is_passed(id)).copied(),
        }
    });
    walks.collect()
}

fn executors(choice: &routing::Choice) -> &[ExecutorId] {
    match choice {
        routing::Choice::Place(executors) => executors,
        routing::Choice::Hold(_) | routing::Choice::GiveUp => &[],
    }
}

/// Compares both answers to `question`, decision by decision.
#[must_use]
pub fn compare(
    question: &Question<'_>,
    in_force: Judged<'_>,
    other: Judged<'_>,
) -> Vec<DecisionPair> {
    let (one, another) = (decisions(in_force), decisions(other));
    let abouts: Vec<About> = match question {
        Question::Admission { arrivals, .. } => {
            let arrivals = arrivals.iter().map(|asked| About::Request(asked.request));
            arrivals.collect()
        }
        Question::Priority(requests) => (1..=requests.len()).map(About::Rank).collect(),
        Question::Routing(cached) => {
            let requests = cached.iter().map(|cached| About::Request(cached.request));
            requests.collect()
        }
        Question::Preemption(shortage) => vec![About::Request(shortage.needy)],
        Question::Budget { .. } => return compare_budgets(in_force.reply, other.reply),
        Question::Arrangement { executor, .. } => vec![About::Executor(*executor)],
    };
    let pairs = abouts.into_iter().enumerate();
    pairs
        .map(|(idx, about)| DecisionPair {
            about,
            in_force: one.get(idx).cloned().unwrap_or_else(nothing),
            other: another.get(idx).cloned().unwrap_or_else(nothing),
        })
        .collect()
}

fn nothing() -> ComparedDecision {
    ComparedDecision {
        choice: ComparedChoice::Nothing,
        reason: None,
    }
}

/// The decisions in a reply, in the order of the question.
fn decisions(of: Judged<'_>) -> Vec<ComparedDecision> {
    match of.reply {
        Reply::Admission(verdicts) => {
            let decided = verdicts.iter().map(|verdict| ComparedDecision {
                choice: ComparedChoice::Admission(verdict.choice),
                reason: Some(verdict.reason),
            });
            decided.collect()
        }
        Reply::Priority(order) => {
            let decided = order.iter().map(|request| ComparedDecision {
                choice: ComparedChoice::Next(*request),
                reason: None,
            });
            decided.collect()
        }
        Reply::Routing(verdicts) => {
            let walks = of.walks.iter().map(|walk| walk.to);
            let walks = walks.chain(std::iter::repeat(None));
            let decided = verdicts.iter().zip(walks);
            decided.map(|(verdict, to)| routed(verdict, to)).collect()
        }
        Reply::Preemption(eviction) => vec![evicted(eviction.as_ref())],
        Reply::Budget(_) => Vec::new(),
        Reply::Arrangement(arrangement) => vec![ComparedDecision {
            choice: ComparedChoice::Arrange(arrangement.clone()),
            reason: None,
        }],
    }
}

fn routed(verdict: &routing::Verdict, to: Option<ExecutorId>) -> ComparedDecision {
    let choice = match &verdict.choice {
        routing::Choice::Place(executors) if executors.is_empty() => ComparedChoice::Nothing,
        routing::Choice::Place(executors) => ComparedChoice::Place(executors.clone(), to),
        routing::Choice::Hold(_) => ComparedChoice::Hold,
        routing::Choice::GiveUp => ComparedChoice::GiveUp,
    };
    ComparedDecision {
        choice,
        reason: Some(verdict.reason),
    }
}

fn evicted(eviction: Option<&Eviction>) -> ComparedDecision {
    let Some(eviction) = eviction else {
        return ComparedDecision {
            choice: ComparedChoice::EvictNobody,
            reason: None,
        };
    };
    let victims = eviction.victims.iter().map(|victim| {
        let leaves = match victim.how {
            EvictHow::Recompute => Leaves::Recompute,
            EvictHow::Swap => Leaves::Swap,
        };
        (victim.request, leaves)
    });
    ComparedDecision {
        choice: ComparedChoice::Evict(eviction.executor, victims.collect()),
        reason: Some(eviction.reason),
    }
}

/// Compares one decision for each executor that either reply names.
fn compare_budgets(in_force: &Reply, other: &Reply) -> Vec<DecisionPair> {
    let (one, another) = (budgets(in_force), budgets(other));
    let named: BTreeSet<ExecutorId> = one.keys().chain(another.keys()).copied().collect();
    let tokens = |of: &BTreeMap<ExecutorId, u32>, executor| ComparedDecision {
        choice: of
            .get(&executor)
            .map_or(ComparedChoice::Nothing, |max| ComparedChoice::Tokens(*max)),
        reason: None,
    };
    let compared = named.into_iter().map(|executor| DecisionPair {
        about: About::Executor(executor),
        in_force: tokens(&one, executor),
        other: tokens(&another, executor),
    });
    compared.collect()
}

fn budgets(reply: &Reply) -> BTreeMap<ExecutorId, u32> {
    let allotments: &[Allotment] = match reply {
        Reply::Budget(allotments) => &allotments.engines,
        Reply::Admission(_)
        | Reply::Priority(_)
        | Reply::Routing(_)
        | Reply::Preemption(_)
        | Reply::Arrangement(_) => &[],
    };
    allotments
        .iter()
        .map(|a| (a.executor, a.tokens_max))
        .collect()
}

// === Words ===

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            About::Request(request) => write!(f, "request {request}"),
            About::Rank(rank) => write!(f, "place {rank} in the order"),
            About::Executor(executor) => write!(f, "executor {executor}"),
        }
    }
}

impl fmt::Display for ComparedChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(&|id| format!("executor {id}")))
    }
}

// === impl DecisionPair ===

impl DecisionPair {
    /// The degree to which the two are the same.
    #[must_use]
    pub fn likeness(&self) -> Likeness {
        match (&self.in_force.choice, &self.other.choice) {
            (one, other) if one == other => Likeness::Same,
            (ComparedChoice::Place(_, to), ComparedChoice::Place(_, other)) if to == other => {
                Likeness::Fallbacks
            }
            _ => Likeness::Different,
        }
    }
}

// === impl ComparedChoice ===

impl ComparedChoice {
    /// The kind of the choice, in a word or two.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            ComparedChoice::Admission(admission::Choice::Admit) => "admit",
            ComparedChoice::Admission(admission::Choice::Park) => "park",
            ComparedChoice::Admission(admission::Choice::Shed(_)) => "shed",
            ComparedChoice::Admission(admission::Choice::Displace(_)) => "displace",
            ComparedChoice::Place(_, Some(_)) => "place",
            ComparedChoice::Place(_, None) => "place where there is no room",
            ComparedChoice::Hold => "hold",
            ComparedChoice::GiveUp => "give up",
            ComparedChoice::Next(_) => "next",
            ComparedChoice::Evict(..) => "evict",
            ComparedChoice::EvictNobody => "evict nobody",
            ComparedChoice::Tokens(_) => "allot",
            ComparedChoice::Arrange(_) => "serve",
            ComparedChoice::Nothing => "nothing",
        }
    }

    /// The choice in words, with the names that `name` has for executors.
    #[must_use]
    pub fn words(&self, name: &dyn Fn(ExecutorId) -> String) -> String {
        match self {
            ComparedChoice::Admission(choice) => admitted(*choice),
            ComparedChoice::Place(named, to) => placed(named, *to, name),
            ComparedChoice::Hold => "hold".to_owned(),
            ComparedChoice::GiveUp => "give up".to_owned(),
            ComparedChoice::Next(request) => format!("request {request}"),
            ComparedChoice::Evict(executor, victims) => {
                let victims = victims.iter().map(|(request, leaves)| match leaves {
                    Leaves::Recompute => format!(" request {request} (recompute)"),
                    Leaves::Swap => format!(" request {request} (swap)"),
                });
                let victims: String = victims.collect();
                format!("evict from {}:{victims}", name(*executor))
            }
            ComparedChoice::EvictNobody => "evict nobody".to_owned(),
            ComparedChoice::Tokens(tokens) => format!("{tokens} tokens a step"),
            ComparedChoice::Arrange(arrangement) => format!("serve {arrangement}"),
            ComparedChoice::Nothing => "nothing".to_owned(),
        }
    }
}

fn admitted(choice: admission::Choice) -> String {
    let after = |secs: u32| Time::from_secs(u64::from(secs));
    match choice {
        admission::Choice::Admit => "admit".to_owned(),
        admission::Choice::Park => "park".to_owned(),
        admission::Choice::Shed(secs) => format!("shed, retry after {}", after(secs)),
        admission::Choice::Displace(displaced) => {
            let after = after(displaced.retry_after);
            format!(
                "displace request {}, retry after {after}",
                displaced.request
            )
        }
    }
}

/// A placement: where the request goes, and what would be tried after that.
fn placed(
    named: &[ExecutorId],
    to: Option<ExecutorId>,
    name: &dyn Fn(ExecutorId) -> String,
) -> String {
    let Some(to) = to else {
        let named: Vec<String> = named.iter().map(|id| name(*id)).collect();
        return format!("place on {}, where there is no room", named.join(" or "));
    };
    let after = named.iter().skip_while(|id| **id != to).skip(1);
    let after: Vec<String> = after.map(|id| name(*id)).collect();
    let or_else = if after.is_empty() { "" } else { ", or else " };
    format!("place on {}{or_else}{}", name(to), after.join(", "))
}

#[cfg(test)]
mod tests {
    use pointsman_core::fixture::{asked, cached};
    use pointsman_core::{Allotments, DeviceId, Shortage, ShortageCause, Victim};

    use super::*;

    fn place(executors: &[u32]) -> routing::Verdict {
        routing::Verdict {
            choice: routing::Choice::Place(executors.iter().map(|id| ExecutorId(*id)).collect()),
            reason: 3,
        }
    }

    /// Compares decisions where every executor has room: which ones agree, and both choices of the
    /// first that differs.
    fn check(question: &Question<'_>, one: &Reply, other: &Reply) -> (Vec<bool>, String) {
        let everywhere = [const {
            Walk {
                passed: Vec::new(),
                to: None,
            }
        }; 8];
        let walks = [one, other].map(|reply| walks_beside(&everywhere, reply));
        let judged = |reply, walks| Judged { reply, walks };
        let compared = compare(question, judged(one, &walks[0]), judged(other, &walks[1]));
        let is_other = |c: &&DecisionPair| c.likeness() == Likeness::Different;
        let same = compared.iter().map(|c| !is_other(&c)).collect();
        let differ = compared.iter().find(is_other);
        let words = differ.map_or_else(String::new, |c| {
            format!("{}: {}, not {}", c.about, c.in_force.choice, c.other.choice)
        });
        (same, words)
    }

    #[test]
    fn placements_are_compared_by_where_the_request_would_go() {
        let question = Question::Routing(vec![cached(1)].into());
        let full = |ids: &[u32], to: Option<u32>| Walk {
            passed: ids.iter().map(|id| ExecutorId(*id)).collect(),
            to: to.map(ExecutorId),
        };
        // One has no room, so the request goes to two.
        let known = [full(&[1], Some(2))];
        let in_force = Reply::Routing(vec![place(&[1, 2, 3])]);
        for (other, likeness, words) in [
            (
                &[1, 2, 3][..],
                Likeness::Same,
                "place on executor 2, or else executor 3",
            ),
            (
                &[2, 3],
                Likeness::Fallbacks,
                "place on executor 2, or else executor 3",
            ),
            (&[1, 2], Likeness::Fallbacks, "place on executor 2"),
            (&[1, 3], Likeness::Different, "place on executor 3"),
            (
                &[1],
                Likeness::Different,
                "place on executor 1, where there is no room",
            ),
        ] {
            let reply = Reply::Routing(vec![place(other)]);
            let walks = walks_beside(&known, &reply);
            let (one, two) = (
                Judged {
                    reply: &in_force,
                    walks: &known,
                },
                Judged {
                    reply: &reply,
                    walks: &walks,
                },
            );
            let pairs = compare(&question, one, two);
            assert_eq!(pairs[0].likeness(), likeness, "{other:?}");
            assert_eq!(pairs[0].other.choice.to_string(), words);
        }
    }

    #[test]
    fn holds_are_the_same_by_being_one() {
        let question = Question::Routing(vec![cached(1), cached(2), cached(3)].into());
        let hold = |at| routing::Verdict {
            choice: routing::Choice::Hold(at),
            reason: 0,
        };
        let one = Reply::Routing(vec![place(&[4, 5]), hold(None), place(&[6])]);
        let later = Some(pointsman_core::Micros(9));
        let other = Reply::Routing(vec![place(&[4, 6]), hold(later), place(&[7])]);
        let (same, words) = check(&question, &one, &other);
        assert_eq!(same, [true, true, false]);
        assert_eq!(
            words,
            "request 3: place on executor 6, not place on executor 7"
        );
    }

    #[test]
    fn what_one_says_nothing_of_differs() {
        let question = Question::Priority(asked(&[1, 2]).into());
        let one = Reply::Priority(vec![RequestId(2), RequestId(1)]);
        let other = Reply::Priority(vec![RequestId(2)]);
        let (same, words) = check(&question, &one, &other);
        assert_eq!(same, [true, false]);
        assert_eq!(words, "place 2 in the order: request 1, not nothing");
    }

    #[test]
    fn victims_are_a_set_and_budgets_go_by_executor() {
        let victim = |request, how| Victim {
            request: RequestId(request),
            how,
        };
        let evict = |victims: &[Victim]| {
            Reply::Preemption(Some(Eviction {
                executor: ExecutorId(1),
                victims: victims.to_vec(),
                reason: 0,
            }))
        };
        let question = Question::Preemption(Shortage {
            cause: ShortageCause::Blocks,
            needy: RequestId(9),
            executor: None,
            blocks: 1,
        });
        let (a, b) = (victim(1, EvictHow::Recompute), victim(2, EvictHow::Swap));
        assert_eq!(check(&question, &evict(&[a, b]), &evict(&[b, a])).0, [true]);
        let (same, words) = check(&question, &evict(&[b]), &Reply::Preemption(None));
        assert_eq!(same, [false]);
        let expected = "request 9: evict from executor 1: request 2 (swap), not evict nobody";
        assert_eq!(words, expected);

        let question = Question::Budget {
            device: DeviceId(0),
            tokens_total: 10,
            used: Vec::new().into(),
        };
        let budget = |of: &[(u32, u32)]| {
            let allotments = of.iter().map(|(executor, tokens_max)| Allotment {
                executor: ExecutorId(*executor),
                tokens_max: *tokens_max,
            });
            Reply::Budget(Allotments {
                engines: allotments.collect(),
                again: None,
            })
        };
        let one = budget(&[(1, 5), (2, 5)]);
        let (same, words) = check(&question, &one, &budget(&[(3, 1), (1, 5)]));
        assert_eq!(same, [true, false, false]);
        assert_eq!(words, "executor 2: 5 tokens a step, not nothing");
    }

    #[test]
    fn the_order_of_an_engine_is_one_decision() {
        let sequences = vec![RequestId(1), RequestId(2)];
        let question = Question::Arrangement {
            executor: ExecutorId(4),
            sequences: sequences.clone().into(),
        };
        let one = Arrangement {
            prefill_max: Some(16),
            first: sequences,
        };
        let [one, other] = [one, Arrangement::default()].map(Reply::Arrangement);
        assert_eq!(check(&question, &one, &one).0, [true]);
        let (same, words) = check(&question, &one, &other);
        assert_eq!(same, [false]);
        let expected = "executor 4: serve request 1, then request 2, then the most urgent, with 16 \
                        tokens of prompts a step, not serve the most urgent";
        assert_eq!(words, expected);
    }
}
