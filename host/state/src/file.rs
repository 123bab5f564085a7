//! The state file: versioned JSON.
//!
//! ```json
//! {
//!   "version": 1,
//!   "bindings": { "priority": { "policy": "mine" }, "routing": "embedded" },
//!   "modes": { "mine": { "mode": "canary 10%", "instead-of": "shadow" } },
//!   "quarantine": [
//!     { "fingerprint": "…", "limits": { "call-fuel": 20000000, … }, "digest": "…", "name": "…",
//!       "cause": "faulted", "detail": "…" }
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
//!    another reader (`tests`).

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use pointsman_interface::Hook;
use pointsman_policy::Quarantined;
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
    #[error("damaged: {0:?} is no hook")]
    Hook(String),
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
    quarantine: Vec<Quarantined>,
    good: BTreeMap<String, LastGood>,
    #[serde(default)]
    holders: BTreeMap<String, String>,
    #[serde(default)]
    canaries: BTreeMap<String, String>,
    folder: Option<FolderId>,
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
    Ok(Remembered {
        bindings: by_hook(written.bindings)?,
        modes: written.modes,
        quarantine: written.quarantine,
        last_good: written.good,
        holders: by_hook(written.holders)?,
        canaries: by_hook(written.canaries)?,
        folder: written.folder,
    })
}

fn by_hook<T>(named: BTreeMap<String, T>) -> Result<BTreeMap<Hook, T>, Unreadable> {
    let hooks = named.into_iter().map(|(name, value)| {
        let hook = Hook::named(&name).ok_or(Unreadable::Hook(name))?;
        Ok((hook, value))
    });
    hooks.collect()
}

fn by_name<T: Clone>(hooks: &BTreeMap<Hook, T>) -> BTreeMap<String, T> {
    let named = hooks.iter();
    let named = named.map(|(hook, value)| (hook.as_str().to_owned(), value.clone()));
    named.collect()
}

/// The text of a file with `state`.
pub(super) fn text(state: &Remembered) -> Vec<u8> {
    // A path that is not text cannot be written as JSON.
    let folder = state.folder.as_ref();
    let folder = folder.filter(|seen| seen.path.to_str().is_some());
    let written = Written {
        version: VERSION,
        bindings: by_name(&state.bindings),
        modes: state.modes.clone(),
        quarantine: state.quarantine.clone(),
        good: state.last_good.clone(),
        holders: by_name(&state.holders),
        canaries: by_name(&state.canaries),
        folder: folder.cloned(),
    };
    let mut text = serde_json::to_vec_pretty(&written).expect("every key in it is text");
    text.push(b'\n');
    text
}
