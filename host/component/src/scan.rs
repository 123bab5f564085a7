//! The imports and exports of a file, read before anything is compiled.
//!
//! Compiling a large guest takes seconds. A file that cannot become a policy is refused here, with
//! a reason that helps its author, and so is one with which the compiler would get lost: see
//! [`sizes`].
//!
//! # Bounds
//! Time is linear in the file, and neither stack nor memory depends on what the file says.
//!
//! # Not here
//! The validity of the file, and the types of its functions: wasmtime checks both.

mod sizes;

use std::fmt;

use pointsman_interface::{Hook, HookSet};
use wasmparser::{Encoding, Parser, Payload};

use crate::compiler::CompileLimits;
use crate::component::LoadError;
use sizes::Sizes;

/// Package of the scheduling interface.
const PACKAGE: &str = "pointsman:scheduling/";

const LIFECYCLE: &str = "lifecycle";
const EXPLANATION: &str = "explanation";

/// Releases of the interface that this host knows, `0.1.x`, as its author writes them.
pub(crate) const KNOWN: &str = "0.1.x";

/// The exports of a component that this host knows.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    pub(crate) hooks: HookSet,
    pub(crate) explains: bool,
    /// Interfaces of this package that this host does not know: a newer host would call them.
    pub(crate) unknown: Vec<String>,
}

/// Reads the exports, and refuses a file that is no component, that has forbidden imports or
/// exports, or that is past one of `limits`.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the many sections only those about imports and exports matter"
)]
pub(crate) fn scan(bytes: &[u8], limits: &CompileLimits) -> Result<Exports, LoadError> {
    recognise(bytes)?;
    let mut exported = Vec::new();
    let mut sizes = Sizes::new(limits, bytes);
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(malformed)?;
        let depth = sizes.depth();
        sizes.add(&payload)?;
        match payload {
            Payload::Version { encoding, .. } if depth == 0 && encoding == Encoding::Module => {
                return Err(LoadError::CoreModule);
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    check_import(import.map_err(malformed)?.name.name)?;
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exported.extend(interface(export.map_err(malformed)?.name.name)?);
                }
            }
            _ => {}
        }
    }
    Exports::of(&exported)
}

/// Refuses a file whose first bytes are not WebAssembly.
fn recognise(bytes: &[u8]) -> Result<(), LoadError> {
    match bytes {
        [0x7f, b'E', b'L', b'F', ..] => Err(LoadError::Precompiled),
        [0, b'a', b's', b'm', ..] => Ok(()),
        [b'(', ..] => Err(LoadError::TextFormat),
        _ => Err(LoadError::NotWebAssembly),
    }
}

fn malformed(error: wasmparser::BinaryReaderError) -> LoadError {
    LoadError::Malformed(error.to_string())
}

/// Returns the interface of this package that `name` is, without its version.
fn interface(name: &str) -> Result<Option<&str>, LoadError> {
    let Some(rest) = name.strip_prefix(PACKAGE) else {
        return Ok(None);
    };
    let (interface, version) = rest.split_once('@').unwrap_or((rest, ""));
    if is_known(version) {
        return Ok(Some(interface));
    }
    Err(LoadError::UnknownVersion {
        interface: format!("{PACKAGE}{interface}"),
        version: version.to_owned(),
    })
}

/// True if `version` is a release of 0.1. A pre-release promises nothing.
fn is_known(version: &str) -> bool {
    version
        .strip_prefix("0.1.")
        .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

fn check_import(name: &str) -> Result<(), LoadError> {
    match interface(name)? {
        // `types` has no functions; linking fails if it has.
        Some("log" | "types") => Ok(()),
        Some(_) | None => Err(LoadError::ForbiddenImport {
            import: name.to_owned(),
            hint: Hint::of(name),
        }),
    }
}

impl Exports {
    fn of(interfaces: &[&str]) -> Result<Self, LoadError> {
        if !interfaces.contains(&LIFECYCLE) {
            return Err(LoadError::NoLifecycle);
        }
        let mut exports = Self::default();
        for interface in interfaces {
            match Hook::named(interface) {
                Some(hook) => exports.hooks.insert(hook),
                None if *interface == EXPLANATION => exports.explains = true,
                None if *interface == LIFECYCLE => {}
                None => exports.unknown.push((*interface).to_owned()),
            }
        }
        if exports.hooks.is_empty() {
            return Err(LoadError::NoHooks);
        }
        Ok(exports)
    }

    /// Tells whether the component exports a hook or the explanation, by its interface's name.
    pub(crate) fn has(&self, interface: &str) -> bool {
        match Hook::named(interface) {
            Some(hook) => self.hooks.contains(hook),
            None => self.explains && interface == EXPLANATION,
        }
    }
}

/// Advice for the author of a component with a forbidden import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Advice to build without WASI, which a toolchain added.
    DropWasi,
    /// Advice that `log` is the only import.
    OnlyLog,
}

impl Hint {
    fn of(import: &str) -> Self {
        if import.starts_with("wasi:") {
            Self::DropWasi
        } else {
            Self::OnlyLog
        }
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DropWasi => {
                "a policy has no WASI: build Rust with --target wasm32-unknown-unknown, \
                 componentize-py and componentize-qjs with --stub-wasi, componentize-js with all \
                 features disabled"
            }
            Self::OnlyLog => "the only import of a policy is pointsman:scheduling/log",
        })
    }
}
