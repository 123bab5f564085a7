//! Simulations by seed: random fleets, workloads and faults, under policies that are put in each other's place.
//! The machine's invariants and liveness bounds hold after every event, every request ends, and none waits
//! beyond its time.
//!
//! A failure prints its seed; `POINTSMAN_SEED=<seed>` runs that one alone. It is shrunk to the smallest case
//! that fails so, which is kept as a file in `kept`: those are run each time. `POINTSMAN_SEEDS=<n>` runs more.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod case;
mod draw;
mod policies;
mod run;
mod shrink;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pointsman_sim::measure::RunReport;
use serde_json::Value;

use case::{Case, Fault};
use run::{Flaw, run, sound};
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
fn run_seeds(seeds: std::ops::Range<u64>, flaw: Flaw<'_>) -> Result<Vec<RunReport>, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let (reports, wrong) = (Mutex::new(Vec::new()), Mutex::new(None));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match run(&draw::case(seed), flaw) {
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
fn smallest(case: Case, flaw: Flaw<'_>) -> (Case, String) {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    let why = run(&case, flaw).unwrap_err();
    let fails = |case: &Case| run(case, flaw).is_err_and(|other| words(&other) == words(&why));
    let case = shrink(case, &fails);
    let why = run(&case, flaw).unwrap_err();
    (case, why)
}

/// A case as it is kept: an entry of a list on each line.
fn written(case: &Case) -> String {
    let Value::Object(parts) = serde_json::to_value(case).unwrap() else {
        panic!("a case has parts");
    };
    let part = |(name, part): (&String, &Value)| {
        let entries = part.as_array().filter(|entries| !entries.is_empty());
        let Some(entries) = entries else {
            return format!("  {name:?}: {part}");
        };
        let lines: Vec<String> = entries.iter().map(|it| format!("    {it}")).collect();
        format!("  {name:?}: [\n{}\n  ]", lines.join(",\n"))
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    format!("{{\n{}\n}}\n", parts.join(",\n"))
}

#[test]
fn every_seed_keeps_the_bounds_and_every_request_ends() {
    let seeds = match from_environment("POINTSMAN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from_environment("POINTSMAN_SEEDS").unwrap_or(SEEDS),
    };
    if let Err((seed, why)) = run_seeds(seeds, &sound) {
        let (case, shrunk) = smallest(draw::case(seed), &sound);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("seed-{seed}.json"));
        std::fs::write(&path, written(&case)).unwrap();
        panic!(
            "{why}\nto see it alone: POINTSMAN_SEED={seed} cargo test --workspace --test seeds\n\
             shrunk to {path:?} ({shrunk}):\n{}\nto keep it: mv it to {:?}, with a name that says what was wrong",
            written(&case),
            kept()
        );
    }
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
        if let Err(why) = run(&case, &sound) {
            panic!("{file:?}: {why}");
        }
    }
}

#[test]
fn seeds_bring_everything_about() {
    let reports = run_seeds(0..40, &sound).unwrap();
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

#[test]
fn a_planted_flaw_is_found_and_shrunk_to_what_it_takes() {
    let flaw = |report: &RunReport| {
        let n = report.failed_over;
        (n > 0).then(|| format!("{n} requests went on elsewhere"))
    };
    let (seed, why) = run_seeds(0..40, &flaw).unwrap_err();
    assert!(why.contains("went on elsewhere"), "{why}");
    let drawn = draw::case(seed);
    let (case, why) = smallest(drawn.clone(), &flaw);
    assert_eq!(why, "1 requests went on elsewhere");
    let text = written(&case);
    let sizes = |case: &Case| {
        [
            case.requests.len(),
            case.executors.len(),
            case.faults.len(),
            case.policies.len(),
        ]
    };
    // It goes on elsewhere because its executor dies; it came to that one because the other was down.
    assert_eq!(sizes(&case), [1, 2, 2, 0], "of {:?}: {text}", sizes(&drawn));
    let is_death = |fault: &Fault| matches!(fault, Fault::Lost { .. });
    assert!(case.faults.iter().all(is_death), "{text}");
    // A kept case is the same one.
    assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
}
