//! The peers of the benchmark `engine`: other engines on this machine's processors, with the same weights.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::engine::Case;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/engine_peer.py");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo-model");

/// A model that all engines have.
#[derive(Clone, Debug)]
pub struct PeerModel {
    /// The name in tables.
    pub name: &'static str,
    /// The folder with its weights in bf16.
    pub folder: PathBuf,
    /// The same weights for llama.cpp.
    gguf: PathBuf,
}

/// An engine of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePeer {
    /// llama.cpp, by its own `llama-batched-bench`.
    LlamaCpp,
    /// mistral.rs, by its package for Python.
    MistralRs,
}

/// Tokens per second of a peer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub struct PeerSpeed {
    /// Sequences side by side.
    #[serde(alias = "pl")]
    pub batch: u32,
    /// Prompt tokens per second.
    #[serde(alias = "speed_pp")]
    pub prefill: f64,
    /// Generated tokens per second, all sequences together.
    #[serde(alias = "speed_tg")]
    pub decode: f64,
}

// === impl PeerModel ===

impl PeerModel {
    /// The demo model, of 2.5 million parameters.
    #[must_use]
    pub fn demo(peers: &Path) -> Self {
        Self {
            name: "2.5M",
            folder: PathBuf::from(DEMO),
            gguf: peers.join("engines/demo.gguf"),
        }
    }

    /// A model of a billion random parameters.
    #[must_use]
    pub fn large(peers: &Path) -> Self {
        Self {
            name: "1B",
            folder: peers.join("engines/1B"),
            gguf: peers.join("engines/1B.gguf"),
        }
    }
}

// === impl EnginePeer ===

impl EnginePeer {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::LlamaCpp, Self::MistralRs];

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::MistralRs => "mistral.rs",
        }
    }

    /// Measures prefill and decode of a model with the batches of these cases, which are alike otherwise.
    ///
    /// # Errors
    /// If the peer cannot be started, or does not tell its speed.
    pub fn measure(
        self,
        peers: &Path,
        model: &PeerModel,
        cases: &[Case],
    ) -> Result<Vec<PeerSpeed>> {
        let case = cases.first().context("no cases")?;
        let batches: Vec<String> = cases.iter().map(|case| case.batch.to_string()).collect();
        let sizes = [case.context, case.steps].map(|size| size.to_string());
        let mut command = match self {
            Self::LlamaCpp => llama_cpp(peers, model, case.threads),
            Self::MistralRs => mistral_rs(peers, model, case.threads),
        };
        match self {
            Self::LlamaCpp => command
                .args(["-npp", &sizes[0], "-ntg", &sizes[1]])
                .args(["-npl", &batches.join(",")]),
            Self::MistralRs => command.args(sizes).arg(batches.join(",")),
        };
        let done = command.stderr(Stdio::null()).output();
        let done = done.with_context(|| format!("{} cannot be started", self.name()))?;
        let said = String::from_utf8_lossy(&done.stdout);
        ensure!(done.status.success(), "{} failed:\n{said}", self.name());
        let speeds = speeds(&said)?;
        ensure!(speeds.len() == cases.len(), "{} said:\n{said}", self.name());
        Ok(speeds)
    }
}

fn llama_cpp(peers: &Path, model: &PeerModel, threads: NonZeroUsize) -> Command {
    let threads = threads.to_string();
    let mut command = Command::new(peers.join("engines/llama-batched-bench"));
    command.arg("-m").arg(&model.gguf);
    command.args(["-c", "8192", "-t", &threads, "-tb", &threads]);
    command.args(["--output-format", "jsonl"]);
    command
}

fn mistral_rs(peers: &Path, model: &PeerModel, threads: NonZeroUsize) -> Command {
    let mut command = Command::new(peers.join("mistralrs/bin/python"));
    command.env("RAYON_NUM_THREADS", threads.to_string());
    command.arg(SCRIPT).arg(&model.folder);
    command
}

/// The lines of JSON in what a peer said.
fn speeds(said: &str) -> Result<Vec<PeerSpeed>> {
    let lines = said.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with('{'));
    let speeds = lines.map(|line| serde_json::from_str(line).context(line.to_owned()));
    speeds.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_from_what_either_peer_says() {
        let said = "\u{1b}[2mINFO\u{1b}[0m loading\n\
                    {\"n_kv_max\": 8192, \"pp\": 128, \"tg\": 16, \"pl\": 8, \"n_kv\": 1152, \"t_pp\": 1.0, \
                    \"speed_pp\": 1024.0, \"t_tg\": 0.5, \"speed_tg\": 256.0, \"t\": 1.5, \"speed\": 768.0}\n\
                    {\"batch\": 1, \"prefill\": 3.5, \"decode\": 2.5}\n";
        let speed = |batch, prefill, decode| PeerSpeed {
            batch,
            prefill,
            decode,
        };
        assert_eq!(
            speeds(said).unwrap(),
            [speed(8, 1024.0, 256.0), speed(1, 3.5, 2.5)]
        );
    }
}
