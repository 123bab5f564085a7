//! `examples/observability`: what the dashboard and the alerts query is there to be queried.
//!
//! Their expressions are read with as little of PromQL as they use: names, selectors, functions,
//! groupings.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pointsman_driver::metrics::Metrics;
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::exposition::{Sample, described, samples};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// Functions of PromQL that read a counter over time.
const OF_COUNTERS: [&str; 3] = ["rate", "increase", "changes"];
const FUNCTIONS: [&str; 8] = [
    "rate",
    "increase",
    "changes",
    "time",
    "sum",
    "topk",
    "histogram_quantile",
    "label_values",
];
const OPERATORS: [&str; 4] = ["and", "or", "unless", "offset"];
/// The labels that Prometheus adds.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// The metrics that are there only once something has happened that does not happen in this test.
const EVENTS: [&str; 12] = [
    "pointsman_executors_lost_total",
    "pointsman_interlock_refusals_total",
    "pointsman_journal_entries_total",
    "pointsman_kv_blocks_evicted_total",
    "pointsman_liveness_strikes_total",
    "pointsman_policy_canary_share",
    "pointsman_policy_faults_total",
    "pointsman_policy_quarantined",
    "pointsman_requests_evicted_total",
    "pointsman_requests_requeued_total",
    "pointsman_shadow_decisions_total",
    "up",
];

/// An expression and the text that is shown with its results.
struct Query {
    expression: String,
    legend: String,
}

/// A piece of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    /// A range in square brackets.
    Range(String),
    Sign(char),
}

/// A series that an expression reads.
struct Selected {
    name: String,
    matchers: Vec<(String, String)>,
    /// The function around it; absent: none is.
    function: Option<String>,
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/observability")
}

/// The queries of the dashboard: of panels, variables and annotations.
fn of_dashboard() -> Result<Vec<Query>> {
    let text = fs::read_to_string(folder().join("grafana-dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let mut queries = Vec::new();
    let mut left = vec![&dashboard];
    while let Some(value) = left.pop() {
        if let Some(object) = value.as_object() {
            let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or("");
            let variable = text("query");
            let variable = variable.starts_with("label_values").then_some(variable);
            let expression = variable.unwrap_or(text("expr"));
            if !expression.is_empty() {
                queries.push(Query {
                    expression: expression.replace("$__rate_interval", "5m"),
                    legend: text("legendFormat").to_owned(),
                });
            }
            left.extend(object.values());
        }
        left.extend(value.as_array().into_iter().flatten());
    }
    Ok(queries)
}

/// The queries of the alerts, each on a line of its own and followed by what the alert says.
fn of_alerts() -> Result<Vec<Query>> {
    let text = fs::read_to_string(folder().join("alerts.yml"))?;
    let alerts = text.split("- alert: ").skip(1);
    let queries = alerts.map(|alert| {
        let line = |name: &str| {
            let mut lines = alert.lines().map(str::trim_start);
            let line = lines.find_map(|line| line.strip_prefix(name));
            line.with_context(|| format!("no {name} in {alert}"))
        };
        ensure!(line("labels: {severity: ")?.ends_with('}'), "{alert}");
        Ok(Query {
            expression: line("expr: ")?.to_owned(),
            legend: line("summary: ")?.replace("$labels.", "").clone(),
        })
    });
    queries.collect()
}

fn tokens(expression: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = match first {
            '"' => {
                let end = rest[1..].find('"').context("a text does not end")?;
                tokens.push(Token::Text(rest[1..=end].to_owned()));
                end + 2
            }
            '[' => {
                let end = rest.find(']').context("a range does not end")?;
                tokens.push(Token::Range(rest[1..end].to_owned()));
                end + 1
            }
            _ if is_word(first) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].to_owned()));
                end
            }
            _ => {
                ensure!("(){},=~!<>+-*/".contains(first), "{first} in {expression}");
                tokens.push(Token::Sign(first));
                1
            }
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Checks that brackets close in the order in which they opened.
fn check_brackets(tokens: &[Token]) -> Result<()> {
    let mut open = Vec::new();
    for token in tokens {
        match token {
            Token::Sign(sign @ ('(' | '{')) => open.push(*sign),
            Token::Sign(')') => ensure!(open.pop() == Some('(')),
            Token::Sign('}') => ensure!(open.pop() == Some('{')),
            Token::Sign(_) | Token::Word(_) | Token::Text(_) | Token::Range(_) => {}
        }
    }
    ensure!(open.is_empty(), "{open:?} stays open");
    Ok(())
}

/// The words between the bracket at `from` and the one that closes it.
fn words_in(tokens: &[Token], from: usize) -> Vec<String> {
    let inside = tokens[from + 1..].iter();
    let inside = inside.take_while(|token| !matches!(token, Token::Sign(')' | '}')));
    let words = inside.filter_map(|token| match token {
        Token::Word(word) => Some(word.clone()),
        Token::Sign(_) | Token::Text(_) | Token::Range(_) => None,
    });
    words.collect()
}

/// The pairs of label and text between the braces at `from`.
fn matchers(tokens: &[Token], from: usize) -> Vec<(String, String)> {
    let inside: Vec<&Token> = tokens[from + 1..]
        .iter()
        .take_while(|token| **token != Token::Sign('}'))
        .filter(|token| matches!(token, Token::Word(_) | Token::Text(_)))
        .collect();
    let pairs = inside.chunks(2).filter_map(|pair| match pair {
        [Token::Word(label), Token::Text(value)] => Some((label.clone(), value.clone())),
        _ => None,
    });
    pairs.collect()
}

/// The series that an expression reads, and the labels that it groups by.
fn read(tokens: &[Token]) -> Result<(Vec<Selected>, BTreeSet<String>)> {
    let (mut series, mut grouped) = (Vec::new(), BTreeSet::new());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let next = tokens.get(at + 1);
        let Token::Word(word) = token else {
            at += 1;
            continue;
        };
        let calls = next == Some(&Token::Sign('(')) && !OPERATORS.contains(&word.as_str());
        if word == "by" && calls {
            let labels = words_in(tokens, at + 1);
            at += 2 + 2 * labels.len();
            grouped.extend(labels);
        } else if word == "label_values" {
            // The label comes last, as a word of its own.
            let Some(Token::Word(label)) = tokens.get(tokens.len() - 2) else {
                bail!("{tokens:?} names no label");
            };
            grouped.insert(label.clone());
            let (inner, _) = read(&tokens[at + 2..tokens.len() - 3])?;
            return Ok((inner, grouped));
        } else if calls || FUNCTIONS.contains(&word.as_str()) {
            ensure!(FUNCTIONS.contains(&word.as_str()), "{word} is no function");
            at += 1;
        } else if word.starts_with(|first: char| first.is_ascii_digit())
            || OPERATORS.contains(&word.as_str())
        {
            at += 1;
        } else {
            let function = match at.checked_sub(2).map(|before| &tokens[before..at]) {
                Some([Token::Word(function), Token::Sign('(')]) => Some(function.clone()),
                _ => None,
            };
            let braced = next == Some(&Token::Sign('{'));
            let matchers = if braced {
                matchers(tokens, at + 1)
            } else {
                Vec::new()
            };
            let end = tokens[at..].iter().position(|it| *it == Token::Sign('}'));
            at += if braced { end.unwrap_or(0) } else { 0 } + 1;
            series.push(Selected {
                name: word.clone(),
                matchers,
                function,
            });
        }
    }
    Ok((series, grouped))
}

/// The values of labels that are words of a list.
fn values(label: &str) -> Option<&'static [&'static str]> {
    Some(match label {
        "class" => &["latency-critical", "throughput"],
        "outcome" => &[
            "finished",
            "refused",
            "cancelled",
            "expired",
            "failed",
            "committed",
            "written",
            "dropped",
            "lost",
            "cut",
            "withheld",
        ],
        "result" => &["hit", "miss", "agreed", "differed"],
        _ => return None,
    })
}

/// Checks a query. Returns the names of the series that it reads.
fn check(metrics: &Metrics, query: &Query) -> Result<BTreeSet<String>> {
    let tokens = tokens(&query.expression)?;
    check_brackets(&tokens)?;
    let (series, grouped) = read(&tokens)?;
    let mut labels: BTreeSet<&str> = OF_PROMETHEUS.into_iter().collect();
    for selected in &series {
        if selected.name == "up" {
            continue;
        }
        let metric = described(metrics, &selected.name);
        let metric = metric.with_context(|| format!("there is no {}", selected.name))?;
        let mut own: BTreeSet<&str> = metric.labels.iter().copied().collect();
        own.extend(selected.name.ends_with("_bucket").then_some("le"));
        for (label, value) in &selected.matchers {
            let known = own.contains(label.as_str()) || OF_PROMETHEUS.contains(&label.as_str());
            ensure!(known, "{} has no label {label}", selected.name);
            let allowed = values(label).unwrap_or_default();
            for value in value.split('|').filter(|_| !allowed.is_empty()) {
                ensure!(allowed.contains(&value), "{label} is never {value}");
            }
        }
        let over_time = selected.function.as_deref();
        let over_time = over_time.is_some_and(|it| OF_COUNTERS.contains(&it));
        // What came since is seen as it is.
        let new_alone = query.expression.contains(" offset ");
        ensure!(
            new_alone || over_time == (metric.kind == "counter" || metric.kind == "histogram"),
            "{} is a {}",
            selected.name,
            metric.kind
        );
        labels.extend(own);
    }
    ensure!(!query.expression.contains("histogram_quantile") || grouped.contains("le"));
    for label in &grouped {
        ensure!(labels.contains(label.as_str()), "no label {label}");
    }
    for shown in query.legend.split("{{").skip(1) {
        let label = shown.split(['}', '|']).next().unwrap_or("").trim();
        let known = if grouped.is_empty() {
            labels.contains(label)
        } else {
            grouped.contains(label)
        };
        ensure!(known || label == "$value", "{label} is not in the result");
    }
    Ok(series.into_iter().map(|selected| selected.name).collect())
}

/// Checks that an alert about a time compares it with the bound of a bucket: between two of them a quantile
/// is a guess.
fn check_threshold(expression: &str, exported: &[Sample]) -> Result<()> {
    let Some((time, threshold)) = expression.rsplit_once(" > ") else {
        return Ok(());
    };
    if !time.starts_with("histogram_quantile") {
        return Ok(());
    }
    let threshold: f64 = threshold.parse()?;
    let (series, _) = read(&tokens(time)?)?;
    for selected in series {
        let buckets = exported.iter().filter(|it| it.name == selected.name);
        let mut bounds = buckets.filter_map(|it| it.labels.get("le")?.parse::<f64>().ok());
        let is_bound = bounds.any(|bound| bound == threshold);
        ensure!(is_bound, "no bucket of {} ends there", selected.name);
    }
    Ok(())
}

/// Traffic of every kind that ends well.
async fn traffic(serving: &Serving) -> Result<()> {
    for _ in 0..2 {
        let mut body = chat("Hello");
        body["pointsman"] = json!({"session": "a conversation"});
        serving
            .client
            .post("/v1/chat/completions", &body)
            .await?
            .text()?;
    }
    let stream = serving.client.stream(&streamed_chat("Hello")).await?;
    stream.finish().await?;
    serving.idle().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_and_the_alerts_ask_for_what_a_running_server_exports() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    traffic(&serving).await?;
    let shown = samples(serving.client).await?;
    let exported: BTreeSet<String> = shown.iter().map(|sample| sample.name.clone()).collect();
    let metrics = Metrics::default();
    let (dashboard, alerts) = (of_dashboard()?, of_alerts()?);
    ensure!(dashboard.len() > 40 && alerts.len() > 10);
    for query in dashboard.iter().chain(&alerts) {
        let asked = check(&metrics, query).with_context(|| query.expression.clone())?;
        for name in asked {
            let there = exported.contains(&name) || EVENTS.contains(&name.as_str());
            ensure!(there, "{name} is not exported: {}", query.expression);
        }
    }
    for query in &alerts {
        check_threshold(&query.expression, &shown).with_context(|| query.expression.clone())?;
    }
    serving.server.stop().await?;
    Ok(())
}

#[test]
fn an_alert_that_nothing_is_there_needs_no_series_of_it() -> Result<()> {
    let idle = Metrics::default().render();
    let names = idle.lines().filter_map(|line| line.split(' ').next());
    let there: BTreeSet<&str> = names.collect();
    let mut checked = 0;
    for query in of_alerts()? {
        let (series, grouped) = read(&tokens(&query.expression)?)?;
        // One that is not of a whole host is of an executor that is there, or of what Prometheus itself knows.
        if query.expression.ends_with(" == 0") && grouped.contains("instance") {
            let read_always = series.iter().any(|it| there.contains(it.name.as_str()));
            ensure!(read_always, "never true: {}", query.expression);
            checked += 1;
        }
    }
    ensure!(checked > 0, "no alert says that there is no executor");
    Ok(())
}

#[test]
fn a_query_that_asks_for_what_there_is_not_is_found() {
    for (expression, legend) in [
        ("sum(pointsman_requests_ended)", ""),
        ("sum(rate(pointsman_requests_total[5m])", ""),
        ("sum by (tenant) (rate(pointsman_requests_total[5m]))", ""),
        ("rate(pointsman_requests_total{backend=\"x\"}[5m])", ""),
        ("rate(pointsman_requests_total{outcome=\"fine\"}[5m])", ""),
        ("rate(pointsman_queued_requests[5m])", ""),
        ("pointsman_requests_total", ""),
        ("quantile_of(pointsman_queued_requests)", ""),
        ("pointsman_queued_requests", "{{model}}"),
        (
            "sum by (class) (pointsman_queued_requests{class=\"batch\"})",
            "",
        ),
        (
            "histogram_quantile(0.9, sum by (class) (rate(pointsman_queue_wait_seconds_bucket[5m])))",
            "",
        ),
    ] {
        let query = Query {
            expression: expression.to_owned(),
            legend: legend.to_owned(),
        };
        assert!(check(&Metrics::default(), &query).is_err(), "{expression}");
    }
}
