//! A router that serves in the order of arrival, whatever it costs: nobody is placed before all who came
//! earlier are. Simulations compare the default policies with it.
//!
//! A model that is not loaded anywhere therefore gets the next executor that runs empty, and everybody
//! behind its request waits for that.

use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Stage};
use pointsman_sdk::{
    BatchPlacements, Case, Description, Feed, Fleet, Mirror, Moment, NoSettings, Policy, Routing,
    Seat, export,
};

/// A router that serves in the order of arrival.
#[derive(Debug)]
struct InOrder;

impl Policy for InOrder {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "in-order".into(),
            version: "1".into(),
            summary: "First come, first served, without exception.".into(),
            reasons: vec!["it is its turn".into(), "others came first".into()],
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Routing for InOrder {
    const NEEDS: Feed = Feed::FIT;

    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let mut line = Line::of(mirror);
        let verdict = |asked: &Cached| {
            let request = mirror
                .request(asked.request)
                .expect("an asked request has a row");
            let case = Case::new(Fleet { mirror, placed }, request, at.now);
            let picked = pick(&case).filter(|_| line.is_next(request.id));
            let Some((executor, seat)) = picked else {
                return case.hold(None, 1);
            };
            line.left += 1;
            if let Some(executor) = mirror.executor(executor) {
                placed.place(mirror, request, &executor, seat);
            }
            Verdict {
                choice: Choice::Place(vec![executor]),
                reason: 0,
            }
        };
        requests.iter().map(verdict).collect()
    }
}

/// The executor with room that has the model, or else the emptiest one.
fn pick(case: &Case<'_>) -> Option<(u32, Seat)> {
    let mirror = case.fleet.mirror;
    let open = mirror.executors();
    let open = open.filter_map(|executor| Some((executor, case.fit(&executor).ok()?)));
    let best = open.min_by_key(|(executor, _)| {
        let has_model = case.request.model.is_some_and(|model| {
            executor.runs(model) || case.fleet.placed.started(executor).contains(&model)
        });
        (!has_model, executor.depth(), executor.position)
    });
    best.map(|(executor, seat)| (executor.id(), seat))
}

/// Everybody who waits, in order of arrival. The host does not ask about those that have no room: they are in
/// the line all the same.
struct Line {
    ids: Vec<u64>,
    /// The number of those who have got a place.
    left: usize,
}

impl Line {
    fn of(mirror: &Mirror) -> Self {
        let queued = mirror.requests().filter(|row| row.stage == Stage::Queued);
        let mut rows: Vec<(u64, u64)> = queued.map(|row| (row.arrived, row.id)).collect();
        rows.sort_unstable();
        Self {
            ids: rows.into_iter().map(|(_, id)| id).collect(),
            left: 0,
        }
    }

    fn is_next(&self, request: u64) -> bool {
        self.ids.get(self.left) == Some(&request)
    }
}

export!(InOrder: routing);
