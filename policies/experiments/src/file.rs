//! A policy's file: named on the command line, read, and explained where it is no policy.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pointsman_component::LoadError;

/// A policy's file on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct PolicyFileArg {
    /// The policy, as `pointsman policy build` writes it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The bytes of a file that may be a policy.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    anyhow::ensure!(
        !path.is_dir(),
        "{shown} is a folder: name the .wasm file that `pointsman policy build` made of it"
    );
    fs::read(path).with_context(|| format!("{shown} cannot be read"))
}

/// The file's name without its extension: the name by which operators know the policy.
#[must_use]
pub fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The problem with a file, and the remedy where the message does not name one.
#[must_use]
pub fn explained(error: &LoadError) -> String {
    let advice = if matches!(error, LoadError::NotWebAssembly | LoadError::CoreModule) {
        "`pointsman policy build DIR` makes a component of a policy's folder"
    } else if matches!(error, LoadError::NoLifecycle | LoadError::NoHooks) {
        "with the SDK, `export!(Type: routing)` exports the policy and the hooks it names"
    } else if matches!(
        error,
        LoadError::UnknownVersion { .. } | LoadError::WrongShape { .. }
    ) {
        "build it again with the SDK of this release, which `pointsman policy new` writes"
    } else if matches!(error, LoadError::Malformed(_) | LoadError::Compile(_)) {
        "the file is damaged, or was made by a tool that this release does not know: build it again"
    } else {
        return error.to_string();
    };
    format!("{error}\nto fix it: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_not_read() {
        let error = read(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is a folder: name the .wasm file"),
            "{error}"
        );
    }
}
