//! The fleet of `pointsman simulate`: a file, or a number of executors that are alike.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_notation::{Time, TomlText};
use pointsman_sim::Micros;
use pointsman_sim::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use pointsman_sim::latency::{CostTable, LatencyProfile, LinearCost};
use pointsman_sim::workload::Roll;
use serde::{Deserialize, Serialize};

use super::spec::{self, at_least};

/// KV blocks of an executor, at most: to simulate a server with as many takes about a GiB.
const BLOCKS_MAX: f64 = 16_777_216.0;
/// The time of each part of a step, at most: more than eleven days.
const MS_MAX: f64 = 1e9;

/// The keys of a fleet's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    executors: Vec<Keys>,
}

/// The keys of one executor, or of several alike: those of `[[executors]]`, and flags of the command
/// line where there is no file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Keys {
    #[arg(skip)]
    name: Option<String>,
    #[arg(skip)]
    count: Option<u32>,
    /// Speed of the executors: polynomial (Dynamo's mocker), smg, llm-d, splitwise-h100, splitwise-a100 or measured
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    #[arg(skip)]
    linear: Option<Linear>,
    /// File of splitwise-sim with measured times, and the model, hardware and number of devices in it
    #[arg(skip)]
    splitwise: Option<Splitwise>,
    #[arg(skip)]
    speed: Option<f64>,
    /// Keeper of the KV blocks: each server, which tells what it has cached or does not, or the host
    #[arg(long, value_enum)]
    kv: Option<Keeper>,
    /// KV blocks of each executor
    #[arg(long = "kv-blocks", value_name = "N")]
    kv_blocks: Option<u32>,
    /// Tokens in a KV block
    #[arg(long, value_name = "N")]
    block_tokens: Option<u32>,
    /// Sequences that an executor runs at once
    #[arg(long, value_name = "N")]
    sequences: Option<u32>,
    /// Requests that may be placed on an executor at once; more than it runs wait there
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Tokens of a step, prompts and decode together
    #[arg(long, value_name = "N")]
    step_tokens: Option<u32>,
    #[arg(skip)]
    queue: Option<u32>,
    #[arg(skip)]
    group: Option<u32>,
    #[arg(skip)]
    serves: Option<Vec<String>>,
    /// Models that an executor has loaded at once
    #[arg(long, value_name = "N")]
    models_max: Option<u32>,
    /// Time to load a model
    #[arg(skip)]
    model_load: Option<Time>,
    #[arg(skip)]
    model_unload_delay: Option<Time>,
    /// Time after which the host hears which prompt blocks a server holds
    #[arg(skip)]
    cache_delay: Option<Time>,
}

/// The keeper of the KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Keeper {
    /// The server, which says what it has cached
    Server,
    /// The server, which does not say what it has cached
    UntoldServer,
    /// The host
    Host,
}

/// A fitted speed.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Linear {
    #[serde(default)]
    step_ms: f64,
    #[serde(default)]
    prefill_token_ms: f64,
    #[serde(default)]
    prefill_pair_ms: f64,
    #[serde(default)]
    decode_ms: f64,
    #[serde(default)]
    decode_context_ms: f64,
}

/// A table of splitwise-sim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Splitwise {
    file: std::path::PathBuf,
    model: String,
    hardware: String,
    devices: u32,
}

impl Linear {
    fn cost(self) -> Result<LinearCost> {
        let Self {
            step_ms,
            prefill_token_ms,
            prefill_pair_ms,
            decode_ms,
            decode_context_ms,
        } = self;
        spec::within(&[
            ("linear.step-ms", step_ms, 0.0..=MS_MAX),
            ("linear.prefill-token-ms", prefill_token_ms, 0.0..=MS_MAX),
            ("linear.prefill-pair-ms", prefill_pair_ms, 0.0..=MS_MAX),
            ("linear.decode-ms", decode_ms, 0.0..=MS_MAX),
            ("linear.decode-context-ms", decode_context_ms, 0.0..=MS_MAX),
        ])?;
        Ok(LinearCost {
            step_ms,
            prefill_token_ms,
            prefill_pair_ms,
            decode_ms,
            decode_context_ms,
        })
    }
}

impl Keys {
    /// A fleet of so many executors by the flags.
    ///
    /// # Errors
    /// If a flag makes no sense.
    pub(super) fn fleet(&self, count: u32, roll: &Roll) -> Result<FleetPlan> {
        Ok(FleetPlan::of(self.plan(roll)?, count))
    }

    fn plan(&self, roll: &Roll) -> Result<ExecutorPlan> {
        let plan = ExecutorPlan::named(self.profile.as_deref().unwrap_or("polynomial"))?;
        let micros = |time: Option<Time>| Micros(time.unwrap_or_default().as_micros());
        let plan = ExecutorPlan {
            name: self.name.clone().unwrap_or(plan.name),
            count: self.count.unwrap_or(1),
            profile: self.latency(plan.profile)?,
            speed: self.speed.unwrap_or(1.0),
            kv: match self.kv {
                Some(Keeper::Server) => KvKeeper::Server,
                Some(Keeper::UntoldServer) => KvKeeper::UntoldServer,
                Some(Keeper::Host) => KvKeeper::Host,
                None => plan.kv,
            },
            blocks_total: self.kv_blocks.unwrap_or(plan.blocks_total),
            tokens_per_block: self.block_tokens.unwrap_or(plan.tokens_per_block),
            sequences_max: self.sequences.unwrap_or(plan.sequences_max),
            slots: self.slots,
            step_tokens: self.step_tokens.unwrap_or(plan.step_tokens),
            queue_limit: self.queue.unwrap_or(0),
            group: self.group.unwrap_or(0),
            role: plan.role,
            serves: self.served(roll)?,
            models_max: self.models_max,
            model_load: micros(self.model_load),
            model_unload_delay: micros(self.model_unload_delay),
            cache_news_delay: micros(self.cache_delay),
        };
        let [blocks, block_tokens, sequences, step_tokens] = [
            plan.blocks_total,
            plan.tokens_per_block,
            plan.sequences_max,
            plan.step_tokens,
        ]
        .map(f64::from);
        spec::within(&[
            ("kv-blocks", blocks, 1.0..=BLOCKS_MAX),
            ("block-tokens", block_tokens, at_least(1.0)),
            ("sequences", sequences, at_least(1.0)),
            ("step-tokens", step_tokens, at_least(1.0)),
        ])?;
        spec::factor("speed", plan.speed)?;
        Ok(plan)
    }

    fn latency(&self, named: LatencyProfile) -> Result<LatencyProfile> {
        match (&self.linear, &self.splitwise) {
            (None, None) => Ok(named),
            (Some(linear), None) => Ok(LatencyProfile::Linear(linear.cost()?)),
            (None, Some(table)) => {
                let shown = table.file.display();
                let text = std::fs::read_to_string(&table.file);
                let text = text.with_context(|| shown.to_string())?;
                let Splitwise {
                    model,
                    hardware,
                    devices,
                    ..
                } = table;
                let wanted = format!("{model},{hardware},{devices}");
                let table = CostTable::parse(&text, &wanted);
                Ok(LatencyProfile::Table(
                    table.with_context(|| shown.to_string())?,
                ))
            }
            (Some(_), Some(_)) => anyhow::bail!("an executor has one speed: linear, or splitwise"),
        }
    }

    /// The places of the models that it serves, in the workload's roll.
    fn served(&self, roll: &Roll) -> Result<Option<Vec<u32>>> {
        let Some(names) = &self.serves else {
            return Ok(None);
        };
        let place = |name: &String| {
            let place = (0..).zip(&roll.models).find(|(_, model)| *model == name);
            let place = place.map(|(place, _)| place);
            place.with_context(|| format!("no request of the workload is for the model {name:?}"))
        };
        names.iter().map(place).collect::<Result<_>>().map(Some)
    }
}

/// Reads a fleet's file.
///
/// # Errors
/// If it cannot be read, or a key makes no sense.
pub(super) fn read(path: &Path, roll: &Roll) -> Result<FleetPlan> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("fleet {}", path.display()))?;
    let file: File = TomlText::new(path, text).parse()?;
    let plans = (0..).zip(&file.executors).map(|(idx, keys): (usize, _)| {
        let plan = keys.plan(roll);
        plan.with_context(|| format!("{}: executors[{idx}]", path.display()))
    });
    let executors: Vec<ExecutorPlan> = plans.collect::<Result<_>>()?;
    ensure!(
        !executors.is_empty(),
        "{}: there is no executor",
        path.display()
    );
    Ok(FleetPlan { executors })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<FleetPlan> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("fleet.toml");
        std::fs::write(&path, text)?;
        let roll = Roll {
            models: vec!["a".to_owned(), "b".to_owned()],
            ..Roll::single()
        };
        read(&path, &roll)
    }

    #[test]
    fn a_file_says_of_each_executor_what_is_not_as_in_its_profile() {
        let text = r#"
[[executors]]
name = "fast"
count = 2
profile = "smg"
speed = 2.0
serves = ["b"]
models-max = 1
model-load = "10s"

[[executors]]
linear = { step-ms = 1.0, prefill-token-ms = 0.1 }
kv = "host"
"#;
        let fleet = parsed(text).unwrap();
        let [fast, other] = fleet.executors.as_slice() else {
            panic!("{fleet:?}");
        };
        assert_eq!(
            (fast.name.as_str(), fast.count, fast.tokens_per_block),
            ("fast", 2, 16)
        );
        assert_eq!(
            (fast.serves.as_deref(), fast.model_load),
            (Some(&[1][..]), Micros(10_000_000))
        );
        assert_eq!((other.kv, other.blocks_total), (KvKeeper::Host, 16_384));
        assert!(matches!(other.profile, LatencyProfile::Linear(_)));
        assert_eq!(fleet.len(), 3);
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let said = |text: &str| format!("{:#}", parsed(text).unwrap_err());
        assert!(said("[[executors]]\nprofil = 'x'").contains("did you mean `profile`?"));
        assert!(said("[[executors]]\nprofile = 'x'").contains("the profiles are polynomial, smg"));
        assert!(said("[[executors]]\nserves = ['c']").contains("model \"c\""));
        for (keys, why) in [
            ("sequences = 0", "sequences must be at least 1, not 0"),
            (
                "kv-blocks = 4294967295",
                "kv-blocks must be from 1 to 16777216, not 4294967295",
            ),
            (
                "speed = inf",
                "speed must be from 0.000001 to 1000000, not inf",
            ),
            (
                "linear = { step-ms = -5.0 }",
                "linear.step-ms must be from 0 to 1000000000, not -5",
            ),
            (
                "linear = { step-ms = 1e10 }",
                "linear.step-ms must be from 0 to 1000000000, not 10000000000",
            ),
            (
                "linear = { decode-context-ms = nan }",
                "linear.decode-context-ms must be from 0 to 1000000000, not NaN",
            ),
        ] {
            let said = said(&format!("[[executors]]\n{keys}"));
            assert!(said.ends_with(why), "{said}");
        }
    }
}
