//! The errors of fetching a model.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// A reason why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The place of the cache is not known.
    #[error("there is no place for models of the hub: set HF_HOME, or HOME")]
    NoCache,
    /// The environment says that there is no network, and the cache has not the model.
    #[error(
        "HF_HUB_OFFLINE is set, and {} has no whole copy of {model}; fetch it where there is a network, and \
         copy the cache",
        cache.display()
    )]
    Offline {
        /// The model.
        model: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// The hub does not answer, or only that it cannot do so now.
    #[error(
        "model {model} is no folder here, and the hub at {endpoint} cannot be reached or is busy ({why}); try \
         again later, or name a folder or a GGUF file, or copy the model into the cache, {}",
        cache.display()
    )]
    Unreachable {
        /// The model.
        model: String,
        /// The address of the hub.
        endpoint: String,
        /// The network's error.
        why: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// The hub has no such model, or does not show it.
    #[error(
        "model {model} is no folder here, and the hub at {endpoint} knows no model {repo}, or shows it to nobody without \
         a key: check the name, or set HF_TOKEN"
    )]
    NoModel {
        /// The model, as it was named.
        model: String,
        /// The address of the hub.
        endpoint: String,
        /// The model's name on the hub.
        repo: String,
    },
    /// The hub has no such revision.
    #[error("the hub at {endpoint} has no revision {revision} of {repo}")]
    NoRevision {
        /// The address of the hub.
        endpoint: String,
        /// The revision.
        revision: String,
        /// The model's name on the hub.
        repo: String,
    },
    /// The makers give the model to those whom they know.
    #[error(
        "the makers of {repo} have not given it to you: ask for access at {endpoint}/{repo}, and set HF_TOKEN to a \
         token of yours"
    )]
    Gated {
        /// The address of the hub.
        endpoint: String,
        /// The model's name on the hub.
        repo: String,
    },
    /// The hub answers otherwise than it promises.
    #[error("the hub at {endpoint} answers {path} with {what}; try again later")]
    Answer {
        /// The address of the hub.
        endpoint: String,
        /// The path that was asked for.
        path: String,
        /// The answer.
        what: String,
    },
    /// The model has no files that could be served.
    #[error(
        "{model} has no weights that can be served: neither safetensors with a config.json, nor GGUF"
    )]
    NoWeights {
        /// The model.
        model: String,
    },
    /// The model has several files, of which one has to be named.
    #[error(
        "{model}: name one of its GGUF files, or a part of its name, as in {repo}:Q4_K_M; there are: {files}"
    )]
    WhichFile {
        /// The model, as it was named.
        model: String,
        /// The model's name on the hub.
        repo: String,
        /// The names of the files.
        files: String,
    },
    /// The model's architecture is not built, or it has no tokenizer that can be used, or has fewer tokens than its
    /// tokenizer.
    #[error("{model} cannot be served; its weights were not fetched")]
    NotServed {
        /// The model.
        model: String,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The model is in FP8, and no device of this host has it.
    #[error(
        "{model} is in FP8, which only CUDA devices of compute capability 8.9 or newer compute, and this host has \
         none configured; its weights were not fetched: serve a copy of it in bf16"
    )]
    Fp8 {
        /// The model.
        model: String,
    },
    /// A file that the model needs is not among its files.
    #[error("{model} has no file {file}, which it needs; its makers have to put it there")]
    NotListed {
        /// The model.
        model: String,
        /// The file.
        file: String,
    },
    /// A file is not what the hub says it is.
    #[error("{file} of {model} came damaged: {what}; it was removed, so try again")]
    Damaged {
        /// The model.
        model: String,
        /// The file.
        file: String,
        /// The difference.
        what: String,
    },
    /// The cache cannot be used.
    #[error("{}, in the cache for models of the hub, cannot be used", path.display())]
    Cache {
        /// The path of the file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The certificates of this machine cannot be read.
    #[error("the certificates of this machine cannot be read")]
    Certificates(#[source] io::Error),
}
