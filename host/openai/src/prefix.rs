//! Hashes of the blocks of a prompt, by which executors know what they have of it already.
//!
//! Each hash is a part of a SHA-256 over the tokens of its block and the digest before it, so that it
//! stands for the prompt from its beginning. Nobody can make a prompt that has the hashes of another.

use pointsman_events::{BlockHash, PromptBlocks};
use pointsman_http::PrefixCache;
use sha2::{Digest, Sha256};

use super::passed_prompt::{FILE_TOKENS, Piece};

/// Tokens of a block of a prompt that is not tokenised here.
const TEXT_BLOCK_TOKENS: usize = 64;

/// The requests that may share what is cached of their prompts: whose they may be, and the sender.
pub(super) type Sharing<'a> = (PrefixCache, &'a str);

/// A SHA-256 that is chained from block to block.
struct Chain([u8; 32]);

/// The full blocks of a tenant's prompt. None where nobody may share them, or the model's executors
/// have no blocks.
pub(super) fn blocks(
    tokens: &[u32],
    tokens_per_block: Option<u32>,
    sharing: Sharing<'_>,
) -> PromptBlocks {
    let tokens_per_block = tokens_per_block.filter(|tokens| *tokens > 0);
    let (Some(tokens_per_block), Some(mut chain)) = (tokens_per_block, Chain::of(sharing)) else {
        return PromptBlocks::default();
    };
    let full = tokens.chunks_exact(tokens_per_block as usize);
    let hash = |block: &[u32]| chain.next(block.iter().map(|token| token.to_le_bytes()));
    PromptBlocks {
        tokens_per_block,
        hashes: full.map(hash).collect(),
    }
}

/// The full blocks of a tenant's prompt that is not tokenised here: pieces of JSON, one after the other, of
/// whose texts so many bytes are taken for a token. None where nobody may share them.
pub(super) fn blocks_of_text<'b>(
    pieces: impl IntoIterator<Item = Piece<'b>>,
    token_bytes: usize,
    sharing: Sharing<'_>,
) -> PromptBlocks {
    let Some(mut chain) = Chain::of(sharing) else {
        return PromptBlocks::default();
    };
    let mut hashes = Vec::new();
    for piece in pieces {
        let text = match piece {
            Piece::Text(text) => text.as_bytes(),
            Piece::File(contents) => {
                hashes.push(chain.next([contents]));
                hashes.extend((1..FILE_TOKENS / TEXT_BLOCK_TOKENS).map(|_| chain.next([[]])));
                continue;
            }
        };
        let full = text.chunks_exact(TEXT_BLOCK_TOKENS * token_bytes);
        // Too few for a block of their own, these still tell what follows from what follows others.
        let rest = full.remainder();
        hashes.extend(full.map(|block| chain.next([block])));
        chain.next([rest]);
    }
    PromptBlocks {
        tokens_per_block: u32::try_from(TEXT_BLOCK_TOKENS).expect("a small number"),
        hashes,
    }
}

// === impl Chain ===

impl Chain {
    /// The beginning of a chain for those who may share; absent: nobody may.
    fn of((cache, tenant): Sharing<'_>) -> Option<Self> {
        let group = match cache {
            PrefixCache::Shared => "",
            PrefixCache::Tenant => tenant,
            PrefixCache::Off => return None,
        };
        let begun = Sha256::new().chain_update("pointsman-prefix\0");
        Some(Self(begun.chain_update(group).finalize().into()))
    }

    /// The hash of the next block.
    fn next(&mut self, block: impl IntoIterator<Item = impl AsRef<[u8]>>) -> BlockHash {
        let mut hash = Sha256::new().chain_update(self.0);
        for piece in block {
            hash.update(piece);
        }
        self.0 = hash.finalize().into();
        let (first, _) = self.0.split_first_chunk().expect("32 bytes begin with 16");
        BlockHash(u128::from_le_bytes(*first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u32], cache: PrefixCache, tenant: &str) -> Vec<BlockHash> {
        blocks(tokens, Some(2), (cache, tenant)).hashes
    }

    fn shared(tokens: &[u32]) -> Vec<BlockHash> {
        hashes(tokens, PrefixCache::Shared, "a")
    }

    #[test]
    fn a_hash_stands_for_the_prompt_up_to_the_end_of_its_block() {
        let whole = shared(&[1, 2, 3, 4, 5]);
        assert_eq!(whole.len(), 2, "only full blocks count");
        assert_eq!(whole[..1], shared(&[1, 2])[..]);
        assert_eq!(whole[..1], shared(&[1, 2, 9, 9])[..1]);
        assert_ne!(whole[1], shared(&[1, 2, 9, 9])[1]);
        assert_ne!(whole[1], shared(&[9, 9, 3, 4])[1], "the beginning counts");
        assert_eq!(shared(&[]), []);
    }

    #[test]
    fn hashes_are_the_same_in_every_process_and_version() {
        assert_eq!(
            shared(&[1, 2])[0],
            BlockHash(0x4946_7ad0_5446_e3a6_dfec_6877_f215_3fa9)
        );
    }

    #[test]
    fn tenants_share_where_the_operator_lets_them() {
        let of = |cache, tenant| hashes(&[1, 2], cache, tenant);
        let cache = PrefixCache::Shared;
        assert_eq!(of(cache, "a"), of(cache, "b"));
        let cache = PrefixCache::Tenant;
        assert_eq!(of(cache, "a"), of(cache, "a"));
        assert_ne!(of(cache, "a"), of(cache, "b"));
        assert_ne!(of(cache, "a"), of(PrefixCache::Shared, "a"));
        assert_eq!(of(PrefixCache::Off, "a"), []);
        assert_eq!(
            blocks(&[1, 2], None, (PrefixCache::Shared, "a")),
            PromptBlocks::default()
        );
    }

    /// A block has 64 tokens of 4 bytes.
    #[test]
    fn a_text_is_hashed_by_its_bytes_part_by_part() {
        fn blocks_of(parts: &[&str], sharing: Sharing<'_>) -> PromptBlocks {
            blocks_of_text(parts.iter().map(|part| Piece::Text(part)), 4, sharing)
        }
        let of = |parts: &[&str]| blocks_of(parts, (PrefixCache::Shared, "a")).hashes;
        let text = "x".repeat(700);
        let whole = of(&[&text]);
        assert_eq!(whole.len(), 2, "only full blocks count");
        let longer = format!("{text}yes");
        assert_eq!(of(&[&longer])[..], whole[..]);
        assert_eq!(of(&[&text[..256]])[..], whole[..1]);
        assert_ne!(of(&[&text[1..257].replacen('x', "y", 1)])[0], whole[0]);
        // A part that is too short for a block counts in those after it.
        assert_eq!(of(&["[]", &text]).len(), 2);
        assert_ne!(of(&["[]", &text])[0], whole[0]);
        assert_ne!(of(&["[]", &text]), of(&["{}", &text]));
        assert_eq!(
            blocks_of(&[&text], (PrefixCache::Off, "a")),
            PromptBlocks {
                tokens_per_block: 0,
                hashes: Vec::new()
            }
        );
        let own = blocks_of(&[&text], (PrefixCache::Tenant, "a"));
        assert_ne!(own.hashes, whole);
        assert_eq!(own.tokens_per_block, 64);
    }
}
