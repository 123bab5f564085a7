//! A collector of OTLP that keeps what it gets, and answers as it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::HeaderMap;
use pointsman_config::{Config, TelemetrySettings};
use serde_json::Value;

use crate::PATIENCE;
use crate::backend::{Conduct, MockBackend, Seen, head};

/// A collector in this process.
#[derive(Debug)]
pub struct MockCollector {
    /// The server that takes the messages.
    pub server: MockBackend,
}

/// A span as it was exported.
#[derive(Clone, Debug)]
pub struct ExportedSpan {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    /// 1: internal, 2: of a server, 3: of a client.
    pub kind: u64,
    /// Attributes by their keys, without the types of their values.
    pub attributes: BTreeMap<String, Value>,
    /// Everything about it.
    pub json: Value,
}

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

// === impl MockCollector ===

impl MockCollector {
    /// Starts a collector that takes everything.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> Result<Self> {
        let server = MockBackend::start(&[]).await?;
        let answer = head(200, &[("content-type", "application/json")], 2) + "{}";
        server.does(Conduct::Bytes(answer.into_bytes()));
        Ok(Self { server })
    }

    /// Has a server tell it everything at once.
    ///
    /// # Errors
    /// Never: its address is one.
    pub fn told_by(&self, config: &mut Config) -> Result<()> {
        config.telemetry = Some(self.settings()?);
        Ok(())
    }

    /// The settings of a server that tells it everything at once.
    ///
    /// # Errors
    /// Never: its address is one.
    pub fn settings(&self) -> Result<TelemetrySettings> {
        Ok(TelemetrySettings {
            endpoint: self.server.url().parse()?,
            headers: HeaderMap::new(),
            service_name: "pointsman".to_owned(),
            sample_ratio: 1.0,
            spans_every: Duration::from_millis(10),
            metrics_every: Duration::from_millis(100),
            timeout: Duration::from_secs(10),
        })
    }

    /// The messages that came at `path`.
    #[must_use]
    pub fn messages(&self, path: &str) -> Vec<Seen> {
        self.server.seen(path)
    }

    /// The spans so far.
    ///
    /// # Errors
    /// If a message is none of OTLP.
    pub fn spans(&self) -> Result<Vec<ExportedSpan>> {
        let mut spans = Vec::new();
        for message in self.messages("/v1/traces") {
            let json: Value = serde_json::from_slice(&message.body)?;
            let scope = &json["resourceSpans"][0]["scopeSpans"][0];
            for span in scope["spans"].as_array().context("no spans")? {
                spans.push(ExportedSpan::read(span)?);
            }
        }
        Ok(spans)
    }

    /// Waits until so many requests were told.
    ///
    /// # Errors
    /// If they are not.
    pub async fn requests(&self, count: usize) -> Result<Vec<ExportedSpan>> {
        let looked = tokio::time::timeout(PATIENCE, async {
            loop {
                let spans = self.spans()?;
                if spans.iter().filter(|span| span.kind == 2).count() >= count {
                    return anyhow::Ok(spans);
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        match looked.await {
            Ok(spans) => spans,
            Err(_) => bail!("{count} requests: {:#?}", self.spans()?),
        }
    }

    /// The metrics of the newest message, by their names.
    ///
    /// # Errors
    /// If it is none of OTLP.
    pub fn metrics(&self) -> Result<BTreeMap<String, Value>> {
        let messages = self.messages("/v1/metrics");
        let Some(newest) = messages.last() else {
            return Ok(BTreeMap::new());
        };
        let json: Value = serde_json::from_slice(&newest.body)?;
        let metrics = &json["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let metrics = metrics.as_array().context("no metrics")?.iter();
        let named = metrics.map(|it| (it["name"].as_str().unwrap_or("").to_owned(), it.clone()));
        Ok(named.collect())
    }
}

// === impl ExportedSpan ===

impl ExportedSpan {
    fn read(json: &Value) -> Result<Self> {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            name: text("name"),
            kind: json["kind"].as_u64().context("no kind")?,
            attributes: attributes(&json["attributes"])?,
            json: json.clone(),
        })
    }

    /// The times of its beginning and its end, in ns.
    ///
    /// # Errors
    /// If there is none.
    pub fn times(&self) -> Result<(u64, u64)> {
        let time = |name: &str| self.json[name].as_str().context("no time");
        let begin = time("startTimeUnixNano")?.parse()?;
        Ok((begin, time("endTimeUnixNano")?.parse()?))
    }

    /// The names of its events.
    #[must_use]
    pub fn events(&self) -> Vec<&str> {
        let events = self.json["events"].as_array();
        let names = events.into_iter().flatten();
        names.filter_map(|event| event["name"].as_str()).collect()
    }
}

/// Attributes by their keys, without the types of their values.
///
/// # Errors
/// If they are none.
pub fn attributes(list: &Value) -> Result<BTreeMap<String, Value>> {
    let list = list.as_array().context("no attributes")?.iter();
    let read = list.map(|it| {
        let key = it["key"].as_str().context("no key")?;
        let value = it["value"].as_object().context("no value")?;
        let (kind, value) = value.iter().next().context("no value")?;
        let value = match &**kind {
            "intValue" => value.as_str().context("no text")?.parse::<u64>()?.into(),
            "arrayValue" => value["values"].clone(),
            _ => value.clone(),
        };
        Ok((key.to_owned(), value))
    });
    read.collect()
}
