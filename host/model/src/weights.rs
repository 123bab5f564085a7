//! Weights: a model put together from tensors, which are in safetensors files or a GGUF file
//! ([`super::gguf`]), or are made ([`super::dummy`]).
//!
//! A model is first put together of tensors where they are ([`StoredLlama`]), which reads heads of files alone. A
//! device reads from those what it needs, piece by piece; [`HostLlama`] is all of it in this machine's memory.
//!
//! # Invariants
//! Held by `tests/weights.rs`.
//! 1. A [`StoredLlama`] has exactly the shapes that its configuration asks for.
//! 2. The spread of tensors over files changes nothing.

pub(super) mod encoding;
mod files;
pub mod fp8;
pub(super) mod stored;

use half::bf16;
use safetensors::{Dtype, SafeTensorError};

use super::config::{Extra, Head, LlamaConfig};
use super::files::{ModelFileError, ModelFiles};
use super::gguf::GgufError;
use super::graph::{HeadNorms, Layer, Linear, Llama};

use files::Tensors;
use fp8::{Fp8Tensor, StackedFp8};

pub use stored::StoredTensor;

/// The weights of a model in this machine's memory.
pub type HostLlama = Llama<Matrix, Vec<f32>>;
/// The weights of a model where they are stored.
pub type StoredLlama = Llama<StoredMatrix, Stacked>;

/// A matrix where it is stored.
#[derive(Clone, Debug)]
pub enum StoredMatrix {
    /// Numbers.
    Numbers(Stacked),
    /// Numbers in FP8, with scales beside them.
    Fp8(StackedFp8),
}

/// Tensors of one matrix, whose rows are one after the other, or of one vector.
#[derive(Clone, Debug)]
pub struct Stacked {
    /// Numbers in a row.
    pub cols: usize,
    /// The tensors, in order.
    pub tensors: Vec<StoredTensor>,
}

/// A matrix, row by row.
#[derive(Debug)]
pub struct Matrix {
    /// Numbers in a row.
    pub cols: usize,
    /// Rows, one after the other.
    pub values: Values,
}

/// The numbers of a matrix.
#[derive(Debug)]
pub enum Values {
    /// Numbers as in the file.
    Bf16(Vec<bf16>),
    /// Numbers as in the file, or widened where that has f16.
    F32(Vec<f32>),
}

/// An error in the files of weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file exists and cannot be read.
    #[error(transparent)]
    Read(#[from] ModelFileError),
    /// The GGUF file is damaged, or of a kind that is not built.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A tensor that was found cannot be read any more.
    #[error("tensor {tensor} of {file} cannot be read")]
    Unread {
        /// The tensor's name.
        tensor: String,
        /// The path of the file.
        file: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Neither a file nor an index of shards exists.
    #[error(
        "neither {single} nor {index} exists; weights in other formats must be converted to \
         safetensors or GGUF"
    )]
    NoWeights {
        /// The path of the file.
        single: String,
        /// The path of the index.
        index: String,
    },
    /// The index makes no sense.
    #[error("{index} is not an index of weights")]
    Index {
        /// The path of the index.
        index: String,
        /// The parser's error, with its place.
        #[source]
        source: serde_json::Error,
    },
    /// A shard does not exist.
    #[error("{shard} does not exist, but {index} names it; the download may be incomplete")]
    ShardMissing {
        /// The path of the shard.
        shard: String,
        /// The path of the index.
        index: String,
    },
    /// A file is no safetensors file, or not all of one.
    #[error("{file} is damaged or was cut short; fetch it again")]
    Damaged {
        /// The path of the file.
        file: String,
        /// The format library's error.
        #[source]
        source: SafeTensorError,
    },
    /// The model needs a tensor that is in no file.
    #[error("{place} has no tensor {tensor}; it belongs to another model than config.json")]
    TensorMissing {
        /// The tensor's name.
        tensor: String,
        /// The path of the file, or of the index of all files.
        place: String,
    },
    /// The model only embeds: it has no head, and the configuration asks for one.
    #[error(
        "{place} has no tensor lm_head.weight, and config.json asks for one: the model only embeds; set \
         tie_word_embeddings to true there to embed with it, and generate nothing with it"
    )]
    HeadMissing {
        /// The path of the file, or of the index of all files.
        place: String,
    },
    /// A tensor has not the shape that the configuration asks for.
    #[error(
        "{file}: tensor {tensor} has shape {found:?}, and config.json asks for {expected:?}; \
         they belong to different models"
    )]
    Shape {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape.
        found: Vec<usize>,
        /// The configuration's shape.
        expected: Vec<usize>,
    },
    /// Weights are in FP8, and are to be computed by processors.
    #[error(
        "tensor {tensor} is FP8, which only CUDA devices of compute capability 8.9 or newer compute; serve the model \
         there, or its weights in bf16 here"
    )]
    Fp8OnProcessors {
        /// The name of one of the tensors.
        tensor: String,
    },
    /// A tensor in FP8 has no scale.
    #[error(
        "{file}: tensor {tensor} is FP8, and has neither {tensor}_scale nor {tensor}_scale_inv beside it"
    )]
    ScaleMissing {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
    },
    /// The scales of a tensor in FP8 are of a shape that is not built.
    #[error(
        "{file}: scales {tensor} have shape {found:?}, and their weights {of:?}; one scale for all, one for each row, \
         and one for each 128 by 128 numbers are supported"
    )]
    ScaleShape {
        /// The path of the file.
        file: String,
        /// The name of the scales' tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape of the weights.
        of: [usize; 2],
    },
    /// A scale is no number, or not positive.
    #[error("{file}: scales {tensor} are not all positive numbers; fetch it again")]
    ScaleValue {
        /// The path of the file.
        file: String,
        /// The name of the scales' tensor.
        tensor: String,
    },
    /// A tensor in FP8 has a code that is no number.
    #[error("{file}: tensor {tensor} has weights that are not a number; fetch it again")]
    NotANumber {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
    },
    /// Of tensors that are one matrix here, some are in FP8 and some are not.
    #[error(
        "tensor {tensor} is FP8 and {other} is not, which are multiplied together; both have to be of one type"
    )]
    PartlyFp8 {
        /// The name of the first tensor in FP8.
        tensor: String,
        /// The name of the first that is not.
        other: String,
    },
    /// A tensor has a type that is not built.
    #[error(
        "{file}: tensor {tensor} has type {found}; BF16, F16 and F32 are supported, for projections within layers \
         F8_E4M3, and other quantised weights are not"
    )]
    Type {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The tensor's type.
        found: Dtype,
    },
}

/// Finds the weights of the model that `config` describes.
///
/// # Errors
/// If files are missing, cannot be read or are damaged, or are not those of this model.
pub(super) fn find(files: &ModelFiles, config: &LlamaConfig) -> Result<StoredLlama, WeightsError> {
    match files {
        ModelFiles::Folder(_) | ModelFiles::Embedded(_) => {
            Assembly(Tensors::read(files)?).model(config)
        }
        ModelFiles::Gguf(gguf) => Assembly(gguf.tensors(config)).model(config),
        ModelFiles::Dummy(dummy) => Assembly(dummy).model(config),
    }
}

/// The place from which a model's tensors come.
pub(super) trait TensorSource {
    /// Finds a tensor by its name in Hugging Face's layout, of this shape.
    fn find(&mut self, name: &str, shape: Vec<usize>) -> Result<StoredTensor, WeightsError>;

    /// Finds the tensor of a projection within a layer, which may be in FP8.
    fn find_projection(
        &mut self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Projection, WeightsError> {
        Ok(Projection::Numbers(self.find(name, shape.to_vec())?))
    }
}

/// The tensor of a projection.
pub(super) enum Projection {
    Numbers(StoredTensor),
    Fp8(Fp8Tensor),
}

/// A model that is put together.
struct Assembly<S>(S);

/// A tensor that the model needs.
struct Part {
    name: String,
    /// Number of rows, or of elements.
    size: usize,
}

// === impl Assembly ===

impl<S: TensorSource> Assembly<S> {
    fn model(mut self, config: &LlamaConfig) -> Result<StoredLlama, WeightsError> {
        let layers = (0..config.layers).map(|layer| self.layer(config, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        Ok(Llama {
            embedding: self.table("model.embed_tokens.weight", [vocab, hidden])?,
            layers,
            norm: self.vector(&[Part::new("model.norm.weight", hidden)])?,
            head: match config.head {
                Head::Tied => None,
                Head::Own => Some(self.table("lm_head.weight", [vocab, hidden])?),
            },
        })
    }

    fn layer(
        &mut self,
        config: &LlamaConfig,
        layer: usize,
    ) -> Result<Layer<StoredMatrix, Stacked>, WeightsError> {
        let hidden = config.hidden_size;
        let (q, kv, inner) = (config.q_size(), config.kv_size(), config.intermediate_size);
        let part = |name: &str, size| Part::new(format!("model.layers.{layer}.{name}"), size);
        let norm = |name: &str| [part(&format!("{name}_layernorm.weight"), hidden)];
        let qkv = [
            part("self_attn.q_proj", q),
            part("self_attn.k_proj", kv),
            part("self_attn.v_proj", kv),
        ];
        let output = [part("self_attn.o_proj", hidden)];
        let gate_up = [part("mlp.gate_proj", inner), part("mlp.up_proj", inner)];
        let down = [part("mlp.down_proj", hidden)];
        Ok(Layer {
            attention_norm: self.vector(&norm("input"))?,
            qkv: self.linear(&qkv, hidden, config.qkv_bias)?,
            head_norms: match config.head_norms {
                Extra::Absent => None,
                Extra::Present => Some(HeadNorms {
                    query: self.vector(&[part("self_attn.q_norm.weight", config.head_dim)])?,
                    key: self.vector(&[part("self_attn.k_norm.weight", config.head_dim)])?,
                }),
            },
            output: self.linear(&output, q, config.output_bias)?,
            mlp_norm: self.vector(&norm("post_attention"))?,
            gate_up: self.linear(&gate_up, hidden, config.mlp_bias)?,
            down: self.linear(&down, inner, config.mlp_bias)?,
        })
    }

    /// Stacks projections of one input.
    fn linear(
        &mut self,
        parts: &[Part],
        cols: usize,
        bias: Extra,
    ) -> Result<Linear<StoredMatrix, Stacked>, WeightsError> {
        let of_each = |kind: &str| -> Vec<Part> {
            let parts = parts.iter();
            let parts = parts.map(|part| Part::new(format!("{}.{kind}", part.name), part.size));
            parts.collect()
        };
        Ok(Linear {
            weight: self.matrix(&of_each("weight"), cols)?,
            bias: match bias {
                Extra::Absent => None,
                Extra::Present => Some(self.vector(&of_each("bias"))?),
            },
        })
    }

    /// A matrix with a row for each token of the vocabulary.
    fn table(&mut self, name: &str, shape: [usize; 2]) -> Result<StoredMatrix, WeightsError> {
        Ok(StoredMatrix::Numbers(Stacked {
            cols: shape[1],
            tensors: vec![self.0.find(name, shape.to_vec())?],
        }))
    }

    /// Stacks the rows of all parts.
    fn matrix(&mut self, parts: &[Part], cols: usize) -> Result<StoredMatrix, WeightsError> {
        let (mut numbers, mut fp8) = (Vec::new(), Vec::new());
        for part in parts {
            match self.0.find_projection(&part.name, [part.size, cols])? {
                Projection::Numbers(tensor) => numbers.push(tensor),
                Projection::Fp8(tensor) => fp8.push(tensor),
            }
        }
        match (numbers.first(), fp8.first()) {
            (Some(other), Some(first)) => Err(WeightsError::PartlyFp8 {
                tensor: first.name().to_owned(),
                other: other.name().to_owned(),
            }),
            (None, Some(_)) => Ok(StoredMatrix::Fp8(StackedFp8 { cols, tensors: fp8 })),
            (_, None) => {
                let tensors = numbers;
                Ok(StoredMatrix::Numbers(Stacked { cols, tensors }))
            }
        }
    }

    /// Stacks the elements of all parts.
    fn vector(&mut self, parts: &[Part]) -> Result<Stacked, WeightsError> {
        let cols = parts.iter().map(|part| part.size).sum();
        let parts = parts.iter();
        let parts = parts.map(|part| self.0.find(&part.name, vec![part.size]));
        Ok(Stacked {
            cols,
            tensors: parts.collect::<Result<_, _>>()?,
        })
    }
}

// === impl StoredMatrix ===

impl StoredMatrix {
    /// Bytes that all of it takes where it is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Numbers(numbers) => numbers.bytes(),
            Self::Fp8(fp8) => fp8.tensors.iter().map(Fp8Tensor::bytes).sum(),
        }
    }

    /// Number of its tensors, without scales.
    #[must_use]
    pub fn tensors(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.tensors.len(),
            Self::Fp8(fp8) => fp8.tensors.len(),
        }
    }

    /// Reads the matrix for processors.
    ///
    /// # Errors
    /// If it cannot be read, or is in FP8.
    pub fn matrix(&self) -> Result<Matrix, WeightsError> {
        match self {
            Self::Numbers(numbers) => numbers.matrix(),
            Self::Fp8(fp8) => Err(fp8.on_processors()),
        }
    }

    /// True where processors keep numbers of it in f32.
    pub(super) fn is_widened(&self) -> bool {
        match self {
            Self::Numbers(numbers) => numbers.is_widened(),
            Self::Fp8(_) => false,
        }
    }

    /// Bytes that it takes in the memory of processors; 0 in FP8, which they refuse.
    pub(super) fn bytes_in_memory(&self) -> u64 {
        match self {
            Self::Numbers(numbers) if numbers.is_widened() => {
                (numbers.numbers() * size_of::<f32>()) as u64
            }
            Self::Numbers(numbers) => (numbers.numbers() * size_of::<bf16>()) as u64,
            Self::Fp8(_) => 0,
        }
    }
}

// === impl Stacked ===

impl Stacked {
    /// Number of rows of a matrix.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tensors.iter().map(StoredTensor::rows).sum()
    }

    /// Bytes that all of it takes where it is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(StoredTensor::bytes).sum()
    }

    /// Number of its numbers.
    pub(super) fn numbers(&self) -> usize {
        self.tensors.iter().map(StoredTensor::numbers).sum()
    }

    fn matrix(&self) -> Result<Matrix, WeightsError> {
        Ok(Matrix {
            cols: self.cols,
            values: self.values()?,
        })
    }

    /// Reads the vector.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn vector(&self) -> Result<Vec<f32>, WeightsError> {
        Ok(self.values()?.into_f32())
    }

    fn values(&self) -> Result<Values, WeightsError> {
        let parts = self.tensors.iter().map(StoredTensor::values);
        Ok(Values::join(parts.collect::<Result<_, _>>()?))
    }

    /// True where processors keep numbers of it in f32.
    pub(super) fn is_widened(&self) -> bool {
        self.tensors.iter().any(StoredTensor::is_widened)
    }
}

impl Part {
    fn new(name: impl Into<String>, size: usize) -> Self {
        let name = name.into();
        Self { name, size }
    }
}

// === impl Values ===

impl Values {
    /// Puts parts one after the other; as bf16 if all of them are.
    fn join(mut parts: Vec<Values>) -> Values {
        if parts.len() == 1 {
            return parts.swap_remove(0);
        }
        let bf16s: Option<Vec<&[bf16]>> = parts.iter().map(Values::as_bf16).collect();
        match bf16s {
            Some(parts) => Values::Bf16(parts.concat()),
            None => Values::F32(parts.into_iter().flat_map(Values::into_f32).collect()),
        }
    }

    fn as_bf16(&self) -> Option<&[bf16]> {
        match self {
            Values::Bf16(values) => Some(values),
            Values::F32(_) => None,
        }
    }

    pub(super) fn into_f32(self) -> Vec<f32> {
        match self {
            Values::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
            Values::F32(values) => values,
        }
    }
}
