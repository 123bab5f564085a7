//! `cargo xtask bench cuda`: models of random weights on a CUDA device, as shares of what its memory and its
//! matrix units can do, and the same under a whole server.
//!
//! With `--devices N`: by the first N devices together. With `--quick`: the smaller model alone. With `--peer`: the same
//! steps by transformers on one device, which has to be there for `python3`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_cuda::ceilings::{self, Ceilings};
use pointsman_cuda::{CudaDevices, probe};
use pointsman_executor::job::Sampling;
use pointsman_tests::cuda::{ARCHITECTURES, Case, OnDevices, ServedLoad, served};

/// Tokens that sequences have while the next ones are generated.
const CONTEXT: u32 = 512;
/// Numbers of sequences.
const BATCHES: [u32; 4] = [1, 8, 64, 256];
/// Tokens of a prompt.
const PROMPTS: [u32; 2] = [512, 2048];
const LOAD: ServedLoad = ServedLoad {
    clients: 64,
    requests: 256,
    tokens: 128,
};
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/cuda_peer.py");

fn main() -> Result<()> {
    let has = |name: &str| std::env::args().any(|arg| arg == name);
    let ordinals: Vec<usize> = (0..devices_asked()?).collect();
    if let Err(none) = CudaDevices::probe(&ordinals) {
        println!("Nothing was measured: {none}");
        return Ok(());
    }
    for device in &probe::devices()?[..ordinals.len()] {
        println!("CUDA device {device}");
    }
    let ceilings = ceilings::measure(0)?;
    println!(
        "Copied {:.2} TB/s, read by a product {:.2} TB/s, {:.0} TFLOP/s.",
        ceilings.copied / 1e12,
        ceilings.read / 1e12,
        ceilings.operations / 1e12
    );
    let folder = tempfile::tempdir()?;
    let shapes = if has("--quick") {
        1
    } else {
        ARCHITECTURES.len()
    };
    for architecture in &ARCHITECTURES[..shapes] {
        let (name, devices) = (architecture.name, ordinals.len());
        println!("\n{name}, bf16, random weights, context {CONTEXT}, devices {devices}");
        let config = architecture.write(folder.path())?;
        alone(&ordinals, &config, &ceilings)?;
        if has("--peer") {
            peer(&config)?;
        }
        under_load(&ordinals, &config)?;
    }
    Ok(())
}

/// Number of devices that compute together.
fn devices_asked() -> Result<usize> {
    let mut args = std::env::args().skip_while(|arg| arg != "--devices");
    if args.next().is_none() {
        return Ok(1);
    }
    let count = args.next().unwrap_or_default();
    let number = count.parse().ok().filter(|number| *number > 0);
    number.with_context(|| format!("--devices takes a number of devices, not `{count}`"))
}

/// Measures steps of a model alone.
fn alone(ordinals: &[usize], config: &Path, ceilings: &Ceilings) -> Result<()> {
    let batch_max = BATCHES[BATCHES.len() - 1];
    let mut model = OnDevices::new(ordinals, config, batch_max * (CONTEXT + 16))?;
    println!("step            batch  greedy ms  drawn ms  top-p ms   tokens/s  of the least time");
    let nucleus = Sampling {
        top_p: 0.9,
        ..Sampling::NEUTRAL
    };
    let prompts = PROMPTS.map(|new| (1, 0, new));
    let decode = BATCHES.map(|batch| (batch, CONTEXT, 1));
    for (batch, context, new) in prompts.into_iter().chain(decode) {
        let case = Case {
            batch,
            context,
            new,
        };
        let greedy = model.step(case, &Sampling::GREEDY)?;
        let drawn = model.step(case, &Sampling::NEUTRAL)?;
        let kept = model.step(case, &nucleus)?;
        let name = if new == 1 { "decode" } else { "prefill" };
        println!(
            "{name:<8} {new:>6} {batch:>6} {:>10.2} {:>9.2} {:>9.2} {:>10.0} {:>12.1}%",
            milliseconds(greedy),
            milliseconds(drawn),
            milliseconds(kept),
            f64::from(batch * new) / greedy.as_secs_f64(),
            100.0 * model.least(case, ceilings).as_secs_f64() / greedy.as_secs_f64(),
        );
    }
    Ok(())
}

/// Measures the model under a server.
fn under_load(ordinals: &[usize], config: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let load = runtime.block_on(served(ordinals, config, LOAD))?;
    println!("server          clients requests   tokens/s  sequences/step  step ms  waited   idle");
    println!(
        "{:>22} {:>9} {:>10.0} {:>15.1} {:>8.2} {:>6.2}% {:>5.2}%",
        LOAD.clients,
        load.requests,
        load.tokens,
        load.sequences,
        milliseconds(load.step),
        100.0 * load.waited,
        100.0 * load.idle,
    );
    Ok(())
}

/// Has transformers make the same steps.
fn peer(config: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.arg(PEER).arg(config).arg(CONTEXT.to_string());
    python.arg(PROMPTS.map(|count| count.to_string()).join(","));
    python.arg(BATCHES.map(|count| count.to_string()).join(","));
    let done = python.status().context("`python3` cannot be started")?;
    ensure!(done.success(), "transformers did not make the steps");
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
