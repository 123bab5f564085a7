//! A ranking after random changes, against its executors sorted anew; and executors passed over.

use super::Ranking;
use crate::executor::Executor;
use crate::fixture::{device, executor, load, request};
use crate::fleet::{Fleet, Readiness, Seat};
use crate::index::{ExecutorIndex, Touched};
use crate::mirror::Mirror;
use crate::wire::types::{Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Request};

const EXECUTORS: u32 = 70;
const MODELS: u32 = 5;

/// A mirror with a ranking by slots in use, which leaves out executors with no free slot.
#[derive(Default)]
struct Told {
    mirror: Mirror,
    ranking: Ranking<u32>,
}

impl ExecutorIndex for Ranking<u32> {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        self.update_with(fleet, executors, |at| {
            let used = at.load.slots_used;
            (used < at.info.slots_total).then_some(used)
        });
    }
}

impl Told {
    fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.mirror.begin(0, Extent::SinceLast);
        let mut touched = Touched::default();
        for mut change in changes {
            touched.changed(&self.mirror, &change);
            self.mirror.apply(&mut change);
        }
        touched.update(&mut self.ranking, Fleet::from(&self.mirror));
    }

    /// Executors that serve the model, in the order of the walk.
    fn walked(&self, request: &Request, last: Option<u32>) -> Vec<u32> {
        let walk = self.ranking.best_first(request).after(last);
        walk.filter(|&id| self.may_take(request, id)).collect()
    }

    fn may_take(&self, request: &Request, id: u32) -> bool {
        let executor = self.mirror.executor(id).unwrap();
        let serves = executor.info.serves.as_ref();
        request
            .model
            .is_none_or(|model| serves.is_none_or(|serves| serves.contains(&model)))
            && request
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(&id))
    }

    /// The same by sorting.
    fn sorted(&self, request: &Request, last: Option<u32>) -> Vec<u32> {
        let free = |executor: &Executor<'_>| {
            executor.load.slots_used < executor.info.slots_total
                && self.may_take(request, executor.id())
        };
        let mut order: Vec<_> = self
            .mirror
            .executors()
            .filter(free)
            .map(|executor| {
                let id = executor.id();
                (
                    executor.load.slots_used,
                    last.is_some_and(|last| id <= last),
                    id,
                )
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }
}

/// A small generator, so that a failing case can be made again from its number.
fn dice(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |sides| {
        state = crate::rendezvous::split_mix(state);
        u32::try_from(state >> 33).unwrap() % sides
    }
}

fn change(roll: &mut impl FnMut(u32) -> u32) -> Vec<Change> {
    let id = roll(EXECUTORS);
    let load = ExecutorLoad {
        slots_used: roll(6),
        ..load(id)
    };
    match roll(6) {
        0 => vec![Change::ExecutorGone(id)],
        1 | 2 => {
            let info = ExecutorInfo {
                serves: match roll(6) {
                    0 | 1 => None,
                    2 => Some(Vec::new()),
                    _ => Some(vec![roll(MODELS)]),
                },
                ..executor(id)
            };
            vec![Change::Executor(info), Change::Load(load)]
        }
        _ => vec![Change::Load(load)],
    }
}

#[test]
fn the_walk_is_in_order_of_ranks() {
    for seed in 0..30 {
        let mut roll = dice(seed);
        let mut told = Told::default();
        for round in 0..40 {
            let changes: Vec<Change> = (0..=roll(12)).flat_map(|_| change(&mut roll)).collect();
            told.tell(changes);
            let asking = Request {
                model: (roll(2) > 0).then(|| roll(MODELS)),
                allowed: (roll(4) == 0).then(|| vec![roll(EXECUTORS), EXECUTORS + 200]),
                ..request(1)
            };
            let last = (roll(2) > 0).then(|| roll(EXECUTORS + 60));
            assert_eq!(
                told.walked(&asking, last),
                told.sorted(&asking, last),
                "seed {seed}, round {round}, {last:?}, {asking:?}"
            );
        }
    }
}

#[test]
fn who_serves_other_models_is_not_walked_past() {
    let mut told = Told::default();
    // The one that serves model 1 is the fullest.
    told.tell((0..EXECUTORS).flat_map(|id| {
        let own = id == EXECUTORS / 2;
        let info = ExecutorInfo {
            serves: Some(vec![u32::from(own)]),
            ..executor(id)
        };
        let load = ExecutorLoad {
            slots_used: 3 * u32::from(own),
            ..load(id)
        };
        [Change::Executor(info), Change::Load(load)]
    }));
    let asking = Request {
        model: Some(1),
        ..request(1)
    };
    let walked: Vec<u32> = told.ranking.best_first(&asking).collect();
    assert_eq!(walked, [EXECUTORS / 2]);
}

/// Executors on a device each, of so many free blocks of 16 tokens.
fn with_blocks(blocks: &[u32]) -> Told {
    let mut told = Told::default();
    told.tell(blocks.iter().zip(0..).flat_map(|(&blocks_free, id)| {
        let info = ExecutorInfo {
            device: id,
            group: id % 3,
            ..executor(id)
        };
        let device = Device {
            blocks_free,
            ..device(id)
        };
        [
            Change::Device(device),
            Change::Executor(info),
            Change::Load(load(id)),
        ]
    }));
    told
}

fn of_tokens(prompt_tokens: u32) -> Request {
    Request {
        prompt_tokens,
        ..request(1)
    }
}

#[test]
fn who_has_no_room_for_the_prompt_is_not_walked_past() {
    let mut told = with_blocks(&[4, 9, 4, 10, 8, 4]);
    let walked =
        |told: &Told, tokens| -> Vec<u32> { told.ranking.best_first(&of_tokens(tokens)).collect() };
    // 143 tokens and the first one made fill 9 blocks.
    assert_eq!(walked(&told, 143), [1, 3]);
    assert_eq!(walked(&told, 144), [3]);
    let roomier = Device {
        blocks_free: 10,
        ..device(0)
    };
    told.tell([Change::Device(roomier)]);
    assert_eq!(walked(&told, 144), [0, 3]);
    // Once there is room they may take it all the same.
    let asking = of_tokens(144);
    let serving = told.ranking.best_first(&asking).with_or_without_room();
    assert_eq!(serving.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn other_groups_are_not_walked_past() {
    let told = with_blocks(&[100; 9]);
    let asking = request(1);
    let walk = told.ranking.best_first(&asking).in_group(Some(1));
    let walk = walk.after(Some(4));
    assert_eq!(walk.collect::<Vec<_>>(), [7, 1, 4]);
}

#[test]
fn better_places_are_found_without_the_others() {
    let mut told = with_blocks(&[100; 5]);
    let load = |id, health, slots_used| ExecutorLoad {
        health,
        slots_used,
        ..load(id)
    };
    told.tell([
        Change::Load(load(0, Health::Degraded, 0)),
        Change::Load(load(1, Health::Up, 2)),
        Change::Load(load(3, Health::Degraded, 1)),
        Change::Load(load(4, Health::Up, 3)),
    ]);
    let better = |degraded, seat| -> Vec<u32> {
        let readiness = Readiness { degraded, seat };
        let asking = request(1);
        let walk = told.ranking.best_first(&asking);
        walk.better_than(readiness).collect()
    };
    assert_eq!(better(true, Seat::Queue), [0, 2, 3, 1, 4]);
    assert_eq!(better(true, Seat::Slot), [2, 1, 4]);
    assert_eq!(better(false, Seat::Slot), [] as [u32; 0]);
}
