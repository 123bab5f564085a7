//! Tensors from safetensors files: `model.safetensors`, or the shards that
//! `model.safetensors.index.json` names.
//!
//! Of each file only the head is read; it says where the tensors are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};
use serde::Deserialize;

use super::super::files::{ModelFiles, WeightsFile};
use super::encoding::Encoding;
use super::fp8::Fp8Tensor;
use super::stored::{Place, StoredTensor};
use super::{Projection, TensorSource, WeightsError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The beginning of the names of all tensors but the head's. Checkpoints of models that only embed leave it out.
const PREFIX: &str = "model.";
/// The table of embeddings, which every model has.
const TABLE: &str = "model.embed_tokens.weight";
/// The same table without [`PREFIX`].
const BARE_TABLE: &str = "embed_tokens.weight";
/// The table of the head, where it is not that of embeddings.
const HEAD: &str = "lm_head.weight";

/// Bytes of the number with which a file begins: that of the bytes of its head.
const LENGTH_BYTES: usize = 8;
/// Most bytes of a head, as the format has it.
const HEAD_MAX: u64 = 100_000_000;

/// The ends of the names of scales, behind those of their weights.
const SCALES: [&str; 2] = ["_scale", "_scale_inv"];

/// The tensors of the files.
pub(super) struct Tensors {
    /// The place that errors name for a tensor that is nowhere.
    place: String,
    by_name: BTreeMap<String, Tensor>,
}

struct Tensor {
    file: Arc<WeightsFile>,
    /// The place of its first byte in the file.
    offset: u64,
    dtype: Dtype,
    shape: Vec<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

// === impl Tensors ===

impl Tensors {
    pub(super) fn read(files: &ModelFiles) -> Result<Self, WeightsError> {
        let (single, index) = (files.describe(SINGLE), files.describe(INDEX));
        if let Some(file) = files.weights(SINGLE)? {
            let mut tensors = Self::in_place(single);
            tensors.add(file)?;
            return Ok(tensors);
        }
        let Some(json) = files.read(INDEX)? else {
            return Err(WeightsError::NoWeights { single, index });
        };
        let mut tensors = Self::in_place(index);
        for name in shards(&json, &tensors.place)? {
            let Some(file) = files.weights(&name)? else {
                let (shard, index) = (files.describe(&name), tensors.place);
                return Err(WeightsError::ShardMissing { shard, index });
            };
            tensors.add(file)?;
        }
        Ok(tensors)
    }

    fn in_place(place: String) -> Self {
        Self {
            place,
            by_name: BTreeMap::new(),
        }
    }

    fn add(&mut self, file: WeightsFile) -> Result<(), WeightsError> {
        let (metadata, start) = match head(&file) {
            Ok(head) => head,
            Err(source) => {
                let file = file.name().to_owned();
                return Err(WeightsError::Damaged { file, source });
            }
        };
        let file = Arc::new(file);
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else {
                continue;
            };
            let tensor = Tensor {
                file: Arc::clone(&file),
                offset: start + info.data_offsets.0 as u64,
                dtype: info.dtype,
                shape: info.shape.clone(),
            };
            self.by_name.insert(name, tensor);
        }
        Ok(())
    }
}

impl Tensors {
    /// True if names have no [`PREFIX`].
    fn is_bare(&self) -> bool {
        self.by_name.contains_key(BARE_TABLE) && !self.by_name.contains_key(TABLE)
    }

    /// The name that a tensor has in the files.
    fn name_here<'n>(&self, name: &'n str) -> &'n str {
        match name.strip_prefix(PREFIX) {
            Some(rest) if self.is_bare() => rest,
            Some(_) | None => name,
        }
    }

    /// The tensor of this name, which has to be of this shape.
    fn named(&self, name: &str, expected: &[usize]) -> Result<&Tensor, WeightsError> {
        let Some(found) = self.by_name.get(name) else {
            let place = self.place.clone();
            if name == HEAD && self.is_bare() {
                return Err(WeightsError::HeadMissing { place });
            }
            return Err(WeightsError::TensorMissing {
                tensor: name.to_owned(),
                place,
            });
        };
        if found.shape != expected {
            return Err(WeightsError::Shape {
                file: found.file.name().to_owned(),
                tensor: name.to_owned(),
                found: found.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        Ok(found)
    }

    /// The scales of a tensor in FP8, with their shape.
    fn scales(&self, name: &str) -> Result<(StoredTensor, &[usize]), WeightsError> {
        for end in SCALES {
            let scales = format!("{name}{end}");
            if let Some(found) = self.by_name.get(&scales) {
                return Ok((found.stored(&scales)?, &found.shape));
            }
        }
        let file = self.by_name.get(name).map(|tensor| tensor.file.name());
        Err(WeightsError::ScaleMissing {
            file: file.unwrap_or(&self.place).to_owned(),
            tensor: name.to_owned(),
        })
    }
}

impl TensorSource for Tensors {
    fn find(&mut self, name: &str, expected: Vec<usize>) -> Result<StoredTensor, WeightsError> {
        let name = self.name_here(name);
        self.named(name, &expected)?.stored(name)
    }

    fn find_projection(
        &mut self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Projection, WeightsError> {
        let name = self.name_here(name);
        let found = self.named(name, &shape)?;
        if found.dtype != Dtype::F8_E4M3 {
            return Ok(Projection::Numbers(found.stored(name)?));
        }
        let codes = StoredTensor::new(name, &shape, (Encoding::Fp8, found.place()));
        let (scales, scales_shape) = self.scales(name)?;
        let tensor = Fp8Tensor::new(codes, (shape[0], shape[1]), &scales, scales_shape)?;
        Ok(Projection::Fp8(tensor))
    }
}

impl Tensor {
    fn stored(&self, name: &str) -> Result<StoredTensor, WeightsError> {
        let encoding = encoding(self.dtype).ok_or_else(|| WeightsError::Type {
            file: self.file.name().to_owned(),
            tensor: name.to_owned(),
            found: self.dtype,
        })?;
        Ok(StoredTensor::new(
            name,
            &self.shape,
            (encoding, self.place()),
        ))
    }

    fn place(&self) -> Place {
        Place::File(Arc::clone(&self.file), self.offset)
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

/// Reads the head of a file, which is held against its length, and the place at which its tensors begin.
fn head(file: &WeightsFile) -> Result<(Metadata, u64), SafeTensorError> {
    let length = file.length()?;
    let begins_at = LENGTH_BYTES as u64;
    if length < begins_at {
        return Err(SafeTensorError::HeaderTooSmall);
    }
    let mut bytes = [0; LENGTH_BYTES];
    file.read_at(0, &mut bytes)?;
    let head_length = u64::from_le_bytes(bytes);
    if head_length > HEAD_MAX {
        return Err(SafeTensorError::HeaderTooLarge);
    }
    let start = begins_at + head_length;
    if start > length {
        return Err(SafeTensorError::InvalidHeaderLength);
    }
    let head_length = usize::try_from(head_length).unwrap_or(usize::MAX);
    let mut head = vec![0; head_length];
    file.read_at(begins_at, &mut head)?;
    let metadata: Metadata =
        serde_json::from_slice(&head).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    match start.checked_add(metadata.data_len() as u64) {
        Some(end) if end == length => Ok((metadata, start)),
        Some(_) | None => Err(SafeTensorError::MetadataIncompleteBuffer),
    }
}

/// The way in which numbers of a type are stored; absent: it is not built.
fn encoding(dtype: Dtype) -> Option<Encoding> {
    let built = [
        (Dtype::BF16, Encoding::Bf16),
        (Dtype::F16, Encoding::F16),
        (Dtype::F32, Encoding::F32),
    ];
    let found = built.into_iter().find(|(known, _)| *known == dtype);
    found.map(|(_, encoding)| encoding)
}
