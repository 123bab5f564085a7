//! Sequences that give way, in small fleets on one device unless said otherwise.

mod places;

use pointsman_sdk::fixture::{at, bounds, device, executor, load, request, sequence};
use pointsman_sdk::wire::preemption::{Cause, How, Shortage};
use pointsman_sdk::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Request, RequestClass, Sequence,
    SequenceState,
};

use crate::reason::Reason;

/// The needy one in every case.
const NEEDY: u64 = 100;

struct Case {
    settings: &'static str,
    rows: Vec<Change>,
}

/// Two engines on device 0, all of whose blocks are in use.
fn two_engines() -> Case {
    let full = Device {
        blocks_free: 0,
        ..device(0)
    };
    let mut rows = vec![Change::Device(full)];
    for id in 0..2 {
        rows.push(Change::Executor(executor(id)));
        rows.push(Change::Load(load(id)));
    }
    Case {
        settings: "{}",
        rows,
    }
}

impl Case {
    fn with(mut self, row: Change) -> Self {
        self.rows.push(row);
        self
    }

    fn running(self, rows: impl IntoIterator<Item = Sequence>) -> Self {
        rows.into_iter()
            .fold(self, |case, row| case.with(Change::Sequence(row)))
    }

    /// The needy one waits, more urgent than priority 0.
    fn waiting(self) -> Self {
        self.with(Change::Waiting(Request {
            priority: 1,
            ..request(NEEDY)
        }))
    }

    fn check(self, shortage: Shortage, expected: Option<(u32, &[u64], Reason)>) {
        let mut policy = crate::instance();
        policy
            .configure(self.settings, bounds())
            .expect("valid settings");
        policy.observe(0, Extent::Everything, self.rows);
        let eviction = policy.evict(at(0), shortage);
        let found = eviction.as_ref().map(|eviction| {
            let all_recomputed = eviction.victims.iter().all(|row| row.how == How::Recompute);
            assert!(all_recomputed);
            let victims: Vec<u64> = eviction.victims.iter().map(|row| row.request).collect();
            (eviction.executor, victims, eviction.reason)
        });
        let expected = expected
            .map(|(executor, victims, reason)| (executor, victims.to_vec(), reason.index()));
        assert_eq!(found, expected);
    }
}

fn blocks(blocks: u32, executor: Option<u32>) -> Shortage {
    Shortage {
        cause: Cause::Blocks,
        needy: NEEDY,
        executor,
        blocks,
    }
}

fn urgent(request: u64, executor: u32, priority: i32) -> Sequence {
    Sequence {
        priority,
        ..sequence(request, executor)
    }
}

/// The needy one runs on executor 0 since time 50 and cannot grow.
fn growing() -> Sequence {
    Sequence {
        started: 50,
        ..urgent(NEEDY, 0, 1)
    }
}

/// The requests that leave by swap, of less urgent ones of the needy one's engine that hold these blocks
/// each and all have to go, where host memory has `room` blocks.
fn swapped(settings: &'static str, room: u32, held: &[u32]) -> Vec<u64> {
    let case = two_engines().with(Change::Device(Device {
        blocks_free: 0,
        host_blocks_total: 100,
        host_blocks_free: room,
        ..device(0)
    }));
    let victims = (1..).zip(held).map(|(id, blocks)| Sequence {
        blocks: *blocks,
        blocks_exclusive: *blocks,
        swappable: true,
        ..urgent(id, 0, 0)
    });
    let case = case.running(victims).running([growing()]);
    let mut policy = crate::instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    policy.observe(0, Extent::Everything, case.rows);
    let eviction = policy.evict(at(0), blocks(held.iter().sum(), Some(0)));
    let victims = eviction.expect("they cover it").victims;
    assert_eq!(victims.len(), held.len());
    let swapped = victims.iter().filter(|victim| victim.how == How::Swap);
    let mut swapped: Vec<u64> = swapped.map(|victim| victim.request).collect();
    swapped.sort_unstable();
    swapped
}

#[test]
fn swaps_no_more_than_there_is_room_for() {
    assert_eq!(swapped("{}", 100, &[3, 9, 5]), [1, 2, 3]);
    // Nine and five, the longest, leave no room for three.
    assert_eq!(swapped("{}", 16, &[3, 9, 5]), [2, 3]);
    assert_eq!(swapped("{}", 8, &[3, 9, 5]), [1, 3]);
    assert_eq!(swapped("{}", 0, &[3, 9, 5]), [0_u64; 0]);
}

#[test]
fn swaps_nothing_that_is_computed_again_in_no_time() {
    // Two blocks of sixteen tokens.
    assert_eq!(swapped("{}", 100, &[1, 2]), [2]);
    assert_eq!(swapped(r#"{"swap-from": 33}"#, 100, &[1, 2, 3]), [3]);
}

#[test]
fn another_engine_gives_before_the_own_one() {
    two_engines()
        .running([urgent(1, 0, -5), urgent(2, 1, 0), growing()])
        .check(
            blocks(10, Some(0)),
            Some((0, &[2], Reason::BlocksFromNeighbour)),
        );
}

#[test]
fn the_least_urgent_engine_that_alone_can_give_enough_does() {
    let four = || {
        two_engines()
            .with(Change::Executor(executor(2)))
            .with(Change::Load(load(2)))
            .with(Change::Executor(executor(3)))
            .with(Change::Load(load(3)))
    };
    // Executor 1 is the least urgent but has only 10 blocks to give; 2 and 3 tie at 20.
    let rows = || {
        [
            urgent(1, 1, -3),
            urgent(2, 2, -2),
            urgent(3, 2, 0),
            urgent(4, 3, -2),
            urgent(5, 3, -1),
            growing(),
        ]
    };
    four().running(rows()).check(
        blocks(11, Some(0)),
        Some((0, &[2, 3], Reason::BlocksFromNeighbour)),
    );
    four().running(rows()).check(
        blocks(10, Some(0)),
        Some((0, &[1], Reason::BlocksFromNeighbour)),
    );
    four().running(rows()).check(blocks(21, Some(0)), None);
}

#[test]
fn victims_are_the_least_urgent_then_the_newest_until_it_is_covered() {
    let since = |request, started, priority| Sequence {
        started,
        ..urgent(request, 1, priority)
    };
    let useless = Sequence {
        blocks_exclusive: 0,
        ..since(5, 9, -9)
    };
    let rows = [
        since(1, 1, 0),
        since(2, 2, 0),
        since(3, 3, 0),
        since(4, 0, -1),
        useless,
        growing(),
    ];
    two_engines().running(rows).check(
        blocks(25, Some(0)),
        Some((0, &[4, 3, 2], Reason::BlocksFromNeighbour)),
    );
}

#[test]
fn throughput_is_less_urgent_than_any_latency_critical() {
    let critical = Sequence {
        class: RequestClass::LatencyCritical,
        priority: -9,
        ..sequence(1, 1)
    };
    let throughput = urgent(2, 1, 9);
    let needy = Sequence {
        class: RequestClass::LatencyCritical,
        priority: -9,
        ..growing()
    };
    two_engines().running([critical, throughput, needy]).check(
        blocks(10, Some(0)),
        Some((0, &[2], Reason::BlocksFromNeighbour)),
    );
}

#[test]
fn what_cannot_leave_is_left() {
    let fixed = Sequence {
        preemptible: false,
        ..urgent(1, 1, -5)
    };
    let leaving = Sequence {
        state: SequenceState::Leaving,
        ..urgent(2, 1, -5)
    };
    let queued = Sequence {
        state: SequenceState::Queued,
        ..urgent(3, 1, -5)
    };
    two_engines()
        .running([fixed, leaving, queued, growing()])
        .check(blocks(1, Some(0)), None);
}

#[test]
fn another_device_cannot_give() {
    let elsewhere = ExecutorInfo {
        device: 1,
        ..executor(1)
    };
    two_engines()
        .with(Change::Executor(elsewhere))
        .running([urgent(1, 1, -5), growing()])
        .check(blocks(10, Some(0)), None);
}

#[test]
fn the_own_engine_gives_where_no_other_can() {
    two_engines()
        .running([urgent(1, 0, 0), urgent(2, 1, 1), growing()])
        .check(blocks(10, Some(0)), Some((0, &[1], Reason::BlocksFromOwn)));
}

#[test]
fn later_ones_as_urgent_give_as_a_last_resort() {
    let since = |request, executor, started| Sequence {
        started,
        ..urgent(request, executor, 1)
    };
    // The needy one was evicted once, so it started after one that came later.
    let later = NEEDY + 1;
    let rows = || {
        [
            since(1, 0, 51),
            since(later, 0, 49),
            since(NEEDY + 2, 1, 60),
            growing(),
        ]
    };
    two_engines().running(rows()).check(
        blocks(10, Some(0)),
        Some((0, &[later], Reason::BlocksFromLater)),
    );
    // Two are enough on no engine.
    two_engines()
        .running(rows())
        .check(blocks(20, Some(0)), None);
    let mut refusing = two_engines();
    refusing.settings = r#"{"yield-to-older": false}"#;
    refusing.running(rows()).check(blocks(10, Some(0)), None);
}

#[test]
fn a_waiting_request_takes_nothing_from_its_equals() {
    two_engines()
        .waiting()
        .running([urgent(1, 0, 1), urgent(2, 1, 1)])
        .check(blocks(7, None), None);
}

#[test]
fn a_waiting_request_goes_where_the_blocks_come_free() {
    // 101 tokens are 7 blocks; executor 0 is tried first, and its neighbour gives.
    two_engines().waiting().running([urgent(1, 1, 0)]).check(
        blocks(7, None),
        Some((0, &[1], Reason::BlocksFromNeighbour)),
    );
    // Pinned to executor 1, it is that one's own that gives.
    two_engines()
        .with(Change::Waiting(Request {
            priority: 1,
            allowed: Some(vec![1]),
            ..request(NEEDY)
        }))
        .running([urgent(1, 1, 0)])
        .check(blocks(7, None), Some((1, &[1], Reason::BlocksFromOwn)));
}

#[test]
fn blocks_without_a_slot_are_no_help_to_a_waiting_request() {
    let full = ExecutorLoad {
        slots_used: 4,
        ..load(0)
    };
    two_engines()
        .with(Change::Load(full))
        .with(Change::Load(ExecutorLoad {
            slots_used: 4,
            ..load(1)
        }))
        .waiting()
        .running([urgent(1, 1, 0)])
        .check(blocks(7, None), Some((1, &[1], Reason::BlocksFromOwn)));
}

#[test]
fn nobody_gives_way_for_a_stranger() {
    two_engines()
        .running([urgent(1, 1, -5)])
        .check(blocks(1, None), None);
}

#[test]
fn never_takes_from_the_more_urgent() {
    let mut state = 1_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut evictions = 0;
    for _ in 0..2000 {
        let needy_priority = i32::try_from(random(5)).expect("small") - 2;
        let rows: Vec<Sequence> = (0..8)
            .map(|id| Sequence {
                blocks_exclusive: random(12),
                started: u64::from(random(4)),
                preemptible: random(4) > 0,
                ..urgent(id, random(2), i32::try_from(random(5)).expect("small") - 2)
            })
            .collect();
        let wanted = random(30) + 1;
        let mut policy = crate::instance();
        policy.configure("{}", bounds()).expect("valid settings");
        let mut changes = two_engines().rows;
        changes.extend(rows.iter().cloned().map(Change::Sequence));
        changes.push(Change::Sequence(urgent(NEEDY, 0, needy_priority)));
        policy.observe(0, Extent::Everything, changes);
        let Some(eviction) = policy.evict(at(0), blocks(wanted, Some(0))) else {
            continue;
        };
        evictions += 1;
        let victims = eviction.victims.iter().map(|victim| {
            let row = rows.iter().find(|row| row.request == victim.request);
            row.expect("a victim is another sequence")
        });
        let victims: Vec<&Sequence> = victims.collect();
        assert!(victims.iter().all(|row| row.preemptible));
        assert!(victims.iter().all(|row| row.priority <= needy_priority));
        let freed: u32 = victims.iter().map(|row| row.blocks_exclusive).sum();
        assert!(freed >= wanted);
    }
    assert!(evictions > 200, "{evictions} evictions say little");
}
