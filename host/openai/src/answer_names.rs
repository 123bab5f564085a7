//! Answers of `/v1/responses` recognised by their ids, which later requests name. The server alone that gave an
//! answer has it.
//!
//! An id is looked for at the beginning of an answer that goes through. The driver is told its hash, and the
//! executor that gave it: nothing else is kept, and no longer than a session is.

use bytes::Bytes;
use pointsman_driver::message::{DriverHandle, NamedAnswer};
use pointsman_events::SessionKey;
use pointsman_executor::relay::field_texts;
use pointsman_http::fields::{Fields, read};
use sha2::{Digest as _, Sha256};

/// The part of a path that is about answers, before the id of one.
const SEGMENT: &str = "responses";
/// The field of a request with the id of the answer that it goes on from.
const PREVIOUS: &str = "previous_response_id";
/// The name of an id in JSON.
const NAME: &[u8] = br#""id""#;
/// The beginning of an id of an answer; those of its parts begin otherwise.
const ID_PREFIX: &[u8] = b"resp";
const ID_BYTES_MAX: usize = 256;
/// The bytes at the beginning of an answer in which its id is looked for.
const BYTES_MAX: usize = 8 << 10;

/// An answer whose id has not been found yet.
#[derive(Debug)]
pub(super) struct UnnamedAnswer {
    driver: DriverHandle,
    tenant: String,
    executor: String,
    begun: Vec<u8>,
}

/// True if requests with this path have answers with ids, or are about one.
pub(super) fn are_named(path: &str) -> bool {
    segments(path).any(|segment| segment == SEGMENT)
}

/// The key of the answer that a request goes on from, or is about; absent: of none.
pub(super) fn followed(path: &str, fields: &Fields<'_>, tenant: &str) -> Option<SessionKey> {
    let previous = fields.get(PREVIOUS).and_then(read::<String>);
    let mut segments = segments(path).skip_while(|segment| *segment != SEGMENT);
    let id = previous.or_else(|| segments.nth(1).map(str::to_owned))?;
    Some(key(tenant, id.as_bytes()))
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    let path = path.split('?').next().unwrap_or_default();
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The id in the beginning of an answer, whole or streamed.
fn id_in(begun: &[u8]) -> Option<&[u8]> {
    let is_answer = |id: &&[u8]| id.starts_with(ID_PREFIX) && id.len() <= ID_BYTES_MAX;
    field_texts(begun, NAME).find(is_answer)
}

/// The key of an answer: the first eight bytes of a SHA-256 of its tenant and its id.
fn key(tenant: &str, id: &[u8]) -> SessionKey {
    let mut hash = Sha256::new();
    for part in [b"pointsman-answer".as_slice(), tenant.as_bytes(), id] {
        hash.update(part);
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 8");
    SessionKey(u64::from_be_bytes(*first))
}

// === impl UnnamedAnswer ===

impl UnnamedAnswer {
    pub(super) fn new(driver: DriverHandle, tenant: &str, executor: &str) -> Self {
        Self {
            driver,
            tenant: tenant.to_owned(),
            executor: executor.to_owned(),
            begun: Vec::new(),
        }
    }

    /// Looks at the next bytes. Returns itself as long as the id may still come.
    pub(super) fn see(mut self, bytes: &Bytes) -> Option<Self> {
        let room = BYTES_MAX - self.begun.len();
        self.begun
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        let Some(id) = id_in(&self.begun) else {
            return (self.begun.len() < BYTES_MAX).then_some(self);
        };
        let answer = key(&self.tenant, id);
        let executor = self.executor;
        self.driver.answered(NamedAnswer { answer, executor });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_answer_is_found_whole_and_streamed() {
        for (begun, id) in [
            (r#"{"id":"resp_1","object":"response"}"#, Some("resp_1")),
            (
                r#"{"conversation": {"id": "conv_2"}, "id" : "resp-3", "output": [{"id": "msg_4"}]}"#,
                Some("resp-3"),
            ),
            (
                "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_5\"",
                Some("resp_5"),
            ),
            (
                r#"{"instructions":"say \"id\":\"resp_6\"","id":"resp_7"}"#,
                Some("resp_7"),
            ),
            (r#"{"previous_response_id":"resp_8","id":"resp_9"#, None),
            (r#"{"id":7}"#, None),
            ("", None),
        ] {
            let found = id_in(begun.as_bytes());
            assert_eq!(found, id.map(str::as_bytes), "{begun}");
        }
    }

    #[test]
    fn a_request_names_the_answer_it_follows_by_its_body_or_its_path() {
        let followed = |path: &str, body: &str, tenant: &str| {
            followed(path, &Fields::parse(body.as_bytes()).unwrap(), tenant)
        };
        let body = r#"{"previous_response_id": "resp_1"}"#;
        let by_body = followed("/v1/responses", body, "alice");
        assert!(by_body.is_some());
        for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/cancel?a=b"] {
            assert_eq!(followed(path, "{}", "alice"), by_body, "{path}");
            assert_ne!(followed(path, "{}", "bob"), by_body, "{path}");
        }
        for (path, body) in [
            ("/v1/responses", "{}"),
            (
                "/v1/responses?x=resp_1",
                r#"{"previous_response_id": null}"#,
            ),
            ("/v1/messages", "{}"),
        ] {
            assert_eq!(followed(path, body, "alice"), None, "{path} {body}");
        }
    }
}
