//! Conversations recognised by their beginnings, where a client names no session.
//!
//! A conversation is known by the hash of its messages, in order; each message of a chat ends a
//! beginning of it, with a hash of its own. What a server has answered is bound to the hash of the
//! whole request. The next request of the conversation has that one among its beginnings, and the
//! driver finds the longest that it knows.
//!
//! Hashes are of a tenant and a model. They are all that is kept. A message goes through a fast hash, and what comes of that
//! through SHA-256, which alone takes 0.13 ms for 220 KB. So a key gives nothing away. A client can make two messages that count
//! as one, and gains no more than that its tenant's requests go where others of them went.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use pointsman_events::SessionKey;
use pointsman_http::fields::{Fields, read};
use rustc_hash::FxHasher;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The most beginnings of a conversation that are looked for: the longest ones.
const BEGINNINGS_MAX: usize = 64;

/// A conversation, as far as it has been read.
struct Chain {
    hash: Sha256,
    /// The keys of its beginnings, the shortest first.
    keys: Vec<SessionKey>,
}

/// The keys of the beginnings of a conversation, the shortest first and the whole one last; none if it
/// is no chat.
pub(super) fn beginnings(fields: &Fields<'_>, of: (&str, Option<&str>)) -> Vec<SessionKey> {
    let messages: Option<Vec<&RawValue>> = fields.get("messages").and_then(read);
    let mut chain = Chain::new(of);
    for message in messages.unwrap_or_default() {
        chain.add(message.get());
    }
    chain.finish()
}

/// The same for the APIs that only servers elsewhere answer: Anthropic's messages, and the items of `responses`.
/// Their clients move `cache_control` from one message to the next, and `responses` takes a text for a
/// message: both are evened out.
pub(super) fn beginnings_elsewhere(
    fields: &Fields<'_>,
    of: (&str, Option<&str>),
) -> Vec<SessionKey> {
    let given = ["messages", "input"];
    let given = given.iter().find_map(|name| fields.get(name));
    let items = match given.and_then(read) {
        Some(Value::Array(items)) => items,
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {
            Vec::new()
        }
    };
    let mut chain = Chain::new(of);
    // One with other instructions is another one.
    for name in ["system", "instructions"] {
        if let Some(value) = fields.get(name).and_then(read) {
            chain.mix(&evened(&value));
        }
    }
    for item in items {
        chain.add(&evened(&item));
    }
    chain.finish()
}

/// Writes a value without the marks for caches, and its fields in the order of their names.
fn write_evened(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| *name != "cache_control");
            let fields: BTreeMap<&String, &Value> = fields.collect();
            text.push('{');
            for (name, value) in fields {
                text.push_str(&json!(name).to_string());
                text.push(':');
                write_evened(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_evened(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

fn evened(value: &Value) -> String {
    let mut text = String::new();
    write_evened(value, &mut text);
    text
}

// === impl Chain ===

impl Chain {
    fn new((tenant, model): (&str, Option<&str>)) -> Self {
        let mut hash = Sha256::new();
        for part in ["pointsman-conversation", tenant, model.unwrap_or_default()] {
            hash.update(part);
            hash.update([0]);
        }
        let keys = Vec::new();
        Self { hash, keys }
    }

    fn mix(&mut self, text: &str) {
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let mut fast = FxHasher::default();
        fast.write(text.as_bytes());
        self.hash.update(length.to_be_bytes());
        self.hash.update(fast.finish().to_be_bytes());
    }

    /// Adds a message, which ends a beginning.
    fn add(&mut self, text: &str) {
        self.mix(text);
        let digest: [u8; 32] = self.hash.clone().finalize().into();
        let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 8");
        self.keys.push(SessionKey(u64::from_be_bytes(*first)));
    }

    fn finish(mut self) -> Vec<SessionKey> {
        let longest = self.keys.len().saturating_sub(BEGINNINGS_MAX);
        self.keys.split_off(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(messages: &str, of: (&str, Option<&str>)) -> Vec<SessionKey> {
        let body = format!("{{\"messages\": {messages}}}");
        beginnings(&Fields::parse(body.as_bytes()).unwrap(), of)
    }

    #[test]
    fn a_conversation_that_goes_on_has_the_one_before_among_its_beginnings() {
        let of = ("alice", Some("demo"));
        let first = keys(
            r#"[{"role":"system","content":"x"},{"role":"user","content":"a"}]"#,
            of,
        );
        let next = keys(
            r#"[{"role":"system","content":"x"}, {"role":"user","content":"a"},
                {"role":"assistant","content":"b"},{"role":"user","content":"yes"}]"#,
            of,
        );
        assert_eq!((first.len(), next.len()), (2, 4));
        assert_eq!(first[..], next[..2]);
        // The same last message is no conversation in common.
        let other = keys(
            r#"[{"role":"system","content":"x"},{"role":"user","content":"c"},
                {"role":"assistant","content":"d"},{"role":"user","content":"yes"}]"#,
            of,
        );
        assert_eq!(other[0], next[0]);
        assert!(other[1..].iter().all(|key| !next.contains(key)));
        for others in [
            ("bob", Some("demo")),
            ("alice", Some("other")),
            ("alice", None),
        ] {
            let theirs = keys(r#"[{"role":"system","content":"x"}]"#, others);
            assert_ne!(theirs[0], next[0], "{others:?}");
        }
    }

    #[test]
    fn messages_and_responses_go_on_though_their_clients_write_them_differently() {
        let of = ("alice", Some("demo"));
        let keys = |body: &str| beginnings_elsewhere(&Fields::parse(body.as_bytes()).unwrap(), of);
        for none in [r#"{"system":"x","messages":[]}"#, r#"{"input":{}}"#, "{}"] {
            assert_eq!(keys(none), []);
        }
        let marked = r#"{"system":"x","messages":[{"role":"user","content":[
            {"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}"#;
        let moved = r#"{"system":"x","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},
            {"role":"assistant","content":"b"},{"role":"user","content":[
            {"type":"text","text":"c","cache_control":{"type":"ephemeral"}}]}]}"#;
        assert_eq!(keys(marked)[0], keys(moved)[0]);
        let text = r#"{"input":"a"}"#;
        let items =
            r#"{"input":[{"content":"a","role":"user"},{"role":"assistant","content":"b"}]}"#;
        assert_eq!(keys(text)[0], keys(items)[0]);
        let others = r#"{"instructions":"other","input":"a"}"#;
        assert_ne!(keys(text)[0], keys(others)[0]);
    }

    #[test]
    fn the_longest_beginnings_are_kept_and_what_is_no_chat_has_none() {
        let message = r#"{"role":"user","content":"a"}"#;
        let long = format!("[{}]", vec![message; 100].join(","));
        let of = ("alice", None);
        assert_eq!(keys(&long, of).len(), BEGINNINGS_MAX);
        for none in ["[]", "null", "\"text\""] {
            assert_eq!(keys(none, of), []);
        }
    }
}
