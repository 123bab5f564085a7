//! Conversations recognised by their beginnings, where a client names no session.
//!
//! A conversation is known by the hash of its messages, in order; each message of a chat ends a
//! beginning of it, with a hash of its own. What a server has answered is bound to the hash of the
//! whole request. The next request of the conversation has that one among its beginnings, and the
//! driver finds the longest that it knows.
//!
//! Hashes are of a tenant and a model. They are all that is kept.

use pointsman_events::SessionKey;
use pointsman_http::fields::{Fields, read};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// The most beginnings of a conversation that are looked for: the longest ones.
const BEGINNINGS_MAX: usize = 64;

/// The keys of the beginnings of a conversation, the shortest first and the whole one last; none if it
/// is no chat.
pub(super) fn beginnings(
    fields: &Fields<'_>,
    (tenant, model): (&str, Option<&str>),
) -> Vec<SessionKey> {
    let messages: Option<Vec<&RawValue>> = fields.get("messages").and_then(read);
    let messages = messages.unwrap_or_default();
    let mut hash = Sha256::new();
    for part in ["pointsman-conversation", tenant, model.unwrap_or_default()] {
        hash.update(part);
        hash.update([0]);
    }
    let mut keys: Vec<SessionKey> = Vec::new();
    for message in messages {
        let text = message.get();
        hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(text);
        let digest: [u8; 32] = hash.clone().finalize().into();
        let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 8");
        keys.push(SessionKey(u64::from_be_bytes(*first)));
    }
    keys.split_off(keys.len().saturating_sub(BEGINNINGS_MAX))
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
