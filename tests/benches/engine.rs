//! `cargo xtask bench engine`: tokens per second, and the share of time in which the engine waits
//! for decisions; and the same server with the default policies and without any, in turns.
//!
//! With `--quick`: fewer steps and requests. With `--large`: also a model of a billion random parameters. With
//! `--peers`: both models beside llama.cpp and mistral.rs, in turns; their installation takes some twenty minutes, once.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use pointsman_driver::provider::{ModelConfig, ModelSource};
use pointsman_local::DeviceConfig;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::host::HostModel;
use pointsman_model::weights::StoredMatrix;
use pointsman_tests::bandwidth;
use pointsman_tests::cuda::ARCHITECTURES;
use pointsman_tests::engine::{Case, Speed, demo_model, measure, under_load};
use pointsman_tests::engine_peers::{EnginePeer, PeerModel};
use pointsman_tests::served::{ServedLoad, served};
use pointsman_tests::serving::target;
use tokio::runtime::Runtime;

/// Number of measurements of each case; the median counts.
const REPEATS: usize = 5;
/// The same beside peers.
const ROUNDS: usize = 3;
/// Tokens of each prompt.
const CONTEXT: u32 = 128;
/// The name of the demo model in a server.
const DEMO: &str = "2.5M";
/// The load of the server whose policies come and go.
const LOAD: ServedLoad = ServedLoad {
    clients: 8,
    slots: 8,
    requests: 256,
    tokens: 64,
    rounds: 9,
};
/// The same for a billion parameters.
const LARGE_LOAD: ServedLoad = ServedLoad {
    requests: 16,
    tokens: 16,
    rounds: 5,
    ..LOAD
};
const BATCHES: [u32; 2] = [1, 8];
const THREADS: [NonZeroUsize; 2] = [NonZeroUsize::MIN, NonZeroUsize::new(2).unwrap()];

/// Prompt tokens per second, and generated ones.
type Rates = (f64, f64);

/// The figures of an engine.
struct Measured {
    name: &'static str,
    /// The rates of each case, in each round.
    rates: [Vec<Rates>; 2],
}

/// A model to measure.
struct Subject<'a> {
    name: &'static str,
    ours: Arc<HostModel>,
    /// Bytes of its matrices.
    weights: f64,
    /// The folder of the peers and their files of it, where they take turns with ours.
    peers: Option<(&'a Path, &'a PeerModel)>,
}

fn main() -> Result<()> {
    let has = |name: &str| std::env::args().any(|arg| arg == name);
    let (steps, large_steps, requests) = if has("--quick") {
        (32, 4, 64)
    } else {
        (256, 32, 1024)
    };
    alone(steps)?;
    if has("--peers") {
        let peers = target().join("peers");
        for (model, steps) in [
            (PeerModel::demo(&peers), steps),
            (PeerModel::large(&peers), large_steps),
        ] {
            compare(&Subject::with_peers(&peers, &model)?, steps)?;
        }
    } else if has("--large") {
        compare(&Subject::large()?, large_steps)?;
    }
    waited(requests)?;
    let load = ServedLoad {
        requests: requests / 4,
        ..LOAD
    };
    decided(DEMO, ModelSource::Embedded, load)?;
    if has("--peers") || has("--large") {
        let [architecture, _] = ARCHITECTURES;
        let folder = tempfile::tempdir()?;
        let config = architecture.write(folder.path())?;
        decided(
            architecture.name,
            ModelSource::Dummy { config, seed: 0 },
            LARGE_LOAD,
        )?;
    }
    Ok(())
}

/// Measures the demo model, and prints a hash of its logits, which tells two builds apart.
fn alone(steps: u32) -> Result<()> {
    let model = demo_model()?;
    println!("Demo model, context {CONTEXT}: tokens per second, medians of {REPEATS}.");
    println!("threads  batch    prefill     decode  logits");
    for threads in THREADS {
        for case in cases(threads, steps) {
            let speeds = (0..REPEATS).map(|_| measure(&model, case));
            let speeds = speeds.collect::<Result<Vec<Speed>>>()?;
            let prefill = median(speeds.iter().map(|speed| speed.prefill));
            let decode = median(speeds.iter().map(|speed| speed.decode));
            let (batch, hash) = (case.batch, speeds[0].hash);
            println!("{threads:>7} {batch:>6} {prefill:>10.0} {decode:>10.0}  {hash:016x}");
        }
    }
    Ok(())
}

/// Measures a model on this engine and, where there are any, on its peers, which take turns.
fn compare(subject: &Subject<'_>, steps: u32) -> Result<()> {
    let (name, weights) = (subject.name, subject.weights);
    println!();
    println!(
        "{name}, bf16, context {CONTEXT}: tokens per second, medians of {ROUNDS}. Read: weights by decode steps, of \
         what can be."
    );
    println!("threads  batch  engine         prefill     decode    read");
    for threads in THREADS {
        let cases = cases(threads, steps);
        let ceiling = bandwidth::read_per_second(threads);
        let measured = rounds(subject, &cases)?;
        for Measured { name, rates } in measured {
            for (case, rates) in cases.iter().zip(rates) {
                let prefill = median(rates.iter().map(|(prefill, _)| *prefill));
                let decode = median(rates.iter().map(|(_, decode)| *decode));
                let read = 100.0 * decode / f64::from(case.batch) * weights / ceiling;
                let batch = case.batch;
                println!(
                    "{threads:>7} {batch:>6}  {name:<10} {prefill:>11.1} {decode:>10.1} {read:>6.1}%"
                );
            }
        }
        println!("{threads:>7}         reads {:.1} GB/s", ceiling / 1e9);
    }
    Ok(())
}

/// The rates of each engine, for each case, in each round.
fn rounds(subject: &Subject<'_>, cases: &[Case; 2]) -> Result<Vec<Measured>> {
    let engines: &[EnginePeer] = match subject.peers {
        Some(_) => &EnginePeer::ALL,
        None => &[],
    };
    let names = engines.iter().map(|engine| engine.name());
    let names = std::iter::once("Pointsman").chain(names);
    let empty = |name| Measured {
        name,
        rates: [vec![], vec![]],
    };
    let mut measured: Vec<Measured> = names.map(empty).collect();
    for _ in 0..ROUNDS {
        let (own, others) = measured.split_first_mut().context("no engines")?;
        for (case, rates) in cases.iter().zip(&mut own.rates) {
            let speed = measure(&subject.ours, *case)?;
            rates.push((speed.prefill, speed.decode));
        }
        let Some((peers, model)) = subject.peers else {
            continue;
        };
        for (peer, other) in engines.iter().zip(others) {
            let speeds = peer.measure(peers, model, cases)?;
            for (speed, rates) in speeds.iter().zip(&mut other.rates) {
                rates.push((speed.prefill, speed.decode));
            }
        }
    }
    Ok(measured)
}

impl<'a> Subject<'a> {
    fn with_peers(peers: &'a Path, model: &'a PeerModel) -> Result<Self> {
        let files = ModelFiles::Folder(model.folder.clone());
        Self::new(model.name, &files, Some((peers, model)))
    }

    /// A model like Llama 3.2 1B, of random weights.
    fn large() -> Result<Self> {
        let [architecture, _] = ARCHITECTURES;
        let folder = tempfile::tempdir()?;
        let config = architecture.write(folder.path())?;
        let files = ModelFiles::Dummy(Dummy::new(&config, 0));
        Self::new(architecture.name, &files, None)
    }

    fn new(
        name: &'static str,
        files: &ModelFiles,
        peers: Option<(&'a Path, &'a PeerModel)>,
    ) -> Result<Self> {
        let ours = Arc::new(HostModel::load(files)?);
        let matrices = ours.open().weights().matrices();
        let bytes: u64 = matrices.map(StoredMatrix::bytes).sum();
        Ok(Self {
            name,
            ours,
            weights: bytes as f64,
            peers,
        })
    }
}

/// Measures the default server.
fn waited(requests: usize) -> Result<()> {
    println!();
    println!("Server with the default policies, streaming clients in a closed loop, 8 slots.");
    println!("clients requests  tokens/s  sequences/step  waited  reported  sat out    idle");
    let runtime = runtime()?;
    for clients in [1, 8, 64] {
        let load = runtime.block_on(under_load(clients, requests))?;
        println!(
            "{clients:>7} {:>8} {:>9.0} {:>15.2} {:>6.2}% {:>8.2}% {:>7.3}% {:>6.2}%",
            load.requests,
            load.tokens,
            load.sequences,
            100.0 * load.waited,
            100.0 * load.reported,
            100.0 * load.sat_out,
            100.0 * load.idle,
        );
    }
    Ok(())
}

/// Measures a server that has a model on one thread, with the default policies and by the built-in rule.
fn decided(name: &str, source: ModelSource, load: ServedLoad) -> Result<()> {
    let device = DeviceConfig::with_processors("cpu0", 2);
    let model = ModelConfig::new(name, source);
    let served = runtime()?.block_on(served(model, device, load))?;
    println!();
    println!(
        "{name} under a server, {} streaming clients, {} rounds of each in turns: the medians, with the least and the most.",
        load.clients, load.rounds
    );
    println!("{served}");
    Ok(())
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

fn cases(threads: NonZeroUsize, steps: u32) -> [Case; 2] {
    BATCHES.map(|batch| Case {
        batch,
        context: CONTEXT,
        steps,
        threads,
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
