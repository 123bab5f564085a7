//! The comparison of a policy with fresh instances of itself, between the machine and its host.
//!
//! Some questions are also asked of two fresh instances that have the policy's state. Both are told
//! everything anew, one of them in another order. Their answers must be those of the policy, and
//! the policy's answer must agree with its explanation.

use fastrand::Rng;
use pointsman_core::rows::Cached;
use pointsman_core::{
    Answer, Asked, Author, Eviction, ExecutorId, Hook, Policies, Question, Refusal, Reply,
    RequestId, Shortage, routing,
};
use pointsman_policy::{
    Briefing, Candidate, PolicyHost, PolicySource, Restored, Runner, Snapshot, StartError, start,
};

use super::{Broken, Plan, Property, Subject, host_of};
use crate::evictions::{Names, ToldEviction};
use crate::report::Problem;

/// A policy that is compared with short-lived copies.
#[derive(Debug)]
pub(super) struct WithCopies {
    pub(super) host: PolicyHost,
    pub(super) broken: Broken,
    /// Number of answers compared.
    pub(super) compared: u64,
    /// Number of answers that were explained.
    pub(super) explained: u64,
    /// Number of answers that evicted somebody.
    pub(super) evictions: u64,
    plain: PolicySource,
    shuffled: PolicySource,
    /// The seed and number of events that make this run again.
    run: String,
    rng: Rng,
    every: u32,
}

// === impl WithCopies ===

impl WithCopies {
    pub(super) fn new(subject: &Subject, plan: &Plan, seed: u64) -> Result<Self, StartError> {
        Ok(Self {
            host: host_of(subject.source())?,
            broken: Broken::new(),
            compared: 0,
            explained: 0,
            evictions: 0,
            plain: subject.source(),
            shuffled: subject.shuffled(seed),
            run: format!("seed {seed}, {} events", plan.events),
            rng: Rng::with_seed(seed),
            every: plan.restart_every.max(1),
        })
    }

    /// Notes a problem, unless the property already has one.
    pub(super) fn note(&mut self, property: Property, summary: &str, detail: String) {
        let summary = format!("{}: {summary}", self.run);
        let problem = Problem { summary, detail };
        self.broken.entry(property).or_insert(problem);
    }

    /// Notes victims that could have been spared.
    fn judge_eviction(&mut self, asked: &Asked<'_>, shortage: &Shortage, eviction: &Eviction) {
        self.evictions += 1;
        let told = ToldEviction::of(&asked.view, asked.at.now, (shortage, eviction));
        let Some(told) = told.filter(|told| !told.spared.is_empty()) else {
            return;
        };
        let (count, spared) = (eviction.victims.len(), told.spared.len());
        let summary = format!("it evicts {count}, of whom it could spare any of {spared}");
        let lines = told.lines(&Numbers).join("\n");
        self.note(Property::SparesVictims, &summary, lines);
    }

    /// Compares an answer with those of the policy's copies, and with its explanation.
    fn compare(&mut self, asked: &Asked<'_>) -> Option<Answer<Reply>> {
        let snapshot = self.host.handover(asked.at.now, 0)?;
        // The policy is asked again, so that it also answers from the state that its copies get.
        let explained = explained(&self.host, asked);
        let answer = self.host.ask(asked);
        let (Some(reply), at) = (&answer.value, asked.at) else {
            return Some(answer);
        };
        if let Some(candidates) = explained {
            self.explained += 1;
            if let Some(summary) = against(&candidates, reply) {
                let detail = format!("at {at:?}\nanswered {reply:?}\nexplained {candidates:?}");
                self.note(Property::ExplainsItself, summary, detail);
            }
        }
        let copies = [
            (Property::SurvivesRestart, self.plain.clone()),
            (Property::IgnoresRowOrder, self.shuffled.clone()),
        ];
        for (property, source) in copies {
            let copy = restarted(source, &snapshot, asked);
            self.compared += 1;
            match copy.map(|mut copy| Policies::ask(&mut copy, asked).value) {
                Err(why) => self.note(property, "a fresh instance does not start", why),
                Ok(Some(other)) if *reply == other || tied(&self.host, asked, (reply, &other)) => {}
                Ok(other) => {
                    let hook = asked.question.hook().as_str();
                    let summary = format!("{hook} is answered otherwise");
                    let detail = format!("at {at:?}\nbefore {reply:?}\nafter  {other:?}");
                    self.note(property, &summary, detail);
                }
            }
        }
        Some(answer)
    }
}

/// Names of what has none in these runs.
struct Numbers;

impl Names for Numbers {
    fn request(&self, id: RequestId) -> String {
        format!("request {id}")
    }

    fn executor(&self, id: ExecutorId) -> String {
        format!("executor {id}")
    }
}

impl Policies for WithCopies {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = self.host.ask(asked);
        if let (Question::Preemption(shortage), Some(Reply::Preemption(Some(eviction)))) =
            (&asked.question, &answer.value)
        {
            self.judge_eviction(asked, shortage, eviction);
        }
        if self.rng.u32(0..self.every) != 0 || answer.author == Author::BuiltIn {
            return answer;
        }
        self.compare(asked).unwrap_or(answer)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.host.refused(author, hook, refusal);
    }
}

/// Makes a fresh instance with the state of `snapshot`, and tells it everything.
fn restarted(
    source: PolicySource,
    snapshot: &Snapshot,
    asked: &Asked<'_>,
) -> Result<Runner, String> {
    let said = |error: StartError| format!("{error:?}");
    let mut runner = start(source).map_err(said)?;
    match runner.restore(snapshot).map_err(said)? {
        Restored::Warm => {}
        refused @ (Restored::Cold | Restored::Refused(_) | Restored::Faulted(_)) => {
            return Err(format!("it does not take its own state over: {refused:?}"));
        }
    }
    let needs = runner.description().needs;
    let briefing = Briefing::new(&asked.view, asked.at.now, needs);
    runner.brief(briefing).map_err(said)?;
    Ok(runner)
}

/// True if two replies to a routing question are equally good: the first verdicts that differ place
/// a request on executors with the same explained cost. The rest of the batch is not compared.
fn tied(host: &PolicyHost, asked: &Asked<'_>, replies: (&Reply, &Reply)) -> bool {
    let (Question::Routing(requests), (Reply::Routing(one), Reply::Routing(other))) =
        (&asked.question, replies)
    else {
        return false;
    };
    let pairs = requests.iter().zip(one.iter().zip(other));
    let mut differing = pairs.filter(|(_, (one, other))| one != other);
    let Some((cached, (one, other))) = differing.next() else {
        return false;
    };
    let (routing::Choice::Place(one), routing::Choice::Place(other)) = (&one.choice, &other.choice)
    else {
        return false;
    };
    let Some(said) = explained_one(host, asked, cached) else {
        return false;
    };
    let cost = |executor: &ExecutorId| {
        let mut candidates = said.iter();
        candidates.find_map(|candidate| (candidate.executor == *executor).then_some(candidate.cost))
    };
    let (one, other): (Vec<_>, Vec<_>) = (
        one.iter().map(cost).collect(),
        other.iter().map(cost).collect(),
    );
    one == other && one.iter().all(Option::is_some)
}

/// The policy's explanation for the first request of a batch, as if it were alone.
fn explained(host: &PolicyHost, asked: &Asked<'_>) -> Option<Vec<Candidate>> {
    let Question::Routing(requests) = &asked.question else {
        return None;
    };
    explained_one(host, asked, requests.first()?)
}

/// The policy's explanation for one request of a batch.
fn explained_one(host: &PolicyHost, asked: &Asked<'_>, cached: &Cached) -> Option<Vec<Candidate>> {
    let row = asked.view.request(cached.request)?;
    let rehearsal = host.rehearse(&asked.view, asked.at, row)?;
    rehearsal.explain(row, cached).ok()
}

/// The contradiction between the first verdict and the explanation, if there is one.
fn against(candidates: &[Candidate], reply: &Reply) -> Option<&'static str> {
    let Reply::Routing(verdicts) = reply else {
        return None;
    };
    let eligible = candidates.iter().filter(|candidate| candidate.eligible);
    let least = eligible.clone().map(|candidate| candidate.cost).min();
    match &verdicts.first()?.choice {
        routing::Choice::Place(executors) => {
            let mut eligible = eligible;
            let chosen = eligible.find(|candidate| executors.first() == Some(&candidate.executor));
            match chosen {
                None => Some("it places where it explains that it cannot"),
                Some(chosen) if Some(chosen.cost) > least => {
                    Some("it explains that another place is better")
                }
                Some(_) => None,
            }
        }
        routing::Choice::Hold(_) | routing::Choice::GiveUp => {
            least.map(|_| "it holds what it explains that it can place")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate with this cost; without a cost it cannot take the request.
    fn candidate(executor: u32, cost: Option<i64>) -> Candidate {
        Candidate {
            executor: ExecutorId(executor),
            eligible: cost.is_some(),
            cost: cost.unwrap_or(0),
            note: String::new(),
        }
    }

    fn check(candidates: &[Candidate], choice: routing::Choice, wrong: Option<&str>) {
        let verdict = routing::Verdict { choice, reason: 0 };
        let reply = Reply::Routing(vec![verdict]);
        assert_eq!(against(candidates, &reply), wrong, "{candidates:?}");
    }

    fn on(executor: u32) -> routing::Choice {
        routing::Choice::Place(vec![ExecutorId(executor)])
    }

    #[test]
    fn a_choice_is_right_where_no_other_is_explained_to_cost_less() {
        let explained = [
            candidate(1, Some(7)),
            candidate(2, Some(5)),
            candidate(3, None),
            candidate(4, Some(5)),
        ];
        check(&explained, on(2), None);
        check(&explained, on(4), None);
        check(
            &explained,
            on(1),
            Some("it explains that another place is better"),
        );
        let cannot = Some("it places where it explains that it cannot");
        check(&explained, on(3), cannot);
        check(&explained, on(9), cannot);
    }

    #[test]
    fn a_hold_is_right_where_none_is_explained_to_be_able() {
        let hold = || routing::Choice::Hold(None);
        check(&[candidate(1, None)], hold(), None);
        check(&[], routing::Choice::GiveUp, None);
        let could = Some("it holds what it explains that it can place");
        check(&[candidate(1, Some(0))], hold(), could);
    }
}
