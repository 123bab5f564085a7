//! `cargo xtask bench reload`: the time from a file in the policy folder to its first decision, and
//! the pause of the driver.
//!
//! With `--quick`: fewer reloads.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use anyhow::Result;
use pointsman_tests::decide::quantile;
use pointsman_tests::reload::{Case, Compiled, measure};

fn main() -> Result<()> {
    let quick = std::env::args().any(|arg| arg == "--quick");
    // The last rows show that a thousand reloads fail no request of so many clients.
    let cases = [
        (Compiled::Each, 0, 200),
        (Compiled::Each, 64, 200),
        (Compiled::Once, 0, 200),
        (Compiled::Once, 64, 1000),
    ];
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    println!("A policy replaced under streaming clients. Milliseconds, settle time taken out:");
    println!("p50 / p99. Pause: microseconds in which the driver made the swap.");
    println!(
        "compiled  clients reloads     to force       to first decision     pause p50 / p99 / max  served"
    );
    for (compiled, clients, reloads) in cases {
        let reloads = if quick { 20 } else { reloads };
        let case = Case {
            reloads,
            clients,
            compiled,
        };
        let measured = runtime.block_on(measure(case))?;
        let ms = |all: &[_], permille| quantile(all, permille) / 1000.0;
        println!(
            "{:<8} {clients:>8} {reloads:>7} {:>7.1} / {:>6.1} {:>10.1} / {:>6.1} {:>14.0} / {:>3.0} / {:>4.0} {:>7}",
            format!("{compiled:?}"),
            ms(&measured.to_force, 500),
            ms(&measured.to_force, 990),
            ms(&measured.to_first_decision, 500),
            ms(&measured.to_first_decision, 990),
            quantile(&measured.pause, 500),
            quantile(&measured.pause, 990),
            quantile(&measured.pause, 1000),
            measured.served,
        );
    }
    Ok(())
}
