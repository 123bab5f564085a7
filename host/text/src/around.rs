//! Tokens around every text, which a tokenizer's post-processor adds.

use serde_json::{Map, Value, json};
use tokenizers::{PostProcessorWrapper, Tokenizer};

/// The tokens around every text, each with its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokensAround<'a> {
    /// The one before it; absent: none.
    pub begin: Option<(u64, &'a str)>,
    /// The one behind it; absent: none.
    pub end: Option<(u64, &'a str)>,
}

impl TokensAround<'_> {
    /// The `post_processor` of a `tokenizer.json` that adds them; null: there are none.
    #[must_use]
    pub fn post_processor(self) -> Value {
        let Self { begin, end } = self;
        if begin.is_none() && end.is_none() {
            return Value::Null;
        }
        let special =
            |(_, token): &(u64, &str)| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let around = |text: &str| -> Value {
            let text = json!({"Sequence": {"id": text, "type_id": 0}});
            let begin = begin.iter().map(special);
            begin.chain([text]).chain(end.iter().map(special)).collect()
        };
        let tokens = begin.iter().chain(&end).map(|(id, token)| {
            let about = json!({"id": token, "ids": [id], "tokens": [token]});
            ((*token).to_owned(), about)
        });
        let tokens: Map<String, Value> = tokens.collect();
        let pair = json!([
            {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}},
        ]);
        json!({
            "type": "TemplateProcessing", "single": around("A"), "pair": pair,
            "special_tokens": tokens,
        })
    }

    /// Has a tokenizer add them, and nothing else.
    pub(super) fn put_in(self, tokenizer: &mut Tokenizer) {
        let adds: Option<PostProcessorWrapper> =
            serde_json::from_value(self.post_processor()).expect("it is a post-processor, or null");
        tokenizer.with_post_processor(adds);
    }
}
