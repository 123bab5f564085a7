//! `cargo xtask bench fidelity`: how far the simulator is from real servers.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use anyhow::Result;
use clap::Parser;
use pointsman_tests::fidelity::{EngineModel, Fidelity, Load, Spread, of_engine, of_mocks};

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    /// Requests of each run
    #[arg(long, value_name = "N", default_value_t = 200)]
    requests: u32,
    /// Runs of each kind, each with the next seed
    #[arg(long, value_name = "N", default_value_t = 2)]
    runs: u32,
    /// Requests in a second to the mock servers
    #[arg(long, value_name = "N", default_value_t = 15.0)]
    mock_rate: f64,
    /// Requests in a second to the engine with the demo model
    #[arg(long, value_name = "N", default_value_t = 4.0)]
    engine_rate: f64,
    /// Requests in a second to the engine with a model of 7 million parameters
    #[arg(long, value_name = "N", default_value_t = 0.7)]
    dummy_rate: f64,
    /// Given by Cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    println!("Time to the first token in ms, as clients measured it over HTTP, and simulated.");
    println!(
        "{:14}{:>6}{:>6}  {:>26}  {:>26}  {:>22}",
        "servers", "rate", "seed", "measured mean/p50/p95", "simulated mean/p50/p95", "distance"
    );
    for run in 0..args.runs {
        let load = |rate| Load {
            rate,
            requests: args.requests,
            seed: run.into(),
        };
        let mocks = load(args.mock_rate);
        row("mock servers", mocks, of_mocks(mocks).await?);
        let demo = load(args.engine_rate);
        row(
            "engine, demo",
            demo,
            of_engine(demo, EngineModel::Demo).await?,
        );
        let dummy = load(args.dummy_rate);
        row(
            "engine, 7M",
            dummy,
            of_engine(dummy, EngineModel::Dummy).await?,
        );
    }
    Ok(())
}

fn row(servers: &str, load: Load, found: Fidelity) {
    let spread = |it: Spread| format!("{:.1} {:.1} {:.1}", it.mean, it.p50, it.p95);
    let [mean, p50, p95] = found.distance().map(|part| part * 100.0);
    println!(
        "{servers:14}{:>6}{:>6}  {:>26}  {:>26}  {mean:+.1} {p50:+.1} {p95:+.1} %",
        load.rate,
        load.seed,
        spread(found.measured),
        spread(found.simulated),
    );
}
