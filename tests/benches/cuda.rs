//! `cargo xtask bench cuda`: models of random weights on a CUDA device, as shares of what its memory and its
//! matrix units can do, beside vLLM or transformers, and under a whole server, with policies and without. It writes what it
//! prints to `results/cuda.txt`, too.
//!
//! With `--devices N`: by the first N devices together. With `--quick`: the smaller model alone. With `--no-peer`: not
//! beside others, which are installed into `target/peers` otherwise, and have one device.

#![expect(
    clippy::print_stdout,
    reason = "a benchmark says where its figures are"
)]

use std::path::Path;

use anyhow::{Context, Result};
use pointsman_cuda::ceilings::{self, Ceilings};
use pointsman_cuda::probe;
use pointsman_executor::job::Sampling;
use pointsman_tests::clock::milliseconds;
use pointsman_tests::cuda::peer::{Candidate, PeerSteps};
use pointsman_tests::cuda::results::{RESULTS, Results};
use pointsman_tests::cuda::{ARCHITECTURES, Case, OnDevices, nothing_measured, served_on};
use pointsman_tests::served::ServedLoad;
use pointsman_tests::serving::target;

/// Tokens that sequences have while the next ones are generated.
const CONTEXT: u32 = 512;
/// Numbers of sequences.
const BATCHES: [u32; 4] = [1, 8, 64, 256];
/// Tokens of a prompt.
const PROMPTS: [u32; 2] = [512, 2048];
const LOAD: ServedLoad = ServedLoad {
    clients: 64,
    slots: 64,
    requests: 256,
    tokens: 128,
    rounds: 5,
};

fn main() -> Result<()> {
    let has = |name: &str| std::env::args().any(|arg| arg == name);
    let ordinals: Vec<usize> = (0..devices_asked()?).collect();
    if let Some(nothing) = nothing_measured(&ordinals) {
        println!("{nothing}");
        return Ok(());
    }
    let mut results = Results::create(Path::new(RESULTS), &command())?;
    for device in &probe::devices()?[..ordinals.len()] {
        results.say(&format!("CUDA device {device}"))?;
    }
    let ceilings = ceilings::measure(0)?;
    results.say(&format!(
        "Copied {:.2} TB/s, read by a product {:.2} TB/s, {:.0} TFLOP/s.",
        ceilings.copied / 1e12,
        ceilings.read / 1e12,
        ceilings.operations / 1e12
    ))?;
    let folder = tempfile::tempdir()?;
    let shapes = if has("--quick") {
        1
    } else {
        ARCHITECTURES.len()
    };
    for architecture in &ARCHITECTURES[..shapes] {
        let (name, devices) = (architecture.name, ordinals.len());
        results.say("")?;
        results.say(&format!(
            "{name}, bf16, random weights, context {CONTEXT}, devices {devices}"
        ))?;
        let config = architecture.write(folder.path())?;
        alone(&ordinals, &config, &ceilings, &mut results)?;
        if !has("--no-peer") {
            beside(&config, &mut results)?;
        }
        under_load(&ordinals, &config, &mut results)?;
    }
    println!("\nThese figures are in {RESULTS}; commit them once they are good.");
    Ok(())
}

/// The command that has this program run.
fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Cargo adds one of its own.
    let args = args.iter().filter(|arg| *arg != "--bench");
    let args: String = args.map(|arg| format!(" {arg}")).collect();
    format!("cargo xtask bench cuda{args}")
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
fn alone(
    ordinals: &[usize],
    config: &Path,
    ceilings: &Ceilings,
    results: &mut Results,
) -> Result<()> {
    let batch_max = BATCHES[BATCHES.len() - 1];
    let mut model = OnDevices::new(ordinals, config, batch_max * (CONTEXT + 16))?;
    results.say(
        "step            batch  greedy ms  drawn ms  top-p ms   tokens/s  of the least time",
    )?;
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
        results.say(&format!(
            "{name:<8} {new:>6} {batch:>6} {:>10.2} {:>9.2} {:>9.2} {:>10.0} {:>12.1}%",
            milliseconds(greedy),
            milliseconds(drawn),
            milliseconds(kept),
            f64::from(batch * new) / greedy.as_secs_f64(),
            100.0 * model.least(case, ceilings).as_secs_f64() / greedy.as_secs_f64(),
        ))?;
    }
    Ok(())
}

/// Has an engine of others make the same steps.
fn beside(config: &Path, results: &mut Results) -> Result<()> {
    let candidates = Candidate::all(&target());
    let steps = PeerSteps {
        config,
        context: CONTEXT,
        prompts: &PROMPTS,
        batches: &BATCHES,
    };
    steps.make(&candidates, &mut |line| results.say(line))
}

/// Measures the model under a server.
fn under_load(ordinals: &[usize], config: &Path, results: &mut Results) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(served_on(ordinals, config, LOAD))?;
    results.say(&format!(
        "server, {} clients, {} rounds of each in turns: the medians, with the least and the most",
        LOAD.clients, LOAD.rounds
    ))?;
    results.say(&served.to_string())
}
