//! Ways into this crate's parsers for `tests/fuzz`: bytes in, and whether they were understood.
//!
//! Outsiders write what these read: clients bodies, operators files. Whatever the bytes are, each
//! returns; an error is its text, as the outsider would see it.
//!
//! # Not here
//! Sockets, files and lookups: a body is read as if every model existed. A configuration is
//! validated, which looks at the folders and key files that it names.

use std::path::Path;

use pointsman_component::Limits;
use pointsman_openai::{CompletionKind, try_body};

use pointsman_config::Config;

/// Reads and validates a configuration file.
///
/// # Errors
/// What is wrong with it, and where.
pub fn config(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let read = Config::of_text(text);
    read.map(drop).map_err(|error| error.to_string())
}

/// Reads what stands beside a policy.
///
/// # Errors
/// What is wrong with it, and where.
pub fn sidecar(bytes: &[u8]) -> Result<(), String> {
    let file = Path::new("policy.toml");
    let read = pointsman_sidecar::parse(file, bytes.to_vec(), &Limits::default());
    read.map(drop).map_err(|error| error.to_string())
}

/// Reads the body of a chat completion.
///
/// # Errors
/// What is wrong with it.
pub fn chat(bytes: &[u8]) -> Result<(), String> {
    try_body(CompletionKind::Chat, bytes)
}

/// Reads the body of a completion.
///
/// # Errors
/// What is wrong with it.
pub fn completion(bytes: &[u8]) -> Result<(), String> {
    try_body(CompletionKind::Text, bytes)
}
