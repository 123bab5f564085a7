//! A model of random weights: any architecture, and no files but its `config.json`.
//!
//! What is measured with it is real but for the texts: sizes, memory, time. Where there is no tokenizer
//! beside `config.json`, each byte of a text is a token: the model has to have 256 tokens then.
//!
//! # Determinism
//! A weight follows from the seed, the tensor's name and its place, by integers alone: it is the same on
//! every machine.
//!
//! # Invariants
//! 1. Any configuration that can be read can be served (`tests/dummy.rs`).

use std::path::{Path, PathBuf};

use half::bf16;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::weights::encoding::Encoding;
use super::weights::stored::{Place, StoredTensor};
use super::weights::{TensorSource, WeightsError};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Numbers that are made of one random number.
const NUMBERS: usize = 8;
/// Numbers that a thread makes at once.
const NUMBERS_AT_ONCE: usize = 1 << 16;

/// A template for a model that has none: the messages, a line each.
const TEMPLATE: &str =
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}";

/// A model of random weights.
#[derive(Clone, Debug)]
pub struct Dummy {
    config: PathBuf,
    folder: PathBuf,
    seed: u64,
}

impl Dummy {
    /// The model of this `config.json`, or of the one in this folder.
    #[must_use]
    pub fn new(path: &Path, seed: u64) -> Self {
        let folder = match path.is_file() {
            true => path.parent().unwrap_or(Path::new("")),
            false => path,
        };
        Self {
            config: match path.is_file() {
                true => path.to_owned(),
                false => path.join(CONFIG),
            },
            folder: folder.to_owned(),
            seed,
        }
    }

    /// The place of the file `name`; absent: the text side is made, and the file does not count.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let tokenizer = self.folder.join(TOKENIZER);
        match name {
            CONFIG => Some(self.config.clone()),
            _ => tokenizer.exists().then(|| self.folder.join(name)),
        }
    }

    /// A file of the text side, for a model that has none in its folder.
    pub(super) fn made(name: &str) -> Option<Vec<u8>> {
        let made = match name {
            TOKENIZER => tokenizer(),
            TOKENIZER_CONFIG => json!({"chat_template": TEMPLATE}),
            _ => return None,
        };
        Some(made.to_string().into_bytes())
    }
}

/// A tokenizer whose tokens are bytes.
fn tokenizer() -> Value {
    let ids = (0..=u8::MAX).map(|byte| (character(byte).to_string(), json!(byte)));
    let vocabulary: Map<String, Value> = ids.collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": byte_level(), "decoder": byte_level(),
        "model": {
            "type": "BPE", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [],
        },
    })
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// The character by which a byte-level vocabulary writes a byte.
fn character(byte: u8) -> char {
    let is_visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    if is_visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_visible(*byte)).count();
    let place = u32::try_from(before)
        .ok()
        .and_then(|before| char::from_u32(0x100 + before));
    place.expect("there are 68 such bytes")
}

// === Weights ===

/// The numbers of a tensor, which are made when they are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MadeTensor {
    /// All of them are 1.
    Ones,
    /// They look random, each a byte around 0 with this scale, which bf16 holds exactly.
    Random {
        /// The number from which they follow.
        start: u64,
        /// A power of two.
        scale: f32,
    },
}

impl TensorSource for &Dummy {
    fn find(&mut self, name: &str, shape: Vec<usize>) -> Result<StoredTensor, WeightsError> {
        let made = match name.contains("norm") {
            true => MadeTensor::Ones,
            false => self.random(name, shape.get(1).copied().unwrap_or(1)),
        };
        let stored = (Encoding::Bf16, Place::Made(made));
        Ok(StoredTensor::new(name, &shape, stored))
    }
}

impl Dummy {
    /// The random numbers of a tensor whose rows have so many.
    fn random(&self, name: &str, width: usize) -> MadeTensor {
        let mut hash = Sha256::new();
        hash.update(self.seed.to_le_bytes());
        hash.update(name);
        let digest: [u8; 32] = hash.finalize().into();
        let (first, _) = digest.as_chunks::<8>();
        MadeTensor::Random {
            start: u64::from_le_bytes(first[0]),
            scale: scale(width),
        }
    }
}

impl MadeTensor {
    /// Makes the numbers from this one on, of two bytes each, the lower one first.
    pub(crate) fn fill(self, first: usize, out: &mut [u8]) {
        let parts = out.par_chunks_mut(NUMBERS_AT_ONCE * 2).enumerate();
        parts.for_each(|(part, out)| {
            let (numbers, _) = out.as_chunks_mut::<2>();
            match self {
                Self::Ones => numbers.fill(bf16::ONE.to_le_bytes()),
                Self::Random { start, scale } => {
                    fill_random(first + part * NUMBERS_AT_ONCE, (start, scale), numbers);
                }
            }
        });
    }
}

fn fill_random(first: usize, (start, scale): (u64, f32), numbers: &mut [[u8; 2]]) {
    let mut bytes = [0; NUMBERS];
    for (place, number) in (first..).zip(numbers) {
        if place == first || place.is_multiple_of(NUMBERS) {
            bytes = mixed(start.wrapping_add((place / NUMBERS) as u64)).to_le_bytes();
        }
        let byte = bytes[place % NUMBERS].cast_signed();
        *number = bf16::from_f32(f32::from(byte) * scale).to_le_bytes();
    }
}

/// A power of two by which sums over a row of that many products stay about as large as what is
/// multiplied.
fn scale(width: usize) -> f32 {
    // A byte around 0 is 74 on average, in squares: a bit more than two to the power of six.
    let halvings = 6 + width.ilog2().div_ceil(2);
    (0..halvings).fold(1.0, |scale, _| scale / 2.0)
}

/// The mixing of SplitMix64.
fn mixed(place: u64) -> u64 {
    let number = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
