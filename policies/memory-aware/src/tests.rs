//! Routing, by hand-computed fleets.

mod cold;
mod groups;
mod held;
mod indexed;
mod overlap;
mod shares;
mod waits;

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load, request};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Request,
};

use super::instance;
use crate::reason::Reason;

/// The verdict on what is asked at 100 us and waits as long as it may.
const HELD: Choice = Choice::Hold(Some(30_000_100));
const MEMORY: &str = "{}";
const SLOTS: &str = r#"{"balance": "slots"}"#;

/// Executors, each on a device of its own.
struct Fleet(Vec<Change>);

impl Fleet {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, load: ExecutorLoad, device: Device) -> Self {
        let info = ExecutorInfo {
            device: device.id,
            ..executor(load.id)
        };
        self.0.push(Change::Executor(info));
        self.0.push(Change::Load(load));
        self.0.push(Change::Device(device));
        self
    }

    fn and(mut self, change: Change) -> Self {
        self.0.push(change);
        self
    }

    /// Three idle executors with four slots.
    fn of_three() -> Self {
        (0..3).fold(Self::new(), |fleet, id| fleet.with(load(id), device(id)))
    }

    fn ask(self, settings: &str, requests: Vec<Request>) -> Vec<(Choice, u16)> {
        let ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        let mut policy = self.policy(settings, requests);
        let verdicts = policy.route(at(100), ids.into_iter().map(cached).collect());
        verdicts
            .into_iter()
            .map(|verdict| (verdict.choice, verdict.reason))
            .collect()
    }

    fn policy(self, settings: &str, requests: Vec<Request>) -> Box<dyn Instance> {
        let mut policy = instance();
        policy
            .configure(&naming_three(settings), bounds())
            .expect("valid settings");
        let mut changes = self.0;
        changes.extend(requests.into_iter().map(Change::Waiting));
        policy.observe(100, Extent::Everything, changes);
        policy
    }

    /// Checks the verdict on request 1 for model 0.
    fn check(self, settings: &str, choice: Choice, reason: Reason) {
        let verdicts = self.ask(settings, vec![for_model(1, 0)]);
        assert_eq!(verdicts, [(choice, reason.index())]);
    }
}

/// The settings with answers of three executors unless they say how many: so more of an order is seen than by default.
fn naming_three(settings: &str) -> String {
    match settings {
        "{}" => r#"{"candidates": 3}"#.into(),
        _ if settings.contains("candidates") => settings.into(),
        _ => settings.replacen('{', r#"{"candidates": 3, "#, 1),
    }
}

fn for_model(id: u64, model: u32) -> Request {
    Request {
        model: Some(model),
        ..request(id)
    }
}

fn used(id: u32, permille: u32) -> Device {
    Device {
        blocks_free: 1000 - permille,
        ..device(id)
    }
}

fn slots(id: u32, used: u32) -> ExecutorLoad {
    ExecutorLoad {
        slots_used: used,
        ..load(id)
    }
}

fn placed(executors: &[u32]) -> Choice {
    Choice::Place(executors.to_vec())
}

#[test]
fn pressure_tier_goes_before_depth() {
    // Tiers 1, 0, 2; depths 0, 3, 0.
    Fleet::new()
        .with(slots(0, 0), used(0, 700))
        .with(slots(1, 3), used(1, 699))
        .with(slots(2, 0), used(2, 850))
        .check(MEMORY, placed(&[1, 0, 2]), Reason::LeastPressed);
}

#[test]
fn cached_blocks_are_not_pressure() {
    let mostly_cached = Device {
        blocks_free: 10,
        blocks_cached: 890,
        ..device(0)
    };
    Fleet::new()
        .with(slots(0, 0), mostly_cached)
        .with(slots(1, 0), used(1, 750))
        .check(MEMORY, placed(&[0, 1]), Reason::LeastPressed);
}

#[test]
fn within_a_tier_depth_then_free_blocks_then_bytes_then_placements() {
    let queued = ExecutorLoad {
        queued_critical: 1,
        queued_throughput: 1,
        ..load(1)
    };
    Fleet::new()
        .with(slots(0, 3), used(0, 0))
        .with(queued, used(1, 600))
        .check(MEMORY, placed(&[1, 0]), Reason::LeastPressed);
    Fleet::new()
        .with(slots(0, 1), used(0, 101))
        .with(slots(1, 1), used(1, 100))
        .check(MEMORY, placed(&[1, 0]), Reason::LeastPressed);
    let bigger_blocks = Device {
        block_bytes: 2 << 20,
        ..device(1)
    };
    Fleet::new()
        .with(load(0), device(0))
        .with(load(1), bigger_blocks)
        .check(MEMORY, placed(&[1, 0]), Reason::LeastPressed);
    let fewer = |id, placed_total| ExecutorLoad {
        placed_total,
        ..load(id)
    };
    Fleet::new()
        .with(fewer(0, 8), device(0))
        .with(fewer(1, 7), device(1))
        .check(MEMORY, placed(&[1, 0]), Reason::LeastPressed);
}

#[test]
fn what_reports_no_paged_kv_comes_after_all_that_do() {
    let unpaged = Change::Executor(ExecutorInfo {
        tokens_per_block: None,
        ..executor(0)
    });
    Fleet::new()
        .with(slots(0, 0), device(0))
        .with(slots(1, 3), used(1, 960))
        .and(unpaged)
        .check(MEMORY, placed(&[1, 0]), Reason::LeastPressed);
}

#[test]
fn where_none_reports_paged_kv_depth_and_placements_decide() {
    let unpaged = |id| {
        Change::Executor(ExecutorInfo {
            tokens_per_block: None,
            ..executor(id)
        })
    };
    let load_of = |id, slots_used, placed_total| ExecutorLoad {
        slots_used,
        placed_total,
        ..load(id)
    };
    let fleet = Fleet::new()
        .with(load_of(0, 2, 0), device(0))
        .with(load_of(1, 1, 9), used(1, 999))
        .with(load_of(2, 1, 8), device(2));
    (0..3)
        .fold(fleet, |fleet, id| fleet.and(unpaged(id)))
        .check(MEMORY, placed(&[2, 1, 0]), Reason::LeastPressed);
}

#[test]
fn up_goes_before_degraded_and_the_rest_is_never_chosen() {
    let with = |id, health, slots_used| ExecutorLoad {
        health,
        slots_used,
        ..load(id)
    };
    for settings in [MEMORY, SLOTS] {
        let verdicts = Fleet::new()
            .with(with(0, Health::Degraded, 0), device(0))
            .with(with(1, Health::Down, 0), device(1))
            .with(with(2, Health::Draining, 0), device(2))
            .with(with(3, Health::Up, 3), used(3, 960))
            .ask(settings, vec![for_model(1, 0)]);
        assert_eq!(verdicts[0].0, placed(&[3, 0]));
    }
}

#[test]
fn slots_are_compared_by_their_share() {
    // 2/4, 3/8, 1/2.
    let with = |id, slots_total| {
        Change::Executor(ExecutorInfo {
            device: id,
            slots_total,
            ..executor(id)
        })
    };
    Fleet::new()
        .with(slots(0, 2), device(0))
        .with(slots(1, 3), device(1))
        .with(slots(2, 1), device(2))
        .and(with(1, 8))
        .and(with(2, 2))
        .check(SLOTS, placed(&[1, 0, 2]), Reason::LeastUsed);
}

fn first(choice: &Choice) -> u32 {
    match choice {
        Choice::Place(executors) => executors[0],
        Choice::Hold(_) | Choice::GiveUp => panic!("not placed: {choice:?}"),
    }
}

#[test]
fn ties_go_round_per_model_and_the_turn_survives_a_reload() {
    let requests = |ids: std::ops::Range<u64>, model| ids.map(move |id| for_model(id, model));
    let all: Vec<Request> = requests(0..4, 0).chain(requests(4..6, 1)).collect();
    let mut policy = Fleet::of_three().policy(SLOTS, all.clone());
    // Each asked anew, so that the executors are tied every time.
    let ask = |policy: &mut Box<dyn Instance>, id| {
        policy.observe(100, Extent::SinceLast, Vec::new());
        first(&policy.route(at(100), vec![cached(id)])[0].choice)
    };
    let turns: Vec<u32> = (0..4).map(|id| ask(&mut policy, id)).collect();
    assert_eq!(turns, [0, 1, 2, 0]);
    assert_eq!(ask(&mut policy, 4), 0);

    let mut successor = Fleet::of_three().policy(SLOTS, all);
    assert_eq!(successor.restore(policy.snapshot()), Ok(()));
    assert_eq!(ask(&mut successor, 0), 1);
    assert_eq!(ask(&mut successor, 5), 1);
}

#[test]
fn a_batch_counts_its_own_placements() {
    let requests: Vec<Request> = (1..=13).map(request).collect();
    let verdicts = Fleet::of_three().ask(MEMORY, requests);
    let firsts: Vec<u32> = verdicts[..12].iter().map(|row| first(&row.0)).collect();
    assert_eq!(firsts, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
    assert_eq!(verdicts[12], (HELD, Reason::NoSlot.index()));
}

#[test]
fn the_session_goes_back_to_its_executor() {
    let of_session = |preferred| {
        vec![Request {
            preferred: Some(preferred),
            ..for_model(1, 0)
        }]
    };
    let fleet = || {
        Fleet::new()
            .with(slots(0, 0), device(0))
            .with(slots(1, 1), device(1))
            .with(slots(2, 3), used(2, 960))
            .with(slots(3, 4), device(3))
    };
    for settings in [MEMORY, SLOTS] {
        let verdicts = fleet().ask(settings, of_session(2));
        assert_eq!(verdicts, [(placed(&[2, 0, 1]), Reason::Session.index())]);
        // Its executor is full: as if there were no session.
        let verdicts = fleet().ask(settings, of_session(3));
        assert_eq!(verdicts[0].0, placed(&[0, 1, 2]));
    }
    let off = r#"{"session-preference": false}"#;
    assert_eq!(fleet().ask(off, of_session(2))[0].0, placed(&[0, 1, 2]));
}

#[test]
fn a_session_does_not_stay_on_a_degraded_executor_while_another_is_up() {
    let degraded = ExecutorLoad {
        health: Health::Degraded,
        ..load(0)
    };
    let of_session = || {
        vec![Request {
            preferred: Some(0),
            ..for_model(1, 0)
        }]
    };
    let verdicts = Fleet::new()
        .with(degraded, device(0))
        .with(slots(1, 3), device(1))
        .ask(MEMORY, of_session());
    assert_eq!(verdicts[0].0, placed(&[1, 0]));
    let verdicts = Fleet::new()
        .with(degraded, device(0))
        .ask(MEMORY, of_session());
    assert_eq!(verdicts, [(placed(&[0]), Reason::Session.index())]);
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::MemoryAware>();
}
