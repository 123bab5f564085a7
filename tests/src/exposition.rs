//! The text of `/metrics`, read back.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use pointsman_driver::metrics::{DescribedMetric, Metrics};

use crate::client::Client;

/// A line of the exposition: a name, its labels and a value.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The samples that a server exports now.
///
/// # Errors
/// If there is no answer, or a line is no sample.
pub async fn samples(client: Client) -> Result<Vec<Sample>> {
    let answer = client.get("/metrics").await?;
    let text = String::from_utf8(answer.body)?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(sample).collect()
}

/// Reads a line. Names in tests have neither quotes nor commas.
fn sample(line: &str) -> Result<Sample> {
    let (series, value) = line.rsplit_once(' ').context("a sample has a value")?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let labels = labels.trim_end_matches('}').split(',');
    let labels = labels.filter_map(|label| {
        let (name, value) = label.split_once('=')?;
        Some((name.to_owned(), value.trim_matches('"').to_owned()))
    });
    Ok(Sample {
        name: name.to_owned(),
        labels: labels.collect(),
        value: value.parse()?,
    })
}

/// The sum of the samples of `name` that have these labels.
#[must_use]
pub fn total(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |sample: &Sample, (label, value): &(&str, &str)| {
        sample.labels.get(*label).is_some_and(|it| it == value)
    };
    let of_name = samples.iter().filter(|sample| sample.name == name);
    let chosen = of_name.filter(|sample| labels.iter().all(|label| has(sample, label)));
    chosen.map(|sample| sample.value).sum()
}

/// The metric that the series `name` belongs to.
#[must_use]
pub fn described<'a>(metrics: &'a Metrics, name: &str) -> Option<&'a DescribedMetric> {
    let mut described = metrics.described().iter();
    described.find(|metric| {
        let rest = name.strip_prefix(&metric.name);
        match metric.kind {
            "histogram" => matches!(rest, Some("_bucket" | "_sum" | "_count")),
            _ => rest == Some(""),
        }
    })
}
