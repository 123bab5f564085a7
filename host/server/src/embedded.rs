//! The default policies, which are in the binary, packed.
//!
//! The policies are components that `cargo xtask policies` has built; `build.rs` finds them beside
//! the build, and packs them. Where they are not, all but a running server still builds, and [`policies`] says what
//! to do. What is unpacked when it is first asked for stays for as long as the process lives; machine code is
//! unpacked where it is loaded, and dropped.
//!
//! # Not here
//! The hooks that an embedded policy holds (`pointsman-lifecycle`); the demo model (`pointsman-local`).

use std::sync::OnceLock;

use pointsman_component::EmbeddedPolicy;
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

// `static POLICIES: Option<&[PackedPolicy]>`, by build.rs.
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

#[cfg(test)]
mod tests {
    use pointsman_testkit::component::component_path;

    use super::*;

    /// Fails where the guests were not built first, which `cargo xtask test` does.
    #[test]
    fn the_default_policies_come_out_of_the_binary_as_they_were_built() {
        let policies = policies().unwrap();
        let names: Vec<_> = policies.iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["aging", "memory-aware", "budget"]);
        for policy in policies {
            assert!(
                policy.wasm == std::fs::read(component_path(policy.name)).unwrap(),
                "{}",
                policy.name
            );
        }
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
