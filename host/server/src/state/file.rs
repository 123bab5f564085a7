//! The state file: versioned JSON.
//!
//! ```json
//! {
//!   "version": 1,
//!   "bindings": { "priority": { "policy": "mine" }, "routing": "embedded" },
//!   "modes": { "mine": { "mode": "canary 10%", "instead-of": "shadow" } },
//!   "quarantine": [ { "fingerprint": "…", "digest": "…", "name": "…", "cause": "faulted", "detail": "…" } ],
//!   "good": { "mine": { "digest": "…", "sidecar": "…" } },
//!   "folder": { "path": "/etc/pointsman/policies.d", "device": 64769, "inode": 131 }
//! }
//! ```
//!
//! # Invariants
//! 1. What a release wrote, later ones read; `VERSION` counts up with what they could not
//!    (`state::tests`).

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::PathBuf;

use pointsman_core::{Hook, Micros};
use pointsman_policy::{Cause, Digest, Mode, Quarantined};
use serde::{Deserialize, Serialize};

use super::{Bound, Good, ModeOrder, Remembered, SeenFolder};

const VERSION: u32 = 1;

/// Why a state file is not one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// Larger than any that this server writes.
    #[error("too large")]
    TooLarge,
    /// Another release wrote it.
    #[error("of version {0}, this server reads {VERSION}")]
    Version(u32),
    /// Its text makes no sense.
    #[error("damaged: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A value makes no sense.
    #[error("damaged: {0:?} is no {1}")]
    Value(String, &'static str),
    /// The parser gave up.
    #[error("damaged: its parser panicked")]
    Panicked,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    version: u32,
    bindings: BTreeMap<String, WrittenBound>,
    modes: BTreeMap<String, WrittenMode>,
    quarantine: Vec<WrittenEntry>,
    good: BTreeMap<String, WrittenGood>,
    folder: Option<WrittenFolder>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenFolder {
    path: PathBuf,
    device: u64,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenBound {
    Policy(String),
    Embedded,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenMode {
    mode: Mode,
    instead_of: Mode,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenEntry {
    fingerprint: String,
    digest: String,
    name: String,
    cause: Cause,
    detail: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenGood {
    digest: String,
    sidecar: Option<String>,
}

/// What a state file says.
pub(super) fn parse(bytes: &[u8]) -> Result<Remembered, Unreadable> {
    catch_unwind(|| parse_checked(bytes)).unwrap_or(Err(Unreadable::Panicked))
}

fn parse_checked(bytes: &[u8]) -> Result<Remembered, Unreadable> {
    let Versioned { version } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let written: Written = serde_json::from_slice(bytes)?;
    let mut state = Remembered::default();
    for (hook, bound) in written.bindings {
        let hook = Hook::named(&hook).ok_or(Unreadable::Value(hook, "hook"))?;
        state.bindings.insert(hook, bound.into());
    }
    for (name, WrittenMode { mode, instead_of }) in written.modes {
        state.modes.insert(name, ModeOrder { mode, instead_of });
    }
    for entry in written.quarantine {
        state.quarantine.push(entry.read()?);
    }
    for (name, WrittenGood { digest, sidecar }) in written.good {
        let digest = read_digest(digest)?;
        state.good.insert(name, Good { digest, sidecar });
    }
    state.folder = written.folder.map(|seen| SeenFolder {
        path: seen.path,
        device: seen.device,
        inode: seen.inode,
    });
    Ok(state)
}

fn read_digest(text: String) -> Result<Digest, Unreadable> {
    text.parse()
        .map_err(|_not| Unreadable::Value(text, "SHA-256"))
}

/// `state` as a file says it.
pub(super) fn text(state: &Remembered) -> Vec<u8> {
    let bindings = state.bindings.iter();
    let modes = state.modes.iter();
    let good = state.good.iter();
    // A path that is not text cannot be written as JSON.
    let folder = state.folder.as_ref();
    let folder = folder.filter(|seen| seen.path.to_str().is_some());
    let written = Written {
        version: VERSION,
        bindings: bindings
            .map(|(hook, bound)| (hook.as_str().to_owned(), bound.into()))
            .collect(),
        modes: modes
            .map(|(name, &ModeOrder { mode, instead_of })| {
                (name.clone(), WrittenMode { mode, instead_of })
            })
            .collect(),
        quarantine: state.quarantine.iter().map(WrittenEntry::of).collect(),
        good: good
            .map(|(name, good)| {
                let digest = good.digest.to_string();
                let sidecar = good.sidecar.clone();
                (name.clone(), WrittenGood { digest, sidecar })
            })
            .collect(),
        folder: folder.map(|seen| WrittenFolder {
            path: seen.path.clone(),
            device: seen.device,
            inode: seen.inode,
        }),
    };
    let mut text = serde_json::to_vec_pretty(&written).expect("every key in it is text");
    text.push(b'\n');
    text
}

// === impl the conversions ===

impl From<WrittenBound> for Bound {
    fn from(written: WrittenBound) -> Self {
        match written {
            WrittenBound::Policy(name) => Self::Policy(name),
            WrittenBound::Embedded => Self::Embedded,
        }
    }
}

impl From<&Bound> for WrittenBound {
    fn from(bound: &Bound) -> Self {
        match bound {
            Bound::Policy(name) => Self::Policy(name.clone()),
            Bound::Embedded => Self::Embedded,
        }
    }
}

impl WrittenEntry {
    fn of(entry: &Quarantined) -> Self {
        Self {
            fingerprint: entry.fingerprint.to_string(),
            digest: entry.digest.to_string(),
            name: entry.name.clone(),
            cause: entry.cause,
            detail: entry.detail.clone(),
        }
    }

    /// The host's clock begins anew with each life, so when it was is not kept.
    fn read(self) -> Result<Quarantined, Unreadable> {
        Ok(Quarantined {
            fingerprint: read_digest(self.fingerprint)?,
            digest: read_digest(self.digest)?,
            name: self.name,
            at: Micros(0),
            cause: self.cause,
            detail: self.detail,
        })
    }
}
