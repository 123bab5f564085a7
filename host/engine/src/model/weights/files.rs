//! Tensors from safetensors files: `model.safetensors`, or the shards that
//! `model.safetensors.index.json` names.
//!
//! Files are read one after the other and dropped as soon as their tensors are taken out; at its
//! peak, loading needs the memory of the weights and of the largest file.

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::super::files::ModelFiles;
use super::{TensorSource, Values, WeightsError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of the files that are not yet taken.
pub(super) struct Tensors {
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

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

// === impl Tensors ===

impl Tensors {
    pub(super) fn read(files: &ModelFiles) -> Result<Self, WeightsError> {
        let (single, index) = (files.describe(SINGLE), files.describe(INDEX));
        if let Some(bytes) = files.read(SINGLE)? {
            let mut tensors = Self::in_place(single.clone());
            tensors.add(single, &bytes)?;
            tensors.tell_if_widened();
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
        tensors.tell_if_widened();
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

    fn tell_if_widened(&self) {
        let mut tensors = self.by_name.values();
        if tensors.any(|tensor| matches!(tensor.values, Ok(Values::F32(_)))) {
            tracing::info!("weights that are not bf16 are kept in f32");
        }
    }
}

impl TensorSource for Tensors {
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
