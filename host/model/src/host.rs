//! A model in this machine's memory, for its processors.

use std::sync::Arc;

use super::config::{LlamaConfig, Rotation};
use super::files::ModelFiles;
use super::graph::WeightsMaker;
use super::open::{LoadProgress, Loading, ModelLoadError, OpenModel};
use super::weights::{HostLlama, Matrix, Stacked, StoredMatrix, WeightsError};

/// A model in this machine's memory.
#[derive(Debug)]
pub struct HostModel {
    open: Arc<OpenModel>,
    weights: HostLlama,
}

impl HostModel {
    /// Loads a model.
    ///
    /// # Errors
    /// If files are missing or damaged, or the model is of a kind that is not built.
    pub fn load(files: &ModelFiles) -> Result<Self, ModelLoadError> {
        let open = Arc::new(OpenModel::open(files)?);
        Ok(Self::read(&open, &mut |_| ())?)
    }

    /// Reads the weights of an open model; `tell` is told how far it is.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(
        open: &Arc<OpenModel>,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WeightsError> {
        let weights = open.weights();
        if weights.matrices().any(StoredMatrix::is_widened) {
            tracing::info!("weights that are not bf16 are kept in f32");
        }
        // Told before anything is read.
        open.for_processors()?;
        let mut reader = Reader(Loading::begin(open, tell));
        Ok(Self {
            weights: weights.made(&mut reader)?,
            open: Arc::clone(open),
        })
    }

    /// The model's files.
    #[must_use]
    pub fn open(&self) -> &Arc<OpenModel> {
        &self.open
    }

    /// The model's architecture.
    #[must_use]
    pub fn config(&self) -> &LlamaConfig {
        self.open.config()
    }

    /// The model's weights.
    #[must_use]
    pub fn weights(&self) -> &HostLlama {
        &self.weights
    }

    /// The rotation of its heads.
    #[must_use]
    pub fn rotation(&self) -> &Rotation {
        self.open.rotation()
    }
}

/// Reads weights into this machine's memory.
struct Reader<'a>(Loading<'a>);

impl WeightsMaker<StoredMatrix, Stacked> for Reader<'_> {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Error = WeightsError;

    fn matrix(&mut self, matrix: &StoredMatrix) -> Result<Matrix, WeightsError> {
        let read = matrix.matrix()?;
        self.0.advance(matrix.bytes(), matrix.tensors());
        Ok(read)
    }

    fn vector(&mut self, vector: &Stacked) -> Result<Vec<f32>, WeightsError> {
        let read = vector.vector()?;
        self.0.advance(vector.bytes(), vector.tensors.len());
        Ok(read)
    }
}
