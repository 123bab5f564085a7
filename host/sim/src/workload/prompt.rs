//! Prompts as scheduling sees them: a length, and what begins of it others have had too.

use std::sync::Arc;

use pointsman_core::{BlockHash, PromptBlocks};

use crate::draws::mix;

/// A prompt, as pieces of equal length that are named by what stands up to their end: two prompts
/// with the same name in one place are the same up to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptText {
    /// Tokens of the prompt, at least 1.
    pub tokens: u32,
    /// Tokens of a piece.
    tokens_per_piece: u32,
    /// The names of the pieces. The last one may be cut off; those that are missing are like
    /// nothing else.
    pieces: Arc<[u64]>,
}

impl PromptText {
    /// A prompt that begins like no other.
    #[must_use]
    pub fn unlike_others(tokens: u32) -> Self {
        Self::of_pieces(tokens, 1, [])
    }

    /// A prompt of named pieces.
    #[must_use]
    pub fn of_pieces(
        tokens: u32,
        tokens_per_piece: u32,
        pieces: impl IntoIterator<Item = u64>,
    ) -> Self {
        Self {
            tokens: tokens.max(1),
            tokens_per_piece: tokens_per_piece.max(1),
            pieces: pieces.into_iter().collect(),
        }
    }

    /// The full blocks of the prompt, of `tokens_per_block` tokens each, as far as they are known.
    #[must_use]
    pub fn blocks(&self, tokens_per_block: u32) -> PromptBlocks {
        let per_block = tokens_per_block.max(1);
        let known = self.pieces.len() as u64 * u64::from(self.tokens_per_piece);
        let known = known.min(u64::from(self.tokens));
        let full = known / u64::from(per_block);
        let hashes = (1..=full).map(|n| self.hash_up_to(n * u64::from(per_block)));
        PromptBlocks {
            tokens_per_block: per_block,
            hashes: hashes.collect(),
        }
    }

    /// The name of the text up to a token: the piece it ends in, and how far into it.
    fn hash_up_to(&self, end: u64) -> BlockHash {
        let per_piece = u64::from(self.tokens_per_piece);
        let piece = (end - 1) / per_piece;
        let into = end - piece * per_piece;
        let idx = usize::try_from(piece).unwrap_or(usize::MAX);
        let name = self.pieces.get(idx).copied().unwrap_or_default();
        BlockHash(u128::from(mix(mix(name) ^ into)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: u32, pieces: &[u64], per_block: u32) -> Vec<BlockHash> {
        let prompt = PromptText::of_pieces(tokens, 8, pieces.iter().copied());
        prompt.blocks(per_block).hashes
    }

    #[test]
    fn prompts_share_the_blocks_of_the_pieces_that_they_begin_with() {
        let (one, other) = (hashes(24, &[1, 2, 3], 4), hashes(24, &[1, 2, 9], 4));
        assert_eq!((one.len(), &one[..4]), (6, &other[..4]));
        assert_ne!(one[4], other[4]);
    }

    #[test]
    fn a_piece_that_is_cut_off_shares_the_blocks_that_it_has() {
        let (cut, whole) = (hashes(22, &[1, 2, 3], 4), hashes(24, &[1, 2, 3], 4));
        assert_eq!((cut.len(), &whole[..5]), (5, cut.as_slice()));
    }

    #[test]
    fn blocks_may_be_larger_than_pieces() {
        let (one, other) = (
            hashes(40, &[1, 2, 3, 4, 5], 16),
            hashes(40, &[1, 2, 3, 7, 5], 16),
        );
        assert_eq!((one.len(), one[0]), (2, other[0]));
        assert_ne!(one[1], other[1]);
    }

    #[test]
    fn nothing_is_known_of_a_prompt_without_pieces() {
        assert!(PromptText::unlike_others(100).blocks(4).hashes.is_empty());
        assert_eq!(PromptText::unlike_others(0).tokens, 1);
    }
}
