//! Arguments of `pointsman simulate` about requests, the host and failures, as what they ask for.

use anyhow::{Context, Result};
use pointsman_core::Config;
use pointsman_notation::Time;
use pointsman_sim::fleet::FleetPlan;
use pointsman_sim::measure::Goodput;
use pointsman_sim::{AnswerLengths, FailurePlan, Micros, Recurring, RequestPlan};
use serde::{Deserialize, Serialize};

use super::spec;

/// Arguments about the requests.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
pub(super) struct RequestArgs {
    /// Let arrivals come so many times as fast
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(super) speed_up: f64,
    /// Spread arrivals of one time over the time to the next ones
    #[arg(long)]
    pub(super) spread: bool,
    /// Take so many requests at most
    #[arg(long, value_name = "N")]
    pub(super) requests: Option<u64>,
    /// Time after which an answer is worthless to its client
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) patience: Option<Time>,
    /// Knowledge that clients give of the lengths of answers: nothing, a hint, or the length as the bound
    #[arg(long, value_enum, default_value_t = Lengths::Unknown)]
    pub(super) lengths: Lengths,
    /// Most tokens that clients ask for, unless an answer has more: 4096 where nothing is said
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<u32>,
}

/// Arguments about the host and the bounds of a good answer.
#[derive(Clone, Debug, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct HostArgs {
    /// Requests that may wait in the queue, as core.queue-max of the configuration
    #[arg(long, value_name = "N")]
    pub(super) queue_max: Option<u32>,
    /// Longest time that a request may be without a place, as core.wait-max of the configuration
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) wait_max: Option<Time>,
    /// Longest time to the first token of a good answer
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "2s")]
    pub(super) ttft: Time,
    /// Longest mean time between tokens of a good answer
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "25ms")]
    pub(super) itl: Time,
}

/// Knowledge that clients give of the lengths of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Lengths {
    Unknown,
    Hinted,
    Known,
}

/// Keys of `--failures`.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct FailureKeys {
    losses: Option<Time>,
    lasting: Time,
    slow: Option<Time>,
    slow_lasting: Time,
    slow_factor: f64,
    failing: f64,
    leaving: f64,
    leaves_after: Time,
}

impl Default for FailureKeys {
    fn default() -> Self {
        Self {
            losses: None,
            lasting: Time::from_secs(30),
            slow: None,
            slow_lasting: Time::from_secs(30),
            slow_factor: 3.0,
            failing: 0.0,
            leaving: 0.0,
            leaves_after: Time::from_secs(10),
        }
    }
}

/// Reads a time of the command line.
pub(crate) fn time(text: &str) -> Result<Time, String> {
    let value = serde::de::value::StrDeserializer::new(text);
    let read: Result<Time, serde::de::value::Error> = Time::deserialize(value);
    read.map_err(|error| error.to_string())
}

pub(super) fn micros(time: Time) -> Micros {
    Micros(time.as_micros())
}

impl RequestArgs {
    pub(super) fn plan(&self) -> RequestPlan {
        let defaults = RequestPlan::default();
        RequestPlan {
            output_tokens_max: self.max_tokens.unwrap_or(defaults.output_tokens_max),
            lengths: match self.lengths {
                Lengths::Unknown => AnswerLengths::Unknown,
                Lengths::Hinted => AnswerLengths::Hinted,
                Lengths::Known => AnswerLengths::Known,
            },
            may_wait: defaults.may_wait,
        }
    }
}

impl HostArgs {
    /// The bounds of a good answer.
    pub(crate) fn goodput(&self) -> Goodput {
        Goodput {
            ttft_max: micros(self.ttft),
            itl_max: micros(self.itl),
        }
    }

    /// The bounds of the machine, but for those that the command line sets.
    pub(super) fn config(&self, mut config: Config, fleet: &FleetPlan) -> Result<Config> {
        config.executors_max = config.executors_max.max(fleet.len());
        if let Some(wait_max) = self.wait_max {
            config.wait(micros(wait_max));
        }
        config.queue_max = self.queue_max.unwrap_or(config.queue_max);
        config.validate().context("--queue-max or --wait-max")?;
        Ok(config)
    }
}

pub(super) fn failures(text: Option<&str>) -> Result<FailurePlan> {
    let keys: FailureKeys = spec::parse("failures", text.unwrap_or_default())?;
    spec::within(&[
        ("failing", keys.failing, 0.0..=1.0),
        ("leaving", keys.leaving, 0.0..=1.0),
        ("slow-factor", keys.slow_factor, 1.0..=1e6),
    ])?;
    let recurring = |between: Option<Time>, lasting| {
        between.map(|between| Recurring {
            between: micros(between),
            lasting: micros(lasting),
        })
    };
    let slow = recurring(keys.slow, keys.slow_lasting);
    Ok(FailurePlan {
        seed: 0,
        losses: recurring(keys.losses, keys.lasting),
        slowdowns: slow.map(|slow| (slow, keys.slow_factor)),
        failing_share: keys.failing,
        leaving_share: keys.leaving,
        leaves_after: micros(keys.leaves_after),
        listed: Vec::new(),
    })
}
