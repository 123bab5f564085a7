//! The metrics of `/metrics` as those of OTLP: the rendered text is read, so that both tell the same
//! numbers under the same names. An OpenTelemetry Collector that passes them on to Prometheus leaves
//! the names as they are (`every_name_stays_as_it_is_behind_a_collector`).
//!
//! Counters and histograms count since the start of the process, and a fact about the process is a gauge
//! of 1, as OpenTelemetry has it for Prometheus' metrics.

use std::collections::BTreeMap;

use bytes::Bytes;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::metrics::DescribedMetric;
use pointsman_interface::Micros;

use crate::names::{CONVENTIONAL, Conventional};
use crate::otlp::{
    Attribute, CUMULATIVE, Data, HistogramPoint, Measurements, Metric, NumberPoint, Resource,
    ResourceMetrics, Scope, ScopeMetrics, Times, Whole,
};
use crate::spans::nanos;

/// A line of the text.
#[derive(Debug, PartialEq)]
struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: f64,
}

/// The lines of the text, by the name of their series.
type Series<'t> = BTreeMap<&'t str, Vec<Sample<'t>>>;

/// The label of a bucket's bound.
const BOUND: &str = "le";

/// The message with the metrics that `text` has, which are `described`.
///
/// # Panics
/// Never: texts and numbers can be written as JSON.
pub(super) fn encode(
    (text, described): (&str, &[DescribedMetric]),
    resource: &Resource,
    clock: SystemClock,
) -> Bytes {
    let epoch = clock.start_since_1970();
    let times = Times {
        start_time_unix_nano: nanos(epoch, Micros(0)),
        time_unix_nano: nanos(epoch, clock.now()),
    };
    let scope_metrics = ScopeMetrics {
        scope: Scope::default(),
        metrics: measured(text, described, times),
    };
    let message = Measurements {
        resource_metrics: [ResourceMetrics {
            resource,
            scope_metrics: [scope_metrics],
        }],
    };
    let json = serde_json::to_vec(&message);
    json.expect("texts and numbers can be written as JSON")
        .into()
}

/// The metrics that `text` has, in the order in which they are described.
fn measured(text: &str, described: &[DescribedMetric], times: Times) -> Vec<Metric> {
    let mut series = Series::new();
    for sample in text.lines().filter_map(sample) {
        series.entry(sample.name).or_default().push(sample);
    }
    let mut metrics = Vec::new();
    for metric in described {
        let Some(data) = data(metric, &series, times) else {
            continue;
        };
        let own = Metric {
            name: metric.name.clone(),
            description: metric.help,
            unit: unit(&metric.name),
            data,
        };
        let mut conventional = CONVENTIONAL.iter().filter(|it| it.own == own.name);
        metrics.extend(conventional.next().map(|it| renamed(&own, it)));
        metrics.push(own);
    }
    metrics
}

/// The points of a metric; absent: it has none yet.
fn data(metric: &DescribedMetric, series: &Series<'_>, times: Times) -> Option<Data> {
    if metric.kind == "histogram" {
        return Some(Data::Histogram {
            data_points: histogram(metric, series, times)?,
            aggregation_temporality: CUMULATIVE,
        });
    }
    let samples = series.get(&*metric.name)?.iter();
    let data_points = samples.map(|sample| NumberPoint {
        attributes: attributes(metric, sample),
        times,
        as_double: sample.value,
    });
    let data_points = data_points.collect();
    Some(if metric.kind == "counter" {
        Data::Sum {
            data_points,
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }
    } else {
        Data::Gauge { data_points }
    })
}

/// The points of a histogram, whose buckets are counted each by itself here.
fn histogram(
    metric: &DescribedMetric,
    series: &Series<'_>,
    times: Times,
) -> Option<Vec<HistogramPoint>> {
    let of = |ending: &str| series.get(&*format!("{}_{ending}", metric.name));
    let (sums, counts, buckets) = (of("sum")?, of("count")?, of("bucket")?);
    let mut buckets = buckets.iter().peekable();
    let mut points = Vec::new();
    // Sum, count and buckets of a set of labels come in the same order.
    for (sum, count) in sums.iter().zip(counts) {
        let (mut bounds, mut each, mut before) = (Vec::new(), Vec::new(), 0);
        while let Some(bucket) = buckets.next_if(|it| is_of(it, sum)) {
            let up_to = whole(bucket.value);
            each.push(Whole(up_to.saturating_sub(before)));
            before = up_to;
            bounds.extend(bound(bucket).filter(|bound| bound.is_finite()));
        }
        points.push(HistogramPoint {
            attributes: attributes(metric, sum),
            times,
            count: Whole(whole(count.value)),
            sum: sum.value,
            bucket_counts: each,
            explicit_bounds: bounds,
        });
    }
    Some(points)
}

/// True for a bucket of the histogram that has this sum.
fn is_of(bucket: &Sample<'_>, sum: &Sample<'_>) -> bool {
    let labels = bucket.labels.iter().filter(|(name, _)| *name != BOUND);
    labels.eq(sum.labels.iter())
}

/// The bound of a bucket, which may be infinite.
fn bound(bucket: &Sample<'_>) -> Option<f64> {
    let (_, bound) = bucket.labels.iter().find(|(name, _)| *name == BOUND)?;
    bound.parse().ok()
}

/// The labels of a line that the metric has.
fn attributes(metric: &DescribedMetric, sample: &Sample<'_>) -> Vec<Attribute> {
    let labels = metric.labels.iter().filter_map(|key| {
        let (_, value) = sample.labels.iter().find(|(name, _)| name == key)?;
        Some(Attribute::text(key, &**value))
    });
    labels.collect()
}

/// The metric under the name that the conventions have for it.
fn renamed(metric: &Metric, to: &Conventional) -> Metric {
    let mut metric = metric.clone();
    to.name.clone_into(&mut metric.name);
    if let Data::Histogram { data_points, .. } = &mut metric.data {
        let attributes = data_points.iter_mut().flat_map(|it| &mut it.attributes);
        for attribute in attributes {
            let mut labels = to.labels.iter();
            if let Some((_, name)) = labels.find(|(own, _)| *own == attribute.key) {
                attribute.key = name;
            }
        }
    }
    metric
}

/// The unit of a metric, which a word of its name tells; empty for counts and shares. For `1` a
/// Collector would end the name of a gauge in `_ratio`.
fn unit(name: &str) -> &'static str {
    let has = |word: &str| name.split('_').any(|it| it == word);
    if has("seconds") {
        "s"
    } else if has("bytes") {
        "By"
    } else {
        ""
    }
}

/// A count, which is no fraction and not below zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are whole numbers, and far from the bounds"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Reads a line; absent: it is none of a sample.
fn sample(line: &str) -> Option<Sample<'_>> {
    if line.starts_with('#') {
        return None;
    }
    let at = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(at);
    let mut labels = Vec::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        while !rest.starts_with('}') {
            let (key, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = unquoted(value)?;
            labels.push((key, value));
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.trim().parse().ok()?;
    Some(Sample {
        name,
        labels,
        value,
    })
}

/// The text up to its closing quote, without escapes, and what follows.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut plain = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((plain, &text[at + 1..])),
            '\\' => plain.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            _ => plain.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use pointsman_driver::metrics::Metrics;
    use serde_json::{Value, json};

    use super::*;

    const TIMES: Times = Times {
        start_time_unix_nano: Whole(1),
        time_unix_nano: Whole(2),
    };

    fn exported(metrics: &Metrics) -> BTreeMap<String, Value> {
        let measured = measured(&metrics.render(), metrics.described(), TIMES);
        let each = measured.into_iter();
        each.map(|metric| (metric.name.clone(), serde_json::to_value(&metric).unwrap()))
            .collect()
    }

    #[test]
    fn a_line_is_read_with_its_escapes() {
        let line = r#"seen_total{where="a\"} 7\n",who="\\,"} 1.5"#;
        let labels = vec![("where", "a\"} 7\n".to_owned()), ("who", "\\,".to_owned())];
        let expected = Sample {
            name: "seen_total",
            labels,
            value: 1.5,
        };
        assert_eq!(sample(line), Some(expected));
        assert_eq!(sample("up 1").unwrap().value, 1.0);
        for other in ["# TYPE up gauge", "# EOF", "", "up", "up{a=\"", "up{a} 1"] {
            assert_eq!(sample(other), None, "{other}");
        }
    }

    #[test]
    fn counters_are_sums_since_the_start() {
        let metrics = Metrics::default();
        metrics.http_response("chat", 200);
        metrics.http_response("chat", 200);
        metrics.http_response("chat", 429);
        let expected = |status: &str, count: f64| {
            json!({"attributes": [
                {"key": "endpoint", "value": {"stringValue": "chat"}},
                {"key": "status", "value": {"stringValue": status}},
            ], "startTimeUnixNano": "1", "timeUnixNano": "2", "asDouble": count})
        };
        let exported = exported(&metrics);
        let responses = &exported["pointsman_http_responses_total"];
        let sum = json!({"dataPoints": [expected("200", 2.0), expected("429", 1.0)],
            "aggregationTemporality": 2, "isMonotonic": true});
        assert_eq!(responses["sum"], sum);
        assert_eq!(responses["unit"], "");
        assert_eq!(responses["description"], "Responses begun");
        let up = &exported["process_start_time_seconds"];
        assert_eq!(
            (&up["gauge"]["dataPoints"][0]["asDouble"], &up["unit"]),
            (&json!(0.0), &json!("s"))
        );
        let build = &exported["pointsman_build_info"]["gauge"]["dataPoints"][0];
        assert_eq!(build["asDouble"], 1.0);
    }

    #[test]
    fn times_and_bytes_have_a_unit_and_counts_and_shares_have_none() {
        for (name, expected) in [
            ("process_start_time_seconds", "s"),
            ("pointsman_engine_busy_seconds_total", "s"),
            ("pointsman_journal_bytes_total", "By"),
            ("pointsman_kv_bytes_used", "By"),
            ("pointsman_executor_up", ""),
            ("pointsman_policy_canary_share", ""),
            ("pointsman_requests_total", ""),
        ] {
            assert_eq!(unit(name), expected, "{name}");
        }
    }

    /// The name that a Collector gives a metric for Prometheus: by its unit and its kind, words are
    /// put at the end of the name, unless it has them.
    fn translated(metric: &DescribedMetric) -> String {
        let mut words: Vec<&str> = metric.name.split('_').collect();
        let ending = match (unit(&metric.name), metric.kind) {
            ("s", _) => Some("seconds"),
            ("By", _) => Some("bytes"),
            ("1", "gauge" | "info") => Some("ratio"),
            _ => None,
        };
        let ending = ending.filter(|it| !words.contains(it));
        words.extend(ending);
        if metric.kind == "counter" {
            words.retain(|it| *it != "total");
            words.push("total");
        }
        words.join("_")
    }

    #[test]
    fn every_name_stays_as_it_is_behind_a_collector() {
        let metrics = Metrics::default();
        assert!(!metrics.described().is_empty());
        for metric in metrics.described() {
            assert_eq!(translated(metric), metric.name);
        }
    }

    #[test]
    fn the_buckets_of_a_histogram_are_counted_each_by_itself() {
        let metrics = Metrics::default();
        metrics.executor_attached("cpu");
        for (model, seconds) in [("a", 0.006), ("a", 0.02), ("a", 99.0), ("b", 0.001)] {
            metrics.stream(model, "cpu").first_token.observe(seconds);
        }
        let exported = exported(&metrics);
        let times = &exported["pointsman_time_to_first_token_seconds"]["histogram"];
        assert_eq!(times["aggregationTemporality"], 2);
        let [a, b] = [0, 1].map(|at| &times["dataPoints"][at]);
        assert_eq!(a["count"], "3");
        assert_eq!(b["count"], "1");
        let counts = |point: &Value| {
            let counts = point["bucketCounts"].as_array().unwrap().iter();
            let counts = counts.map(|it| it.as_str().unwrap().parse::<u64>().unwrap());
            counts.collect::<Vec<_>>()
        };
        let bounds = a["explicitBounds"].as_array().unwrap();
        assert_eq!(counts(a).len(), bounds.len() + 1);
        assert_eq!(counts(a).iter().sum::<u64>(), 3);
        assert_eq!(
            (counts(a)[1], counts(a)[2], counts(a).last()),
            (1, 1, Some(&1))
        );
        assert_eq!(counts(b)[0], 1);
        // The conventions' name has the same numbers.
        let conventional = &exported["gen_ai.server.time_to_first_token"]["histogram"];
        let point = &conventional["dataPoints"][0];
        assert_eq!(point["bucketCounts"], a["bucketCounts"]);
        let keys = [0, 1].map(|at| &point["attributes"][at]["key"]);
        assert_eq!(keys, ["gen_ai.response.model", "pointsman.executor"]);
    }
}
