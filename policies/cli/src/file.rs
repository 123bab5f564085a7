//! A policy's file: read, loaded, and explained where it is no policy.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_policy::{LoadError, PolicyComponent, PolicyEngine};

use super::code;

/// The bytes of a file that may be a policy.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    anyhow::ensure!(
        !path.is_dir(),
        "{shown} is a folder: name the .wasm file that `pointsman policy build` made of it"
    );
    fs::read(path).with_context(|| format!("{shown} cannot be read"))
}

/// The file's name without its extension: the name by which operators know the policy.
pub(super) fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Loads a policy; the inner error names the problem and the remedy.
///
/// # Errors
/// If nothing compiled can run on this machine.
pub(super) fn load(bytes: &[u8]) -> Result<Result<PolicyComponent, String>> {
    let engine = PolicyEngine::new()?;
    Ok(code::load(&engine, bytes).map_err(|error| explained(&error)))
}

/// The problem with a file, and the remedy where the message does not name one.
pub(super) fn explained(error: &LoadError) -> String {
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
    fn what_is_no_component_is_explained_with_what_to_do() {
        for (bytes, said) in [
            (
                &b"text"[..],
                "not a WebAssembly file\nto fix it: `pointsman policy build DIR`",
            ),
            (b"\0asm\x01\0\0\0", "a core module, not a component"),
            (
                b"\0asm\x0d\0\x01\0",
                "does not export pointsman:scheduling/lifecycle\nto fix it: with the SDK",
            ),
        ] {
            let error = load(bytes).unwrap().unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }

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
