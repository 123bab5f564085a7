//! Audit lines: for each order of an operator, who gave it, from where, what it was, and what came of it.
//!
//! # Invariants
//! 1. No key is in a line: of an order's body, the fields with one are left out
//!    (`tests::what_is_secret_is_left_out`).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use hyper::{HeaderMap, Request};
use serde_json::Value;

use super::auth::ApiKeys;

/// The target of the lines.
pub(super) const AUDIT: &str = "pointsman::audit";

/// The most bytes of an order's body in a line.
const BODY_BYTES_MAX: usize = 512;
/// Fields of orders whose values are secret.
const SECRET: [&str; 2] = ["key", "headers"];

/// An order under way.
#[derive(Debug)]
pub(super) struct Audit {
    by: &'static str,
    from: Option<SocketAddr>,
    order: String,
    body: OrderBody,
}

/// The body of an order as the line has it, once it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderBody(Arc<OnceLock<String>>);

impl Audit {
    /// The order that a request is, from the address `from`.
    pub(super) fn begin<B>(keys: &ApiKeys, from: Option<SocketAddr>, request: &Request<B>) -> Self {
        Self {
            by: who(keys, request.headers()),
            from,
            order: format!("{} {}", request.method(), request.uri().path()),
            body: OrderBody::default(),
        }
    }

    /// The place for the order's body.
    pub(super) fn body(&self) -> OrderBody {
        self.body.clone()
    }

    /// Writes the line of an order that was answered with `status`.
    pub(super) fn end(self, status: u16) {
        tracing::info!(
            target: AUDIT,
            by = self.by,
            from = self.from.map(tracing::field::display),
            order = self.order,
            body = self.body.0.get(),
            status,
            "order"
        );
    }
}

fn who(keys: &ApiKeys, headers: &HeaderMap) -> &'static str {
    keys.operator(headers).as_str()
}

// === impl OrderBody ===

impl OrderBody {
    /// Keeps the body of the order for its line.
    pub(super) fn keep(&self, bytes: &[u8]) {
        if let Some(text) = text(bytes) {
            // A request has one body.
            drop(self.0.set(text));
        }
    }
}

/// The body of an order without what is secret, and no longer than a line may be; absent: it says nothing.
fn text(bytes: &[u8]) -> Option<String> {
    let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
        return (!bytes.is_empty()).then(|| "(not JSON)".to_owned());
    };
    let fields = body.as_object_mut()?;
    for name in SECRET {
        if let Some(value) = fields.get_mut(name) {
            *value = Value::from("(secret)");
        }
    }
    if fields.is_empty() {
        return None;
    }
    let mut text = body.to_string();
    if text.len() > BODY_BYTES_MAX {
        text.truncate(text.floor_char_boundary(BODY_BYTES_MAX));
        text.push('…');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_left_out() {
        let body =
            br#"{"url": "http://gpu", "key": "sesame", "headers": ["x-a: sesame"], "slots": 3}"#;
        let expected = r#"{"key":"(secret)","headers":"(secret)","slots":3,"url":"http://gpu"}"#;
        let said = text(body).unwrap();
        let same = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(same(&said), same(expected));
        assert!(!said.contains("sesame"), "{said}");
        assert_eq!(text(b"{}"), None);
        assert_eq!(text(b""), None);
        assert_eq!(text(b"sesame").as_deref(), Some("(not JSON)"));
    }

    #[test]
    fn a_long_order_is_cut() {
        let body = format!(r#"{{"name": "{}"}}"#, "ä".repeat(1000));
        let said = text(body.as_bytes()).unwrap();
        assert!(
            said.len() <= BODY_BYTES_MAX + 3 && said.ends_with('…'),
            "{said}"
        );
    }
}
