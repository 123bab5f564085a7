//! Between the machine and the policy: now and then a question is asked of fresh instances too.
//!
//! One is restored from the policy's state and told everything anew; the other besides in another
//! order. Each must answer as the policy does, and the policy as it explains.

use std::fmt::Debug;

use fastrand::Rng;
use pointsman_core::rows::Cached;
use pointsman_core::{
    Allotment, Answer, Author, DeviceId, Eviction, ExecutorId, Hook, Micros, Moment, Policies,
    Refusal, RequestId, Shortage, View, admission, routing,
};
use pointsman_policy::{
    Briefing, Candidate, PolicyHost, PolicySource, Restored, Snapshot, StartError, start,
};

use super::{Broken, Plan, Property, Subject, bound, host_of};
use crate::report::Problem;

/// A policy and its short-lived twins.
#[derive(Debug)]
pub(super) struct Twinned {
    pub(super) host: PolicyHost,
    pub(super) broken: Broken,
    /// Answers compared.
    pub(super) compared: u64,
    /// Answers that were explained.
    pub(super) explained: u64,
    plain: PolicySource,
    shuffled: PolicySource,
    /// Which run this is, as it is made again.
    run: String,
    rng: Rng,
    every: u32,
}

// === impl Twinned ===

impl Twinned {
    pub(super) fn new(subject: &Subject, plan: &Plan, seed: u64) -> Result<Self, StartError> {
        Ok(Self {
            host: host_of(subject.source())?,
            broken: Broken::new(),
            compared: 0,
            explained: 0,
            plain: subject.source(),
            shuffled: subject.shuffled(seed),
            run: format!("seed {seed}, {} events", plan.events),
            rng: Rng::with_seed(seed),
            every: plan.restart_every.max(1),
        })
    }

    /// Notes what is wrong, if nothing of that kind was before.
    pub(super) fn note(&mut self, property: Property, summary: &str, detail: String) {
        let summary = format!("{}: {summary}", self.run);
        let problem = Problem { summary, detail };
        self.broken.entry(property).or_insert(problem);
    }

    /// Asks the policy, and of some questions its twins.
    fn ask<R: PartialEq + Debug>(
        &mut self,
        (view, at, hook): (&View<'_>, Moment, Hook),
        ask: &mut dyn FnMut(&mut PolicyHost) -> Answer<R>,
        judge: &Judge<'_, R>,
    ) -> Answer<R> {
        let answer = ask(&mut self.host);
        if self.rng.u32(0..self.every) != 0 || answer.author == Author::BuiltIn {
            return answer;
        }
        let Some(snapshot) = self.host.handover(at.now, 0) else {
            return answer;
        };
        // Again, so that the policy too answers from the state that the twins are given.
        let explained = (judge.explain)(&self.host);
        let answer = ask(&mut self.host);
        if let (Some(candidates), Some(answer)) = (explained, &answer.value) {
            self.explained += 1;
            if let Some(summary) = (judge.against)(&candidates, answer) {
                let detail = format!("at {at:?}\nanswered {answer:?}\nexplained {candidates:?}");
                self.note(Property::ExplainsItself, summary, detail);
            }
        }
        let twins = [
            (Property::SurvivesRestart, self.plain.clone()),
            (Property::IgnoresRowOrder, self.shuffled.clone()),
        ];
        for (property, source) in twins {
            let twin = restarted(source, &snapshot, view, at.now);
            let said = twin.map(|mut twin| ask(&mut twin).value);
            self.compared += 1;
            match (&answer.value, said) {
                (_, Err(why)) => self.note(property, "a fresh instance does not start", why),
                (Some(one), Ok(Some(other))) if *one == other => {}
                (Some(one), Ok(Some(other))) if (judge.same)(&self.host, one, &other) => {}
                (one, Ok(other)) => {
                    let summary = format!("{} is answered otherwise", hook.as_str());
                    let detail = format!("at {at:?}\nbefore {one:?}\nafter  {other:?}");
                    self.note(property, &summary, detail);
                }
            }
        }
        answer
    }
}

/// A fresh instance with the state of `snapshot`, told everything.
fn restarted(
    source: PolicySource,
    snapshot: &Snapshot,
    view: &View<'_>,
    now: Micros,
) -> Result<PolicyHost, String> {
    let said = |error: StartError| format!("{error:?}");
    let mut started = start(source).map_err(said)?;
    match started.restore(snapshot).map_err(said)? {
        Restored::Warm => {}
        refused @ (Restored::Cold | Restored::Refused(_) | Restored::Faulted(_)) => {
            return Err(format!("it does not take its own state over: {refused:?}"));
        }
    }
    let briefing = Briefing::new(view, now, started.description().feed);
    started.brief(briefing).map_err(said)?;
    Ok(bound(started))
}

/// Whether the first verdicts that differ place a request on executors that the policy explains
/// to cost the same. What follows a tie in a batch is not compared.
fn tied(
    (view, at): (&View<'_>, Moment),
    host: &PolicyHost,
    requests: &[Cached],
    (one, other): (&[routing::Verdict], &[routing::Verdict]),
) -> bool {
    let pairs = requests.iter().zip(one.iter().zip(other));
    let mut differing = pairs.filter(|(_, (one, other))| one != other);
    let Some((asked, (one, other))) = differing.next() else {
        return false;
    };
    let (routing::Choice::Place(one), routing::Choice::Place(other)) = (&one.choice, &other.choice)
    else {
        return false;
    };
    let said = view
        .request(asked.request)
        .and_then(|row| host.explain(view, at, row, asked).ok());
    let Some(said) = said else {
        return false;
    };
    let cost = |executor: &ExecutorId| {
        let mut candidates = said.candidates.iter();
        candidates.find_map(|candidate| (candidate.executor == *executor).then_some(candidate.cost))
    };
    let (one, other): (Vec<_>, Vec<_>) = (
        one.iter().map(cost).collect(),
        other.iter().map(cost).collect(),
    );
    one == other && one.iter().all(Option::is_some)
}

/// What the policy explains about the first request of a batch, which comes as if alone.
fn explained(
    (view, at): (&View<'_>, Moment),
    host: &PolicyHost,
    requests: &[Cached],
) -> Option<Vec<Candidate>> {
    let asked = requests.first()?;
    let row = view.request(asked.request)?;
    let said = host.explain(view, at, row, asked).ok()?;
    Some(said.candidates)
}

/// What is wrong with the first verdict by what was explained, if anything is.
fn against(candidates: &[Candidate], verdicts: &[routing::Verdict]) -> Option<&'static str> {
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

/// How the answers to one hook are judged.
struct Judge<'a, R> {
    /// Whether two answers that are not equal come to the same.
    same: &'a dyn Fn(&PolicyHost, &R, &R) -> bool,
    /// What the policy explains beforehand.
    explain: &'a dyn Fn(&PolicyHost) -> Option<Vec<Candidate>>,
    /// What is wrong with an answer by that.
    against: &'a dyn Fn(&[Candidate], &R) -> Option<&'static str>,
}

impl<R> Judge<'_, R> {
    /// Of answers that must be equal, and are not explained.
    const EQUAL: Self = Self {
        same: &|_, _, _| false,
        explain: &|_| None,
        against: &|_, _| None,
    };
}

impl Policies for Twinned {
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        self.ask(
            (view, at, Hook::Admission),
            &mut |host| host.admit(view, at, arrivals, room),
            &Judge::EQUAL,
        )
    }

    fn order(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[RequestId],
    ) -> Answer<Vec<RequestId>> {
        self.ask(
            (view, at, Hook::Priority),
            &mut |host| host.order(view, at, requests),
            &Judge::EQUAL,
        )
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        self.ask(
            (view, at, Hook::Routing),
            &mut |host| host.route(view, at, requests),
            &Judge {
                same: &|host, one, other| tied((view, at), host, requests, (one, other)),
                explain: &|host| explained((view, at), host, requests),
                against: &|candidates, verdicts| against(candidates, verdicts),
            },
        )
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        self.ask(
            (view, at, Hook::Preemption),
            &mut |host| host.evict(view, at, shortage),
            &Judge::EQUAL,
        )
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        self.ask(
            (view, at, Hook::Budget),
            &mut |host| host.allot(view, at, device, tokens_total),
            &Judge::EQUAL,
        )
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.host.refused(author, hook, refusal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It cannot take the request where it has no cost.
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
        assert_eq!(against(candidates, &[verdict]), wrong, "{candidates:?}");
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
