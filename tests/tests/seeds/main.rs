//! Simulations by seed: random fleets, workloads and faults, under policies that are put in each other's place.
//! The machine's invariants and liveness bounds hold after every event, every request ends, and none waits
//! beyond its time.
//!
//! Each seed is a case with policies of this test, which are asked at once, and another one with components in
//! the policy host of a server: those that ship, which never fault and are never refused, and guests that misbehave.
//!
//! A failure prints its seed; `POINTSMAN_SEED=<seed>` runs that one alone. It is shrunk to the smallest case
//! that fails so, which is kept as a file in `kept`: those are run each time. `POINTSMAN_SEEDS=<n>` runs more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod case;
mod draw;
mod hosted;
mod policies;
mod run;
mod shrink;
mod waits;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pointsman_core::Micros;
use pointsman_policy::Mode;
use pointsman_sim::measure::RunReport;
use serde::Serialize;

use case::{Case, Fault, Policy};
use draw::Cast;
use run::{Standard, run};
use shrink::shrink;

/// The seeds of a run of the tests.
const SEEDS: u64 = 200;

fn from_environment(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the two switches of this test, read nowhere else"
    )]
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds/kept")
}

/// Runs seeds on all processors. Returns the first that fails with what is wrong, and the reports of the
/// others.
fn run_seeds(
    cast: Cast,
    seeds: std::ops::Range<u64>,
    standard: Standard<'_>,
) -> Result<Vec<RunReport>, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let (reports, wrong) = (Mutex::new(Vec::new()), Mutex::new(None));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match run(&draw::case(cast, seed), standard) {
                Ok(report) => reports.lock().unwrap().push(report),
                Err(why) => {
                    // No more are begun.
                    next.store(seeds.end, Ordering::Relaxed);
                    let mut wrong = wrong.lock().unwrap();
                    let first = wrong.take().filter(|(first, _)| *first < seed);
                    *wrong = Some(first.unwrap_or((seed, why)));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    match wrong.into_inner().unwrap() {
        None => Ok(reports.into_inner().unwrap()),
        Some(wrong) => Err(wrong),
    }
}

/// The smallest case that fails as this one does: with the same words, whatever the numbers.
fn smallest(case: Case, standard: Standard<'_>) -> (Case, String) {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let why = run(&case, standard).unwrap_err();
    let fails = |case: &Case| run(case, standard).is_err_and(|other| words(&other) == words(&why));
    let case = shrink(case, &fails);
    let why = run(&case, standard).unwrap_err();
    (case, why)
}

/// A case as it is kept: an entry of a list on each line.
fn written(case: &Case) -> String {
    format!(
        "{{\n  \"bounds\": {},\n  \"executors\": {},\n  \"requests\": {},\n  \"faults\": {},\n  \"policies\": {}\n}}\n",
        serde_json::to_string(&case.bounds).unwrap(),
        list(&case.executors),
        list(&case.requests),
        list(&case.faults),
        list(&case.policies)
    )
}

fn list<T: Serialize>(entries: &[T]) -> String {
    if entries.is_empty() {
        return "[]".to_owned();
    }
    let line = |entry| format!("    {}", serde_json::to_string(entry).unwrap());
    let lines: Vec<String> = entries.iter().map(line).collect();
    format!("[\n{}\n  ]", lines.join(",\n"))
}

/// Runs the seeds that are wanted. The first that fails is shrunk, and told.
fn check_seeds(cast: Cast) {
    let seeds = match from_environment("POINTSMAN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("POINTSMAN_SEEDS").unwrap_or(SEEDS),
    };
    if let Err((seed, why)) = run_seeds(cast, seeds, Standard::SOUND) {
        let (case, shrunk) = smallest(draw::case(cast, seed), Standard::SOUND);
        let name = cast.name();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}.json"));
        std::fs::write(&path, written(&case)).unwrap();
        panic!(
            "{why}\nto see it alone: POINTSMAN_SEED={seed} cargo test --workspace --test seeds {name}\n\
             shrunk to {path:?} ({shrunk}):\n{}\nto keep it: mv it to {:?}, with a name that says what was wrong",
            written(&case),
            kept()
        );
    }
}

#[test]
fn every_seed_keeps_the_bounds_and_every_request_ends_under_native_policies() {
    check_seeds(Cast::Native);
}

#[test]
fn every_seed_keeps_the_bounds_and_every_request_ends_under_components() {
    check_seeds(Cast::Components);
}

#[test]
fn kept_cases_fail_no_more() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(kept())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let case: Case = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        assert_eq!(written(&case), text, "{file:?} is as it was written");
        if let Err(why) = run(&case, Standard::SOUND) {
            panic!("{file:?}: {why}");
        }
    }
}

#[test]
fn seeds_bring_everything_about_under_native_policies() {
    bring_everything_about(Cast::Native);
}

#[test]
fn seeds_bring_everything_about_under_components() {
    bring_everything_about(Cast::Components);
}

fn bring_everything_about(cast: Cast) {
    let reports = run_seeds(cast, 0..40, Standard::SOUND).unwrap();
    let sum = |of: fn(&RunReport) -> u64| reports.iter().map(of).sum::<u64>();
    let counts = [
        sum(|report| report.finished),
        sum(|report| report.refused),
        sum(|report| report.expired),
        sum(|report| report.failed),
        sum(|report| report.cancelled),
        sum(|report| report.evicted),
        sum(|report| report.failed_over),
        sum(|report| report.strikes),
        sum(|report| report.refused_answers),
        sum(|report| report.faults),
        sum(|report| report.swaps),
    ];
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

fn sizes(case: &Case) -> [usize; 4] {
    [
        case.requests.len(),
        case.executors.len(),
        case.faults.len(),
        case.policies.len(),
    ]
}

#[test]
fn a_planted_flaw_is_found_and_shrunk_to_what_it_takes() {
    let flaw = |report: &RunReport| {
        let n = report.failed_over;
        (n > 0).then(|| format!("{n} requests went on elsewhere"))
    };
    let standard = Standard {
        flaw: &flaw,
        ..Standard::SOUND
    };
    let (seed, why) = run_seeds(Cast::Native, 0..40, standard).unwrap_err();
    assert!(why.contains("went on elsewhere"), "{why}");
    let drawn = draw::case(Cast::Native, seed);
    let (case, why) = smallest(drawn.clone(), standard);
    assert_eq!(why, "1 requests went on elsewhere");
    let text = written(&case);
    // It goes on elsewhere because its executor dies; it came to that one because the other was down.
    assert_eq!(sizes(&case), [1, 2, 2, 0], "of {:?}: {text}", sizes(&drawn));
    let is_death = |fault: &Fault| matches!(fault, Fault::Lost { .. });
    assert!(case.faults.iter().all(is_death), "{text}");
    // A kept case is the same one.
    assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
}

/// Tests the search with a component that has faults which nobody planted into a report: a guest that
/// misbehaves, and is vouched for.
#[test]
fn a_component_that_does_not_keep_what_it_should_is_found_and_shrunk_to_what_it_takes() {
    let standard = Standard {
        vouched: |name| name != "test/fickle",
        ..Standard::SOUND
    };
    let (seed, why) = run_seeds(Cast::Components, 0..40, standard).unwrap_err();
    assert!(why.starts_with("test/hostile "), "{why}");
    let drawn = draw::case(Cast::Components, seed);
    let (case, why) = smallest(drawn.clone(), standard);
    let text = written(&case);
    // It names victims for a place in host memory, of which there is none: two run, and a third lacks blocks.
    assert_eq!(sizes(&case), [3, 1, 0, 1], "of {:?}: {text}", sizes(&drawn));
    let [(_, Policy::Component(component))] = &case.policies[..] else {
        panic!("{text}");
    };
    assert_eq!(component.name, "test/hostile", "{why}: {text}");
    let settings = serde_json::to_string(&component.settings).unwrap();
    assert_eq!(settings, r#"{"answers":"swap-newest"}"#, "{text}");
    assert_eq!((component.mode, component.probation), (Mode::Enforce, None));
    assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
}

#[test]
fn a_wait_that_is_too_long_is_found_where_executors_have_queues() {
    let standard = Standard {
        wait_max: |most| Micros(most.0 / 2),
        ..Standard::SOUND
    };
    let cases = (0..40).map(|seed| draw::case(Cast::Native, seed));
    let has_queues = |case: &Case| case.executors.iter().any(|it| it.queue > 0);
    let found = |case: Case| run(&case, standard).err();
    let mut found = cases.filter(has_queues).filter_map(found);
    assert!(found.any(|why| why.contains("without a place")));
}

/// Tests what replays and `pointsman simulate` rest on, and that a shadow changes nothing.
#[test]
fn the_same_case_has_the_same_report_with_shadows_and_without() {
    let is_shadow = |policy: &Policy| match policy {
        Policy::Component(component) => component.mode == Mode::Shadow,
        Policy::BuiltIn
        | Policy::Random { .. }
        | Policy::Holds
        | Policy::HoldsOnPurpose
        | Policy::NewestFirst { .. }
        | Policy::Faults
        | Policy::Defaults
        | Policy::Removed(_)
        | Policy::Ejected(_)
        | Policy::FailsClosed => false,
    };
    let mut shadows = 0;
    for seed in 0..24 {
        let case = draw::case(Cast::Components, seed);
        let mut without = case.clone();
        without.policies.retain(|(_, policy)| !is_shadow(policy));
        shadows += case.policies.len() - without.policies.len();
        let report = run(&case, Standard::SOUND).unwrap();
        assert_eq!(
            run(&without, Standard::SOUND).unwrap(),
            report,
            "seed {seed}"
        );
    }
    assert!(shadows > 4, "{shadows}");
}
