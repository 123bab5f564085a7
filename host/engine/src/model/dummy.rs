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

use super::weights::{TensorSource, Values, WeightsError};

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

impl TensorSource for &Dummy {
    fn take(&mut self, name: &str, shape: Vec<usize>) -> Result<Values, WeightsError> {
        let count = shape.iter().product();
        if name.contains("norm") {
            return Ok(Values::Bf16(vec![bf16::ONE; count]));
        }
        let mut hash = Sha256::new();
        hash.update(self.seed.to_le_bytes());
        hash.update(name);
        let digest: [u8; 32] = hash.finalize().into();
        let (first, _) = digest.as_chunks::<8>();
        let width = shape.get(1).copied().unwrap_or(1);
        Ok(Values::Bf16(random(
            count,
            u64::from_le_bytes(first[0]),
            scale(width),
        )))
    }
}

/// A power of two by which sums over a row of that many products stay about as large as what is
/// multiplied.
fn scale(width: usize) -> f32 {
    // A byte around 0 is 74 on average, in squares: a bit more than two to the power of six.
    let halvings = 6 + width.ilog2().div_ceil(2);
    (0..halvings).fold(1.0, |scale, _| scale / 2.0)
}

/// Numbers that look random, each a byte around 0 with this scale, which bf16 holds exactly.
fn random(count: usize, start: u64, scale: f32) -> Vec<bf16> {
    let mut values = vec![bf16::ZERO; count];
    let parts = values.par_chunks_mut(NUMBERS_AT_ONCE).enumerate();
    parts.for_each(|(part, values)| {
        let first = part * (NUMBERS_AT_ONCE / NUMBERS);
        for (place, values) in values.chunks_mut(NUMBERS).enumerate() {
            let bytes = mixed(start.wrapping_add((first + place) as u64)).to_le_bytes();
            for (value, byte) in values.iter_mut().zip(bytes) {
                *value = bf16::from_f32(f32::from(byte.cast_signed()) * scale);
            }
        }
    });
    values
}

/// The mixing of SplitMix64.
fn mixed(place: u64) -> u64 {
    let number = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
