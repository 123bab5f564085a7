//! Models of a Hugging Face hub, fetched into the cache that all of its tools share.
//!
//! A model is asked for by name: the hub says what files it has, those that a server needs are fetched, and the
//! server reads them from the cache as it reads any folder. What is in the cache already is not fetched again, whoever
//! put it there; where the hub is out of reach or busy, or this machine has no certificates to know it by, the cached copy
//! serves.
//!
//! # Invariants
//! Held by `tests/hub`, and what is said of certificates by the server's `tests/process`.
//! 1. A file has its name in the cache only once it is there whole and, where the hub tells its SHA-256, is the same.
//! 2. The token goes to the hub's own address and to no other.
//! 3. No name that the hub or a file gives leads out of the cache.
//! 4. A hub that is out of reach or busy, at whatever step, keeps no model from being served that the cache has whole; nor
//!    do certificates that are missing. A mirror at `http://` needs none.
//! 5. A model whose small files tell that it cannot be served is refused before its weights.
//!
//! # Cancellation
//! What was fetched of a file stays, and is gone on with next time.
//!
//! # Not here
//! Names of models (`pointsman_notation::HubModel`).

mod cache;
mod choice;
mod client;
mod error;
mod settings;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};

use pointsman_driver::provider::ModelSource;
use pointsman_model::config::{LlamaConfig, Quantization};
use pointsman_model::files::ModelFiles;
use pointsman_notation::HubModel;
use pointsman_text::ModelText;
use tracing::{info, warn};

pub use error::HubError;
pub use settings::{HubSettings, Reach};

use crate::progress::Progress;
use crate::provider::check_tokens;
use crate::settings::{DeviceConfig, LocalSettings};
use cache::{Cache, Snapshot};
use choice::{INDEX, ModelParts};
use client::HubClient;

/// The settings with the models of the hub fetched, so that each is a folder or a file.
///
/// # Errors
/// If one is not in the cache and cannot be fetched, or none of the devices computes it; the error names it.
pub async fn fetched(settings: &LocalSettings) -> Result<LocalSettings, HubError> {
    let mut fetched = settings.clone();
    for model in &mut fetched.models {
        if let ModelSource::Hub(name) = &model.source {
            model.source = ModelSource::Path(fetch(name, settings).await?);
        }
    }
    Ok(fetched)
}

/// The copy of a model in the cache, its folder or its file; absent: it is not there, or not all of it.
#[must_use]
pub fn cached(model: &HubModel, hub: &HubSettings) -> Option<PathBuf> {
    let snapshot = Cache::of(model, hub).ok()?.snapshot(&model.revision)?;
    let choice = choice::of_files(&snapshot.files(), model).ok()?;
    let index = || std::fs::read(snapshot.path(INDEX)).ok();
    let needed = choice.needed(index).ok()?;
    let is_whole = needed.iter().all(|name| snapshot.path(name).is_file());
    is_whole.then(|| place(&snapshot, &choice))
}

async fn fetch(model: &HubModel, settings: &LocalSettings) -> Result<PathBuf, HubError> {
    let hub = &settings.hub;
    let cache = Cache::of(model, hub)?;
    let cached = || cached(model, hub);
    if hub.reach == Reach::Offline {
        return cached().ok_or_else(|| HubError::Offline {
            model: model.to_string(),
            cache: cache.folder().to_owned(),
        });
    }
    let error = match fetch_from_hub(&cache, model, settings).await {
        Ok(place) => return Ok(place),
        Err(error) => error,
    };
    let (HubError::Unreachable { .. } | HubError::Certificates(_)) = &error else {
        return Err(error);
    };
    let Some(copy) = cached() else {
        return Err(error);
    };
    let why = pointsman_notation::chain(&error);
    warn!(model = %model, why, "the hub cannot be reached: the cached copy is served");
    Ok(copy)
}

/// Fetches what the cache has not yet of a model. Returns its place.
async fn fetch_from_hub(
    cache: &Cache,
    model: &HubModel,
    settings: &LocalSettings,
) -> Result<PathBuf, HubError> {
    let client = HubClient::new(model, &settings.hub)?;
    let listing = client.listing().await?;
    let snapshot = cache.at(&listing.commit);
    let choice = choice::of_files(&listing.files, model)?;
    let fetching = Fetching {
        client: &client,
        cache,
        snapshot: &snapshot,
        devices: &settings.devices,
    };
    fetching.all(&choice, &listing.files).await?;
    cache.name(&model.revision, &listing.commit).await?;
    Ok(place(&snapshot, &choice))
}

/// The folder or the file that is served.
fn place(snapshot: &Snapshot, choice: &ModelParts) -> PathBuf {
    match choice {
        ModelParts::Gguf(file) => snapshot.path(file),
        ModelParts::Single { .. } | ModelParts::Shards { .. } => snapshot.folder().to_owned(),
    }
}

/// A model that is fetched.
struct Fetching<'a> {
    client: &'a HubClient,
    cache: &'a Cache,
    snapshot: &'a Snapshot,
    /// The devices of this host, one of which is to serve it.
    devices: &'a [DeviceConfig],
}

impl Fetching<'_> {
    /// Fetches the small files first: a model that cannot be served is refused before its weights.
    async fn all(&self, choice: &ModelParts, listed: &BTreeSet<String>) -> Result<(), HubError> {
        for name in choice.small() {
            self.one(name).await?;
        }
        let config = match choice {
            ModelParts::Gguf(_) => None,
            ModelParts::Single { .. } | ModelParts::Shards { .. } => Some(self.check_config()?),
        };
        let needed = choice.needed(|| std::fs::read(self.snapshot.path(INDEX)).ok())?;
        // A model that is here whole is read when it is loaded.
        if let Some(config) = &config
            && !needed.iter().all(|name| self.is_here(name))
        {
            self.check_text(config)?;
        }
        for name in &needed {
            if !listed.contains(name) {
                return Err(HubError::NotListed {
                    model: self.client.model().to_string(),
                    file: name.clone(),
                });
            }
            self.one(name).await?;
        }
        Ok(())
    }

    /// The files that the model has here so far.
    fn files(&self) -> ModelFiles {
        ModelFiles::Folder(self.snapshot.folder().to_owned())
    }

    fn is_here(&self, name: &str) -> bool {
        self.snapshot.path(name).is_file()
    }

    /// Refuses a model whose tokenizer or template cannot be used, or that has fewer tokens than its tokenizer.
    fn check_text(&self, config: &LlamaConfig) -> Result<(), HubError> {
        let text = ModelText::load(&self.files()).map_err(|source| self.not_served(source))?;
        check_tokens(&text, config).map_err(|source| self.not_served(source))
    }

    fn not_served(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> HubError {
        HubError::NotServed {
            model: self.client.model().to_string(),
            source: source.into(),
        }
    }

    /// Reads `config.json`, and refuses a model that no device of this host computes.
    fn check_config(&self) -> Result<LlamaConfig, HubError> {
        let config = LlamaConfig::load(&self.files()).map_err(|source| self.not_served(source))?;
        match config.quantization {
            Quantization::Fp8 if self.devices.iter().all(DeviceConfig::is_processors) => {
                let model = self.client.model().to_string();
                Err(HubError::Fp8 { model })
            }
            Quantization::Fp8 | Quantization::None => Ok(config),
        }
    }

    async fn one(&self, name: &str) -> Result<(), HubError> {
        if self.is_here(name) {
            return Ok(());
        }
        let commit = self.snapshot.commit();
        let about = self.client.about(commit, name).await?;
        let blob = self.cache.blob(&about.tag);
        if !blob.is_file() {
            let _lock = self.cache.lock(&about.tag).await?;
            // Another process may have fetched it meanwhile.
            if !blob.is_file() {
                let mut part = self.cache.part(&about.tag)?;
                let progress = Progress::of_file(name, about.bytes);
                self.client
                    .fetch((commit, name, &about), &mut part, progress)
                    .await?;
                part.finish(&blob)?;
                info!(model = %self.client.model(), file = name, bytes = about.bytes, "fetched");
            }
        }
        self.snapshot.link(name, &blob)
    }
}

/// Files of a name that leads nowhere else.
fn is_plain(name: &str) -> bool {
    let parts = Path::new(name).components();
    let mut plain = parts.map(|part| matches!(part, std::path::Component::Normal(_)));
    !name.is_empty() && !name.contains(['\\', '\0']) && plain.all(|plain| plain)
}
