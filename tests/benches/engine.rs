//! `cargo xtask bench engine`: tokens per second, and the share of time in which the engine waits
//! for decisions.
//!
//! With `--quick`: fewer steps and requests.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::num::NonZeroUsize;

use anyhow::Result;
use pointsman_tests::engine::{Case, Speed, demo_model, measure, under_load};

/// Number of measurements of each case; the median counts.
const REPEATS: usize = 5;

fn main() -> Result<()> {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (steps, requests) = if quick { (32, 64) } else { (256, 1024) };
    let model = demo_model()?;
    println!("Demo model, context 128: tokens per second, medians of {REPEATS}.");
    println!("threads  batch    prefill     decode  logits");
    for threads in [1, 2] {
        for batch in [1, 8] {
            let case = Case {
                batch,
                context: 128,
                steps,
                threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
            };
            let mut speeds = Vec::new();
            for _ in 0..REPEATS {
                speeds.push(measure(&model, case)?);
            }
            let prefill = median(&speeds, |speed| speed.prefill);
            let decode = median(&speeds, |speed| speed.decode);
            let hash = speeds[0].hash;
            println!("{threads:>7} {batch:>6} {prefill:>10.0} {decode:>10.0}  {hash:016x}");
        }
    }
    println!();
    println!("Server with the default policies, streaming clients in a closed loop, 8 slots.");
    println!("clients requests  tokens/s  sequences/step  waited  sat out    idle");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    for clients in [1, 8, 64] {
        let load = runtime.block_on(under_load(clients, requests))?;
        println!(
            "{clients:>7} {:>8} {:>9.0} {:>15.2} {:>6.2}% {:>7.3}% {:>6.2}%",
            load.requests,
            load.tokens,
            load.sequences,
            100.0 * load.waited,
            100.0 * load.sat_out,
            100.0 * load.idle,
        );
    }
    Ok(())
}

fn median(speeds: &[Speed], of: impl Fn(&Speed) -> f64) -> f64 {
    let mut values: Vec<f64> = speeds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
