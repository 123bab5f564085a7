//! Tokenizers of the kind of Llama 2: SentencePiece's BPE, by scores.
//!
//! A GGUF file has the tokens with their scores and not the merges. They follow from those, as
//! transformers has them too: any two tokens that make a third may merge, and the better its score, the
//! sooner.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::text::{Vocabulary, scores, unknown};
use super::{GgufError, Metadata};

/// The most bytes of a token that others make.
const TOKEN_BYTES_MAX: usize = 1024;
/// The character for a space.
const SPACE: &str = "▁";

pub(super) fn tokenizer(
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Value, GgufError> {
    let prefix = metadata.flag("tokenizer.ggml.add_space_prefix")?;
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let back = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    let bytes = json!({"type": "ByteFallback"});
    let fuse = json!({"type": "Fuse"});
    let (normalizers, decoders) = if prefix.unwrap_or(true) {
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        (vec![prepend, replace], vec![back, bytes, fuse, strip])
    } else {
        (vec![replace], vec![back, bytes, fuse])
    };
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "unk_token": unknown(metadata)?, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.ids, "merges": merges(vocabulary, scores(metadata)?),
        },
    }))
}

/// The merges, the best first.
fn merges<'a>(vocabulary: &Vocabulary<'a>, scores: &[f64]) -> Vec<(&'a str, &'a str)> {
    let ids = &vocabulary.ids;
    let mut merges = Vec::new();
    // Nothing merges into a longer one: a file could have it look at millions of its parts.
    let tokens = ids
        .iter()
        .filter(|(token, _)| token.len() <= TOKEN_BYTES_MAX);
    for (token, id) in tokens {
        let score = scores.get(*id).copied().unwrap_or(f64::NEG_INFINITY);
        let places = token.char_indices().skip(1).map(|(place, _)| place);
        for (left, right) in places.map(|place| token.split_at(place)) {
            if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                merges.push((score, (*first, *second), (left, right)));
            }
        }
    }
    merges.sort_by(|(score, ids, pair), (other_score, other_ids, other_pair)| {
        let lengths =
            |pair: &(&str, &str)| Reverse((pair.0.chars().count(), pair.1.chars().count()));
        let by_score = other_score.total_cmp(score);
        let by_length = || lengths(pair).cmp(&lengths(other_pair));
        by_score
            .then_with(by_length)
            .then_with(|| ids.cmp(other_ids))
    });
    merges.into_iter().map(|(_, _, pair)| pair).collect()
}
