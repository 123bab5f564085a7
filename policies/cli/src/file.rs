//! A policy's file, loaded.

use anyhow::Result;
use pointsman_component::{PolicyComponent, PolicyEngine};
use pointsman_experiments::file::explained;
pub(super) use pointsman_experiments::file::{read, stem};

use super::code;

/// Loads a policy; the inner error names the problem and the remedy.
///
/// # Errors
/// If nothing compiled can run on this machine.
pub(super) fn load(bytes: &[u8]) -> Result<Result<PolicyComponent, String>> {
    let engine = PolicyEngine::new()?;
    Ok(code::kept()
        .load(&engine, bytes)
        .map_err(|error| explained(&error)))
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
}
