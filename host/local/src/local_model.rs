//! A model that devices of this machine serve: its files are open, and its weights are read where they are
//! needed. A CUDA device reads them by itself; those in this machine's memory are for its processors, which share
//! them.

use std::sync::{Arc, Mutex, PoisonError};

use pointsman_model::files::ModelFiles;
use pointsman_model::host::HostModel;
use pointsman_model::open::{LoadProgress, ModelLoadError, OpenModel};
use pointsman_model::weights::WeightsError;
use tracing::info;

use crate::progress::{Done, Progress, megabytes};

/// A model whose files are open.
#[derive(Debug)]
pub(crate) struct LocalModel {
    name: String,
    open: Arc<OpenModel>,
    /// The model in this machine's memory, once its processors have asked for it. A lock, because engines begin
    /// on threads of their own, and those that begin at once wait for the one that reads.
    host: Mutex<Option<Arc<HostModel>>>,
}

impl LocalModel {
    /// Opens a model's files.
    ///
    /// # Errors
    /// If files are missing or damaged, or the model is of a kind that is not built.
    pub(crate) fn open(name: &str, files: &ModelFiles) -> Result<Self, ModelLoadError> {
        Ok(Self {
            name: name.to_owned(),
            open: Arc::new(OpenModel::open(files)?),
            host: Mutex::default(),
        })
    }

    /// The open files.
    pub(crate) fn files(&self) -> &Arc<OpenModel> {
        &self.open
    }

    /// The model in this machine's memory, read unless it is there.
    ///
    /// # Errors
    /// If its files cannot be read any more.
    pub(crate) fn in_memory(&self) -> Result<Arc<HostModel>, WeightsError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*host {
            return Ok(Arc::clone(host));
        }
        let read = self.telling("memory", |tell| HostModel::read(&self.open, tell))?;
        Ok(Arc::clone(host.insert(Arc::new(read))))
    }

    /// Loads weights onto a device by a function that tells how far it is, which is told on a terminal and in the
    /// log; nothing is where nothing had to be loaded.
    pub(crate) fn telling<T, E>(
        &self,
        device: &str,
        load: impl FnOnce(&mut dyn FnMut(LoadProgress)) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut told = None;
        let loaded = load(&mut |done| {
            let (progress, last) =
                told.get_or_insert_with(|| (Progress::of_weights(&self.name, device, done), done));
            *last = done;
            progress.advance(Done::Loaded(done));
        })?;
        // The line on a terminal is wiped before.
        if let Some(all) = told.map(|(_, last)| last) {
            let (size, tensors) = (megabytes(all.bytes_total), all.tensors_total);
            info!(model = self.name, device, size, tensors, "weights loaded");
        }
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn processors_share_what_was_read_and_nothing_is_told_where_nothing_is_loaded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = ModelFiles::Folder(root.join("../../examples/demo-model"));
        let model = LocalModel::open("demo", &files).unwrap();
        let (one, other) = (model.in_memory().unwrap(), model.in_memory().unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert!(Arc::ptr_eq(one.open(), model.files()));
        let loaded = model.telling("gpu0", |_| Ok::<_, WeightsError>(5));
        assert_eq!(loaded.unwrap(), 5);
    }
}
