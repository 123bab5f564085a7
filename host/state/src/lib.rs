//! The server's memory of its policies, from one life to the next: operators' orders, the
//! quarantine, the last good version of each file, dumps of faults, and compiled code.
//!
//! The reconciler owns the memory. Without a usable folder, everything is remembered until the
//! server ends: nothing that serves depends on a disk.
//!
//! # Invariants
//! 1. The state read back is the one written last, or the one before, even if the machine stopped
//!    in between: files are written beside, synced, and moved into place (`folder`).
//! 2. A damaged file is set aside and reported, not repaired by guessing (`tests`).
//! 3. Two servers never share a folder (`tests`).
//! 4. A `state.json` that could not be written is written once it can be: [`State::change`] tries it again, and the
//!    reconciler calls that in each pass (`a_state_that_could_not_be_written_is_written_by_the_next_change`;
//!    `what_could_not_be_written_is_once_it_can_be` in `host/server/tests/reload/lives.rs`). So it is with components
//!    that could not be removed (`components_that_could_not_be_removed_are_by_the_next_change`). One that could not be
//!    kept is not tried again: the last good version before it is remembered.
//!
//! # Not here
//! The use of the memory (`pointsman_lifecycle::reconciler`).

#![forbid(unsafe_code)]

mod file;
mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use pointsman_component::{CompileCache, Digest};
use pointsman_interface::Hook;
use pointsman_notation::chain;
use pointsman_policy::{Mode, Quarantined};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use folder::StateFolder;
pub use folder::{StateError, dumps};

/// The part of the state that is written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    /// Hooks that an operator has bound by order.
    pub bindings: BTreeMap<Hook, BoundTo>,
    /// Modes that an operator has ordered, by policy name.
    pub modes: BTreeMap<String, ModeOrder>,
    /// Versions of policies that are not put in force.
    pub quarantine: Vec<Quarantined>,
    /// The last good version of each policy that came as a file, by policy name.
    pub last_good: BTreeMap<String, LastGood>,
    /// Files that held a hook last, by policy name: where several claim one, this one keeps it.
    pub holders: BTreeMap<Hook, String>,
    /// Files that were the canary for a hook last, in the same way.
    pub canaries: BTreeMap<Hook, String>,
    /// The policy folder, when it was last listed.
    pub folder: Option<FolderId>,
}

/// The identity of a policy folder, which tells it from an empty one where it is not mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FolderId {
    /// The path, which is absolute in the configuration: a relative one is another folder's wherever a server starts.
    pub path: PathBuf,
    /// The number of the device.
    pub device: u64,
    /// The folder's number on the device.
    pub inode: u64,
}

/// The target of an order to bind a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundTo {
    /// The policy of that name.
    Policy(String),
    /// The embedded default that exports the hook, even if a file has the default's name.
    Embedded,
}

/// A mode that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ModeOrder {
    pub mode: Mode,
    /// The mode in the policy's file then. Once the file says another one the order is void.
    pub instead_of: Mode,
}

/// A version of a policy that has proven itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastGood {
    /// Digest of the version's component, which is kept as well.
    pub digest: Digest,
    /// The text of the version's sidecar; absent: there was none.
    pub sidecar: Option<String>,
}

/// The work that changes have left in the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Work {
    #[default]
    None,
    /// The file has what is remembered, and components that it does not name may be there.
    Sweep,
    /// The file does not have what is remembered: it may name components that nothing else does.
    Write,
}

/// The state, and the folder that keeps it.
#[derive(Debug, Default)]
pub struct State {
    remembered: Remembered,
    left: Work,
    folder: Option<StateFolder>,
    /// The failures of what did not succeed since, by the words for it.
    problems: BTreeMap<&'static str, String>,
    shown: StateReport,
}

/// The condition of the state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateReport {
    /// The folder's path; absent: nothing is kept when the server ends.
    pub path: Option<PathBuf>,
    /// The failures in the folder of what did not succeed since; absent: all of it works.
    pub problem: Option<String>,
    /// The place of the state file that was set aside when the server started, and the reason.
    pub set_aside: Option<String>,
}

/// The state folder of a server that was given none: systemd's, or the user's.
#[must_use]
pub fn default_folder() -> Option<PathBuf> {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = named("STATE_DIRECTORY") {
        // systemd separates several with colons.
        let folders = env::split_paths(&folder).next();
        return folders.filter(|folder| !folder.as_os_str().is_empty());
    }
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(named("HOME")?).join(".local/state")));
    Some(state?.join("pointsman"))
}

impl State {
    /// The state in the folder at `path`. Where the folder cannot be used, that is logged, and
    /// nothing outlives the server.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self::open_whole(path).unwrap_or_else(|error| {
            let mut state = Self::default();
            state.fails(
                "state folder cannot be used, nothing outlives this server",
                &error,
            );
            state
        })
    }

    /// The state in the folder at `path`.
    ///
    /// # Errors
    /// If the folder cannot be used. A state file that makes no sense is set aside, as [`Self::open`] does.
    pub fn open_whole(path: &Path) -> Result<Self, StateError> {
        let (folder, read) = StateFolder::open(path)?;
        Ok(Self::read(path, folder, read))
    }

    /// Checks that [`Self::open_whole`] could have the folder at `path`, but for whether another server uses it. Makes
    /// nothing.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn check(path: &Path) -> Result<(), StateError> {
        StateFolder::check(path)
    }

    fn read(path: &Path, folder: StateFolder, read: Result<Remembered, StateError>) -> Self {
        let mut state = Self {
            folder: Some(folder),
            ..Self::default()
        };
        state.shown.path = Some(path.to_owned());
        match read {
            Ok(remembered) => {
                info!(path = %path.display(), "state folder read");
                state.remembered = remembered;
            }
            Err(error) => {
                let (what, why) = ("state file set aside, beginning anew", chain(&error));
                warn!(why, "{what}");
                state.shown.set_aside = Some(format!("{what}: {why}"));
            }
        }
        state
    }

    #[must_use]
    pub fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    #[must_use]
    pub fn report(&self) -> &StateReport {
        &self.shown
    }

    /// Changes the remembered state, and does in the folder what this and earlier changes have left.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut Remembered) -> R) -> R {
        let before = self.remembered.clone();
        let result = change(&mut self.remembered);
        if before != self.remembered {
            self.left = Work::Write;
        }
        self.work();
        result
    }

    /// Writes down the remembered state, and removes the components that it does not name, as far as that is left.
    fn work(&mut self) {
        if self.left == Work::Write
            && let Some(folder) = &self.folder
        {
            let written = folder.write(&self.remembered);
            if written.is_ok() {
                self.left = Work::Sweep;
            }
            self.note("state not written", written);
        }
        if self.left == Work::Sweep
            && let Some(folder) = &self.folder
        {
            let swept = folder.sweep(&self.remembered);
            if swept.is_ok() {
                self.left = Work::None;
            }
            self.note("replaced policies not removed", swept);
        }
    }

    /// Keeps `code` as the last good component of `name`, with the text of its sidecar.
    pub fn prove(&mut self, name: &str, code: &[u8], sidecar: Option<String>) {
        let digest = Digest::of(code);
        let Some(folder) = &self.folder else {
            return;
        };
        let kept = folder.keep_code(digest, code);
        if kept.is_ok() {
            self.change(|state| {
                let good = LastGood { digest, sidecar };
                state.last_good.insert(name.to_owned(), good);
            });
        }
        self.note("last good policy not kept", kept);
    }

    /// The component with `digest`, if it was kept and is whole.
    #[must_use]
    pub fn code(&self, digest: Digest) -> Option<Vec<u8>> {
        self.folder.as_ref()?.code(digest)
    }

    /// Keeps the dump of a fault, among the newest.
    pub fn keep_dump(&mut self, dump: &[u8]) {
        let Some(folder) = &mut self.folder else {
            return;
        };
        let kept = folder.keep_dump(dump);
        self.note("dump of a fault not kept", kept);
    }

    /// The cache of compiled code; absent: none is kept.
    pub fn cache(&mut self) -> Option<CompileCache> {
        let opened = CompileCache::open(&self.folder.as_ref()?.cache());
        opened
            .map_err(|error| self.fails("compiled policies are not kept", &error))
            .ok()
    }

    /// Reports and logs the failure of `what`, once for each way in which it fails, and its end.
    fn note(&mut self, what: &'static str, result: Result<(), StateError>) {
        match result {
            Ok(()) => {
                if let Some(why) = self.problems.remove(what) {
                    info!(what, why, "problem of the state folder is over");
                    self.show_problems();
                }
            }
            Err(error) => self.fails(what, &error),
        }
    }

    fn fails(&mut self, what: &'static str, error: &dyn std::error::Error) {
        let why = chain(error);
        if self.problems.get(what) != Some(&why) {
            warn!(why, "{what}");
            self.problems.insert(what, why);
            self.show_problems();
        }
    }

    fn show_problems(&mut self) {
        let problems = self.problems.iter();
        let problems = problems.map(|(what, why)| format!("{what}: {why}"));
        let problems: Vec<String> = problems.collect();
        self.shown.problem = (!problems.is_empty()).then(|| problems.join("; "));
    }
}
