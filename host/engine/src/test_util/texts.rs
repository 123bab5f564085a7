//! Models of other makers, as far as their text goes.

use pointsman_model::files::ModelFiles;
use pointsman_text::{ModelText, TextError};
use serde_json::{Value, json};

/// A tokenizer in the manner of Llama 2: bytes where it has no word, a space before the first word,
/// and a token around every text. Id 260 is missing. `Ġ`, a space in other vocabularies, is a letter.
fn llama_2() -> Value {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
    }
    for (id, word) in [
        (256, "<s>"),
        (257, "</s>"),
        (258, "▁"),
        (259, "a"),
        (261, "▁a"),
        (262, "Ġ"),
    ] {
        vocab.insert(word.to_owned(), json!(id));
    }
    let special = |id, content| {
        json!({
            "id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "</s>",
        },
        "added_tokens": [special(256, "<s>"), special(257, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true,
            "vocab": vocab, "merges": [["▁", "a"]],
        },
    })
}

/// Loads a model of these files, leaked: embedded files live as long as the program.
pub fn model(files: &[(&'static str, String)]) -> Result<ModelText, TextError> {
    let files = files.iter().map(|(name, text)| {
        let content: &'static [u8] = Box::leak(text.clone().into_boxed_str()).as_bytes();
        (*name, content)
    });
    let files: Vec<_> = files.collect();
    ModelText::load(&ModelFiles::Embedded(Box::leak(files.into_boxed_slice())))
}

/// Returns the tokenizer as a file.
pub fn tokenizer() -> (&'static str, String) {
    ("tokenizer.json", llama_2().to_string())
}
