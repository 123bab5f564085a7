//! Between the machine and the policy: now and then a question is asked of fresh instances too.
//!
//! One is restored from the policy's state and told everything anew; the other besides in another
//! order. Each must answer as the policy does.

use std::fmt::Debug;

use fastrand::Rng;
use pointsman_core::rows::Cached;
use pointsman_core::{
    Allotment, Answer, Author, DeviceId, Eviction, ExecutorId, Hook, Micros, Moment, Policies,
    Refusal, RequestId, Shortage, View, admission, routing,
};
use pointsman_policy::{Briefing, PolicyHost, PolicySource, Restored, Snapshot, StartError, start};

use super::{Broken, Plan, Property, Subject, bound, host_of};
use crate::report::Problem;

/// A policy and its short-lived twins.
#[derive(Debug)]
pub(super) struct Twinned {
    pub(super) host: PolicyHost,
    pub(super) broken: Broken,
    /// Answers compared.
    pub(super) compared: u64,
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

    /// Asks the policy, and of some questions its twins. `same` tells whether two answers that
    /// are not equal come to the same.
    fn ask<R: PartialEq + Debug>(
        &mut self,
        (view, at, hook): (&View<'_>, Moment, Hook),
        ask: &mut dyn FnMut(&mut PolicyHost) -> Answer<R>,
        same: &dyn Fn(&PolicyHost, &R, &R) -> bool,
    ) -> Answer<R> {
        let answer = ask(&mut self.host);
        if self.rng.u32(0..self.every) != 0 || answer.author == Author::BuiltIn {
            return answer;
        }
        let Some(snapshot) = self.host.handover(at.now, 0) else {
            return answer;
        };
        // Again, so that the policy too answers from the state that the twins are given.
        let answer = ask(&mut self.host);
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
                (Some(one), Ok(Some(other))) if same(&self.host, one, &other) => {}
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

fn never<R>(_: &PolicyHost, _: &R, _: &R) -> bool {
    false
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
            &never,
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
            &never,
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
            &|host, one, other| tied((view, at), host, requests, (one, other)),
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
            &never,
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
            &never,
        )
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.host.refused(author, hook, refusal);
    }
}
