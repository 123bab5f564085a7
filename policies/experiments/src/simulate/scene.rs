//! Arguments about all that a simulation has beside its workload: requests, executors, policies,
//! host, failures. `pointsman simulate` and `pointsman policy tune` share them.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use pointsman_component::EmbeddedPolicy;
use pointsman_core::Config;
use pointsman_sim::fleet::FleetPlan;
use pointsman_sim::workload::{Roll, Workload as _};
use serde::Serialize;
use serde_json::{Map, Value};

use super::args::{HostArgs, Lengths, RequestArgs, failures, micros};
use super::contender::{Contender, Stable};
use super::fleet;
use super::past::PastRun;
use super::runs::Setting;
use super::spec;
use super::workload::{Changes, WorkloadSource};

/// Arguments about all that a simulation has beside its workload.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
pub struct SceneArgs {
    #[command(flatten)]
    #[serde(flatten)]
    requests: RequestArgs,
    /// Executors that are alike: 4 where nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    executors: Option<u32>,
    /// Executors of a file, with a table [[executors]] for each kind, which says all about them
    #[arg(long, value_name = "FILE.toml", conflicts_with = "executors")]
    fleet: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    executor: fleet::Keys,
    /// A policy in the place of the defaults for the decisions it makes, with settings after commas; may be given several times
    #[arg(long, value_name = "FILE.wasm[,KEY=VALUE]")]
    pub(super) policy: Vec<String>,
    /// Let the built-in rule decide what no given policy does, instead of the default policies
    #[arg(long)]
    pub(super) built_in: bool,
    /// Failures: losses=10min,lasting=30s, slow=5min,slow-lasting=30s,slow-factor=3, failing=0.01, leaving=0.05,leaves-after=20s
    #[arg(long, value_name = "KEY=VALUE,...")]
    failures: Option<String>,
    /// The first seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[serde(skip)]
    pub(crate) seed: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) host: HostArgs,
}

impl SceneArgs {
    /// The arguments that have a value, each by its flag and as text; but for the seed.
    ///
    /// # Errors
    /// If a path is no text.
    pub(crate) fn flags(&self) -> Result<Map<String, Value>> {
        let args: Map<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        let given = args.into_iter().filter(|(_, value)| !value.is_null());
        let flag = |(key, value): (String, Value)| {
            // A number would not be read as it was written.
            let text = value.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| value.to_string());
            (format!("--{key}"), Value::String(text))
        };
        Ok(given.map(flag).collect())
    }

    /// The setting of runs of a workload: of a journal, as it was.
    pub(crate) fn setting(&self, text: &str, past: Option<&PastRun>) -> Result<Setting> {
        let speed_up = spec::factor("--speed-up", self.requests.speed_up)?;
        ensure!(
            past.is_none() || self.requests.max_tokens.is_none(),
            "the requests of a journal ask for the tokens that they did: leave out --max-tokens"
        );
        let changes = Changes {
            speed_up,
            spread: self.requests.spread,
            requests_max: self.requests.requests,
            patience: self.requests.patience.map(micros),
        };
        let workload = match past {
            Some(past) => WorkloadSource::recorded(text, past.workload.clone(), changes),
            None => WorkloadSource::find(text, changes)?,
        };
        let fleet = match past {
            Some(past) => self.recorded_fleet(past)?,
            None => self.fleet(workload.make(self.seed)?.roll())?,
        };
        let config = past.map_or_else(Config::default, |past| past.config.clone());
        Ok(Setting {
            workload,
            config: self.host.config(config, &fleet)?,
            fleet,
            requests: self.requests.plan(),
            failures: failures(self.failures.as_deref())?,
            goodput: self.host.goodput(),
        })
    }

    fn fleet(&self, roll: &Roll) -> Result<FleetPlan> {
        match &self.fleet {
            Some(path) => {
                ensure!(
                    self.executor == fleet::Keys::default(),
                    "--fleet says all about its executors: leave out --profile, --kv and all else about \
                     executors, or write it into {}",
                    path.display()
                );
                fleet::read(path, roll)
            }
            None => self.executor.fleet(self.executors.unwrap_or(4), roll),
        }
    }

    /// The executors of a journal, as fast as they were.
    fn recorded_fleet(&self, past: &PastRun) -> Result<FleetPlan> {
        let is_told = self.fleet.is_some() || self.executors.is_some();
        ensure!(
            !is_told && self.executor == fleet::Keys::default(),
            "the executors of a journal are those that it has: leave out --executors, --fleet, \
             --profile and all else about executors"
        );
        Ok(past.fleet.clone())
    }

    /// True if nothing is asked for but what happened.
    pub(super) fn repeats(&self) -> bool {
        let requests = &self.requests;
        let is_as_it_was = requests.speed_up == 1.0
            && !requests.spread
            && requests.requests.is_none()
            && requests.patience.is_none()
            && requests.lengths == Lengths::Unknown;
        let host = &self.host;
        is_as_it_was
            && self.failures.is_none()
            && host.queue_max.is_none()
            && host.wait_max.is_none()
    }

    /// Checks that there are policies to decide.
    pub(crate) fn check(&self, defaults: &[EmbeddedPolicy], past: Option<&PastRun>) -> Result<()> {
        ensure!(
            self.built_in || past.is_some() || !defaults.is_empty(),
            "this binary was built without the default policies: run `cargo xtask serve`, or use \
             --built-in"
        );
        Ok(())
    }

    /// The policies that decide where no other is named: the recorded ones or the defaults, and those
    /// of `--policy`.
    pub(crate) fn base(&self, stable: &Stable, recorded: Option<&Contender>) -> Result<Contender> {
        let mut base = match recorded {
            _ if self.built_in => Stable::built_in(),
            Some(recorded) => recorded.clone(),
            None => stable.defaults(),
        };
        for text in &self.policy {
            base = stable.with(&base, text)?;
        }
        Ok(base)
    }
}
