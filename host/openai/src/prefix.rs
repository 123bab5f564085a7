//! Hashes of the blocks of a prompt, by which executors know what they have of it already.
//!
//! Each hash is a part of a SHA-256 over the tokens of its block and the digest before it, so that it
//! stands for the prompt from its beginning. Nobody can make a prompt that has the hashes of another.

use pointsman_core::{BlockHash, PromptBlocks};
use pointsman_http::PrefixCache;
use sha2::{Digest, Sha256};

/// The full blocks of a tenant's prompt. None where nobody may share them, or the model's executors
/// have no blocks.
pub(super) fn blocks(
    tokens: &[u32],
    tokens_per_block: Option<u32>,
    (cache, tenant): (PrefixCache, &str),
) -> PromptBlocks {
    let group = match cache {
        PrefixCache::Shared => "",
        PrefixCache::Tenant => tenant,
        PrefixCache::Off => return PromptBlocks::default(),
    };
    let Some(tokens_per_block) = tokens_per_block.filter(|tokens| *tokens > 0) else {
        return PromptBlocks::default();
    };
    let mut digest: [u8; 32] = Sha256::new()
        .chain_update("pointsman-prefix\0")
        .chain_update(group)
        .finalize()
        .into();
    let full = tokens.chunks_exact(tokens_per_block as usize);
    let hashes = full.map(|block| {
        let mut hash = Sha256::new().chain_update(digest);
        for token in block {
            hash.update(token.to_le_bytes());
        }
        digest = hash.finalize().into();
        let (first, _) = digest.split_first_chunk().expect("32 bytes begin with 16");
        BlockHash(u128::from_le_bytes(*first))
    });
    PromptBlocks {
        tokens_per_block,
        hashes: hashes.collect(),
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
}
