//! Embeddings in the OpenAPI document: the body of requests, and the answer.

use http::StatusCode;
use pointsman_http::answer::{HttpAnswer, HttpReply, JSON, Responses};
use pointsman_http::fields::object;
use pointsman_http::openapi::named;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::json;

use super::{Encoding, INPUT, INPUTS_MAX, UNBUILT};
use crate::completions::prompt_schema_of;
use crate::document::placed_response;
use crate::hints::{self, BODY_FIELD};
use crate::params;

/// The answer of `/v1/embeddings`.
pub(crate) struct EmbeddingAnswer(pub(super) HttpReply);

/// The embeddings of a request, in the order of its inputs.
#[derive(Serialize, JsonSchema)]
pub(super) struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: &'a str,
    usage: EmbeddingUsage,
}

/// The embedding of an input.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
struct EmbeddingObject {
    object: &'static str,
    /// The place of the input among those of the request, from 0.
    index: usize,
    embedding: Numbers,
}

/// The numbers of an embedding, whose squares sum up to 1.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum Numbers {
    Float(Vec<f32>),
    /// Numbers of 32 bits, the lowest byte first, in base64.
    Base64(String),
}

/// Tokens that were read.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The schema of the body of a request.
pub(crate) fn body_schema(schemas: &mut SchemaGenerator) -> Schema {
    let model = "A name that `/v1/models` lists. Required, unless `http.unnamed-model` is `any`, or servers \
         elsewhere answer.";
    let encoding = json!({
        "description": "`base64` is that of numbers of 32 bits, the lowest byte first.",
        "enum": [Encoding::FLOAT, Encoding::BASE64],
        "default": Encoding::FLOAT,
    });
    let mut properties = vec![
        ("model", json!({"type": "string", "description": model})),
        (INPUT, prompt_schema_of(INPUTS_MAX)),
        ("encoding_format", encoding),
        (
            "user",
            json!({"description": "Taken, and changes nothing."}),
        ),
        (BODY_FIELD, hints::body_schema(schemas).to_value()),
    ];
    properties.extend(params::properties_of(UNBUILT));
    let body = object(&[INPUT], properties);
    named(schemas, "EmbeddingRequest", body)
}

// === impl Numbers ===

impl Numbers {
    pub(super) fn new(numbers: &[f32], encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Float(numbers.to_vec()),
            Encoding::Base64 => {
                let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
                Self::Base64(base64::encode(bytes.collect::<Vec<_>>()))
            }
        }
    }
}

// === impl EmbeddingList ===

impl<'a> EmbeddingList<'a> {
    /// The embeddings of inputs that have so many tokens together.
    pub(super) fn new(embeddings: Vec<Numbers>, model: &'a str, tokens: usize) -> Self {
        let embeddings = embeddings.into_iter().enumerate();
        let data = embeddings.map(|(index, embedding)| EmbeddingObject {
            object: "embedding",
            index,
            embedding,
        });
        Self {
            object: "list",
            data: data.collect(),
            model,
            usage: EmbeddingUsage {
                prompt_tokens: tokens,
                total_tokens: tokens,
            },
        }
    }

    pub(super) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers can be written as JSON")
    }
}

// === impl EmbeddingAnswer ===

impl HttpAnswer for EmbeddingAnswer {
    fn into_reply(self, _: StatusCode) -> HttpReply {
        self.0
    }

    fn responses(_: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        let answer = json_schema!({
            "description": "Another object where a server elsewhere answers in its own words.",
            "anyOf": [schemas.subschema_for::<EmbeddingList<'_>>(), {"type": "object"}],
        });
        Responses::from_iter([placed_response([(JSON, answer)])])
    }
}
