//! A model loaded from its files, into this machine's memory.

use super::config::{LlamaConfig, ModelConfigError, Rotation};
use super::files::ModelFiles;
use super::weights::{self, HostLlama, WeightsError};

/// A model in this machine's memory.
#[derive(Debug)]
pub struct HostModel {
    config: LlamaConfig,
    weights: HostLlama,
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

impl HostModel {
    /// Loads a model.
    ///
    /// # Errors
    /// If files are missing or damaged, or the model is of a kind that is not built.
    pub fn load(files: &ModelFiles) -> Result<Self, ModelLoadError> {
        let config = LlamaConfig::load(files)?;
        let mut rotation = config.rope.rotation(config.head_dim);
        if let ModelFiles::Gguf(gguf) = files
            && let Some(factors) = gguf.rope_factors(config.head_dim)?
        {
            rotation.stretch(&factors);
        }
        Ok(Self {
            weights: weights::load(files, &config)?,
            rotation,
            config,
        })
    }

    /// The model's architecture.
    #[must_use]
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The model's weights.
    #[must_use]
    pub fn weights(&self) -> &HostLlama {
        &self.weights
    }

    /// The rotation of its heads.
    #[must_use]
    pub fn rotation(&self) -> &Rotation {
        &self.rotation
    }
}
