//! `cargo xtask bench journal`: the cost of the journal for each decision, and the speed of a
//! replay.
//!
//! With `--quick`: fewer decisions.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use anyhow::Result;
use pointsman_tests::journal::measure;

fn main() -> Result<()> {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let decisions = if quick { 10_000 } else { 100_000 };
    let measured = measure(decisions, 7)?;
    println!(
        "{} decisions of the default policies, simulated.",
        measured.recorded.decisions
    );
    println!("for each decision, its inputs, rounds and facts included:");
    println!(
        "  {:.1} entries, {:.0} bytes",
        measured.entries_per_decision, measured.bytes_per_decision
    );
    println!(
        "  {} ns more on the driver's side, beside {} ns without a journal",
        measured.driver.as_nanos(),
        measured.without.as_nanos()
    );
    println!(
        "replayed in {:.1} s, everything the same",
        measured.replay.as_secs_f64()
    );
    Ok(())
}
