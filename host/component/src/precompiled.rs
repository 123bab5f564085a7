//! Machine code that was made ahead, for components that a program has in itself.
//!
//! It begins with the digest of its component. On `x86_64` it runs on every processor of the last ten years or
//! so ([`PROCESSOR`]), elsewhere on those like the one on which it was made. Where it cannot be used, its
//! component is compiled like any other.

use wasmtime::component::Component;

use crate::cache::deserialize;
use crate::digest::Digest;
use crate::engine::{PolicyEngine, config};

/// First bytes of the code. The digest of the component follows, then the code as wasmtime has it.
const MAGIC: &[u8; 16] = b"pointsman ahead1";

/// Extensions of the processor that the code uses, by Cranelift's names: those of the level x86-64-v3.
const PROCESSOR: &[&str] = &[
    "has_sse3",
    "has_ssse3",
    "has_sse41",
    "has_sse42",
    "has_cmpxchg16b",
    "has_popcnt",
    "has_avx",
    "has_avx2",
    "has_bmi1",
    "has_bmi2",
    "has_fma",
    "has_lzcnt",
];

/// Makes machine code of `component`, which a program of the same release can load.
///
/// # Errors
/// If the component cannot be compiled: the compiler's message.
pub fn precompile(component: &[u8]) -> Result<Vec<u8>, String> {
    let code = target().and_then(|config| {
        let engine = wasmtime::Engine::new(&config)?;
        engine.precompile_component(component)
    });
    let code = code.map_err(|error| format!("{error:#}"))?;
    Ok([MAGIC, &Digest::of(component).0[..], &code].concat())
}

/// The component with `digest`, if `code` was made of it and can be used here.
pub(crate) fn find(engine: &PolicyEngine, digest: Digest, code: &[u8]) -> Option<Component> {
    let code = code.strip_prefix(MAGIC)?.strip_prefix(&digest.0)?;
    deserialize(engine, code).ok()
}

/// The configuration for processors like this one and others.
#[expect(
    unsafe_code,
    reason = "the processor is described by flags of the compiler"
)]
fn target() -> wasmtime::Result<wasmtime::Config> {
    let mut config = config();
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        // With a target, what this processor has besides is not used.
        config.target("x86_64-unknown-linux-gnu")?;
        for extension in PROCESSOR {
            // SAFETY: The code is not run here. wasmtime writes the flags down beside it, and code is
            // loaded only on a processor that has each of them.
            unsafe { config.cranelift_flag_enable(extension) };
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    //! Code of a component, of another, and of no use.
    use super::*;

    const EMPTY: &str = "(component)";

    fn component(text: &str) -> Vec<u8> {
        wat::parse_str(text).unwrap()
    }

    fn is_found(component: &[u8], code: Vec<u8>) -> bool {
        let engine = PolicyEngine::new().unwrap();
        find(&engine, Digest::of(component), &code).is_some()
    }

    #[test]
    fn code_is_used_for_the_component_it_was_made_of_and_no_other() {
        let component = component(EMPTY);
        let code = precompile(&component).unwrap();
        assert_eq!(precompile(&component).unwrap(), code);
        assert!(is_found(&component, code.clone()));
        assert!(!is_found(b"another", code));
    }

    #[test]
    fn what_is_no_code_is_not_used() {
        let component = component(EMPTY);
        let mut code = precompile(&component).unwrap();
        assert!(!is_found(&component, code[..40].to_vec()));
        assert!(!is_found(&component, Vec::new()));
        // The version of wasmtime and the flags stand in the first bytes of wasmtime's part.
        code.truncate(1000);
        assert!(!is_found(&component, code));
    }

    #[test]
    fn what_is_no_component_is_refused() {
        precompile(b"text").unwrap_err();
    }
}
