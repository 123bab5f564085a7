//! Traces in the format of Mooncake (FAST '25): a line of JSON for each request, with the names of
//! its prompt's blocks of 512 tokens, each of which stands for all before it.
//!
//! A trace may also say `tenant`, `model`, `session`, `class` and `deadline_ms`, which Mooncake's do not.

use std::collections::BTreeMap;

use pointsman_core::Micros;
use pointsman_core::rows::RequestClass;
use serde::Deserialize;

use super::{Arrival, Listed, PromptText, Roll, TraceError};
use crate::draws::mix;
use crate::numbers::{from_millis, narrow_len};

/// Tokens of a block in Mooncake's traces.
const TOKENS_PER_BLOCK: u32 = 512;

/// A line of a trace.
#[derive(Debug, Deserialize)]
struct Line {
    /// Milliseconds since the start.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    tenant: Option<String>,
    model: Option<String>,
    session: Option<String>,
    class: Option<Class>,
    /// Milliseconds after which the answer is worthless.
    deadline_ms: Option<u64>,
}

/// The class of a request, as clients of a server say it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Class {
    LatencyCritical,
    Throughput,
}

/// Names by the order in which they came up.
#[derive(Debug, Default)]
struct Names {
    places: BTreeMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn place(&mut self, name: String) -> u32 {
        let next = narrow_len(self.names.len());
        *self.places.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

/// Reads a trace.
///
/// # Errors
/// If a line is not of the format, or there is none.
pub fn mooncake(text: &str) -> Result<Listed, TraceError> {
    let (mut tenants, mut models) = (Names::default(), Names::default());
    let mut arrivals = Vec::new();
    let lines = text.lines().enumerate();
    for (idx, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let line: Line = serde_json::from_str(line).map_err(|why| TraceError::line(idx, why))?;
        if !(line.timestamp.is_finite() && line.timestamp >= 0.0) {
            return Err(TraceError::line(idx, "the timestamp is before the start"));
        }
        let prompt = PromptText::of_pieces(line.input_length, TOKENS_PER_BLOCK, line.hash_ids);
        let arrival = Arrival::new(from_millis(line.timestamp), prompt, line.output_length);
        arrivals.push(Arrival {
            tenant: tenants.place(line.tenant.unwrap_or_else(|| "default".to_owned())),
            model: line.model.map(|name| models.place(name)),
            session: line.session.map(|name| session_key(&name)),
            class: line.class.map_or(arrival.class, RequestClass::from),
            patience: line
                .deadline_ms
                .map(|millis| Micros(millis.saturating_mul(1000))),
            ..arrival
        });
    }
    if arrivals.is_empty() {
        return Err(TraceError::Empty);
    }
    let roll = Roll {
        models: models.names,
        ..Roll::of_tenants(tenants.names)
    };
    Ok(Listed::new(roll, arrivals))
}

impl From<Class> for RequestClass {
    fn from(class: Class) -> Self {
        match class {
            Class::LatencyCritical => Self::LatencyCritical,
            Class::Throughput => Self::Throughput,
        }
    }
}

/// The key of a session by its name.
fn session_key(name: &str) -> u64 {
    name.bytes().fold(0, |key, byte| mix(key ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::*;

    #[test]
    fn a_line_is_a_request_and_the_order_is_that_of_time() {
        let text = r#"
{"timestamp":3000,"input_length":600,"output_length":5,"hash_ids":[7,8]}
{"timestamp":0,"input_length":512,"output_length":0,"hash_ids":[7],"tenant":"a","model":"m","session":"s","class":"throughput","deadline_ms":2000}
"#;
        let mut trace = mooncake(text).unwrap();
        assert_eq!(trace.total(), Some(2));
        let first = trace.pop().unwrap();
        assert_eq!(
            (first.at, first.tenant, first.model),
            (Micros(0), 1, Some(0))
        );
        assert_eq!(first.output_tokens, 1, "an answer has a token");
        assert!(first.session.is_some());
        assert_eq!(first.class, RequestClass::Throughput);
        assert_eq!(first.patience, Some(Micros(2_000_000)));
        let second = trace.pop().unwrap();
        assert_eq!(
            (second.at, second.tenant, second.prompt.tokens),
            (Micros(3_000_000), 0, 600)
        );
        assert_eq!(second.class, RequestClass::LatencyCritical);
        assert_eq!(second.patience, None);
        let blocks = |arrival: &Arrival| arrival.prompt.blocks(256).hashes;
        assert_eq!(
            blocks(&second),
            blocks(&first),
            "88 tokens of the second piece are no block"
        );
        assert_eq!(trace.pop(), None);
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        let refused = |text: &str| mooncake(text).unwrap_err().to_string();
        let good = r#"{"timestamp":1,"input_length":1,"output_length":1}"#;
        let said = refused(&format!("{good}\n{{\"timestamp\":1}}"));
        assert!(
            said.starts_with("line 2: missing field `input_length`"),
            "{said}"
        );
        assert_eq!(
            refused(&good.replace(":1,\"i", ":-1,\"i")),
            "line 1: the timestamp is before the start"
        );
        assert_eq!(refused("\n"), "there is no request in it");
    }
}
