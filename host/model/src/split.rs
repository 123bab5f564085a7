//! A model split over several devices: each, a rank, has a part of every projection, and all have the rest.
//!
//! Of attention a rank has some heads, with their keys and values; of an MLP some of the numbers inside. So projections
//! into them are split by rows, and those back to the residual stream by columns: their outputs, added up over the ranks
//! ([`Ops::sum`](super::ops::Ops::sum)), are those of the whole. Their bias is the first rank's alone, and so is the projection to
//! logits, which is not split. A part is a model of its own, with a configuration to which its sizes fit.
//!
//! # Invariants
//! 1. The parts of a matrix are all of it, however it is stored (`tests/split.rs`); no rank reads more of it than its own.

use super::config::{Head, LlamaConfig};
use super::graph::{Layer, Linear, Llama};
use super::open::OpenModel;
use super::weights::fp8::{Fp8Tensor, StackedFp8};
use super::weights::stored::StoredTensor;
use super::weights::{Stacked, StoredLlama, StoredMatrix};

/// A rank among those over which a model is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The number of the rank, from 0.
    pub index: usize,
    /// Number of ranks.
    pub count: usize,
}

/// The reason why a model cannot be split over so many ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// A size is no multiple of the number of ranks.
    #[error(
        "a model whose {field} is {size} cannot be split over {ranks} devices, each of which would need as many"
    )]
    Size {
        /// The key of `config.json`.
        field: &'static str,
        /// The size.
        size: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// Numbers that are read or scaled together would be in two parts.
    #[error(
        "tensor {tensor} has rows of {cols} numbers in blocks of {block}, and cannot be split over {ranks} devices \
         without splitting blocks; use fewer devices"
    )]
    Block {
        /// The tensor's name.
        tensor: String,
        /// Numbers in a row.
        cols: usize,
        /// Numbers in a block.
        block: usize,
        /// Number of ranks.
        ranks: usize,
    },
}

impl Rank {
    /// The only rank of a model that is not split.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// All ranks of so many.
    pub fn all(count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns true for the rank that has what is not split.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// The rank's part of so many things.
    fn range(self, things: usize) -> std::ops::Range<usize> {
        let each = things / self.count;
        self.index * each..(self.index + 1) * each
    }
}

impl OpenModel {
    /// The rank's part of the model.
    ///
    /// # Errors
    /// If the model cannot be split over so many ranks.
    pub fn part(&self, rank: Rank) -> Result<Self, SplitError> {
        Ok(Self::of_parts(
            self.config().part(rank)?,
            part_of_weights(self.weights(), rank)?,
            self.rotation().clone(),
        ))
    }
}

impl LlamaConfig {
    /// The configuration of a rank's part.
    ///
    /// # Errors
    /// If a size is no multiple of the number of ranks.
    pub fn part(&self, rank: Rank) -> Result<Self, SplitError> {
        let divided = |field, size: usize| match size.is_multiple_of(rank.count) {
            true => Ok(size / rank.count),
            false => Err(SplitError::Size {
                field,
                size,
                ranks: rank.count,
            }),
        };
        Ok(Self {
            heads: divided("num_attention_heads", self.heads)?,
            kv_heads: divided("num_key_value_heads", self.kv_heads)?,
            intermediate_size: divided("intermediate_size", self.intermediate_size)?,
            head: match rank.is_first() {
                true => self.head,
                // It has none, of whatever kind.
                false => Head::Tied,
            },
            ..self.clone()
        })
    }
}

fn part_of_weights(whole: &StoredLlama, rank: Rank) -> Result<StoredLlama, SplitError> {
    let layers = whole.layers.iter().map(|layer| part_of_layer(layer, rank));
    Ok(Llama {
        embedding: whole.embedding.clone(),
        layers: layers.collect::<Result<_, _>>()?,
        norm: whole.norm.clone(),
        head: whole.head.clone().filter(|_| rank.is_first()),
    })
}

type StoredLayer = Layer<StoredMatrix, Stacked>;
type StoredLinear = Linear<StoredMatrix, Stacked>;

fn part_of_layer(whole: &StoredLayer, rank: Rank) -> Result<StoredLayer, SplitError> {
    Ok(Layer {
        attention_norm: whole.attention_norm.clone(),
        qkv: by_rows(&whole.qkv, rank),
        head_norms: whole.head_norms.clone(),
        output: by_cols(&whole.output, rank)?,
        mlp_norm: whole.mlp_norm.clone(),
        gate_up: by_rows(&whole.gate_up, rank),
        down: by_cols(&whole.down, rank)?,
    })
}

/// The rank's rows of each tensor of a projection.
fn by_rows(whole: &StoredLinear, rank: Rank) -> StoredLinear {
    let weight = match &whole.weight {
        StoredMatrix::Numbers(stacked) => {
            let tensors = stacked.tensors.iter();
            let part = |tensor: &StoredTensor| tensor.rows_part(rank.range(tensor.rows()));
            StoredMatrix::Numbers(Stacked {
                cols: stacked.cols,
                tensors: tensors.map(part).collect(),
            })
        }
        StoredMatrix::Fp8(stacked) => {
            let tensors = stacked.tensors.iter();
            let part =
                |tensor: &Fp8Tensor| tensor.rows_part(rank.range(tensor.rows()), stacked.cols);
            StoredMatrix::Fp8(StackedFp8 {
                cols: stacked.cols,
                tensors: tensors.map(part).collect(),
            })
        }
    };
    let bias = whole.bias.as_ref().map(|bias| {
        let part = |tensor: &StoredTensor| tensor.vector_part(rank.range(tensor.numbers()));
        Stacked {
            cols: bias.cols / rank.count,
            tensors: bias.tensors.iter().map(part).collect(),
        }
    });
    Linear { weight, bias }
}

/// The rank's columns of a projection, and the bias for the first rank.
fn by_cols(whole: &StoredLinear, rank: Rank) -> Result<StoredLinear, SplitError> {
    let weight = match &whole.weight {
        StoredMatrix::Numbers(stacked) => {
            let range = rank.range(stacked.cols);
            let tensors = stacked.tensors.iter().map(|tensor| {
                let block = tensor.block();
                check_block(tensor.name(), (stacked.cols, block), rank)?;
                Ok(tensor.cols_part(range.clone()))
            });
            StoredMatrix::Numbers(Stacked {
                cols: range.len(),
                tensors: tensors.collect::<Result<_, _>>()?,
            })
        }
        StoredMatrix::Fp8(stacked) => {
            let range = rank.range(stacked.cols);
            let tensors = stacked.tensors.iter().map(|tensor| {
                let block = tensor.scaled_cols(stacked.cols).unwrap_or(1);
                check_block(tensor.name(), (stacked.cols, block), rank)?;
                Ok(tensor.cols_part(range.clone(), stacked.cols))
            });
            StoredMatrix::Fp8(StackedFp8 {
                cols: range.len(),
                tensors: tensors.collect::<Result<_, _>>()?,
            })
        }
    };
    Ok(Linear {
        weight,
        bias: whole.bias.clone().filter(|_| rank.is_first()),
    })
}

/// Checks that no block of a row would be in two parts.
fn check_block(tensor: &str, (cols, block): (usize, usize), rank: Rank) -> Result<(), SplitError> {
    if rank.count == 1 || (cols / rank.count).is_multiple_of(block) {
        return Ok(());
    }
    Err(SplitError::Block {
        tensor: tensor.to_owned(),
        cols,
        block,
        ranks: rank.count,
    })
}
