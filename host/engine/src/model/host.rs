//! A model loaded from its files, into this machine's memory.

use super::config::{LlamaConfig, ModelConfigError};
use super::files::ModelFiles;
use super::weights::{self, HostLlama, WeightsError};

/// A model in this machine's memory.
#[derive(Debug)]
pub struct HostModel {
    config: LlamaConfig,
    weights: HostLlama,
    /// Radians per position.
    frequencies: Vec<f32>,
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
    /// Loads a model of Hugging Face's layout.
    ///
    /// # Errors
    /// If files are missing or damaged, or the model is of a kind that is not built.
    pub fn load(files: &ModelFiles) -> Result<Self, ModelLoadError> {
        let config = LlamaConfig::load(files)?;
        let weights = weights::load(files, &config)?;
        Ok(Self {
            frequencies: config.rope.frequencies(config.head_dim),
            config,
            weights,
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

    /// Radians per position by which each pair of a head's dimensions turns; `head_dim / 2`.
    #[must_use]
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }
}
