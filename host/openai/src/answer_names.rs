//! Answers of `/v1/responses` recognised by their ids, which later requests name. The server alone that gave an
//! answer has it.
//!
//! An id is looked for at the beginning of an answer that goes through. The driver is told its hash, and the
//! executor that gave it: nothing else is kept, and no longer than a session is. For a key with models there is a second
//! hash, by which holders of the same models get the answer back from a server that has other models too.

use std::sync::Arc;

use bytes::Bytes;
use pointsman_driver::message::{DriverHandle, NamedAnswer};
use pointsman_events::SessionKey;
use pointsman_executor::relay::{field_texts, path_and_query};
use pointsman_http::fields::{Fields, read};
use pointsman_http::{KeyHolder, ModelPattern, Rights, UsableModels};
use sha2::{Digest as _, Sha256};

use super::passing::may_name_model;

/// The beginning of the paths that are about one answer.
const ANSWERS: &str = "/v1/responses/";
/// The ends of such paths behind the id, of which none has anything generated.
const ABOUT: [&str; 3] = ["", "cancel", "input_items"];
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
    /// The holder of the key that it is given to.
    holder: Arc<KeyHolder>,
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
    Some(key(tenant, &[], id.as_bytes()))
}

/// The key of the answer that a request is about and has nothing generated from, as holders of the same models know it;
/// absent: it is none, or the holder may use all models.
pub(super) fn own(path: &str, rights: &Rights) -> Option<SessionKey> {
    let (path, query) = path_and_query(path);
    let path = path.strip_prefix(ANSWERS)?;
    let (id, about) = path.split_once('/').unwrap_or((path, ""));
    let is_about = ABOUT.contains(&about) && !may_name_model(query);
    own_key(rights, id.as_bytes()).filter(|_| is_about)
}

/// The key of an answer for the holders of these models; absent: they may use all.
fn own_key(rights: &Rights, id: &[u8]) -> Option<SessionKey> {
    match &rights.models {
        UsableModels::Listed(models) if !models.is_empty() => Some(key(&rights.tenant, models, id)),
        UsableModels::Listed(_) | UsableModels::All => None,
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    let (path, _) = path_and_query(path);
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The id in the beginning of an answer, whole or streamed.
fn id_in(begun: &[u8]) -> Option<&[u8]> {
    let is_answer = |id: &&[u8]| id.starts_with(ID_PREFIX) && id.len() <= ID_BYTES_MAX;
    field_texts(begun, NAME).find(is_answer)
}

/// The key of an answer: the first eight bytes of a SHA-256 of its tenant and its id, and of the models of those for whom
/// the key is; of no models it is for the whole tenant.
fn key(tenant: &str, models: &[ModelPattern], id: &[u8]) -> SessionKey {
    let models = models.iter().flat_map(|model| match model {
        ModelPattern::Name(name) => [b"name".as_slice(), name.as_bytes()],
        ModelPattern::Beginning(name) => [b"beginning".as_slice(), name.as_bytes()],
    });
    let parts = [b"pointsman-answer".as_slice(), tenant.as_bytes(), id];
    let mut hash = Sha256::new();
    for part in parts.into_iter().chain(models) {
        hash.update(part);
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 8");
    SessionKey(u64::from_be_bytes(*first))
}

// === impl UnnamedAnswer ===

impl UnnamedAnswer {
    pub(super) fn new(driver: DriverHandle, holder: &Arc<KeyHolder>, executor: &str) -> Self {
        Self {
            driver,
            holder: Arc::clone(holder),
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
        let rights = self.holder.rights();
        let of_tenant = key(&rights.tenant, &[], id);
        for answer in own_key(rights, id).into_iter().chain([of_tenant]) {
            let executor = self.executor.clone();
            self.driver.answered(NamedAnswer { answer, executor });
        }
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

    #[test]
    fn an_answer_is_the_own_one_of_those_with_the_same_models_and_asked_about_alone() {
        let rights = |models: &[&str]| Rights {
            models: UsableModels::Listed(models.iter().map(|it| it.parse().unwrap()).collect()),
            ..Rights::of_tenant("alice")
        };
        let of_a = |path| own(path, &rights(&["a"]));
        let found = of_a("/v1/responses/resp_1");
        assert!(found.is_some());
        for path in [
            "/v1/responses/resp_1/cancel",
            "/v1/responses/resp_1/input_items?limit=5",
        ] {
            assert_eq!(of_a(path), found, "{path}");
        }
        for models in [&["b"][..], &["a*"], &["a", "b"], &[]] {
            let other = own("/v1/responses/resp_1", &rights(models));
            assert_ne!(other, found, "{models:?}");
        }
        let of_all = own("/v1/responses/resp_1", &Rights::of_tenant("alice"));
        assert_eq!(of_all, None);
        for path in [
            "/v1/responses",
            "/v1/responses/resp_1/../../chat",
            "/v1/responses/resp_1?model=b",
            "/v1/responses/resp_1?mod%65l=b",
            "/upstream/b/v1/responses/resp_1",
        ] {
            assert_eq!(of_a(path), None, "{path}");
        }
    }
}
