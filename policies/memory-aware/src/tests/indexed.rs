//! The index finds what a look at every executor finds.

use pointsman_sdk::fixture::{at, bounds, cached, device, executor, load, request};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{
    Cached, Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Overlap,
};

use super::super::instance;
use crate::reason::Reason;

/// A small generator, so that a failing case can be made again from its number.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        // Constants of Knuth's MMIX generator; the high bits are the good ones.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap() % sides
    }

    fn info(&mut self, id: u32) -> ExecutorInfo {
        ExecutorInfo {
            // Some share a device.
            device: id - self.roll(2) * (id % 2),
            slots_total: 1 + self.roll(4),
            queue_limit: self.roll(3),
            tokens_per_block: (self.roll(5) > 0).then_some(16),
            preempts: self.roll(3) > 0,
            ..executor(id)
        }
    }

    fn load(&mut self, id: u32) -> ExecutorLoad {
        let health = [Health::Up, Health::Up, Health::Degraded, Health::Draining];
        ExecutorLoad {
            health: health[self.roll(4) as usize],
            slots_used: self.roll(5),
            queued_critical: self.roll(3),
            queued_throughput: self.roll(3),
            prefill_tokens_pending: u64::from(self.roll(3)) * 40,
            blocks_used: u64::from(self.roll(10)),
            placed_total: u64::from(self.roll(4)),
            ..load(id)
        }
    }

    fn device(&mut self, id: u32) -> Device {
        Device {
            blocks_free: self.roll(1001),
            ..device(id)
        }
    }

    /// Of every third request something is cached on up to three executors.
    fn cached(&mut self, id: u64, executors: u32) -> Cached {
        let mut overlaps = Vec::new();
        for _ in 0..self.roll(3) * self.roll(3) {
            let executor = self.roll(executors);
            if overlaps
                .iter()
                .all(|row: &Overlap| row.executor != executor)
            {
                overlaps.push(Overlap {
                    executor,
                    device_tokens: self.roll(5) * 16,
                    host_tokens: self.roll(2) * 16,
                    disk_tokens: self.roll(2) * 16,
                });
            }
        }
        Cached {
            overlaps: Some(overlaps).filter(|overlaps| !overlaps.is_empty()),
            floor_tokens: self.roll(2) * 16,
            ..cached(id)
        }
    }

    fn change(&mut self, executors: u32) -> Vec<Change> {
        let id = self.roll(executors);
        match self.roll(8) {
            0 => vec![Change::ExecutorGone(id)],
            1 => vec![Change::Executor(self.info(id)), Change::Load(self.load(id))],
            2..5 => vec![Change::Load(self.load(id))],
            _ => vec![Change::Device(self.device(id))],
        }
    }
}

/// One policy lives through all the changes with its index; beside it, for each question, a
/// fresh one is told everything. A pinned request, which is not looked up in the index, pinned
/// to every executor there is must go where an unpinned one goes.
fn check_finds_what_a_scan_finds(settings: &str) {
    const EXECUTORS: u32 = 24;
    let mut by_overlap = 0;
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut policy = instance();
        policy.configure(settings, bounds()).unwrap();
        let mut scanning = instance();
        scanning.configure(settings, bounds()).unwrap();
        for policy in [&mut policy, &mut scanning] {
            policy.observe(100, Extent::Everything, Vec::new());
        }
        for round in 0..60_u64 {
            let mut changes: Vec<Change> = (0..=dice.roll(6))
                .flat_map(|_| dice.change(EXECUTORS))
                .collect();
            let ids = round * 8..round * 8 + 1 + u64::from(dice.roll(6));
            let mut pinned = changes.clone();
            let mut asked = Vec::new();
            for id in ids {
                let mut anywhere = request(id);
                anywhere.preferred = (dice.roll(4) == 0).then(|| dice.roll(EXECUTORS));
                let mut everywhere = anywhere.clone();
                everywhere.allowed = Some((0..EXECUTORS).rev().collect());
                changes.push(Change::Waiting(anywhere));
                pinned.push(Change::Waiting(everywhere));
                asked.push(dice.cached(id, EXECUTORS));
            }
            policy.observe(100, Extent::SinceLast, changes);
            scanning.observe(100, Extent::SinceLast, pinned);
            let indexed = policy.route(at(100), asked.clone());
            let scanned = scanning.route(at(100), asked);
            assert_eq!(indexed, scanned, "seed {seed}, round {round}");
            let overlap = |verdict: &&Verdict| verdict.reason == Reason::Overlap.index();
            by_overlap += indexed.iter().filter(overlap).count();
        }
    }
    assert!(
        by_overlap > 100,
        "only {by_overlap} went where they are cached"
    );
}

#[test]
fn the_index_finds_what_a_scan_finds() {
    check_finds_what_a_scan_finds("{}");
}

#[test]
fn the_index_by_slots_finds_what_a_scan_finds() {
    check_finds_what_a_scan_finds(r#"{"balance": "slots"}"#);
}
