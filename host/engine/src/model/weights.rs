//! Weights from safetensors files: `model.safetensors`, or the shards that
//! `model.safetensors.index.json` names.
//!
//! Nothing is rounded: bf16 stays bf16, and f16 and f32 are kept as f32, at the price of memory.
//! Files are read one after the other and dropped as soon as their tensors are taken out; at its
//! peak, loading needs the memory of the weights and of the largest file.
//!
//! # Invariants
//! Held by `tests/weights.rs`.
//! 1. A loaded [`HostLlama`] has exactly the shapes that its configuration asks for.
//! 2. The spread of tensors over files changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use super::config::{Extra, Head, LlamaConfig};
use super::files::{ModelFileError, ModelFiles};
use super::graph::{HeadNorms, Layer, Linear, Llama};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a model in this machine's memory.
pub type HostLlama = Llama<Matrix, Vec<f32>>;

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
    /// Neither a file nor an index of shards exists.
    #[error(
        "neither {single} nor {index} exists; weights in other formats must be converted to \
         safetensors"
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
    /// A tensor has a type that is not built.
    #[error(
        "{file}: tensor {tensor} has type {found}; BF16, F16 and F32 are supported, and \
         quantised weights are not"
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

/// Loads the weights of the model that `config` describes.
///
/// # Errors
/// If files are missing, cannot be read or are damaged, or are not those of this model.
pub fn load(files: &ModelFiles, config: &LlamaConfig) -> Result<HostLlama, WeightsError> {
    let mut tensors = Tensors::read(files)?;
    if tensors.widened() {
        tracing::info!("weights that are not bf16 are kept in f32");
    }
    let layers = (0..config.layers).map(|layer| tensors.layer(config, layer));
    let layers = layers.collect::<Result<_, _>>()?;
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    Ok(Llama {
        embedding: tensors.matrix(&[Part::new("model.embed_tokens.weight", vocab)], hidden)?,
        layers,
        norm: tensors.vector(&[Part::new("model.norm.weight", hidden)])?,
        head: match config.head {
            Head::Tied => None,
            Head::Own => Some(tensors.matrix(&[Part::new("lm_head.weight", vocab)], hidden)?),
        },
    })
}

/// The tensors of the files that are not yet taken.
struct Tensors {
    /// The place that errors name for a tensor that is nowhere.
    place: String,
    by_name: BTreeMap<String, Tensor>,
}

struct Tensor {
    file: String,
    shape: Vec<usize>,
    /// The numbers, or a type that is not built: the model may not need the tensor.
    values: Result<Values, Dtype>,
}

/// A tensor that the model needs.
struct Part {
    name: String,
    /// Number of rows, or of elements.
    size: usize,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

// === impl Tensors ===

impl Tensors {
    fn read(files: &ModelFiles) -> Result<Self, WeightsError> {
        let (single, index) = (files.describe(SINGLE), files.describe(INDEX));
        if let Some(bytes) = files.read(SINGLE)? {
            let mut tensors = Self::in_place(single.clone());
            tensors.add(single, &bytes)?;
            return Ok(tensors);
        }
        let Some(json) = files.read(INDEX)? else {
            return Err(WeightsError::NoWeights { single, index });
        };
        let mut tensors = Self::in_place(index);
        for name in shards(&json, &tensors.place)? {
            let shard = files.describe(&name);
            let Some(bytes) = files.read(&name)? else {
                let index = tensors.place;
                return Err(WeightsError::ShardMissing { shard, index });
            };
            tensors.add(shard, &bytes)?;
        }
        Ok(tensors)
    }

    fn in_place(place: String) -> Self {
        Self {
            place,
            by_name: BTreeMap::new(),
        }
    }

    fn add(&mut self, file: String, bytes: &[u8]) -> Result<(), WeightsError> {
        let content = match SafeTensors::deserialize(bytes) {
            Ok(content) => content,
            Err(source) => return Err(WeightsError::Damaged { file, source }),
        };
        for (name, view) in content.iter() {
            let tensor = Tensor {
                file: file.clone(),
                shape: view.shape().to_vec(),
                values: values(&view),
            };
            self.by_name.insert(name.to_owned(), tensor);
        }
        Ok(())
    }

    fn widened(&self) -> bool {
        let mut tensors = self.by_name.values();
        tensors.any(|tensor| matches!(tensor.values, Ok(Values::F32(_))))
    }

    fn layer(
        &mut self,
        config: &LlamaConfig,
        layer: usize,
    ) -> Result<Layer<Matrix, Vec<f32>>, WeightsError> {
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
    ) -> Result<Linear<Matrix, Vec<f32>>, WeightsError> {
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

    /// Stacks the rows of all parts.
    fn matrix(&mut self, parts: &[Part], cols: usize) -> Result<Matrix, WeightsError> {
        let parts = parts.iter();
        let parts = parts.map(|part| self.take(&part.name, vec![part.size, cols]));
        let values = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Matrix {
            cols,
            values: Values::join(values),
        })
    }

    /// Stacks the elements of all parts.
    fn vector(&mut self, parts: &[Part]) -> Result<Vec<f32>, WeightsError> {
        let parts = parts.iter();
        let parts = parts.map(|part| self.take(&part.name, vec![part.size]));
        let values = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Values::join(values).into_f32())
    }

    fn take(&mut self, name: &str, expected: Vec<usize>) -> Result<Values, WeightsError> {
        let Some(found) = self.by_name.remove(name) else {
            return Err(WeightsError::TensorMissing {
                tensor: name.to_owned(),
                place: self.place.clone(),
            });
        };
        if found.shape != expected {
            return Err(WeightsError::Shape {
                file: found.file,
                tensor: name.to_owned(),
                found: found.shape,
                expected,
            });
        }
        found.values.map_err(|dtype| WeightsError::Type {
            file: found.file,
            tensor: name.to_owned(),
            found: dtype,
        })
    }
}

/// Returns the files that an index names, each once.
fn shards(json: &[u8], index: &str) -> Result<BTreeSet<String>, WeightsError> {
    match serde_json::from_slice::<Index>(json) {
        Ok(content) => Ok(content.weight_map.into_values().collect()),
        Err(source) => Err(WeightsError::Index {
            index: index.to_owned(),
            source,
        }),
    }
}

fn values(tensor: &TensorView<'_>) -> Result<Values, Dtype> {
    let (pairs, _) = tensor.data().as_chunks::<2>();
    let dtype = tensor.dtype();
    if dtype == Dtype::BF16 {
        let values = pairs.iter().map(|pair| bf16::from_le_bytes(*pair));
        Ok(Values::Bf16(values.collect()))
    } else if dtype == Dtype::F16 {
        let values = pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32());
        Ok(Values::F32(values.collect()))
    } else if dtype == Dtype::F32 {
        let (quads, _) = tensor.data().as_chunks::<4>();
        let values = quads.iter().map(|quad| f32::from_le_bytes(*quad));
        Ok(Values::F32(values.collect()))
    } else {
        Err(dtype)
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

    fn into_f32(self) -> Vec<f32> {
        match self {
            Values::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
            Values::F32(values) => values,
        }
    }
}
