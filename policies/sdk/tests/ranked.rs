//! Policies that rank executors, driven as the host drives them.

use std::cmp::Reverse;

use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load, request};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Cached, Change, Device, ExecutorInfo, ExecutorLoad, Extent, Overlap, Request,
};
use pointsman_sdk::{
    ByRank, Description, Executor, Instance, NoSettings, Place, Policy, Ranked, Reach, Turns,
};

fn describe() -> Description {
    Description {
        name: "ranked".into(),
        version: "1.0.0".into(),
        summary: String::new(),
        reasons: vec!["the best".into(), "no room".into()],
        state_version: 1,
    }
}

mod idlest {
    use super::*;

    /// Ranks by the requests on an executor.
    struct Idlest;

    impl Policy for Idlest {
        type Settings = NoSettings;

        fn describe() -> Description {
            describe()
        }

        fn new(_: NoSettings) -> Result<Self, String> {
            Ok(Self)
        }
    }

    impl Ranked for Idlest {
        type Rank = u64;

        fn rank(&self, place: &Place<'_>) -> u64 {
            place.depth()
        }

        fn note(&self, executor: &Executor<'_>) -> String {
            format!("depth {}", executor.depth())
        }
    }

    pointsman_sdk::export!(ByRank<Idlest>: routing, explanation);
}

mod in_turn {
    use super::*;

    /// Ranks all executors alike, and lets them take turns.
    #[derive(Default)]
    struct InTurn(Turns);

    impl Policy for InTurn {
        type Settings = NoSettings;

        fn describe() -> Description {
            describe()
        }

        fn new(_: NoSettings) -> Result<Self, String> {
            Ok(Self::default())
        }

        fn snapshot(&self) -> Vec<u8> {
            self.0.snapshot()
        }

        fn restore(&mut self, state: &[u8]) -> Result<(), String> {
            self.0 = Turns::restore(state)?;
            Ok(())
        }
    }

    impl Ranked for InTurn {
        type Rank = ();

        fn rank(&self, _: &Place<'_>) {}

        fn turns(&mut self, _: &Request) -> Option<&mut Turns> {
            Some(&mut self.0)
        }
    }

    pointsman_sdk::export!(ByRank<InTurn>: routing, explanation);
}

mod roomiest {
    use super::*;

    /// Ranks by the free blocks of the device.
    struct Roomiest;

    impl Policy for Roomiest {
        type Settings = NoSettings;

        fn describe() -> Description {
            describe()
        }

        fn new(_: NoSettings) -> Result<Self, String> {
            Ok(Self)
        }
    }

    impl Ranked for Roomiest {
        type Rank = Reverse<u64>;

        const REACH: Reach = Reach::Device;

        fn rank(&self, place: &Place<'_>) -> Reverse<u64> {
            let (mirror, device) = (place.fleet.mirror, place.executor.info.device);
            let taken = place.fleet.placed.blocks(mirror, device);
            let row = mirror.device(device);
            Reverse(row.map_or(0, |row| row.blocks_available() - taken))
        }
    }

    pointsman_sdk::export!(ByRank<Roomiest>: routing);
}

/// A policy that was told of these executors, two to a device, and of requests 1 to 8.
fn told(mut policy: Box<dyn Instance>, loads: &[ExecutorLoad]) -> Box<dyn Instance> {
    policy
        .configure("{}", bounds())
        .expect("there is nothing to set");
    let rows = loads.iter().flat_map(|load| {
        let info = ExecutorInfo {
            device: load.id / 2,
            ..executor(load.id)
        };
        [
            Change::Device(device(info.device)),
            Change::Executor(info),
            Change::Load(*load),
        ]
    });
    let waiting = (1..=8).map(|id| Change::Waiting(request(id)));
    policy.observe(0, Extent::Everything, rows.chain(waiting).collect());
    policy
}

fn used(id: u32, slots_used: u32) -> ExecutorLoad {
    ExecutorLoad {
        slots_used,
        ..load(id)
    }
}

fn route(policy: &mut dyn Instance, requests: std::ops::RangeInclusive<u64>) -> Vec<Option<u32>> {
    let verdicts = policy.route(at(0), requests.map(cached).collect());
    let placed = verdicts.into_iter().map(|verdict| match verdict.choice {
        Choice::Place(executors) => {
            assert_eq!(verdict.reason, 0);
            Some(executors[0])
        }
        Choice::Hold(_) => {
            assert_eq!(verdict.reason, 1);
            None
        }
        Choice::GiveUp => panic!("given up"),
    });
    placed.collect()
}

#[test]
fn a_request_goes_to_the_least_rank_with_room_and_placements_count() {
    let mut policy = told(idlest::instance(), &[used(0, 3), used(1, 2), used(2, 3)]);
    let placed = route(&mut *policy, 1..=5);
    assert_eq!(placed, [Some(1), Some(0), Some(1), Some(2), None]);
    // The question may come again without news, and refused placements leave nothing behind.
    assert_eq!(route(&mut *policy, 5..=5), [None]);
    policy.observe(1, Extent::SinceLast, vec![Change::Load(used(2, 0))]);
    assert_eq!(route(&mut *policy, 5..=5), [Some(2)]);
    policy.observe(2, Extent::SinceLast, vec![Change::ExecutorGone(2)]);
    assert_eq!(route(&mut *policy, 5..=6), [Some(1), Some(0)]);
    policy.observe(3, Extent::Everything, vec![Change::Waiting(request(1))]);
    assert_eq!(route(&mut *policy, 1..=1), [None]);
}

#[test]
fn an_explanation_has_the_place_in_the_order_and_the_note() {
    let mut policy = told(idlest::instance(), &[used(0, 3), used(1, 4), used(2, 2)]);
    let candidates = policy.explain(at(0), request(9), cached(9));
    let shown: Vec<(i64, &str)> = candidates
        .iter()
        .map(|candidate| (candidate.cost, candidate.note.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            (1, "up, a slot is free; depth 3"),
            (2, "4/4 slots in use and no room in its queue; depth 4"),
            (0, "up, a slot is free; depth 2"),
        ]
    );
}

#[test]
fn equals_take_turns_over_batches_and_reloads() {
    let loads = [load(0), load(1), load(2)];
    let mut before = told(in_turn::instance(), &loads);
    assert_eq!(route(&mut *before, 1..=2), [Some(0), Some(1)]);
    let mut after = told(in_turn::instance(), &loads);
    after.restore(before.snapshot()).expect("its own state");
    let candidates = after.explain(at(0), request(9), cached(9));
    let costs: Vec<i64> = candidates.iter().map(|candidate| candidate.cost).collect();
    assert_eq!(costs, [1, 2, 0]);
    assert_eq!(candidates[0].note, "up, a slot is free; had its turn");
    assert_eq!(route(&mut *after, 3..=4), [Some(2), Some(0)]);
}

#[test]
fn a_placement_changes_the_ranks_on_its_whole_device() {
    let loads = [used(0, 3), used(1, 3), used(2, 3), used(3, 3)];
    let mut policy = told(roomiest::instance(), &loads);
    // Each takes blocks of its device, which the neighbour has no more.
    let placed = route(&mut *policy, 1..=4);
    assert_eq!(placed, [Some(0), Some(2), Some(1), Some(3)]);
}

/// Tests a group whose two executors are full, on a device that never has room for the requests 9 and 11.
#[test]
fn a_group_serves_a_request_or_not_by_its_length_whichever_was_asked_about_before() {
    let loads = [used(0, 4), used(1, 4), load(2), load(3)];
    let mut policy = told(idlest::instance(), &loads);
    let of_group = |id| {
        Change::Executor(ExecutorInfo {
            group: 5,
            ..executor(id)
        })
    };
    let small = Change::Device(Device {
        blocks_total: 20,
        ..with_blocks(20)
    });
    let asks = [(9, 400), (10, 100), (11, 400)].map(|(id, prompt_tokens)| {
        Change::Waiting(Request {
            prompt_tokens,
            group: Some(5),
            ..request(id)
        })
    });
    let rows = [of_group(0), of_group(1), small].into_iter().chain(asks);
    policy.observe(1, Extent::SinceLast, rows.collect());
    assert_eq!(route(&mut *policy, 9..=11), [Some(2), None, Some(3)]);
    policy.observe(2, Extent::SinceLast, Vec::new());
    assert_eq!(route(&mut *policy, 10..=11), [None, Some(2)]);
}

/// A request of whose prompt the device of executor 1 has so many tokens.
fn held(id: u64, device_tokens: u32) -> Cached {
    Cached {
        overlaps: Some(vec![Overlap {
            executor: 1,
            device_tokens,
            host_tokens: 0,
            disk_tokens: 0,
        }]),
        ..cached(id)
    }
}

/// The row of the device with so many free blocks.
fn with_free(blocks_free: u32) -> Change {
    Change::Device(with_blocks(blocks_free))
}

fn with_blocks(blocks_free: u32) -> Device {
    Device {
        blocks_free,
        ..device(0)
    }
}

/// Tests a prompt of 7 blocks on a device with 2 free ones, where others hold 5 of it, or 4.
#[test]
fn a_request_that_shares_blocks_goes_where_there_are_too_few_for_all_of_its_prompt() {
    let mut policy = told(idlest::instance(), &[load(0), load(1)]);
    policy.observe(1, Extent::SinceLast, vec![with_free(2)]);
    let explained = policy.explain(at(1), request(9), held(9, 80));
    let eligible: Vec<bool> = explained.iter().map(|it| it.eligible).collect();
    assert_eq!(eligible, [false, true]);
    let asked = vec![held(1, 64), cached(2), held(3, 80), held(4, 64)];
    let verdicts = policy.route(at(1), asked);
    let choices: Vec<&Choice> = verdicts.iter().map(|verdict| &verdict.choice).collect();
    let waits = Choice::Hold(Some(1 + bounds().held_max));
    let placed = Choice::Place(vec![1]);
    assert_eq!(choices, [&waits, &waits, &placed, &waits]);
}

/// Tests prompts of 7 blocks on a device with 3 free ones, where others hold 5 of the one, and 6 of the other.
#[test]
fn requests_that_share_blocks_take_no_more_of_a_batch_than_the_rest_of_their_prompts() {
    let mut policy = told(idlest::instance(), &[load(0), load(1)]);
    policy.observe(1, Extent::SinceLast, vec![with_free(3)]);
    let verdicts = policy.route(at(1), vec![held(1, 80), held(2, 96), held(3, 96)]);
    let choices: Vec<&Choice> = verdicts.iter().map(|verdict| &verdict.choice).collect();
    let waits = Choice::Hold(Some(1 + bounds().held_max));
    let placed = Choice::Place(vec![1]);
    assert_eq!(choices, [&placed, &placed, &waits]);
}
