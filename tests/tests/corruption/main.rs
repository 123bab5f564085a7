//! Ten thousand damaged components: each is refused, fails its self-test or works, and none makes
//! the host panic.
//!
//! The sample is a policy of a few kilobytes, which compiles in a moment. The shipped policies are
//! damaged two dozen times, or `POINTSMAN_CORRUPTIONS` times if that is set.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guest;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use fastrand::Rng;
use pointsman_component::PolicyEngine;
use pointsman_testkit::bombs;
use pointsman_testkit::component::component_path;
use pointsman_tests::fuzz::{LoadResult, load_and_ask};
use pointsman_tests::mutate::{altered, damaged};
use pointsman_tests::serving::target;

/// Number of threads that share the work.
const THREADS: u64 = 2;

/// Counts of the results of loading.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    refused: u64,
    failed: u64,
    works: u64,
}

/// Damages the samples `cases` times; the seed of a case is its number.
fn corrupt(samples: &[Vec<u8>], cases: u64) -> Counts {
    let engine = PolicyEngine::new().unwrap();
    for sample in samples {
        let result = load_and_ask(&engine, sample);
        assert!(matches!(result, LoadResult::Works), "undamaged: {result:?}");
    }
    let share = |first: u64| {
        let mut counts = Counts::default();
        for seed in (first..cases).step_by(usize::try_from(THREADS).unwrap()) {
            let loaded = catch_unwind(AssertUnwindSafe(|| one(&engine, samples, seed)));
            match loaded.unwrap_or_else(|_| panic!("the host panicked at seed {seed}")) {
                LoadResult::Refused(_) => counts.refused += 1,
                LoadResult::Failed(_) => counts.failed += 1,
                LoadResult::Works => counts.works += 1,
            }
        }
        counts
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| scope.spawn(move || share(first)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("its message is above"))
            .fold(Counts::default(), |sum, counts| Counts {
                refused: sum.refused + counts.refused,
                failed: sum.failed + counts.failed,
                works: sum.works + counts.works,
            })
    })
}

fn one(engine: &PolicyEngine, samples: &[Vec<u8>], seed: u64) -> LoadResult {
    let mut rng = Rng::with_seed(seed);
    let sample = &samples[rng.usize(0..samples.len())];
    let other = &samples[rng.usize(0..samples.len())];
    let corrupted = match seed % 4 {
        0 => damaged(&mut rng, sample, other),
        _ => altered(&mut rng, sample),
    };
    load_and_ask(engine, &corrupted)
}

/// A small policy, and files just within the bounds of the scan. They are left for the fuzz target
/// to begin with.
fn small_samples() -> Vec<Vec<u8>> {
    let small = guest::small();
    let samples = vec![
        bombs::nested_types(&small, 30),
        bombs::many_locals(&small, 20, 500),
        small,
    ];
    let seeds = target().join("seeds/component");
    std::fs::create_dir_all(&seeds).unwrap();
    for (number, sample) in samples.iter().enumerate() {
        std::fs::write(seeds.join(format!("{number}.wasm")), sample).unwrap();
    }
    samples
}

#[test]
fn ten_thousand_corruptions_of_a_small_policy_do_not_make_the_host_panic() {
    let counts = corrupt(&small_samples(), 10_000);
    println!("{counts:?}");
    assert_eq!(counts.refused + counts.failed + counts.works, 10_000);
    // The damage must have reached every depth.
    assert!(
        counts.refused > 100 && counts.failed > 10 && counts.works > 100,
        "{counts:?}"
    );
}

#[test]
fn corruptions_of_shipped_policies_do_not_make_the_host_panic() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one switch of this test, read nowhere else"
    )]
    let asked = std::env::var("POINTSMAN_CORRUPTIONS").ok();
    let cases = asked.map_or(24, |cases| {
        cases.parse().expect("POINTSMAN_CORRUPTIONS is a number")
    });
    let names = ["first-policy", "shortest-first"];
    let samples = names.map(|name| {
        let path = component_path(name);
        std::fs::read(&path)
            .unwrap_or_else(|_| panic!("{}: run `cargo xtask policies` first", path.display()))
    });
    let counts = corrupt(&samples, cases);
    println!("{counts:?}");
    assert!(counts.refused > 0, "{counts:?}");
}
