//! A model's architecture: `config.json` of a model like Llama, read and checked.
//!
//! Transformers 4 and 5 write the same model differently (`rope_theta` and `rope_scaling` against
//! `rope_parameters`); both end as one [`LlamaConfig`]. A key that would change the results and is
//! not built is refused by name; other keys are ignored. So are `dtype` and `torch_dtype`: the
//! files of weights carry their own types.
//!
//! # Invariants
//! 1. A [`LlamaConfig`] has sizes that fit together and are within bounds, so that products of
//!    them can be trusted (`config::tests`).
//!
//! # Not here
//! Special tokens and sampling defaults, which are the text side's.

mod rope;

use serde::Deserialize;
use serde_json::{Value, json};

pub use self::rope::{Rope, RopeScaling, Rotation};

use self::rope::RopeFile;
use super::files::{ModelFileError, ModelFiles};
use super::gguf::GgufConfigError;
use super::weights::fp8::BLOCK;

/// The configuration's file.
const FILE: &str = "config.json";
/// The families that are built, by the names of their architectures.
const FAMILIES: [(&str, Family); 4] = [
    ("LlamaForCausalLM", Family::Llama),
    ("MistralForCausalLM", Family::Mistral),
    ("Qwen2ForCausalLM", Family::Qwen2),
    ("Qwen3ForCausalLM", Family::Qwen3),
];

const VOCAB_MAX: usize = 1 << 22;
const WIDTH_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 1 << 10;
const HEADS_MAX: usize = 1 << 10;
const HEAD_DIM_MAX: usize = 1 << 10;
const CONTEXT_MAX: usize = 1 << 24;

/// Shape of a model like Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Rows of the embedding table, and logits per token.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside an MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key and value heads of a layer; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Longest sequence, in tokens: no longer than a sliding window, so that there is no need to slide it.
    pub context_tokens: u32,
    /// Added to the mean square in each RMSNorm.
    pub rms_norm_eps: f32,
    /// The rotation of queries and keys by their positions.
    pub rope: Rope,
    /// Bias of the projections to queries, keys and values.
    pub qkv_bias: Extra,
    /// Bias of the projection from attention.
    pub output_bias: Extra,
    /// Norms of each head's queries and keys, before they turn.
    pub head_norms: Extra,
    /// Bias of the projections of an MLP.
    pub mlp_bias: Extra,
    /// The projection of the last hidden state to logits.
    pub head: Head,
    /// The quantisation of its projections, as the file tells it.
    pub quantization: Quantization,
}

/// The presence of weights that not every model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// The model has none.
    Absent,
    /// The model has them.
    Present,
}

/// The projection to logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The embedding table serves for the projection.
    Tied,
    /// The projection is a matrix of its own.
    Own,
}

/// The quantisation of a model's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// They are numbers, whatever their type.
    None,
    /// They are codes of FP8 with scales.
    Fp8,
}

/// An error in `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelConfigError {
    /// The file exists and cannot be read.
    #[error(transparent)]
    Read(#[from] ModelFileError),
    /// The metadata of a GGUF file are damaged, or describe a model that cannot be run here.
    #[error(transparent)]
    Gguf(#[from] GgufConfigError),
    /// The file does not exist.
    #[error("{0} does not exist; a model folder in Hugging Face's layout has one")]
    Missing(String),
    /// The file is not JSON, or lacks a key.
    #[error("config.json is not a model's configuration")]
    Json(#[from] serde_json::Error),
    /// A choice is not built.
    #[error("config.json: {field} `{value}` is not supported; {supported}")]
    Unsupported {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// The choices that are built.
        supported: &'static str,
    },
    /// A number makes no sense.
    #[error("config.json: {field} is {value}; it must be {must}")]
    Value {
        /// The key in the file.
        field: &'static str,
        /// The value in the file.
        value: String,
        /// The values that would make sense.
        must: String,
    },
}

/// A family of models, which differ in what they have, and in what keys of the file mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// The keys of the file that count.
#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    architectures: Vec<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    /// The stretched context, in the configurations of some.
    max_sequence_length: Option<usize>,
    rms_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    partial_rotary_factor: Option<f32>,
    quantization_config: Option<Value>,
    // Transformers 5.
    rope_parameters: Option<RopeFile>,
    // Transformers 4.
    rope_theta: Option<f32>,
    rope_scaling: Option<RopeFile>,
}

// === impl LlamaConfig ===

impl LlamaConfig {
    /// Reads `config.json`, or the metadata of a GGUF file.
    ///
    /// # Errors
    /// If the file does not exist, cannot be read, or is refused by [`Self::parse`].
    pub fn load(files: &ModelFiles) -> Result<Self, ModelConfigError> {
        if let ModelFiles::Gguf(gguf) = files {
            return Ok(gguf.config()?);
        }
        let json = files.read(FILE)?;
        let json = json.ok_or_else(|| ModelConfigError::Missing(files.describe(FILE)))?;
        Self::parse(&json)
    }

    /// Parses the content of `config.json`.
    ///
    /// # Errors
    /// If the content is not JSON, lacks a key, or describes a model that cannot be run here.
    pub fn parse(json: &[u8]) -> Result<Self, ModelConfigError> {
        let file: ConfigFile = serde_json::from_slice(json)?;
        let family = file.family()?;
        let quantization = file.check_choices()?;
        let heads = sized("num_attention_heads", file.num_attention_heads, HEADS_MAX)?;
        let hidden_size = sized("hidden_size", file.hidden_size, WIDTH_MAX)?;
        let rope = file.rope()?;
        let attention_bias = Extra::from_file(file.attention_bias);
        Ok(Self {
            vocab_size: sized("vocab_size", file.vocab_size, VOCAB_MAX)?,
            hidden_size,
            intermediate_size: sized("intermediate_size", file.intermediate_size, WIDTH_MAX)?,
            layers: sized("num_hidden_layers", file.num_hidden_layers, LAYERS_MAX)?,
            heads,
            kv_heads: kv_heads(file.num_key_value_heads, heads)?,
            head_dim: head_dim(file.head_dim, hidden_size, heads)?,
            context_tokens: file.context_tokens(family, rope)?,
            rms_norm_eps: positive("rms_norm_eps", file.rms_norm_eps.unwrap_or(1e-6))?,
            rope,
            qkv_bias: match family {
                Family::Llama | Family::Qwen3 => attention_bias,
                Family::Mistral => Extra::Absent,
                Family::Qwen2 => Extra::Present,
            },
            output_bias: match family {
                Family::Llama | Family::Qwen3 => attention_bias,
                Family::Mistral | Family::Qwen2 => Extra::Absent,
            },
            head_norms: match family {
                Family::Llama | Family::Mistral | Family::Qwen2 => Extra::Absent,
                Family::Qwen3 => Extra::Present,
            },
            mlp_bias: match family {
                Family::Llama => Extra::from_file(file.mlp_bias),
                Family::Mistral | Family::Qwen2 | Family::Qwen3 => Extra::Absent,
            },
            head: match file.tie_word_embeddings {
                Some(true) => Head::Tied,
                Some(false) | None => Head::Own,
            },
            quantization,
        })
    }

    /// Width of a row of queries.
    #[must_use]
    pub fn q_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of a row of keys, and of one of values.
    #[must_use]
    pub fn kv_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Numbers that a token's keys and values are in all layers.
    #[must_use]
    pub fn kv_numbers_per_token(&self) -> usize {
        self.layers * 2 * self.kv_size()
    }

    /// Width of a row of queries, keys and values.
    #[must_use]
    pub fn qkv_size(&self) -> usize {
        self.q_size() + 2 * self.kv_size()
    }

    /// Query heads that share a key and value head.
    #[must_use]
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl Extra {
    fn from_file(flag: Option<bool>) -> Self {
        match flag {
            Some(true) => Self::Present,
            Some(false) | None => Self::Absent,
        }
    }
}

// === impl ConfigFile ===

impl ConfigFile {
    fn family(&self) -> Result<Family, ModelConfigError> {
        let named = |name: &String| FAMILIES.iter().find(|(known, _)| known == name);
        if let Some((_, family)) = self.architectures.iter().find_map(named) {
            return Ok(*family);
        }
        let supported =
            "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM are";
        unsupported("architectures", self.architectures.join(", "), supported)
    }

    /// Refuses choices that are not built. Returns that of a quantisation.
    fn check_choices(&self) -> Result<Quantization, ModelConfigError> {
        if let Some(activation) = self.hidden_act.as_ref().filter(|name| *name != "silu") {
            return unsupported("hidden_act", activation.clone(), "silu is");
        }
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            return unsupported("partial_rotary_factor", part.to_string(), "1 is");
        }
        let quantization = self.quantization_config.as_ref();
        quantization.map_or(Ok(Quantization::None), check_quantization)
    }

    fn rope(&self) -> Result<Rope, ModelConfigError> {
        let default = RopeFile::default();
        let file = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let file = file.unwrap_or(&default);
        let theta = file.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        Ok(Rope {
            theta: positive("rope_theta", theta)?,
            scaling: file.scaling(self.max_position_embeddings)?,
        })
    }

    /// The longest sequence. One that fits into a sliding window is computed as if there were none.
    fn context_tokens(&self, family: Family, rope: Rope) -> Result<u32, ModelConfigError> {
        let (context, stretched) = (self.max_position_embeddings, self.max_sequence_length);
        let context = rope.scaling.context(context, stretched);
        let context = sized("max_position_embeddings", context, CONTEXT_MAX)?;
        let slides = match family {
            Family::Llama => false,
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.use_sliding_window == Some(true),
        };
        let window = self.sliding_window.filter(|_| slides).unwrap_or(context);
        let context = context.min(sized("sliding_window", window, CONTEXT_MAX)?);
        Ok(u32::try_from(context).expect("the largest context fits into 32 bits"))
    }
}

// === checks ===

/// Refuses other ways of quantising than those whose weights are FP8. Their types and scales are checked where they
/// are found.
fn check_quantization(quantization: &Value) -> Result<Quantization, ModelConfigError> {
    let text = |key: &str| quantization.get(key).and_then(Value::as_str);
    let method = text("quant_method").unwrap_or("unnamed");
    let refuse = |value: String| {
        let supported = "weights in bf16, f16 or f32 are, and FP8 by the methods fp8, fbgemm_fp8 and \
                         compressed-tensors (format float-quantized)";
        unsupported("quantization_config", value, supported)
    };
    match method {
        "fp8" | "fbgemm_fp8" => match quantization.get("weight_block_size") {
            Some(size) if !size.is_null() && *size != json!([BLOCK, BLOCK]) => {
                refuse(format!("{method} of blocks {size}"))
            }
            Some(_) | None => Ok(Quantization::Fp8),
        },
        "compressed-tensors" => match text("format") {
            Some("float-quantized" | "naive-quantized") => Ok(Quantization::Fp8),
            format => refuse(format!(
                "{method} of format {}",
                format.unwrap_or("unnamed")
            )),
        },
        _ => refuse(method.to_owned()),
    }
}

fn sized(field: &'static str, value: usize, max: usize) -> Result<usize, ModelConfigError> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    refused(field, value, format!("between 1 and {max}"))
}

fn kv_heads(given: Option<usize>, heads: usize) -> Result<usize, ModelConfigError> {
    let kv_heads = sized("num_key_value_heads", given.unwrap_or(heads), heads)?;
    if heads.is_multiple_of(kv_heads) {
        return Ok(kv_heads);
    }
    let must = format!("a divisor of num_attention_heads, {heads}");
    refused("num_key_value_heads", kv_heads, must)
}

fn head_dim(
    given: Option<usize>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ModelConfigError> {
    if given.is_none() && !hidden_size.is_multiple_of(heads) {
        let must = format!("a multiple of num_attention_heads, {heads}, or head_dim be given");
        return refused("hidden_size", hidden_size, must);
    }
    let head_dim = sized(
        "head_dim",
        given.unwrap_or(hidden_size / heads),
        HEAD_DIM_MAX,
    )?;
    if head_dim.is_multiple_of(2) {
        return Ok(head_dim);
    }
    refused("head_dim", head_dim, "even".to_owned())
}

fn required(field: &'static str, value: Option<f32>) -> Result<f32, ModelConfigError> {
    match value {
        Some(value) => positive(field, value),
        None => refused(field, "absent", "given for this rope_type".to_owned()),
    }
}

fn positive(field: &'static str, value: f32) -> Result<f32, ModelConfigError> {
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    refused(field, value, "positive and finite".to_owned())
}

fn unsupported<T>(
    field: &'static str,
    value: String,
    supported: &'static str,
) -> Result<T, ModelConfigError> {
    Err(ModelConfigError::Unsupported {
        field,
        value,
        supported,
    })
}

fn refused<T>(
    field: &'static str,
    value: impl ToString,
    must: String,
) -> Result<T, ModelConfigError> {
    Err(ModelConfigError::Value {
        field,
        value: value.to_string(),
        must,
    })
}

#[cfg(test)]
mod tests;
