//! Step loops under the real machine, which starts, grants and evicts in a pool far too small for
//! all, while clients leave and devices fail.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod host;

use std::cmp::Reverse;
use std::sync::Arc;

use fastrand::Rng;
use host::{Alone, Host};
use pointsman_core::rows::{Change, SequenceState};
use pointsman_core::{
    Answer, Asked, Config, DeviceSpec, Effect, EvictHow, Eviction, ExecutorSpec, Input, KvSpec,
    Micros, Policies, Question, Reply, RequestId, RowKinds, Victim, fixture, rows,
};
use pointsman_executor::job::Job;
use pointsman_executor::test_util::random_job;

use pointsman_engine::test_util::scripted::{Faults, SHAPE, ScriptedBackend, Shape, StepFault};
use pointsman_engine::test_util::subjects::loop_model;

const SLOTS: u32 = 4;
/// A pool with room for two of the longest sequences.
const POOL: Shape = Shape {
    blocks_total: 34,
    host_blocks: 40,
    ..SHAPE
};
const TURN: Micros = Micros(10_000);

/// A policy that has the newest sequences give way, by swap as often as not, and says nothing else.
struct Swapper(Rng);

impl Policies for Swapper {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Question::Preemption(shortage) = &asked.question else {
            return Answer::unbound();
        };
        let rows = asked.view.rows(RowKinds::ALL).into_iter();
        let sequences = rows.filter_map(|row| {
            if let Change::Sequence(row) = row {
                Some(row)
            } else {
                None
            }
        });
        let needy = |row: &rows::Sequence| row.request == shortage.needy;
        let (needy, mut others): (Vec<_>, Vec<_>) = sequences.partition(needy);
        let executor = needy.first().map(|row| row.executor);
        let Some(executor) = executor.or(shortage.executor) else {
            return Answer::unbound();
        };
        others.retain(|row| row.executor == executor && row.state == SequenceState::Running);
        others.sort_by_key(|row| Reverse(row.request));
        let mut freed = 0;
        let victims = others.iter().map_while(|row| {
            let is_enough = freed >= shortage.blocks;
            freed += row.blocks_exclusive;
            let how = if self.0.bool() {
                EvictHow::Swap
            } else {
                EvictHow::Recompute
            };
            let request = row.request;
            (!is_enough).then_some(Victim { request, how })
        });
        let eviction = Eviction {
            executor,
            victims: victims.collect(),
            reason: 0,
        };
        Answer::by(0, Reply::Preemption(Some(eviction)))
    }
}

/// A host with two engines, each on a device of its own.
fn two_engines(faults: &Faults) -> Host {
    let mut host = Host::new(Config::default());
    for name in ["cpu0", "cpu1"] {
        let device = host.attach_device(DeviceSpec {
            name: name.to_owned(),
            kv: KvSpec::Owned {
                block_bytes: 1024,
                blocks_total: POOL.blocks_total,
                host_blocks: POOL.host_blocks,
            },
            tokens_per_step: Some(24),
        });
        let spec = ExecutorSpec {
            slots_total: SLOTS,
            queue_limit: 2,
            tokens_per_block: Some(POOL.tokens_per_block),
            ..fixture::executor_spec(name, device)
        };
        let faults = faults.clone();
        let make = move || {
            let backend = ScriptedBackend::failing(POOL, faults.clone());
            vec![loop_model(0, Box::new(backend))]
        };
        host.attach(spec, Box::new(make));
    }
    host
}

/// Has any job arrive.
fn arrive(host: &mut Host, rng: &mut Rng, output_tokens_max: u32) {
    let job = random_job(rng, 40, output_tokens_max);
    arrive_with(host, job);
}

fn arrive_with(host: &mut Host, job: Job) {
    let alone = Alone::new(&mut ScriptedBackend::new(POOL), &job);
    host.arrive(Arc::new(job), Arc::new(alone), |_| {});
}

/// Makes a turn in which the engines are told a step late what was decided: it is `on_the_way` meanwhile.
fn late_turn(host: &mut Host, on_the_way: &mut Vec<Effect>) {
    host.step();
    for effect in on_the_way.drain(..) {
        host.carry_out(effect);
    }
    host.now = host.now.after(TURN);
    host.machine.handle(host.now, Input::TimePassed);
    on_the_way.extend(host.round());
}

#[test]
fn a_pool_too_small_for_all_serves_all_in_turn() {
    let mut rng = Rng::with_seed(41);
    let mut host = two_engines(&Faults::default());
    for _ in 0..60 {
        arrive(&mut host, &mut rng, 60);
        host.turn(TURN);
    }
    host.run_out(TURN);
    host.check_empty();
    let numbers = host.numbers;
    assert_eq!(numbers.outcomes["Finished"], 60, "{numbers:?}");
    assert!(numbers.preemptions > 10, "{numbers:?}");
}

#[test]
fn no_sequence_waits_for_a_block_that_is_free_though_grants_come_a_step_late() {
    let mut rng = Rng::with_seed(43);
    let mut host = two_engines(&Faults::default());
    let mut on_the_way = Vec::new();
    for turn in 0..400 {
        if turn < 60 {
            // All that run or wait for a slot have room in the pools, with the whole of their answers.
            arrive_with(&mut host, random_job(&mut rng, 8, 16));
        }
        late_turn(&mut host, &mut on_the_way);
    }
    host.check_empty();
    let numbers = &host.numbers;
    assert_eq!(numbers.outcomes["Finished"], 60, "{numbers:?}");
    assert_eq!((numbers.preemptions, host.stats.sat_out.get()), (0, 0));
}

#[test]
fn what_gives_way_to_host_memory_goes_on_as_it_was() {
    let (mut swaps, mut recomputed) = (0, 0);
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let mut host = two_engines(&Faults::default());
        host.policies = Box::new(Swapper(Rng::with_seed(seed)));
        for _ in 0..60 {
            arrive(&mut host, &mut rng, 60);
            host.turn(TURN);
        }
        host.run_out(TURN);
        host.check_empty();
        assert_eq!(host.numbers.outcomes["Finished"], 60, "{:?}", host.numbers);
        swaps += host.numbers.swaps;
        recomputed += host.numbers.preemptions - host.numbers.swaps;
    }
    assert!(swaps > 100 && recomputed > 50, "{swaps}, {recomputed}");
}

#[test]
fn clients_that_leave_and_devices_that_fail_disturb_nobody_else() {
    let mut recovered = 0;
    for seed in 0..15 {
        let mut rng = Rng::with_seed(seed);
        let faults: Vec<(u32, StepFault)> =
            (0..6).map(|_| (rng.u32(5..60), StepFault::Error)).collect();
        let mut host = two_engines(&Faults::after(&faults));
        host.policies = Box::new(Swapper(Rng::with_seed(seed)));
        for arrived in 1..=40 {
            arrive(&mut host, &mut rng, 40);
            host.turn(TURN);
            if rng.u8(0..4) == 0 {
                host.cancel(RequestId(rng.u64(0..arrived)));
            }
        }
        host.run_out(TURN);
        host.check_empty();
        // A request fails if both engines died under it.
        for outcome in host.numbers.outcomes.keys() {
            let expected = ["Finished", "Cancelled", "Failed"];
            assert!(expected.contains(&&**outcome), "{:?}", host.numbers);
        }
        recovered += host.numbers.recovered;
    }
    assert!(recovered > 10, "{recovered} half answers went on elsewhere");
}
