//! The code of the benchmarks, on tiny inputs: it must run, and components must decide as native
//! policies do.

use std::num::NonZeroUsize;
use std::time::Duration;

use pointsman_component::PolicyEngine;
use pointsman_testkit::Flavour;
use pointsman_tests::clock::ReadingTime;
use pointsman_tests::decide::{Case, measure, measure_swap};
use pointsman_tests::engine::demo_model;
use pointsman_tests::fidelity::{EngineModel, Fidelity, Load as FidelityLoad, of_engine, of_mocks};
use pointsman_tests::fleet::Defaults;
use pointsman_tests::gateway::{Arrivals, Load, StampServer, measure as measure_gateway};
use pointsman_tests::{engine, journal, reload};

#[test]
fn the_decide_benchmark_runs_and_both_flavours_decide_alike() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    for (executors, arrivals) in [(1, 1), (8, 64)] {
        let case = Case {
            executors,
            arrivals,
            changed: 1,
            rounds: 5,
        };
        let component = measure(&defaults, Flavour::Component, case).unwrap();
        let native = measure(&defaults, Flavour::Native, case).unwrap();
        assert_eq!(component.decided, native.decided);
        assert_eq!(component.rounds.len(), 5);
    }
}

#[test]
fn the_readings_of_a_clock_are_no_part_of_what_it_measures() {
    let steps = std::cell::Cell::new(0);
    // Each reading takes 30 ns.
    let clock = || {
        steps.set(steps.get() + 30);
        Duration::from_nanos(steps.get())
    };
    let reading = ReadingTime::of(clock);
    let took = reading.taken_off(Duration::from_nanos(500), 10);
    assert_eq!(took, Duration::from_nanos(200));
    assert_eq!(reading.taken_off(took, 10), Duration::ZERO);
}

/// One request over a fleet in which every row is new: the default fuel must be enough.
#[test]
fn the_defaults_decide_over_ten_thousand_executors_within_their_limits() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    let case = Case {
        executors: 10_000,
        arrivals: 1,
        changed: 10,
        rounds: 2,
    };
    let measured = measure(&defaults, Flavour::Component, case).unwrap();
    assert_eq!(measured.rounds.len(), 2);
}

#[test]
fn the_journal_benchmark_runs_and_replays_what_it_records() {
    let measured = journal::measure(200, 2).unwrap();
    assert!(measured.recorded.decisions >= 200);
    assert!(measured.entries_per_decision > 1.0 && measured.bytes_per_decision > 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fidelity_benchmark_runs() {
    let load = FidelityLoad {
        rate: 40.0,
        requests: 40,
        seed: 1,
    };
    let mocks = of_mocks(load).await.unwrap();
    // A prompt of 200 tokens takes 80 ms, alone.
    assert!(
        mocks.measured.p50 >= 80.0 && mocks.simulated.p50 >= 80.0,
        "{mocks:?}"
    );
    let engine = of_engine(load, EngineModel::Demo).await.unwrap();
    let few = FidelityLoad {
        requests: 4,
        ..load
    };
    let slower = of_engine(few, EngineModel::Dummy).await.unwrap();
    for Fidelity {
        measured,
        simulated,
    } in [mocks, engine, slower]
    {
        for spread in [measured, simulated] {
            assert!(0.0 < spread.p50 && spread.p50 <= spread.p95, "{spread:?}");
        }
    }
}

#[test]
fn the_swap_benchmark_runs() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    let swapped = measure_swap(&defaults, 8, 3).unwrap();
    assert_eq!(swapped.swap.len(), 3);
}

#[test]
fn the_engine_benchmark_computes_the_same_with_any_number_of_threads() {
    let model = demo_model().unwrap();
    let hashes = [1, 2].map(|threads| {
        let case = engine::Case {
            batch: 2,
            context: 20,
            steps: 4,
            threads: NonZeroUsize::new(threads).unwrap(),
        };
        engine::measure(&model, case).unwrap().hash
    });
    assert_eq!(hashes[0], hashes[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_benchmark_runs_under_load() {
    let load = engine::under_load(4, 8).await.unwrap();
    assert!(load.requests >= 8, "{load:?}");
    assert!((0.0..=1.0).contains(&load.waited), "{load:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reload_benchmark_runs() {
    let case = reload::Case {
        reloads: 3,
        clients: 2,
        compiled: reload::Compiled::Each,
    };
    let measured = reload::measure(case).await.unwrap();
    assert_eq!(measured.pause.len(), 3);
    assert_eq!(measured.to_first_decision.len(), 3);
}

#[tokio::test]
async fn the_gateway_benchmark_measures_every_request_and_chunk() {
    let server = StampServer::start().await.unwrap();
    for (arrivals, chunks) in [
        (Arrivals::Closed(2), 3),
        (Arrivals::Open(200), 3),
        (Arrivals::Closed(1), 0),
    ] {
        let load = Load {
            prompt_bytes: 2000,
            chunks,
            arrivals,
            requests: 5,
        };
        let measured = measure_gateway(server.addr(), load).await.unwrap();
        assert_eq!(measured.first.len(), 5);
        // All but the first one of each stream; some may have come together.
        assert!(measured.chunks.len() <= 5 * chunks.saturating_sub(1));
        assert_eq!(measured.chunks.is_empty(), chunks == 0);
        assert!(!measured.elapsed.is_zero());
    }
}
