//! A router that explains another choice than its own.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{
    BatchPlacements, Case, Description, Executor, Explanation, Feed, Fleet, Mirror, Moment, Policy,
    Routing, export,
};
use serde::Deserialize;

/// Places on the first executor with room, and explains that the last is the best.
struct Boastful;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NoSettings {}

impl Policy for Boastful {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "boastful".into(),
            version: "1".into(),
            summary: "Says one thing and does another.".into(),
            reasons: vec!["the first".into()],
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Routing for Boastful {
    const NEEDS: Feed = Feed::FIT;

    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let mut choice = |id| {
            let Some(request) = mirror.request(id) else {
                return Choice::Hold(None);
            };
            let case = Case::new(Fleet { mirror, placed }, request, at.now);
            let mut open = mirror.executors();
            let open = open.find_map(|executor| Some((executor, case.fit(&executor).ok()?)));
            let Some((executor, seat)) = open else {
                return case.hold(None, 0).choice;
            };
            placed.place(mirror, request, &executor, seat);
            Choice::Place(vec![executor.id()])
        };
        let verdict = |asked: &Cached| Verdict {
            choice: choice(asked.request),
            reason: 0,
        };
        requests.iter().map(verdict).collect()
    }
}

impl Explanation for Boastful {
    const NEEDS: Feed = Feed::FIT;

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let executors: Vec<_> = case.fleet.mirror.executors().collect();
        let costs = (0..executors.len()).rev();
        let candidate = |(executor, cost): (Executor<'_>, usize)| Candidate {
            executor: executor.id(),
            eligible: case.fit(&executor).is_ok(),
            cost: i64::try_from(cost).unwrap_or(i64::MAX),
            note: "I would rather be here".into(),
        };
        executors.into_iter().zip(costs).map(candidate).collect()
    }
}

export!(Boastful: routing, explanation);
