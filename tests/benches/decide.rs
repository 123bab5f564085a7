//! `cargo xtask bench decide`: the cost of one decision.
//!
//! With `--quick`: fewer rounds and no fleet above 1,024. With a number: that many executors only.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use anyhow::Result;
use pointsman_component::PolicyEngine;
use pointsman_testkit::Flavour;
use pointsman_tests::decide::{Case, Measured, measure, measure_swap, quantile};
use pointsman_tests::fleet::Defaults;

fn main() -> Result<()> {
    let pace = if std::env::args().any(|arg| arg == "--quick") {
        Pace::Quick
    } else {
        Pace::Thorough
    };
    let defaults = Defaults::load(&PolicyEngine::new()?)?;
    let only = std::env::args().find_map(|arg| arg.parse().ok());
    let sizes: &[u32] = match (&only, pace) {
        (Some(only), _) => std::slice::from_ref(only),
        (None, Pace::Quick) => &[1, 64, 1024],
        (None, Pace::Thorough) => &[1, 8, 64, 256, 1024, 10_000],
    };
    println!("One round: admission, order, routing and interlock, by the three default policies.");
    println!(
        "Microseconds per decision; cycle = round less admit and arrange. Hooks with what their policy"
    );
    println!("is told before; asked: that of one question to route, p50, and the most fuel.");
    println!(
        "{:>9} {:>8} {:>8}  {:>9} {:>9} {:>9}  {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>7}  {:>7} {:>7}  decided",
        "executors",
        "arrivals",
        "changed",
        "cycle p50",
        "round p50",
        "round p99",
        "admit",
        "order",
        "route",
        "asked",
        "fuel",
        "interlock",
        "arrange",
        "native",
        "ratio"
    );
    for executors in sizes {
        for arrivals in [1, 64] {
            for changed in changes(*executors) {
                let rounds = pace.rounds(*executors, changed);
                let case = Case {
                    executors: *executors,
                    arrivals,
                    changed,
                    rounds,
                };
                let component = measure(&defaults, Flavour::Component, case)?;
                let native = measure(&defaults, Flavour::Native, case)?;
                print(case, &component, &native);
            }
        }
    }
    println!();
    println!("A fresh memory-aware put in force: microseconds, p50 / p99.");
    for executors in sizes {
        let swapped = measure_swap(&defaults, *executors, pace.swaps())?;
        println!(
            "{executors:>9} executors: start {:>7.1} / {:>7.1}  swap {:>5.1} / {:>5.1}  \
             next round with full observe {:>8.1} / {:>8.1}",
            quantile(&swapped.start, 500),
            quantile(&swapped.start, 990),
            quantile(&swapped.swap, 500),
            quantile(&swapped.swap, 990),
            quantile(&swapped.first_round, 500),
            quantile(&swapped.first_round, 990),
        );
    }
    Ok(())
}

/// One executor, a tenth of them, and all of them, without repetition.
fn changes(executors: u32) -> Vec<u32> {
    let mut changes = vec![1, executors.div_ceil(10), executors];
    changes.dedup();
    changes
}

/// The length of the benchmark.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Quick,
    Thorough,
}

impl Pace {
    /// Number of rounds of one case; fewer where each takes longer.
    fn rounds(self, executors: u32, changed: u32) -> u32 {
        let most = match self {
            Pace::Quick => 300,
            Pace::Thorough => 5000,
        };
        (4_000_000 / (executors + 20 * changed + 200)).clamp(50, most)
    }

    fn swaps(self) -> u32 {
        match self {
            Pace::Quick => 20,
            Pace::Thorough => 200,
        }
    }
}

fn print(case: Case, component: &Measured, native: &Measured) {
    let per = f64::from(case.arrivals);
    let p50 = |all: &[std::time::Duration]| quantile(all, 500) / per;
    let [admit, order, route, arrange] = component.hooks.each_ref().map(|all| p50(all));
    let round = p50(&component.rounds);
    let (asked, fuel) = component.route;
    let same = if component.decided == native.decided {
        "same"
    } else {
        "DIFFERENT"
    };
    println!(
        "{:>9} {:>8} {:>8}  {:>9.2} {:>9.2} {:>9.2}  {:>7.2} {:>7.2} {:>7.2} {:>7.2} \
         {fuel:>9} {:>9.2} {:>7.2}  {:>7.2} {:>7.2}  {} {same}",
        case.executors,
        case.arrivals,
        case.changed,
        round - admit - arrange,
        round,
        quantile(&component.rounds, 990) / per,
        admit,
        order,
        route,
        asked.as_secs_f64() * 1e6 / per,
        round - admit - order - route - arrange,
        arrange,
        p50(&native.rounds),
        round / p50(&native.rounds),
        component.decided,
    );
}
