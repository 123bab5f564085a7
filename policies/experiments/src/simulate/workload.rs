//! The workload of `pointsman simulate`: a trace's file, or a generator with its keys.

use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pointsman_notation::{Time, instead};
use pointsman_sim::Micros;
use pointsman_sim::workload::{
    Agents, AgentsPlan, Bursts, Flood, Lengths, Listed, OpenLoad, OpenPlan, Reshaping,
    ServegenPlan, Shaped, Workload, azure, mooncake, servegen,
};
use serde::Deserialize;

use super::spec;

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
            let (path, parts) = path_and_parts(text);
            let content = read(path).with_context(|| unknown(path))?;
            trace(&content, parts).with_context(|| path.to_owned())?
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

/// A path, and the parts that follow it after a colon.
fn path_and_parts(text: &str) -> (&str, &str) {
    if Path::new(text).exists() {
        return (text, "");
    }
    spec::named(text)
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
    Ok(String::from_utf8(bytes)?)
}

/// The workload in a trace's text, by what its first line looks like.
fn trace(text: &str, parts: &str) -> Result<Kind> {
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.unwrap_or_default();
    if first.starts_with('{') && first.contains("\"slots\"") {
        let keys: ServegenKeys = spec::parse("servegen", parts)?;
        let plan = keys.plan();
        // Found out now, and not in the middle of a run.
        servegen(text, &plan)?;
        return Ok(Kind::Servegen(text.to_owned(), plan));
    }
    anyhow::ensure!(parts.is_empty(), "such a trace has no keys: {parts}");
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
        return Ok(Kind::Agents(Box::new(keys.plan())));
    }
    let keys: OpenKeys = spec::parse(name, parts)?;
    let mut plan = keys.plan();
    if name == "bursts" && plan.bursts.is_none() {
        plan.bursts = Some(Bursts {
            every: Micros(60_000_000),
            lasting: Micros(5_000_000),
            factor: 10.0,
        });
    }
    if name == "flood" && plan.flood.is_none() {
        plan.tenants = plan.tenants.max(2);
        plan.flood = Some(Flood {
            from: Micros(30_000_000),
            lasting: Micros(60_000_000),
            factor: 5.0,
        });
    }
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
    prompt_max: u32,
    output: u32,
    output_median: Option<u32>,
    output_max: u32,
    tenants: u32,
    models: u32,
    models_zipf: f64,
    prefixes: u32,
    prefix_tokens: u32,
    throughput: f64,
    burst_every: Option<Time>,
    burst_lasting: Time,
    burst_factor: f64,
    flood_from: Option<Time>,
    flood_lasting: Time,
    flood_factor: f64,
}

impl Default for OpenKeys {
    fn default() -> Self {
        Self {
            rate: 10.0,
            requests: 2000,
            prompt: 1000,
            prompt_median: None,
            prompt_max: 32_000,
            output: 200,
            output_median: None,
            output_max: 4000,
            tenants: 1,
            models: 0,
            models_zipf: 1.0,
            prefixes: 0,
            prefix_tokens: 0,
            throughput: 0.0,
            burst_every: None,
            burst_lasting: Time::from_secs(5),
            burst_factor: 10.0,
            flood_from: None,
            flood_lasting: Time::from_secs(60),
            flood_factor: 5.0,
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

fn micros(time: Time) -> Micros {
    Micros(time.as_micros())
}

impl OpenKeys {
    fn plan(self) -> OpenPlan {
        let bursts = self.burst_every.map(|every| Bursts {
            every: micros(every),
            lasting: micros(self.burst_lasting),
            factor: self.burst_factor,
        });
        let flood = self.flood_from.map(|from| Flood {
            from: micros(from),
            lasting: micros(self.flood_lasting),
            factor: self.flood_factor,
        });
        OpenPlan {
            seed: 0,
            requests: self.requests,
            rate: self.rate,
            prompt: lengths(self.prompt, self.prompt_median, self.prompt_max),
            output: lengths(self.output, self.output_median, self.output_max),
            tenants: self.tenants,
            models: self.models,
            models_zipf: self.models_zipf,
            prefixes: self.prefixes,
            prefix_tokens: self.prefix_tokens,
            throughput_share: self.throughput,
            bursts,
            flood,
        }
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
    fn plan(self) -> AgentsPlan {
        let plan = AgentsPlan::default();
        AgentsPlan {
            sessions: self.sessions.unwrap_or(plan.sessions),
            rate: self.rate.unwrap_or(plan.rate),
            turns: self.turns.unwrap_or(plan.turns),
            shared_tokens: self.shared_tokens.unwrap_or(plan.shared_tokens),
            groups: self.groups.unwrap_or(plan.groups),
            group_tokens: self.group_tokens.unwrap_or(plan.group_tokens),
            new_tokens: self
                .new_tokens
                .map_or(plan.new_tokens, |mean| lengths(mean, None, mean * 8)),
            output: self
                .output
                .map_or(plan.output, |mean| lengths(mean, None, mean * 8)),
            context_max: self.context_max.unwrap_or(plan.context_max),
            tenants: self.tenants.unwrap_or(plan.tenants),
            ..plan
        }
    }
}

/// Keys of a file of ServeGen clients.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ServegenKeys {
    rate: Option<f64>,
    lasting: Time,
    flood: Option<u32>,
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
    fn plan(self) -> ServegenPlan {
        ServegenPlan {
            seed: 0,
            rate: self.rate,
            secs: self.lasting.0.as_secs_f64(),
            flood: self.flood.map(|client| (client, self.flood_factor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str, changes: Changes) -> Vec<u64> {
        let source = WorkloadSource::find(text, changes).unwrap();
        let mut workload = source.make(1).unwrap();
        let arrivals = std::iter::from_fn(|| workload.pop());
        arrivals.map(|arrival| arrival.at.0).collect()
    }

    #[test]
    fn a_generator_is_known_by_its_name_and_its_keys() {
        let changes = Changes {
            requests_max: Some(5),
            ..Changes::default()
        };
        assert_eq!(
            made("poisson:rate=100,requests=9", Changes::default()).len(),
            9
        );
        assert_eq!(made("bursts:burst-every=10s", changes).len(), 5);
        assert_eq!(made("flood", changes).len(), 5);
        assert_eq!(
            made("agents:sessions=5,turns=1", Changes::default()).len(),
            5
        );
    }

    #[test]
    fn a_file_is_known_by_its_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let mooncake = r#"{"timestamp":1,"input_length":1,"output_length":1}"#;
        let faster = Changes {
            speed_up: 4.0,
            ..Changes::default()
        };
        assert_eq!(made(&file("a.jsonl", mooncake), faster), [250]);
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
        assert_eq!(made(&file("b.csv", azure), Changes::default()), [0]);
        let servegen = r#"{"client":1,"slots":[[0,1.0,1.0,"Gamma",1.0,1.0]],"input_tokens_q":[5],"output_tokens_q":[5]}"#;
        let path = format!("{}:lasting=60s,rate=2", file("c.jsonl", servegen));
        assert!((80..160).contains(&made(&path, Changes::default()).len()));
        let error = WorkloadSource::find(&file("d.txt", "hello"), Changes::default());
        let said = format!("{:#}", error.unwrap_err());
        assert!(said.contains("it is no trace"), "{said}");
    }

    #[test]
    fn what_is_neither_is_refused_with_what_there_is() {
        let said = |text: &str| {
            let error = WorkloadSource::find(text, Changes::default()).unwrap_err();
            format!("{error:#}")
        };
        let unknown = said("poison:rate=1");
        assert!(unknown.contains("did you mean `poisson`?"), "{unknown}");
        let key = said("agents:session=5");
        assert!(key.contains("did you mean `sessions`?"), "{key}");
    }
}
