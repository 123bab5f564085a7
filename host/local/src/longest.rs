//! The longest sequence of a model on a device: no longer than the model's context, and than all KV blocks of the device.

use pointsman_engine::backend::KvShape;
use pointsman_notation::Size;

/// Sizes that an operator is told are rounded up to whole numbers of so many bytes.
const TOLD_BYTES: u64 = 1 << 20;

/// A model's longest sequence, and the KV blocks of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongestSequence<'a> {
    pub(crate) model: &'a str,
    /// Tokens of the model's context.
    pub(crate) context_tokens: u32,
    pub(crate) device: &'a str,
    /// The blocks of the device, as the model's executor has them.
    pub(crate) shape: KvShape,
    pub(crate) block_bytes: u64,
}

impl LongestSequence<'_> {
    /// Its tokens.
    pub(crate) fn tokens(&self) -> u32 {
        self.context_tokens.min(self.pool_tokens())
    }

    /// Advice for an operator whose device has too few blocks for the model's context; absent: it has enough.
    pub(crate) fn shortage(&self) -> Option<String> {
        let pool = self.pool_tokens();
        if pool >= self.context_tokens {
            return None;
        }
        let blocks = self.context_tokens.div_ceil(self.shape.tokens_per_block);
        let bytes = u64::from(blocks).saturating_mul(self.block_bytes);
        let Self {
            model,
            context_tokens,
            device,
            ..
        } = self;
        Some(format!(
            "device {device} has KV cache for {pool} of the {context_tokens} tokens of {model}'s context: one whole \
             sequence takes a kv-memory of {}",
            Size(bytes.div_ceil(TOLD_BYTES).saturating_mul(TOLD_BYTES))
        ))
    }

    fn pool_tokens(&self) -> u32 {
        let KvShape {
            tokens_per_block,
            blocks_total,
        } = self.shape;
        tokens_per_block.saturating_mul(blocks_total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.1 8B on processors, in so many blocks.
    fn llama(blocks_total: u32) -> LongestSequence<'static> {
        LongestSequence {
            model: "llama",
            context_tokens: 131_072,
            device: "cpu0",
            shape: KvShape {
                tokens_per_block: 16,
                blocks_total,
            },
            block_bytes: 4 << 20,
        }
    }

    #[test]
    fn an_operator_is_told_how_much_memory_a_whole_context_takes() {
        let few = llama(16);
        assert_eq!(few.tokens(), 256);
        let told = "device cpu0 has KV cache for 256 of the 131072 tokens of llama's context: one whole sequence takes \
                    a kv-memory of 32GiB";
        assert_eq!(few.shortage().unwrap(), told);
        let enough = llama(1 << 13);
        assert_eq!((enough.tokens(), enough.shortage()), (131_072, None));
        let odd = LongestSequence {
            block_bytes: (4 << 20) + 1,
            ..few
        };
        assert!(odd.shortage().unwrap().ends_with(" 32769MiB"));
    }
}
