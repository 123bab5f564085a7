//! Ten thousand damaged components: each is refused, fails its self-test, or works, and none makes
//! the host panic.
//!
//! They are made of a policy of a few kilobytes, which is compiled in a moment. The shipped
//! policies are damaged two dozen times; `POINTSMAN_CORRUPTIONS=10000` makes it so many.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guest;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use fastrand::Rng;
use pointsman_policy::PolicyEngine;
use pointsman_testkit::component::component_path;
use pointsman_tests::fuzz::{Fate, load_and_ask};
use pointsman_tests::mutate::{altered, damaged};

/// Threads that share the work.
const THREADS: u64 = 2;

/// What became of all of them.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    refused: u64,
    failed: u64,
    works: u64,
}

/// Damages the samples `cases` times; the seed of a case is its number.
fn corrupt(samples: &[Vec<u8>], cases: u64) -> Fates {
    let engine = PolicyEngine::new().unwrap();
    for sample in samples {
        let fate = load_and_ask(&engine, sample);
        assert!(matches!(fate, Fate::Works), "undamaged: {fate:?}");
    }
    let share = |first: u64| {
        let mut fates = Fates::default();
        for seed in (first..cases).step_by(usize::try_from(THREADS).unwrap()) {
            let loaded = catch_unwind(AssertUnwindSafe(|| one(&engine, samples, seed)));
            match loaded.unwrap_or_else(|_| panic!("the host panicked at seed {seed}")) {
                Fate::Refused(_) => fates.refused += 1,
                Fate::Failed(_) => fates.failed += 1,
                Fate::Works => fates.works += 1,
            }
        }
        fates
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| scope.spawn(move || share(first)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("its message is above"))
            .fold(Fates::default(), |sum, fates| Fates {
                refused: sum.refused + fates.refused,
                failed: sum.failed + fates.failed,
                works: sum.works + fates.works,
            })
    })
}

fn one(engine: &PolicyEngine, samples: &[Vec<u8>], seed: u64) -> Fate {
    let mut rng = Rng::with_seed(seed);
    let sample = &samples[rng.usize(0..samples.len())];
    let other = &samples[rng.usize(0..samples.len())];
    let corrupted = match seed % 4 {
        0 => damaged(&mut rng, sample, other),
        _ => altered(&mut rng, sample),
    };
    load_and_ask(engine, &corrupted)
}

#[test]
fn ten_thousand_corruptions_of_a_small_policy_do_not_make_the_host_panic() {
    let fates = corrupt(&[guest::small()], 10_000);
    println!("{fates:?}");
    assert_eq!(fates.refused + fates.failed + fates.works, 10_000);
    // Damage of every depth was among them.
    assert!(
        fates.refused > 100 && fates.failed > 10 && fates.works > 100,
        "{fates:?}"
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
    let fates = corrupt(&samples, cases);
    println!("{fates:?}");
    assert!(fates.refused > 0, "{fates:?}");
}
