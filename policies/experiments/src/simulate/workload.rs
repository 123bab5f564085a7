//! The workload of `pointsman simulate`: a trace's file, or a generator with its keys.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pointsman_notation::{Time, instead};
use pointsman_sim::Micros;
use pointsman_sim::workload::{
    Agents, AgentsPlan, Bursts, Flood, Lengths, Listed, OpenLoad, OpenPlan, Reshaping,
    ServegenPlan, Shaped, Workload, azure, mooncake, servegen,
};
use serde::Deserialize;

use super::spec::{self, at_least, factor};

/// A workload that is made anew for each run.
#[derive(Clone, Debug)]
pub struct WorkloadSource {
    /// The name for people.
    pub label: String,
    kind: Kind,
    /// The changes of every run; spread by its seed, if at all.
    shape: Reshaping,
    spread: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Listed(Listed),
    Servegen(String, ServegenPlan),
    Open(OpenPlan),
    Agents(Box<AgentsPlan>),
}

/// The changes that the command line asks for.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    /// Arrivals come so many times as fast.
    pub speed_up: f64,
    /// Arrivals of one time are spread over the time to the next ones.
    pub spread: bool,
    /// Requests at most.
    pub requests_max: Option<u64>,
    /// The time after which an answer is worthless.
    pub patience: Option<Micros>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            speed_up: 1.0,
            spread: false,
            requests_max: None,
            patience: None,
        }
    }
}

/// The generators.
const GENERATORS: [&str; 4] = ["poisson", "bursts", "flood", "agents"];

/// From one burst to the next, where the generator is `bursts` and nothing is said.
const BURST_EVERY: Time = Time::from_secs(60);
/// The length of a burst.
const BURST_LASTING: Time = Time::from_secs(5);
/// The rate within a burst, as a multiple.
const BURST_FACTOR: f64 = 10.0;
/// The beginning of the flood, where the generator is `flood` and nothing is said.
const FLOOD_FROM: Time = Time::from_secs(30);
/// The length of a flood.
const FLOOD_LASTING: Time = Time::from_secs(60);
/// Requests of a flood, as a multiple of those of all tenants.
const FLOOD_FACTOR: f64 = 5.0;
/// The greatest length of a prompt where nothing is said, unless [`TIMES_MEAN`] is more.
const PROMPT_MAX: u32 = 32_000;
/// The same of an answer.
const OUTPUT_MAX: u32 = 4000;
/// The greatest length as a multiple of the mean, beyond which are three of a thousand.
const TIMES_MEAN: u32 = 8;
/// The greatest mean number of turns: each of a session is drawn before its first.
const TURNS_MAX: f64 = 1e6;

impl WorkloadSource {
    /// Finds a workload: a file, `-` for standard input, or a generator.
    ///
    /// # Errors
    /// If there is no such file or generator, or what is there is no workload.
    pub fn find(text: &str, changes: Changes) -> Result<Self> {
        let (name, parts) = spec::named(text);
        let kind = if GENERATORS.contains(&name) && !Path::new(text).exists() {
            generator(name, parts)?
        } else {
            let (path, parts) = spec::path(text, ':');
            ensure!(!is_missing(path), unknown(path));
            let found = read(path).and_then(|content| trace(&content, parts));
            found.with_context(|| path.to_owned())?
        };
        Ok(Self::new(text, kind, changes))
    }

    /// The requests of a journal.
    #[must_use]
    pub fn recorded(label: &str, requests: Listed, changes: Changes) -> Self {
        Self::new(label, Kind::Listed(requests), changes)
    }

    fn new(label: &str, kind: Kind, changes: Changes) -> Self {
        let shape = Reshaping {
            speed_up: changes.speed_up,
            spread: None,
            requests_max: changes.requests_max,
            patience: changes.patience,
        };
        Self {
            label: label.to_owned(),
            kind,
            shape,
            spread: changes.spread,
        }
    }

    /// Makes the requests of a run.
    ///
    /// # Errors
    /// If there are none.
    pub fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        let workload: Box<dyn Workload> = match &self.kind {
            Kind::Listed(listed) => Box::new(listed.clone()),
            Kind::Servegen(text, plan) => {
                let plan = ServegenPlan {
                    seed,
                    ..plan.clone()
                };
                Box::new(servegen(text, &plan)?)
            }
            Kind::Open(plan) => Box::new(OpenLoad::new(OpenPlan {
                seed,
                ..plan.clone()
            })),
            Kind::Agents(plan) => Box::new(Agents::new(AgentsPlan {
                seed,
                ..(**plan).clone()
            })),
        };
        let shape = Reshaping {
            spread: self.spread.then_some(seed),
            ..self.shape
        };
        Ok(if shape == Reshaping::default() {
            workload
        } else {
            Box::new(Shaped::new(workload, shape))
        })
    }

    /// Parts a list of requests, a trace's or a journal's: the first of them, so many of so many, and
    /// the rest. Absent: the requests come of a seed.
    #[must_use]
    pub fn split(&self, (part, of): (u64, u64)) -> Option<(Self, Self)> {
        let Kind::Listed(listed) = &self.kind else {
            return None;
        };
        let total = listed.total().unwrap_or(0);
        let total = total.min(self.shape.requests_max.unwrap_or(total));
        let (all, _) = listed.clone().split(total);
        let (first, rest) = all.split(total * part / of);
        let with = |listed| Self {
            kind: Kind::Listed(listed),
            shape: Reshaping {
                requests_max: None,
                ..self.shape
            },
            ..self.clone()
        };
        Some((with(first), with(rest)))
    }

    /// True if it is a list without a request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(&self.kind, Kind::Listed(listed) if listed.total() == Some(0))
    }

    /// The first requests of it, at most so many.
    #[must_use]
    pub fn first(&self, requests: u64) -> Self {
        let most = self.shape.requests_max.unwrap_or(requests);
        let mut source = self.clone();
        source.shape.requests_max = Some(most.min(requests));
        source
    }

    /// True if another seed gives other requests.
    #[must_use]
    pub fn is_random(&self) -> bool {
        self.spread || !matches!(self.kind, Kind::Listed(_))
    }
}

/// Returns whether nothing is at a path, which is not that of standard input.
fn is_missing(path: &str) -> bool {
    path != "-" && fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn unknown(name: &str) -> String {
    format!(
        "there is no trace {name:?} and no such generator; {}",
        instead(name, &GENERATORS)
    )
}

fn read(path: &str) -> Result<String> {
    if path == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        return Ok(text);
    }
    let bytes = fs::read(path)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        bail!("it is compressed: pass it through `zcat` to standard input, and name it -");
    }
    String::from_utf8(bytes).context("it is no text")
}

/// The workload in a trace's text, by what its first line looks like.
fn trace(text: &str, parts: &str) -> Result<Kind> {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.unwrap_or_default();
    if first.starts_with('{') && first.contains("\"slots\"") {
        let keys: ServegenKeys = spec::parse("servegen", parts)?;
        let plan = keys.plan().context("servegen")?;
        // Found out now, and not in the middle of a run.
        servegen(text, &plan)?;
        return Ok(Kind::Servegen(text.to_owned(), plan));
    }
    ensure!(parts.is_empty(), "such a trace has no keys: {parts}");
    if first.starts_with('{') {
        return Ok(Kind::Listed(mooncake(text)?));
    }
    if first.starts_with("TIMESTAMP") {
        return Ok(Kind::Listed(azure(text)?));
    }
    bail!(
        "it is no trace and no journal: a line of Mooncake's has timestamp, input_length and \
         output_length, Azure's begin with TIMESTAMP, and ServeGen's have slots"
    )
}

fn generator(name: &str, parts: &str) -> Result<Kind> {
    if name == "agents" {
        let keys: AgentsKeys = spec::parse(name, parts)?;
        let plan = keys.plan().with_context(|| name.to_owned())?;
        return Ok(Kind::Agents(Box::new(plan)));
    }
    let mut keys: OpenKeys = spec::parse(name, parts)?;
    if name == "bursts" {
        keys.burst_every = keys.burst_every.or(Some(BURST_EVERY));
    }
    if name == "flood" {
        keys.flood_from = keys.flood_from.or(Some(FLOOD_FROM));
    }
    let plan = keys.plan().with_context(|| name.to_owned())?;
    Ok(Kind::Open(plan))
}

/// Keys of a generator of independent requests.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct OpenKeys {
    rate: f64,
    requests: u64,
    prompt: u32,
    prompt_median: Option<u32>,
    prompt_max: Option<u32>,
    output: u32,
    output_median: Option<u32>,
    output_max: Option<u32>,
    tenants: u32,
    models: u32,
    models_zipf: f64,
    prefixes: u32,
    prefix_tokens: u32,
    throughput: f64,
    burst_every: Option<Time>,
    burst_lasting: Option<Time>,
    burst_factor: Option<f64>,
    flood_from: Option<Time>,
    flood_lasting: Option<Time>,
    flood_factor: Option<f64>,
}

impl Default for OpenKeys {
    fn default() -> Self {
        Self {
            rate: 10.0,
            requests: 2000,
            prompt: 1000,
            prompt_median: None,
            prompt_max: None,
            output: 200,
            output_median: None,
            output_max: None,
            tenants: 1,
            models: 0,
            models_zipf: 1.0,
            prefixes: 0,
            prefix_tokens: 0,
            throughput: 0.0,
            burst_every: None,
            burst_lasting: None,
            burst_factor: None,
            flood_from: None,
            flood_lasting: None,
            flood_factor: None,
        }
    }
}

/// A lognormal distribution with this mean; the median is two thirds of it where nothing is said.
fn lengths(mean: u32, median: Option<u32>, max: u32) -> Lengths {
    let mean = f64::from(mean);
    Lengths {
        mean,
        median: median.map_or(mean * 2.0 / 3.0, f64::from),
        max,
    }
}

/// The greatest length that the key `KEY-max` says: without it `least`, or [`TIMES_MEAN`] where that is more.
///
/// # Errors
/// If it is below the mean, which no lengths up to there have.
fn length_max(key: &str, mean: u32, max: Option<u32>, least: u32) -> Result<u32> {
    let Some(max) = max else {
        return Ok(mean.saturating_mul(TIMES_MEAN).max(least));
    };
    ensure!(
        max >= mean,
        "{key}-max must be at least the mean, {key}={mean}, not {max}"
    );
    Ok(max)
}

fn micros(time: Time) -> Micros {
    Micros(time.as_micros())
}

impl OpenKeys {
    /// The bursts; absent: none are asked for.
    fn bursts(&self) -> Result<Option<Bursts>> {
        let Some(every) = self.burst_every else {
            ensure!(
                self.burst_lasting.is_none() && self.burst_factor.is_none(),
                "burst-lasting and burst-factor say nothing without burst-every: add \
                 burst-every={BURST_EVERY}, or take the generator bursts"
            );
            return Ok(None);
        };
        let times = self.burst_factor.unwrap_or(BURST_FACTOR);
        Ok(Some(Bursts {
            every: micros(every),
            lasting: micros(self.burst_lasting.unwrap_or(BURST_LASTING)),
            factor: factor("burst-factor", times)?,
        }))
    }

    /// The flood; absent: none is asked for.
    fn flood(&self) -> Result<Option<Flood>> {
        let Some(from) = self.flood_from else {
            ensure!(
                self.flood_lasting.is_none() && self.flood_factor.is_none(),
                "flood-lasting and flood-factor say nothing without flood-from: add \
                 flood-from={FLOOD_FROM}, or take the generator flood"
            );
            return Ok(None);
        };
        let times = self.flood_factor.unwrap_or(FLOOD_FACTOR);
        Ok(Some(Flood {
            from: micros(from),
            lasting: micros(self.flood_lasting.unwrap_or(FLOOD_LASTING)),
            factor: factor("flood-factor", times)?,
        }))
    }

    /// The plan of these keys.
    ///
    /// # Errors
    /// If no request would ever come, a number cannot be, a key says nothing without another one, or a greatest length
    /// is below the mean.
    fn plan(self) -> Result<OpenPlan> {
        let (bursts, flood) = (self.bursts()?, self.flood()?);
        let prompt_max = length_max("prompt", self.prompt, self.prompt_max, PROMPT_MAX)?;
        let output_max = length_max("output", self.output, self.output_max, OUTPUT_MAX)?;
        spec::within(&[
            ("models-zipf", self.models_zipf, at_least(0.0)),
            ("throughput", self.throughput, 0.0..=1.0),
        ])?;
        // There are others beside the tenant that floods.
        let tenants_min = if flood.is_some() { 2 } else { 0 };
        Ok(OpenPlan {
            seed: 0,
            requests: self.requests,
            rate: factor("rate", self.rate)?,
            prompt: lengths(self.prompt, self.prompt_median, prompt_max),
            output: lengths(self.output, self.output_median, output_max),
            tenants: self.tenants.max(tenants_min),
            models: self.models,
            models_zipf: self.models_zipf,
            prefixes: self.prefixes,
            prefix_tokens: self.prefix_tokens,
            throughput_share: self.throughput,
            bursts,
            flood,
        })
    }
}

/// Keys of the generator of sessions.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct AgentsKeys {
    sessions: Option<u32>,
    rate: Option<f64>,
    turns: Option<f64>,
    shared_tokens: Option<u32>,
    groups: Option<u32>,
    group_tokens: Option<u32>,
    new_tokens: Option<u32>,
    output: Option<u32>,
    context_max: Option<u32>,
    tenants: Option<u32>,
}

impl AgentsKeys {
    fn plan(self) -> Result<AgentsPlan> {
        let plan = AgentsPlan::default();
        let turns = self.turns.unwrap_or(plan.turns);
        spec::within(&[("turns", turns, 1.0..=TURNS_MAX)])?;
        let up_to = |mean: u32| lengths(mean, None, mean.saturating_mul(TIMES_MEAN));
        Ok(AgentsPlan {
            sessions: self.sessions.unwrap_or(plan.sessions),
            rate: factor("rate", self.rate.unwrap_or(plan.rate))?,
            turns,
            shared_tokens: self.shared_tokens.unwrap_or(plan.shared_tokens),
            groups: self.groups.unwrap_or(plan.groups),
            group_tokens: self.group_tokens.unwrap_or(plan.group_tokens),
            new_tokens: self.new_tokens.map_or(plan.new_tokens, up_to),
            output: self.output.map_or(plan.output, up_to),
            context_max: self.context_max.unwrap_or(plan.context_max),
            tenants: self.tenants.unwrap_or(plan.tenants),
            ..plan
        })
    }
}

/// Keys of a file of ServeGen clients.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ServegenKeys {
    rate: Option<f64>,
    lasting: Time,
    flood: Option<u32>,
    /// The multiple of its requests that the flooding client sends; 0: it is not there.
    flood_factor: f64,
}

impl Default for ServegenKeys {
    fn default() -> Self {
        Self {
            rate: None,
            lasting: Time::from_secs(3600),
            flood: None,
            flood_factor: 10.0,
        }
    }
}

impl ServegenKeys {
    fn plan(self) -> Result<ServegenPlan> {
        let rate = self.rate.map(|rate| factor("rate", rate));
        spec::within(&[("flood-factor", self.flood_factor, 0.0..=1e6)])?;
        Ok(ServegenPlan {
            seed: 0,
            rate: rate.transpose()?,
            secs: self.lasting.0.as_secs_f64(),
            flood: self.flood.map(|client| (client, self.flood_factor)),
        })
    }
}

#[cfg(test)]
mod tests;
