//! A model in one GGUF file, the format of llama.cpp.
//!
//! [`Gguf`] reads the head of a file. From its metadata come what Hugging Face's layout has in files of
//! their own: the architecture (`architecture`), the tokenizer, its templates and settings (`text`). Tensors
//! are read one by one, when the model is made of them.
//!
//! # Invariants
//! 1. No bytes make the reader panic, or take memory that the file does not have (`gguf` in
//!    `pointsman_tests::fuzz`; `tests/gguf`).
//! 2. A model has the same numbers, tokens and prompts as the folder that it was converted from, but for
//!    the rounding of `types` (`tests/gguf`).
//!
//! # Not here
//! The assembly of a model from its tensors (`super::weights`).

mod architecture;
mod error;
mod header;
mod sentencepiece;
mod text;
mod types;

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::error::GgufError;

use self::header::{Header, TensorInfo, Value};
use super::config::LlamaConfig;
use super::files::WeightsFile;
use super::weights::stored::{Place, RowOrder, StoredTensor};
use super::weights::{TensorSource, WeightsError};

/// A GGUF file whose head was read.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    /// The path, for errors.
    name: String,
    file: Arc<WeightsFile>,
    header: Header,
}

/// The metadata of a file, with its name for errors.
#[derive(Clone, Copy)]
struct Metadata<'a> {
    file: &'a str,
    header: &'a Header,
}

impl Gguf {
    /// Opens a file, and reads its head.
    ///
    /// # Errors
    /// If the file cannot be read, is none, is damaged or was cut short.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let name = path.display().to_string();
        let opened = pointsman_files::open(path);
        let opened = opened.and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = match opened {
            Ok(opened) => opened,
            Err(source) => return Err(GgufError::Read { file: name, source }),
        };
        let header = Header::read(&name, length, BufReader::new(&file))?;
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(WeightsFile::on_disk(name.clone(), file)),
            name,
            header,
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that Hugging Face's layout has under this name, made of the metadata; absent: the metadata
    /// have nothing for it.
    ///
    /// # Errors
    /// If the metadata have something for it that cannot be used.
    pub fn json(&self, name: &str) -> Result<Option<Vec<u8>>, GgufError> {
        self.metadata().json(name)
    }

    /// The architecture of the model.
    pub(super) fn config(&self) -> Result<LlamaConfig, GgufConfigError> {
        self.metadata().config()
    }

    /// Factors by which the wavelengths of a head's pairs grow, beside what the architecture says: Llama 3.1
    /// and its like have them in the place of a kind of scaling. Absent: there are none.
    pub(super) fn rope_factors(&self, head_dim: usize) -> Result<Option<Vec<f32>>, WeightsError> {
        const NAME: &str = "rope_freqs.weight";
        if !self.header.tensors.contains_key(NAME) {
            return Ok(None);
        }
        let factors = self.tensor(NAME, &[head_dim / 2])?.values()?.into_f32();
        if factors
            .iter()
            .all(|factor| *factor > 0.0 && factor.is_finite())
        {
            return Ok(Some(factors));
        }
        let why = format!("tensor {NAME} has numbers that are not positive");
        Err(GgufError::Damaged {
            file: self.name.clone(),
            why,
        }
        .into())
    }

    /// The tensors, by the names of Hugging Face's layout.
    pub(super) fn tensors(&self, config: &LlamaConfig) -> GgufTensors<'_> {
        GgufTensors {
            heads: self.metadata().interleaves().then_some(HeadCounts {
                queries: config.heads,
                keys: config.kv_heads,
            }),
            gguf: self,
        }
    }

    /// Finds a tensor by its name in the file.
    fn tensor(&self, name: &str, expected: &[usize]) -> Result<StoredTensor, GgufError> {
        let file = || self.name.clone();
        let Some(tensor) = self.header.tensors.get(name) else {
            return Err(GgufError::TensorMissing {
                file: file(),
                tensor: name.to_owned(),
            });
        };
        let TensorInfo { shape, kind, .. } = tensor;
        if shape != expected {
            return Err(GgufError::Shape {
                file: file(),
                tensor: name.to_owned(),
                found: shape.clone(),
                expected: expected.to_vec(),
            });
        }
        let Some(encoding) = kind.encoding() else {
            return Err(GgufError::Unsupported {
                file: file(),
                field: format!("the type of tensor {name},"),
                value: kind.to_string(),
                supported: "F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q5_0 and Q4_0 are",
            });
        };
        // No longer than the file: the head was held against its length.
        let place = Place::File(Arc::clone(&self.file), tensor.offset);
        Ok(StoredTensor::new(name, shape, (encoding, place)))
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata {
            file: &self.name,
            header: &self.header,
        }
    }
}

/// An error in the architecture of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufConfigError {
    /// The metadata are missing, or of a kind that is not built.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The sizes make no model.
    #[error("{file}: its metadata, written as config.json, are refused")]
    Refused {
        /// The path of the file.
        file: String,
        /// The reason.
        source: Box<super::config::ModelConfigError>,
    },
}

// === Tensors ===

/// The tensors of a file, by the names of Hugging Face's layout.
pub(super) struct GgufTensors<'a> {
    gguf: &'a Gguf,
    /// Present where rows of queries and keys are in another order: llama.cpp turns neighbours where
    /// others turn halves.
    heads: Option<HeadCounts>,
}

#[derive(Clone, Copy)]
struct HeadCounts {
    queries: usize,
    keys: usize,
}

/// Parts of the names of tensors: in Hugging Face's layout, and in GGUF.
const NAMES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
];

impl TensorSource for GgufTensors<'_> {
    fn find(&mut self, name: &str, expected: Vec<usize>) -> Result<StoredTensor, WeightsError> {
        let tensor = self.gguf.tensor(&gguf_name(name), &expected)?;
        let heads = match self.heads {
            Some(heads) if name.contains("q_proj") => heads.queries,
            Some(heads) if name.contains("k_proj") => heads.keys,
            Some(_) | None => return Ok(tensor),
        };
        Ok(tensor.in_order(RowOrder::Alternating { heads }))
    }
}

/// The name in the file of a tensor of Hugging Face's layout.
fn gguf_name(name: &str) -> String {
    let (part, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let in_layer = part.strip_prefix("model.layers.");
    let in_layer = in_layer.and_then(|rest| rest.split_once('.'));
    let named = |part: &str| {
        let found = NAMES.iter().find(|(known, _)| *known == part);
        found.map_or_else(|| part.to_owned(), |(_, named)| (*named).to_owned())
    };
    match in_layer {
        Some((layer, part)) => format!("blk.{layer}.{}.{kind}", named(part)),
        None => format!("{}.{kind}", named(part)),
    }
}

// === impl Metadata ===

impl<'a> Metadata<'a> {
    fn value(self, key: &str) -> Option<&'a Value> {
        self.header.metadata.get(key)
    }

    fn text(self, key: &str) -> Result<Option<&'a str>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "text")),
        }
    }

    fn flag(self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "flag")),
        }
    }

    fn texts(self, key: &str) -> Result<Option<&'a [String]>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            Some(_) => Err(self.wrong(key, "list of texts")),
        }
    }

    fn numbers(self, key: &str) -> Result<Option<&'a [f64]>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Numbers(numbers)) => Ok(Some(numbers)),
            Some(_) => Err(self.wrong(key, "list of numbers")),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a number of the metadata may be either"
    )]
    fn float(self, key: &str) -> Result<Option<f64>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(self.wrong(key, "number")),
        }
    }

    /// A count; of a list with one for each layer, the one that all have.
    fn count(self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Integer(number)) => match u64::try_from(*number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(key, "count")),
            },
            Some(Value::Numbers(numbers)) => match numbers.first() {
                Some(first) if numbers.iter().all(|it| it == first) => whole(*first)
                    .map(Some)
                    .ok_or_else(|| self.wrong(key, "count")),
                _ => self.unsupported(key, format!("{numbers:?}"), "the same for all layers is"),
            },
            Some(_) => Err(self.wrong(key, "count")),
        }
    }

    fn wrong(self, key: &str, kind: &'static str) -> GgufError {
        GgufError::Key {
            file: self.file.to_owned(),
            key: key.to_owned(),
            kind,
        }
    }

    fn unsupported<T>(
        self,
        field: &str,
        value: String,
        supported: &'static str,
    ) -> Result<T, GgufError> {
        GgufError::unsupported(self.file, (field, value), supported)
    }
}

/// A whole number that is not negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range was checked"
)]
fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..9e15).contains(&number);
    is_whole.then_some(number as u64)
}

/// Reads bytes as a whole file: its head, its architecture and its text side, for tests of damaged files.
///
/// # Errors
/// What is wrong with it.
pub fn try_head(bytes: &[u8]) -> Result<(), String> {
    let (file, length) = ("model.gguf", bytes.len() as u64);
    let header = Header::read(file, length, bytes).map_err(|error| error.to_string())?;
    let metadata = Metadata {
        file,
        header: &header,
    };
    metadata.config().map_err(|error| error.to_string())?;
    for name in text::FILES {
        metadata.json(name).map_err(|error| error.to_string())?;
    }
    Ok(())
}
