//! The bodies of the fuzz targets: one for each parser of bytes from outside.
//!
//! A body panics if its parser does, or if a promise about every input is broken. The targets of
//! `tests/fuzz` call one body each; `tests/fuzz_bodies.rs` runs all of them on stable Rust.

use std::path::Path;
use std::sync::OnceLock;

use pointsman_component::{Limits, LoadError, PolicyComponent, PolicyEngine};
use pointsman_journal::{Located, json_line, read_bytes};
use pointsman_model::gguf::try_head;
use pointsman_policy::{PolicySource, SelfTestError, self_test};
use pointsman_server::fuzz;
use pointsman_testkit::Scenario;
use serde_json::Map;

use crate::client::CONFORMANCE;

/// A body: takes any bytes, and returns true if they were understood.
pub type Body = fn(&[u8]) -> bool;

/// Reads bytes as a journal file, and shows every entry.
///
/// # Panics
/// If entries do not follow each other within the file, or one cannot be shown.
#[must_use]
pub fn journal(bytes: &[u8]) -> bool {
    let Ok(entries) = read_bytes(bytes) else {
        return false;
    };
    let mut next = 0;
    for (offset, entry) in entries {
        let within = offset < bytes.len() as u64;
        assert!(offset >= next && within, "an entry at {offset}");
        next = offset + 1;
        let file = Path::new("journal.pmj").into();
        let located = Located {
            file,
            offset,
            entry,
        };
        json_line(&located).expect("what was read can be shown");
    }
    next > 0
}

/// Reads bytes as a policy's sidecar.
#[must_use]
pub fn sidecar(bytes: &[u8]) -> bool {
    fuzz::sidecar(bytes).is_ok()
}

/// Reads bytes as the head of a GGUF file, with the architecture and the tokenizer in it.
#[must_use]
pub fn gguf(bytes: &[u8]) -> bool {
    try_head(bytes).is_ok()
}

/// Reads bytes as a configuration file.
#[must_use]
pub fn config(bytes: &[u8]) -> bool {
    fuzz::config(bytes).is_ok()
}

/// Reads bytes as a file of scenarios.
#[must_use]
pub fn scenario(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    match Scenario::all(Path::new("scenario.toml"), text) {
        Ok(_) => true,
        Err(error) => error.to_string().is_empty(),
    }
}

/// Reads them as the body of a chat completion.
///
/// # Panics
/// If a body that is understood does not fit the schema of the OpenAPI document.
#[must_use]
pub fn chat(bytes: &[u8]) -> bool {
    understood("/v1/chat/completions", fuzz::chat, bytes)
}

/// Reads them as the body of a completion.
///
/// # Panics
/// If a body that is understood does not fit the schema of the OpenAPI document.
#[must_use]
pub fn completion(bytes: &[u8]) -> bool {
    understood("/v1/completions", fuzz::completion, bytes)
}

fn understood(path: &str, read: fn(&[u8]) -> Result<(), String>, bytes: &[u8]) -> bool {
    if read(bytes).is_err() {
        return false;
    }
    // A field that is ignored may be nested deeper, or a larger number, than a value can be.
    if let Ok(body) = serde_json::from_slice(bytes) {
        let checked = CONFORMANCE.check_body(("POST", path), &body);
        assert_eq!(checked, Ok(()), "{body}");
    }
    true
}

/// Loads bytes as a policy, and runs the self-test on it.
///
/// # Panics
/// If the loader or the compiler panics, though the host would survive that.
#[must_use]
pub fn component(bytes: &[u8]) -> bool {
    static ENGINE: OnceLock<PolicyEngine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| PolicyEngine::new().expect("an engine for this machine"));
    matches!(load_and_ask(engine, bytes), LoadResult::Works)
}

/// The result of loading bytes as a policy.
#[derive(Debug)]
pub enum LoadResult {
    /// The bytes are no policy.
    Refused(LoadError),
    /// The policy fails the self-test.
    Failed(SelfTestError),
    /// The policy passes the self-test.
    Works,
}

/// Loads bytes as a policy, and runs the self-test on it, with little fuel.
///
/// # Panics
/// If the loader or the compiler panics, though the host would survive that.
#[must_use]
pub fn load_and_ask(engine: &PolicyEngine, bytes: &[u8]) -> LoadResult {
    let component = match PolicyComponent::load(engine, bytes) {
        Ok(component) => component,
        Err(LoadError::Panicked(why)) => panic!("loading panicked: {why}"),
        Err(error) => return LoadResult::Refused(error),
    };
    let limits = Limits {
        call_fuel: 5_000_000,
        call_fuel_max: 20_000_000,
        lifecycle_fuel: 20_000_000,
        observe_rows: 64,
        ..Limits::default()
    };
    match self_test(&PolicySource::component(&component, &Map::new(), limits)) {
        Ok(()) => LoadResult::Works,
        Err(error) => LoadResult::Failed(error),
    }
}
