//! The environment of the cargo that compiles guests.
//!
//! This tool runs under a cargo of its own, whose variables would reach the inner cargo: flags for
//! the native target, another compiler, another target folder.

use std::env;
use std::process::Command;

/// Variables that steer a compilation, besides those of cargo.
const STEERING: &[&str] = &[
    "RUSTC",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// Prefixes of cargo variables that users set for network, registries and terminal.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
    "CARGO_TERM_",
    "CARGO_BUILD_JOBS",
];

/// Removes the outer cargo's variables from the command's environment.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(leaks) {
            command.env_remove(name);
        }
    }
}

fn leaks(name: &str) -> bool {
    let cargo = name == "CARGO" || name.starts_with("CARGO_");
    let kept = KEPT.iter().any(|beginning| name.starts_with(beginning));
    STEERING.contains(&name) || (cargo && !kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_outer_cargo_are_dropped() {
        for name in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_MANIFEST_DIR",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS",
            "RUSTC",
            "RUSTFLAGS",
        ] {
            assert!(leaks(name), "{name}");
        }
    }

    #[test]
    fn variables_of_the_user_are_kept() {
        for name in [
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_TERM_COLOR",
            "PATH",
            "CARGOES",
        ] {
            assert!(!leaks(name), "{name}");
        }
    }
}
