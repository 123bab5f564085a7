//! The simulator beside a real server: the same requests at the same times, over HTTP and simulated.
//!
//! | servers | simulated from |
//! |---|---|
//! | mock servers at the pace of llm-d's inference simulator, behind a gateway | the profile `llm-d` and the same arrivals |
//! | the engine on this machine's processors | the server's own journal, to which the speed is fitted |
//!
//! Clients come in an open loop, as in production: what waits makes nobody come later.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{BackendConfig, JournalPlace};
use pointsman_driver::provider::{ModelConfig, ModelSource};
use pointsman_sim::draws::Draws;
use pointsman_sim::latency::LatencyProfile;
use pointsman_sim::numbers::{float_len, whole_at_least};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::backend::{Conduct, MockBackend, Pace};
use crate::client::{Client, streamed_chat};
use crate::cuda::SMALL;
use crate::decide::quantile;
use crate::serving::Serving;
use crate::simulated;

/// Requests at random times, by seed.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in a second, in the mean.
    pub rate: f64,
    pub requests: u32,
    pub seed: u64,
}

/// A request, and the time at which it comes.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u32,
    after: Duration,
    prompt_tokens: u32,
    output_tokens: u32,
}

/// Times to the first token, as clients measured them, and simulated.
#[derive(Clone, Copy, Debug)]
pub struct Fidelity {
    pub measured: Spread,
    pub simulated: Spread,
}

/// The spread of a time, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
}

/// The model that an engine on this machine's processors serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineModel {
    /// The demo model, which computes a prompt in less time than its way through HTTP takes.
    Demo,
    /// One of 7 million parameters, random ones, which takes much longer. A byte of a prompt is a token.
    Dummy,
}

/// Mock servers behind the gateway.
const MOCKS: u32 = 4;
/// Requests that each takes at once.
const PLACES: u32 = 8;
/// The name of every model.
const MODEL: &str = "demo";

// === impl Load ===

impl Load {
    /// The requests, whose lengths are half to one and a half of these means.
    fn draw(self, prompt_tokens: f64, output_tokens: f64) -> Vec<Asked> {
        let mut draws = Draws::new(self.seed);
        let mut after = Duration::ZERO;
        let asked = |number| {
            after += Duration::from_secs_f64(draws.exponential(1.0 / self.rate));
            let mut length = |mean: f64| whole_at_least(mean * (0.5 + draws.unit()), 1);
            Asked {
                number,
                after,
                prompt_tokens: length(prompt_tokens),
                output_tokens: length(output_tokens),
            }
        };
        (0..self.requests).map(asked).collect()
    }
}

// === impl Asked ===

impl Asked {
    /// The request as a client sends it: a word for each token of the prompt. The first is no other request's, so that
    /// nothing of the prompt is cached.
    fn body(self) -> Value {
        let others = " word".repeat(self.prompt_tokens.saturating_sub(1) as usize);
        let mut body = streamed_chat(&format!("{}{others}", self.number));
        body["max_tokens"] = self.output_tokens.into();
        body
    }

    /// The request as a line of a trace in Mooncake's format.
    fn line(self) -> String {
        let line = json!({
            "timestamp": self.after.as_secs_f64() * 1000.0,
            "input_length": self.prompt_tokens,
            "output_length": self.output_tokens,
            "hash_ids": [],
        });
        format!("{line}\n")
    }
}

// === impl EngineModel ===

impl EngineModel {
    /// The place of a model of random weights, whose configuration is written into `folder`; absent: none is needed.
    fn dummy(self, folder: &Path) -> Result<Option<ModelSource>> {
        if self == Self::Demo {
            return Ok(None);
        }
        Ok(Some(ModelSource::Dummy {
            config: SMALL.write(folder)?,
            seed: 1,
        }))
    }
}

// === impl Spread ===

impl Spread {
    /// The spread of at least one time.
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let sum: Duration = times.iter().sum();
        Self {
            mean: sum.as_secs_f64() * 1000.0 / float_len(times.len()),
            p50: quantile(&times, 500) / 1000.0,
            p95: quantile(&times, 950) / 1000.0,
        }
    }

    /// The spread of the TTFT in a report of `pointsman simulate`.
    fn of_report(report: &Value) -> Result<Self> {
        let ms = |key: &str| report["ttft_ms"][key].as_f64().context("no TTFT");
        Ok(Self {
            mean: ms("mean")?,
            p50: ms("p50")?,
            p95: ms("p95")?,
        })
    }
}

// === impl Fidelity ===

impl Fidelity {
    /// The distance of what was simulated from what was measured, as parts of the latter: mean, median
    /// and 95th percentile.
    #[must_use]
    pub fn distance(&self) -> [f64; 3] {
        let (is, was) = (self.simulated, self.measured);
        [(is.mean, was.mean), (is.p50, was.p50), (is.p95, was.p95)].map(|(is, was)| is / was - 1.0)
    }
}

/// Sends these requests when it is their time, and returns the times to their first tokens.
async fn ask_all(client: Client, all: &[Asked]) -> Result<Vec<Duration>> {
    let begun = Instant::now();
    let mut running = JoinSet::new();
    for asked in all {
        let body = asked.body();
        sleep_until(begun + asked.after).await;
        running.spawn(async move {
            let sent = Instant::now();
            let mut stream = client.stream(&body).await?;
            stream.first_text().await?;
            let first = sent.elapsed();
            let streamed = stream.finish().await?;
            ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
            anyhow::Ok(first)
        });
    }
    let mut times = Vec::new();
    while let Some(time) = running.join_next().await {
        times.push(time??);
    }
    Ok(times)
}

/// Measures mock servers behind a gateway.
///
/// # Errors
/// If a request fails.
pub async fn of_mocks(load: Load) -> Result<Fidelity> {
    let LatencyProfile::Each(cost) = LatencyProfile::LLM_D else {
        anyhow::bail!("llm-d's requests wait for each other");
    };
    let pace = Pace {
        cost,
        places: PLACES,
    };
    let mut mocks = Vec::new();
    let mut backends = Vec::new();
    for _ in 0..MOCKS {
        let mock = MockBackend::start(&[MODEL]).await?;
        mock.does(Conduct::Paced(pace));
        let mut backend = BackendConfig::new(mock.url().parse()?);
        backend.terms.slots = PLACES;
        backends.push(backend);
        mocks.push(mock);
    }
    let serving = Serving::start(|config| {
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = backends;
    })
    .await?;
    let all = load.draw(400.0, 60.0);
    let measured = Spread::of(ask_all(serving.client.for_others(), &all).await?);
    serving.server.stop().await?;

    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace.jsonl");
    fs::write(
        &trace,
        all.iter().map(|asked| asked.line()).collect::<String>(),
    )?;
    let flags = format!(
        "{} --executors {MOCKS} --profile llm-d --sequences {PLACES} --slots {PLACES} --lengths known",
        trace.display()
    );
    Ok(Fidelity {
        measured,
        simulated: Spread::of_report(&simulated::report(&flags)?)?,
    })
}

/// Measures an engine on this machine's processors, whose journal is simulated.
///
/// # Errors
/// If a request fails.
pub async fn of_engine(load: Load, model: EngineModel) -> Result<Fidelity> {
    let folder = tempfile::tempdir()?;
    let dummy = model.dummy(folder.path())?;
    let place = folder.path().join("journal");
    let journal = place.clone();
    let serving = Serving::start(|config| {
        config.journal.place = JournalPlace::Folder(place);
        if let Some(source) = dummy {
            config.local.models = vec![ModelConfig::new(MODEL, source)];
        }
    })
    .await?;
    let all = load.draw(60.0, 24.0);
    let measured = Spread::of(ask_all(serving.client, &all).await?);
    serving.server.stop().await?;
    let report = past(&journal)?;
    Ok(Fidelity {
        measured,
        simulated: Spread::of_report(&report["journal"]["simulated"])?,
    })
}

/// The simulation of a journal.
fn past(folder: &Path) -> Result<Value> {
    let folder = folder.display().to_string();
    simulated::json([folder.as_str()], &[])
}
