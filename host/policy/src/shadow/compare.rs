//! The comparison of two answers to one question, decision by decision.
//!
//! Decisions are compared by their effect: placements by the first executor, holds as such, and
//! victims as a set. If only one of the two answers has a decision, the two differ.
//!
//! # Invariants
//! 1. Each row of a question is one decision, even if an answer says nothing about it
//!    (`what_one_says_nothing_of_differs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pointsman_core::{
    Allotment, Arrangement, EvictHow, Eviction, ExecutorId, Question, Reply, RequestId, admission,
    routing,
};
use pointsman_notation::Time;

/// One decision, made by two policies.
#[derive(Debug)]
pub(super) struct DecisionPair {
    pub(super) about: About,
    pub(super) in_force: Decision,
    pub(super) shadow: Decision,
}

/// One policy's decision.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    pub(super) choice: Choice,
    /// Index into the policy's reasons.
    pub(super) reason: Option<u16>,
}

/// The subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Request(RequestId),
    /// A place in the order, from 1.
    Rank(usize),
    Executor(ExecutorId),
}

/// The effect of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Admission(admission::Choice),
    Place(ExecutorId),
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
pub(super) enum Leaves {
    Recompute,
    Swap,
}

impl DecisionPair {
    pub(super) fn is_agreed(&self) -> bool {
        self.in_force.choice == self.shadow.choice
    }
}

/// Compares both answers to `question`, decision by decision.
pub(super) fn compare(
    question: &Question<'_>,
    in_force: &Reply,
    shadow: &Reply,
) -> Vec<DecisionPair> {
    let (one, other) = (decisions(in_force), decisions(shadow));
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
        Question::Budget { .. } => return compare_budgets(in_force, shadow),
        Question::Arrangement { executor, .. } => vec![About::Executor(*executor)],
    };
    let pairs = abouts.into_iter().enumerate();
    pairs
        .map(|(idx, about)| DecisionPair {
            about,
            in_force: one.get(idx).cloned().unwrap_or_else(nothing),
            shadow: other.get(idx).cloned().unwrap_or_else(nothing),
        })
        .collect()
}

fn nothing() -> Decision {
    Decision {
        choice: Choice::Nothing,
        reason: None,
    }
}

/// The decisions in a reply, in the order of the question.
fn decisions(reply: &Reply) -> Vec<Decision> {
    match reply {
        Reply::Admission(verdicts) => {
            let decided = verdicts.iter().map(|verdict| Decision {
                choice: Choice::Admission(verdict.choice),
                reason: Some(verdict.reason),
            });
            decided.collect()
        }
        Reply::Priority(order) => {
            let decided = order.iter().map(|request| Decision {
                choice: Choice::Next(*request),
                reason: None,
            });
            decided.collect()
        }
        Reply::Routing(verdicts) => verdicts.iter().map(routed).collect(),
        Reply::Preemption(eviction) => vec![evicted(eviction.as_ref())],
        Reply::Budget(_) => Vec::new(),
        Reply::Arrangement(arrangement) => vec![Decision {
            choice: Choice::Arrange(arrangement.clone()),
            reason: None,
        }],
    }
}

fn routed(verdict: &routing::Verdict) -> Decision {
    let choice = match &verdict.choice {
        routing::Choice::Place(executors) => executors
            .first()
            .map_or(Choice::Nothing, |id| Choice::Place(*id)),
        routing::Choice::Hold(_) => Choice::Hold,
        routing::Choice::GiveUp => Choice::GiveUp,
    };
    Decision {
        choice,
        reason: Some(verdict.reason),
    }
}

fn evicted(eviction: Option<&Eviction>) -> Decision {
    let Some(eviction) = eviction else {
        return Decision {
            choice: Choice::EvictNobody,
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
    Decision {
        choice: Choice::Evict(eviction.executor, victims.collect()),
        reason: Some(eviction.reason),
    }
}

/// Compares one decision for each executor that either reply names.
fn compare_budgets(in_force: &Reply, shadow: &Reply) -> Vec<DecisionPair> {
    let (one, other) = (budgets(in_force), budgets(shadow));
    let named: BTreeSet<ExecutorId> = one.keys().chain(other.keys()).copied().collect();
    let tokens = |of: &BTreeMap<ExecutorId, u32>, executor| Decision {
        choice: of
            .get(&executor)
            .map_or(Choice::Nothing, |max| Choice::Tokens(*max)),
        reason: None,
    };
    let compared = named.into_iter().map(|executor| DecisionPair {
        about: About::Executor(executor),
        in_force: tokens(&one, executor),
        shadow: tokens(&other, executor),
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

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Admission(admission::Choice::Admit) => f.write_str("admit"),
            Choice::Admission(admission::Choice::Park) => f.write_str("park"),
            Choice::Admission(admission::Choice::Shed(secs)) => {
                write!(f, "shed, retry after {}", Time::from_secs(u64::from(*secs)))
            }
            Choice::Admission(admission::Choice::Displace(displaced)) => {
                let after = Time::from_secs(u64::from(displaced.retry_after));
                write!(
                    f,
                    "displace request {}, retry after {after}",
                    displaced.request
                )
            }
            Choice::Place(executor) => write!(f, "place on executor {executor}"),
            Choice::Hold => f.write_str("hold"),
            Choice::GiveUp => f.write_str("give up"),
            Choice::Next(request) => write!(f, "request {request}"),
            Choice::Evict(executor, victims) => {
                write!(f, "evict from executor {executor}:")?;
                victims.iter().try_for_each(|(request, leaves)| {
                    let how = match leaves {
                        Leaves::Recompute => "recompute",
                        Leaves::Swap => "swap",
                    };
                    write!(f, " request {request} ({how})")
                })
            }
            Choice::EvictNobody => f.write_str("evict nobody"),
            Choice::Tokens(tokens) => write!(f, "{tokens} tokens a step"),
            Choice::Arrange(arrangement) => write!(f, "serve {arrangement}"),
            Choice::Nothing => f.write_str("nothing"),
        }
    }
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

    /// Compares decisions: which ones agree, and both choices of the first that differs.
    fn check(question: &Question<'_>, one: &Reply, other: &Reply) -> (Vec<bool>, String) {
        let compared = compare(question, one, other);
        let same = compared.iter().map(DecisionPair::is_agreed).collect();
        let differ = compared.iter().find(|c| !c.is_agreed());
        let words = differ.map_or_else(String::new, |c| {
            format!(
                "{}: {}, not {}",
                c.about, c.in_force.choice, c.shadow.choice
            )
        });
        (same, words)
    }

    #[test]
    fn placements_are_the_same_by_the_first_executor_and_holds_by_being_one() {
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
