//! The default policies and the demo model, which are in the binary.
//!
//! The policies are components that `cargo xtask policies` has built; `build.rs` finds them beside
//! the build. Where they are not, all but a running server still builds, and [`policies`] says what
//! to do.
//!
//! # Not here
//! The hooks that an embedded policy holds (`pointsman-lifecycle`).

use pointsman_engine::model::files::ModelFiles;

use pointsman_lifecycle::EmbeddedPolicy;

/// The binary was built before the policies were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this binary was built without the default policies: run `cargo xtask serve`, or \
     `cargo xtask policies` and then build again"
)]
pub struct NotEmbedded;

// `static POLICIES: Option<&[EmbeddedPolicy]>`, by build.rs.
include!(concat!(env!("OUT_DIR"), "/policies.rs"));

/// The default policies.
///
/// # Errors
/// If the policies were not there when this binary was built.
pub fn policies() -> Result<&'static [EmbeddedPolicy], NotEmbedded> {
    POLICIES.ok_or(NotEmbedded)
}

/// The demo model; absent: this build has none.
#[must_use]
pub fn demo_model() -> Option<ModelFiles> {
    DEMO_MODEL.map(ModelFiles::Embedded)
}

#[cfg(not(feature = "demo-model"))]
const DEMO_MODEL: Option<&[(&str, &[u8])]> = None;

#[cfg(feature = "demo-model")]
const DEMO_MODEL: Option<&[(&str, &[u8])]> = {
    macro_rules! files {
        ($($name:literal)*) => {
            Some(&[$((
                $name,
                include_bytes!(concat!("../../../examples/demo-model/", $name)),
            )),*])
        };
    }
    files!("config.json" "generation_config.json" "model.safetensors" "tokenizer.json"
        "tokenizer_config.json")
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where the guests were not built first, which `cargo xtask test` does.
    #[test]
    fn the_default_policies_are_components_in_the_binary() {
        let policies = policies().unwrap();
        let names: Vec<_> = policies.iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["aging", "memory-aware", "budget"]);
        for policy in policies {
            // Magic number, then version and layer of a component.
            assert!(
                policy.wasm.starts_with(b"\0asm\x0d\0\x01\0"),
                "{}",
                policy.name
            );
        }
    }

    #[test]
    fn the_demo_model_is_there_exactly_with_its_feature() {
        let model = demo_model();
        assert_eq!(model.is_some(), cfg!(feature = "demo-model"));
        if let Some(model) = model {
            let config = model.read("config.json").unwrap().unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(&config).is_ok());
            assert_eq!(model.read("no-such-file").unwrap(), None);
        }
    }
}
