//! Comparisons of a policy's answer with those of fresh instances, and with its explanation.

use pointsman_component::Candidate;
use pointsman_core::rows::Cached;
use pointsman_core::{Asked, ExecutorId, Question, Reply, routing};
use pointsman_notation::chain;
use pointsman_policy::{
    Briefing, PolicyHost, PolicySource, Restored, Runner, Snapshot, StartError, start,
};

/// Makes a fresh instance with the state of `snapshot`, and tells it everything.
pub(super) fn restarted(
    source: PolicySource,
    snapshot: &Snapshot,
    asked: &Asked<'_>,
) -> Result<Runner, String> {
    let said = |error: StartError| chain(&error);
    let mut runner = start(source).map_err(said)?;
    match runner.restore(snapshot).map_err(said)? {
        Restored::Warm => {}
        refused @ (Restored::Cold | Restored::Refused(_) | Restored::Faulted(_)) => {
            return Err(format!("it does not take its own state over: {refused}"));
        }
    }
    let needs = runner.description().needs;
    let briefing = Briefing::new(&asked.view, asked.at.now, needs);
    runner.brief(briefing).map_err(said)?;
    Ok(runner)
}

/// True if two replies to a routing question are equally good: the first verdicts that differ place
/// a request on executors with the same explained cost. The rest of the batch is not compared.
pub(super) fn tied(host: &PolicyHost, asked: &Asked<'_>, replies: (&Reply, &Reply)) -> bool {
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
pub(super) fn explained(host: &PolicyHost, asked: &Asked<'_>) -> Option<Vec<Candidate>> {
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
pub(super) fn contradiction(candidates: &[Candidate], reply: &Reply) -> Option<&'static str> {
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
        assert_eq!(contradiction(candidates, &reply), wrong, "{candidates:?}");
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
