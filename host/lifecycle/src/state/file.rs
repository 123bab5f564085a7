//! The state file: versioned JSON.
//!
//! ```json
//! {
//!   "version": 1,
//!   "bindings": { "priority": { "policy": "mine" }, "routing": "embedded" },
//!   "modes": { "mine": { "mode": "canary 10%", "instead-of": "shadow" } },
//!   "quarantine": [
//!     { "fingerprint": "…", "digest": "…", "name": "…", "cause": "faulted", "detail": "…" }
//!   ],
//!   "good": { "mine": { "digest": "…", "sidecar": "…" } },
//!   "holders": { "routing": "mine" },
//!   "canaries": { "admission": "other" },
//!   "folder": { "path": "/etc/pointsman/policies.d", "device": 64769, "inode": 131 }
//! }
//! ```
//!
//! # Invariants
//! 1. Later releases read the file of an earlier one; `VERSION` counts up with a form that needs
//!    another reader (`state::tests`).

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use pointsman_component::Digest;
use pointsman_interface::{Hook, Micros};
use pointsman_policy::{Cause, Quarantined};
use serde::{Deserialize, Serialize};

use super::{BoundTo, FolderId, LastGood, ModeOrder, Remembered};

const VERSION: u32 = 1;

/// The reason why a state file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("too large")]
    TooLarge,
    #[error("of version {0}, this server reads {VERSION}")]
    Version(u32),
    #[error("damaged: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("damaged: {0:?} is no {1}")]
    Value(String, &'static str),
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
    bindings: BTreeMap<String, BoundTo>,
    modes: BTreeMap<String, ModeOrder>,
    quarantine: Vec<WrittenEntry>,
    good: BTreeMap<String, WrittenGood>,
    #[serde(default)]
    holders: BTreeMap<String, String>,
    #[serde(default)]
    canaries: BTreeMap<String, String>,
    folder: Option<FolderId>,
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

/// The state in the `bytes` of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Remembered, Unreadable> {
    catch_unwind(|| parse_checked(bytes)).unwrap_or(Err(Unreadable::Panicked))
}

fn parse_checked(bytes: &[u8]) -> Result<Remembered, Unreadable> {
    let Versioned { version } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let written: Written = serde_json::from_slice(bytes)?;
    let mut state = Remembered {
        bindings: by_hook(written.bindings)?,
        modes: written.modes,
        holders: by_hook(written.holders)?,
        canaries: by_hook(written.canaries)?,
        folder: written.folder,
        ..Remembered::default()
    };
    for entry in written.quarantine {
        state.quarantine.push(entry.read()?);
    }
    for (name, WrittenGood { digest, sidecar }) in written.good {
        let digest = read_digest(digest)?;
        state.last_good.insert(name, LastGood { digest, sidecar });
    }
    Ok(state)
}

fn by_hook<T>(named: BTreeMap<String, T>) -> Result<BTreeMap<Hook, T>, Unreadable> {
    let hooks = named.into_iter().map(|(name, value)| {
        let hook = Hook::named(&name).ok_or(Unreadable::Value(name, "hook"))?;
        Ok((hook, value))
    });
    hooks.collect()
}

fn by_name<T: Clone>(hooks: &BTreeMap<Hook, T>) -> BTreeMap<String, T> {
    let named = hooks.iter();
    let named = named.map(|(hook, value)| (hook.as_str().to_owned(), value.clone()));
    named.collect()
}

fn read_digest(text: String) -> Result<Digest, Unreadable> {
    text.parse()
        .map_err(|_not| Unreadable::Value(text, "SHA-256"))
}

/// The text of a file with `state`.
pub(super) fn text(state: &Remembered) -> Vec<u8> {
    let good = state.last_good.iter();
    // A path that is not text cannot be written as JSON.
    let folder = state.folder.as_ref();
    let folder = folder.filter(|seen| seen.path.to_str().is_some());
    let written = Written {
        version: VERSION,
        bindings: by_name(&state.bindings),
        modes: state.modes.clone(),
        quarantine: state.quarantine.iter().map(WrittenEntry::of).collect(),
        good: good
            .map(|(name, good)| {
                let digest = good.digest.to_string();
                let sidecar = good.sidecar.clone();
                (name.clone(), WrittenGood { digest, sidecar })
            })
            .collect(),
        holders: by_name(&state.holders),
        canaries: by_name(&state.canaries),
        folder: folder.cloned(),
    };
    let mut text = serde_json::to_vec_pretty(&written).expect("every key in it is text");
    text.push(b'\n');
    text
}

// === impl WrittenEntry ===

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

    /// Reads an entry. Its time is not kept: the host's clock begins anew with each life.
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
