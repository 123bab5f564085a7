//! A router with one bad habit, which its settings name, for the tests of the property checks.
//!
//! Without a habit it has every property; each habit breaks one. It places requests on the first
//! executor with room. The testkit also compiles it natively.

use std::hint::black_box;

use pointsman_sdk::wire::preemption::{Eviction, How, Shortage, Victim};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Change, Sequence, SequenceState};
use pointsman_sdk::{
    BatchPlacements, Case, Description, Executor, Feed, Fleet, Lack, Mirror, Moment, Policy,
    Preemption, Routing, Seat, Urgency, export,
};
use serde::Deserialize;

/// A router with a habit.
#[derive(Debug)]
struct Fickle {
    habit: Habit,
    asked: usize,
    /// Executors in the order in which they were told.
    executors: Vec<u32>,
}

/// The bad habit of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Habit {
    /// No bad habit.
    #[default]
    None,
    /// Places on executors that do not exist.
    Nowhere,
    /// Panics at a question.
    Panics,
    /// Lets its answers depend on their number, which its snapshot does not contain.
    Counts,
    /// Lets its answers depend on the executor that it was told first.
    FirstRow,
    /// Holds every request.
    Holds,
    /// Does not say until when it waits for another model's hold to end.
    Untimed,
    /// Looks at every pair of executors.
    Pairs,
    /// Evicts all that it may, where a few would do.
    Greedy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    habit: Habit,
}

impl Policy for Fickle {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "fickle".into(),
            version: "1".into(),
            summary: "Routes by its habit.".into(),
            reasons: vec!["so".into()],
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            habit: settings.habit,
            asked: 0,
            executors: Vec::new(),
        })
    }

    fn cleared(&mut self) {
        self.executors.clear();
    }

    fn changed(&mut self, _: &Mirror, change: &Change) {
        if let Change::Executor(row) = change
            && !self.executors.contains(&row.id)
        {
            self.executors.push(row.id);
        }
    }
}

impl Fickle {
    fn choice(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        id: u64,
    ) -> Choice {
        self.asked += 1;
        match self.habit {
            Habit::Nowhere => return Choice::Place(vec![u32::MAX]),
            Habit::Panics => panic!("out of habit"),
            Habit::Holds => return Choice::Hold(None),
            Habit::Pairs => look_at_pairs(mirror),
            Habit::None | Habit::Counts | Habit::FirstRow | Habit::Untimed | Habit::Greedy => {}
        }
        let Some(request) = mirror.request(id) else {
            return Choice::Hold(None);
        };
        let case = Case::new(Fleet { mirror, placed }, request, at.now);
        let open = mirror.executors();
        let open = open.filter_map(|executor| Some((executor, case.fit(&executor).ok()?)));
        let mut open: Vec<_> = open.collect();
        self.rearrange(&mut open);
        let Some((executor, seat)) = open.first() else {
            return match self.habit {
                Habit::Untimed => Choice::Hold(None),
                Habit::None
                | Habit::Nowhere
                | Habit::Panics
                | Habit::Counts
                | Habit::FirstRow
                | Habit::Holds
                | Habit::Pairs
                | Habit::Greedy => case.hold(None, 0).choice,
            };
        };
        placed.place(mirror, request, executor, *seat);
        Choice::Place(vec![executor.id()])
    }

    fn rearrange(&self, open: &mut [(Executor<'_>, Seat)]) {
        match self.habit {
            Habit::Counts => open.rotate_left(self.asked % open.len().max(1)),
            Habit::FirstRow => {
                let told = &self.executors;
                open.sort_by_key(|(executor, _)| told.iter().position(|id| *id == executor.id()));
            }
            Habit::None
            | Habit::Nowhere
            | Habit::Panics
            | Habit::Holds
            | Habit::Untimed
            | Habit::Pairs
            | Habit::Greedy => {}
        }
    }
}

fn look_at_pairs(mirror: &Mirror) {
    for one in mirror.executors() {
        for other in mirror.executors() {
            black_box(one.load.slots_used < other.load.slots_used);
            black_box(one.load.blocks_used < other.load.blocks_used);
            black_box(one.load.placed_total < other.load.placed_total);
            black_box(one.load.prefill_tokens_pending < other.load.prefill_tokens_pending);
            black_box(one.load.queued_throughput < other.load.queued_throughput);
            black_box(one.load.ttft_micros < other.load.ttft_micros);
            black_box(one.load.itl_micros < other.load.itl_micros);
            black_box(one.info.slots_total < other.info.slots_total);
            black_box(one.info.group < other.info.group);
            black_box(one.info.device < other.info.device);
        }
    }
}

impl Routing for Fickle {
    const NEEDS: Feed = Feed::FIT;

    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let verdict = |asked: &Cached| Verdict {
            choice: self.choice(mirror, placed, at, asked.request),
            reason: 0,
        };
        requests.iter().map(verdict).collect()
    }
}

impl Preemption for Fickle {
    const NEEDS: Feed = Feed::FIT.union(Feed::SEQUENCES);

    fn evict(&mut self, mirror: &Mirror, at: Moment, shortage: &Shortage) -> Option<Eviction> {
        let needy = Urgency::of(mirror, shortage.needy)?;
        let running = mirror.sequence(shortage.needy);
        let gives = |row: &&Sequence| {
            let urgency = Urgency::from(*row);
            // One that runs takes from later ones, too, or nobody could go on.
            let is_later = running.is_some_and(|needy| row.request > needy.request);
            row.preemptible
                && row.state == SequenceState::Running
                && (urgency < needy || urgency == needy && is_later)
        };
        let lacks = Lack::all(mirror, at.now, shortage);
        let (executor, victims) = lacks.into_iter().find_map(|lack| {
            let candidates: Vec<_> = lack.candidates(mirror).filter(gives).collect();
            let fewest = lack.fewest(candidates.iter().copied())?;
            let is_greedy = self.habit == Habit::Greedy;
            let victims = if is_greedy { candidates } else { fewest };
            Some((lack.executor.id(), victims))
        })?;
        let victim = |row: &Sequence| Victim {
            request: row.request,
            how: How::Recompute,
        };
        Some(Eviction {
            executor,
            victims: victims.into_iter().map(victim).collect(),
            reason: 0,
        })
    }
}

export!(Fickle: routing, preemption);
