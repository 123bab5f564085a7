//! Prompts in a scenario: `64`, or `"system:64 + ann:32 + 16"`. Pieces with the same name have the
//! same text.
//!
//! Only prompts in pieces have hashes, so a scenario that says nothing about prefixes shares none.

use std::fmt;

use pointsman_core::BlockHash;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// Tokens of a request's prompt, if the scenario says nothing.
const TOKENS: u32 = 16;

/// The prompt of a request, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    tokens: u32,
    /// Pieces of the text; empty if nothing is known about it.
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// Name of the text; `None` for text that only this request has.
    name: Option<String>,
    tokens: u32,
}

// === impl Prompt ===

impl Prompt {
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    pub(crate) fn is_in_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Chained hashes of the full blocks; `own` is the request's name.
    pub(crate) fn hashes(&self, own: &str, tokens_per_block: u32) -> Vec<BlockHash> {
        let mut hashes = Vec::new();
        let mut hash = FNV_START;
        let mut in_block = 0;
        for piece in &self.pieces {
            let (mark, name) = match &piece.name {
                Some(name) => (1, name.as_str()),
                None => (2, own),
            };
            let text = fnv(fnv(FNV_START, &[mark]), name.as_bytes());
            for token in 0..piece.tokens {
                hash = fnv(fnv(hash, &text.to_le_bytes()), &token.to_le_bytes());
                in_block += 1;
                if in_block == tokens_per_block {
                    hashes.push(BlockHash(hash));
                    in_block = 0;
                }
            }
        }
        hashes
    }

    fn plain(tokens: u32) -> Self {
        Self {
            tokens,
            pieces: Vec::new(),
        }
    }

    /// Parses pieces; `None` if the text is no prompt.
    fn in_pieces(text: &str) -> Option<Self> {
        let pieces: Vec<Piece> = text.split('+').map(Piece::parse).collect::<Option<_>>()?;
        let mut all = pieces.iter();
        let tokens = all.try_fold(0_u32, |sum, piece| sum.checked_add(piece.tokens))?;
        Some(Self { tokens, pieces })
    }
}

impl Default for Prompt {
    fn default() -> Self {
        Self::plain(TOKENS)
    }
}

// === impl Piece ===

impl Piece {
    fn parse(text: &str) -> Option<Self> {
        let (name, tokens) = match text.split_once(':') {
            Some((name, tokens)) => (Some(name.trim()), tokens),
            None => (None, text),
        };
        if name.is_some_and(|name| name.is_empty() || name.contains(char::is_whitespace)) {
            return None;
        }
        Some(Self {
            name: name.map(ToOwned::to_owned),
            tokens: tokens.trim().parse().ok().filter(|tokens| *tokens > 0)?,
        })
    }
}

const FNV_START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;

/// Computes FNV-1a, a hash that never changes.
fn fnv(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

// === as it is written ===

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl Visitor<'_> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens, or pieces as in `system:64 + ann:32 + 16`")
    }

    fn visit_i64<E: Error>(self, tokens: i64) -> Result<Prompt, E> {
        let wrong = || E::custom(format!("a prompt cannot have {tokens} tokens"));
        u32::try_from(tokens)
            .map(Prompt::plain)
            .map_err(|_overflow| wrong())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompt, E> {
        Prompt::in_pieces(text).ok_or_else(|| {
            E::custom(format!(
                "`{text}` is no prompt: write a number of tokens, or pieces that are \
                 `NAME:TOKENS`, the same text for all that name it, or `TOKENS` of its own, as in \
                 `system:64 + ann:32 + 16`"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(text: &str, own: &str) -> Vec<BlockHash> {
        Prompt::in_pieces(text).unwrap().hashes(own, 16)
    }

    /// Number of leading blocks that two prompts share.
    fn shared(one: &[BlockHash], other: &[BlockHash]) -> usize {
        let pairs = one.iter().zip(other);
        pairs.take_while(|(one, other)| one == other).count()
    }

    #[test]
    fn named_pieces_are_shared_and_own_ones_are_not() {
        let a = hashes("system:32 + 32", "a");
        assert_eq!(a.len(), 4);
        assert_eq!(shared(&a, &hashes("system:32 + 32", "b")), 2);
        assert_eq!(shared(&a, &hashes("system:32 + 32", "a")), 4);
        assert_eq!(shared(&a, &hashes("other:32 + 32", "a")), 0);
        assert_eq!(shared(&a, &hashes("system:32 + a:32", "a")), 2);
    }

    #[test]
    fn a_block_is_shared_only_with_all_that_comes_before_it() {
        let a = hashes("system:16 + tools:16", "a");
        assert_eq!(shared(&a, &hashes("tools:16 + system:16", "a")), 0);
        assert_ne!(hashes("x:16 + tools:16", "a")[1], a[1]);
    }

    #[test]
    fn only_full_blocks_have_a_hash_and_pieces_need_not_end_with_one() {
        assert_eq!(hashes("system:31", "a").len(), 1);
        let a = hashes("system:24 + 8", "a");
        let b = hashes("system:24 + 24", "b");
        assert_eq!((a.len(), b.len(), shared(&a, &b)), (2, 3, 1));
        assert_eq!(
            shared(&hashes("system:24", "a"), &hashes("system:48", "b")),
            1
        );
    }

    #[test]
    fn a_prompt_that_is_none_is_refused() {
        for text in [
            "",
            "a:",
            ":5",
            "a:0",
            "0",
            "a b:5",
            "5 +",
            "a:4294967295 + 1",
            "-1",
        ] {
            assert_eq!(Prompt::in_pieces(text), None, "{text}");
        }
    }
}
