//! The default policies and the demo model, which are in the binary, packed.
//!
//! The policies are components that `cargo xtask policies` has built; `build.rs` finds them beside
//! the build, and packs them. Where they are not, all but a running server still builds, and [`policies`] says what
//! to do. What is unpacked when it is first asked for stays for as long as the process lives; machine code is
//! unpacked where it is loaded, and dropped.
//!
//! # Not here
//! The hooks that an embedded policy holds (`pointsman-lifecycle`).

use std::sync::OnceLock;

use pointsman_component::EmbeddedPolicy;
use pointsman_model::files::ModelFiles;
use pointsman_packed::{Damaged, Packed};

/// A reason why there are no default policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEmbedded {
    /// The binary was built before the policies were.
    #[error(
        "this binary was built without the default policies: run `cargo xtask serve`, or \
         `cargo xtask policies` and then build again"
    )]
    NotBuilt,
    /// The binary is not as it was built.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

/// A policy as it is in the binary.
struct PackedPolicy {
    name: &'static str,
    wasm: Packed,
    code: Option<Packed>,
}

/// A file by its name, unpacked.
type NamedFile = (&'static str, &'static [u8]);

// `static POLICIES: Option<&[PackedPolicy]>` and `static DEMO_MODEL: Option<&[Packed]>`, by build.rs.
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The default policies.
///
/// # Errors
/// If the policies were not there when this binary was built, or the binary is damaged.
pub fn policies() -> Result<&'static [EmbeddedPolicy], NotEmbedded> {
    match POLICIES {
        Some(_) => Ok(built_policies()?),
        None => Err(NotEmbedded::NotBuilt),
    }
}

/// The default policies, or none where they were not there when this binary was built.
///
/// # Errors
/// If the binary is damaged.
pub fn built_policies() -> Result<&'static [EmbeddedPolicy], Damaged> {
    static UNPACKED: OnceLock<Result<Vec<EmbeddedPolicy>, Damaged>> = OnceLock::new();
    let unpack = || POLICIES.unwrap_or_default().iter().map(unpacked).collect();
    let unpacked = UNPACKED.get_or_init(unpack);
    unpacked.as_deref().map_err(|damaged| *damaged)
}

fn unpacked(policy: &PackedPolicy) -> Result<EmbeddedPolicy, Damaged> {
    Ok(EmbeddedPolicy {
        name: policy.name,
        wasm: policy.wasm.unpack()?.leak(),
        code: policy.code,
    })
}

/// True if this build has the demo model.
#[must_use]
pub fn has_demo_model() -> bool {
    DEMO_MODEL.is_some()
}

/// The demo model; absent: this build has none.
///
/// # Errors
/// If the binary is damaged.
pub fn demo_model() -> Result<Option<ModelFiles>, Damaged> {
    static UNPACKED: OnceLock<Result<Vec<NamedFile>, Damaged>> = OnceLock::new();
    let Some(files) = DEMO_MODEL else {
        return Ok(None);
    };
    let unpack = |file: &Packed| Ok((file.name(), &*file.unpack()?.leak()));
    let unpacked = UNPACKED.get_or_init(|| files.iter().map(unpack).collect());
    let unpacked = unpacked.as_deref().map_err(|damaged| *damaged)?;
    Ok(Some(ModelFiles::Embedded(unpacked)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where the guests were not built first, which `cargo xtask test` does.
    #[test]
    fn the_default_policies_come_out_of_the_binary_as_they_were_built() {
        let policies = policies().unwrap();
        let names: Vec<_> = policies.iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["aging", "memory-aware", "budget"]);
        // `<target>/debug/deps/<this program>`.
        let program = std::env::current_exe().unwrap();
        let target = program.ancestors().nth(3).unwrap();
        for policy in policies {
            let built = target
                .join("policies")
                .join(format!("{}.wasm", policy.name));
            assert!(
                policy.wasm == std::fs::read(built).unwrap(),
                "{}",
                policy.name
            );
        }
    }

    #[test]
    fn the_demo_model_comes_out_of_the_binary_as_it_is_in_the_repository() {
        let model = demo_model().unwrap();
        assert_eq!(model.is_some(), cfg!(feature = "demo-model"));
        assert_eq!(has_demo_model(), model.is_some());
        let Some(model) = model else { return };
        let root = env!("CARGO_MANIFEST_DIR");
        for file in DEMO_MODEL.unwrap() {
            let path = format!("{root}/../../examples/demo-model/{}", file.name());
            let content = model.read(file.name()).unwrap().unwrap();
            assert!(content == std::fs::read(path).unwrap(), "{}", file.name());
        }
        assert_eq!(model.read("no-such-file").unwrap(), None);
    }

    #[test]
    fn a_damaged_binary_says_which_part_is_damaged_and_what_to_do() {
        let wasm = Packed::new("aging.wasm", b"no stream");
        let policy = PackedPolicy {
            name: "aging",
            wasm,
            code: None,
        };
        let error = NotEmbedded::from(unpacked(&policy).unwrap_err());
        assert_eq!(
            error.to_string(),
            "`aging.wasm`, a part of this program, is damaged: install the program again"
        );
    }
}
