//! Audit lines: for each order of an operator, who gave it, from where, what it was, and what came of it.
//!
//! # Invariants
//! 1. Each order has one line, whether or not its client waits for the answer
//!    (`an_order_whose_client_leaves_has_its_line`, in `host/server/tests/http/orders.rs`).
//! 2. No key is in a line: of an order's body, the fields with one are left out
//!    (`tests::what_is_secret_is_left_out`), and of one that was not understood all values, since a
//!    misspelt field may have one (`tests::of_an_order_that_is_not_understood_the_fields_are_named`).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use hyper::{HeaderMap, Request, StatusCode};
use serde_json::Value;

use super::auth::ApiKeys;

/// The target of the lines.
pub(super) const AUDIT: &str = "pointsman::audit";

/// The most bytes of an order's body in a line.
const BODY_BYTES_MAX: usize = 512;
/// Fields of orders whose values are secret.
const SECRET: [&str; 2] = ["key", "headers"];
/// The reason why an order has no status. It may have been carried out.
const UNANSWERED: &str = "its client left, or the server ended, before the answer";

/// An order under way. Its line is written when this is dropped.
#[derive(Debug)]
pub(super) struct Audit {
    by: &'static str,
    from: Option<SocketAddr>,
    order: String,
    body: OrderBody,
    /// The status of the answer; absent: there is none.
    status: Option<u16>,
}

/// The body of an order as the line has it, once it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderBody(Arc<OnceLock<BodyText>>);

/// The body of an order, no longer than a line may be.
#[derive(Clone, Debug)]
struct BodyText {
    /// The fields with their values, but for what is secret.
    fields: String,
    /// The names of the fields.
    names: String,
}

impl Audit {
    /// The order that a request is, from the address `from`.
    pub(super) fn begin<B>(keys: &ApiKeys, from: Option<SocketAddr>, request: &Request<B>) -> Self {
        Self {
            by: who(keys, request.headers()),
            from,
            order: format!("{} {}", request.method(), request.uri().path()),
            body: OrderBody::default(),
            status: None,
        }
    }

    /// The place for the order's body.
    pub(super) fn body(&self) -> OrderBody {
        self.body.clone()
    }

    /// Ends an order that is answered with `status`.
    pub(super) fn end(mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let status = self.status;
        tracing::info!(
            target: AUDIT,
            by = self.by,
            from = self.from.map(tracing::field::display),
            order = self.order,
            body = self.body.0.get().map(|body| body.after(status)),
            status,
            why = status.is_none().then_some(UNANSWERED),
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
        if let Some(text) = BodyText::of(bytes) {
            // A request has one body.
            drop(self.0.set(text));
        }
    }
}

// === impl BodyText ===

impl BodyText {
    /// The text of a body; absent: it says nothing.
    fn of(bytes: &[u8]) -> Option<Self> {
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
            let said = || "(not JSON)".to_owned();
            return (!bytes.is_empty()).then(|| Self {
                fields: said(),
                names: said(),
            });
        };
        let fields = body.as_object_mut().filter(|fields| !fields.is_empty())?;
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let names = cut(names.join(", "));
        for name in SECRET {
            if let Some(value) = fields.get_mut(name) {
                *value = Value::from("(secret)");
            }
        }
        let fields = cut(body.to_string());
        Some(Self { fields, names })
    }

    /// The text for the line of an order that was answered with `status`; absent: it was not answered. It was
    /// understood then: one that is not is refused as soon as its body is there, and no client can leave between.
    fn after(&self, status: Option<u16>) -> &str {
        if status == Some(StatusCode::BAD_REQUEST.as_u16()) {
            &self.names
        } else {
            &self.fields
        }
    }
}

/// The beginning of a text, as much of it as a line may have.
fn cut(mut text: String) -> String {
    if text.len() > BODY_BYTES_MAX {
        text.truncate(text.floor_char_boundary(BODY_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_left_out() {
        let body =
            br#"{"url": "http://gpu", "key": "sesame", "headers": ["x-a: sesame"], "slots": 3}"#;
        let expected = r#"{"key":"(secret)","headers":"(secret)","slots":3,"url":"http://gpu"}"#;
        let said = BodyText::of(body).unwrap().fields;
        let same = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(same(&said), same(expected));
        assert!(!said.contains("sesame"), "{said}");
        assert!(BodyText::of(b"{}").is_none() && BodyText::of(b"").is_none());
        let said = BodyText::of(b"sesame").unwrap();
        let texts = [Some(400), Some(200), None].map(|status| said.after(status));
        assert_eq!(texts, ["(not JSON)"; 3]);
    }

    #[test]
    fn of_an_order_that_is_not_understood_the_fields_are_named() {
        let said = BodyText::of(br#"{"header": ["x-a: sesame"], "slots": 3}"#).unwrap();
        assert_eq!(said.after(Some(400)), "header, slots");
        assert!(said.after(Some(201)).contains("sesame"));
    }

    #[test]
    fn a_long_order_is_cut() {
        let body = format!(r#"{{"name": "{}"}}"#, "ä".repeat(1000));
        let said = BodyText::of(body.as_bytes()).unwrap().fields;
        assert!(
            said.len() <= BODY_BYTES_MAX + 3 && said.ends_with('…'),
            "{said}"
        );
    }
}
