//! A model whose files are open: what it is like and where its weights are is known, and they are not read.
//!
//! Devices read them from there ([`OpenModel::weights`]), each what it needs and as often as it begins anew;
//! [`super::host`] has them in this machine's memory, for its processors.

use super::config::{LlamaConfig, ModelConfigError, Rotation};
use super::files::ModelFiles;
use super::weights::fp8::StackedFp8;
use super::weights::{self, Stacked, StoredLlama, StoredMatrix, WeightsError};

/// A model whose files are open.
#[derive(Debug)]
pub struct OpenModel {
    config: LlamaConfig,
    weights: StoredLlama,
    rotation: Rotation,
}

/// An error in a model's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelLoadError {
    /// The configuration is missing, damaged, or of a kind that is not built.
    #[error(transparent)]
    Config(#[from] ModelConfigError),
    /// The weights are missing, damaged, or not those of the configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// The part of a model's weights that is loaded. Bytes are those of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes that are loaded.
    pub bytes: u64,
    /// Bytes of all tensors that the model needs.
    pub bytes_total: u64,
    /// Tensors that are loaded whole.
    pub tensors: usize,
    /// Tensors that the model needs.
    pub tensors_total: usize,
}

/// Counts what is loaded of a model, and tells it.
pub struct Loading<'a> {
    progress: LoadProgress,
    tell: &'a mut dyn FnMut(LoadProgress),
}

impl OpenModel {
    /// Opens a model's files, and finds all that it needs in them.
    ///
    /// # Errors
    /// If files are missing or damaged, or the model is of a kind that is not built.
    pub fn open(files: &ModelFiles) -> Result<Self, ModelLoadError> {
        let config = LlamaConfig::load(files)?;
        let mut rotation = config.rope.rotation(config.head_dim);
        if let ModelFiles::Gguf(gguf) = files
            && let Some(factors) = gguf.rope_factors(config.head_dim)?
        {
            rotation.stretch(&factors);
        }
        Ok(Self {
            weights: weights::find(files, &config)?,
            rotation,
            config,
        })
    }

    /// A model of these parts, which belong together.
    pub(super) fn of_parts(config: LlamaConfig, weights: StoredLlama, rotation: Rotation) -> Self {
        Self {
            config,
            weights,
            rotation,
        }
    }

    /// The model's architecture.
    #[must_use]
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The model's weights, where they are stored.
    #[must_use]
    pub fn weights(&self) -> &StoredLlama {
        &self.weights
    }

    /// The rotation of its heads.
    #[must_use]
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }

    /// The weights to be loaded, of which none are yet.
    #[must_use]
    pub fn to_load(&self) -> LoadProgress {
        let (matrices, vectors) = (|| self.weights.matrices(), || self.weights.vectors());
        let tensors = |vector: &Stacked| vector.tensors.len();
        LoadProgress {
            bytes_total: matrices().map(StoredMatrix::bytes).sum::<u64>()
                + vectors().map(Stacked::bytes).sum::<u64>(),
            tensors_total: matrices().map(StoredMatrix::tensors).sum::<usize>()
                + vectors().map(tensors).sum::<usize>(),
            ..LoadProgress::default()
        }
    }

    /// Bytes that the weights take in this machine's memory, for its processors.
    #[must_use]
    pub fn bytes_in_memory(&self) -> u64 {
        let matrices = self.weights.matrices().map(StoredMatrix::bytes_in_memory);
        let numbers = self.weights.vectors().map(Stacked::numbers).sum::<usize>();
        matrices.sum::<u64>() + (numbers * size_of::<f32>()) as u64
    }

    /// Refuses a model that processors do not compute.
    ///
    /// # Errors
    /// If one of its matrices is in FP8; the error names a tensor.
    pub fn for_processors(&self) -> Result<(), WeightsError> {
        self.fp8().map_or(Ok(()), |fp8| Err(fp8.on_processors()))
    }

    /// The first of its matrices that is in FP8.
    #[must_use]
    pub fn fp8(&self) -> Option<&StackedFp8> {
        self.weights.matrices().find_map(|matrix| match matrix {
            StoredMatrix::Numbers(_) => None,
            StoredMatrix::Fp8(fp8) => Some(fp8),
        })
    }
}

impl<'a> Loading<'a> {
    /// Nothing of a model is loaded yet; `tell` is told that, and then each step.
    pub fn begin(model: &OpenModel, tell: &'a mut dyn FnMut(LoadProgress)) -> Self {
        let progress = model.to_load();
        tell(progress);
        Self { progress, tell }
    }

    /// Counts bytes, and tensors of which these are the last ones.
    pub fn advance(&mut self, bytes: u64, tensors: usize) {
        self.progress.bytes += bytes;
        self.progress.tensors += tensors;
        (self.tell)(self.progress);
    }
}

impl std::fmt::Debug for Loading<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.progress.fmt(f)
    }
}
