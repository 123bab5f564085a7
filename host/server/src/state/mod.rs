//! What a server knows about its policies from one life to the next: what an operator has
//! ordered, what is in quarantine, the last good version of each file, dumps of faults, and
//! compiled code.
//!
//! The keeper owns it. Where there is no folder, or it cannot be had, everything is remembered
//! until the server ends: nothing that serves depends on a disk.
//!
//! # Invariants
//! 1. What is read back is what was written last, or what was written before that, whatever
//!    moment the machine stopped at: files are written beside, synced, and moved into place
//!    (`folder`).
//! 2. A file that is damaged is set aside and said, not repaired by guessing (`tests`).
//! 3. Two servers never share a folder (`tests`).
//!
//! # Not here
//! What is made of it (`reload`).

mod file;
mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use pointsman_core::Hook;
use pointsman_policy::{CompileCache, Digest, Mode, Quarantined};
use tracing::{info, warn};

use folder::StateFolder;
pub use folder::{StateError, UnreadableState, dumps};

/// What survives the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    /// Hooks that an operator has bound, by order.
    pub bindings: BTreeMap<Hook, Bound>,
    /// Modes that an operator has set, by order, by policy.
    pub modes: BTreeMap<String, ModeOrder>,
    /// Versions of policies that are not put in force.
    pub quarantine: Vec<Quarantined>,
    /// The last good version of each policy that came as a file.
    pub good: BTreeMap<String, Good>,
    /// The policy folder, when it was last listed.
    pub folder: Option<SeenFolder>,
}

/// A policy folder, to tell it from an empty one where it is not mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFolder {
    /// Where it is.
    pub path: PathBuf,
    /// Number of the device it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// To whom a hook was bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The policy of that name.
    Policy(String),
    /// The embedded default that exports it, whatever else is called like it.
    Embedded,
}

/// A mode that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeOrder {
    /// The mode.
    pub mode: Mode,
    /// What the policy's file said then. Once it says something else the order is void.
    pub instead_of: Mode,
}

/// A version of a policy that has proven itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Good {
    /// Digest of its component, which is kept as well.
    pub digest: Digest,
    /// What stood beside it.
    pub sidecar: Option<String>,
}

/// The state, and where it is kept.
#[derive(Debug, Default)]
pub struct State {
    remembered: Remembered,
    folder: Option<StateFolder>,
    shown: StateReport,
}

/// How the state folder stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateReport {
    /// Where it is; absent: nothing is kept when the server ends.
    pub path: Option<PathBuf>,
    /// What of it does not work.
    pub problem: Option<String>,
    /// Why the state file was set aside when the server started, and where it is.
    pub set_aside: Option<String>,
}

/// Where a state folder is looked for when nobody names one: systemd's, or the user's.
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
    /// What the folder at `path` remembers. Where it cannot be had, that is said, and nothing
    /// outlives the server.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        match StateFolder::open(path) {
            Ok((folder, read)) => Self::read(path, folder, read),
            Err(error) => {
                let mut state = Self::default();
                state.fails(
                    "state folder cannot be used, nothing outlives this server",
                    &error,
                );
                state
            }
        }
    }

    fn read(path: &Path, folder: StateFolder, read: Result<Remembered, UnreadableState>) -> Self {
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
                state.fails("state file set aside, beginning anew", &error);
                state.shown.set_aside = state.shown.problem.take();
            }
        }
        state
    }

    /// What it remembers.
    #[must_use]
    pub fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// Where it is kept, and what does not work.
    #[must_use]
    pub fn report(&self) -> &StateReport {
        &self.shown
    }

    /// Changes what is remembered, and writes it down.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut Remembered) -> R) -> R {
        let before = self.remembered.clone();
        let result = change(&mut self.remembered);
        if before != self.remembered
            && let Some(folder) = &self.folder
        {
            let written = folder.write(&self.remembered);
            self.note("state not written", written);
        }
        result
    }

    /// Takes `code` for the last good component of `name`, with the text beside it.
    pub fn prove(&mut self, name: &str, code: &[u8], sidecar: Option<String>) {
        let digest = Digest::of(code);
        let Some(folder) = &self.folder else {
            return;
        };
        let kept = folder.keep_code(digest, code);
        if kept.is_ok() {
            self.change(|state| {
                let good = Good { digest, sidecar };
                state.good.insert(name.to_owned(), good);
            });
        }
        self.note("last good policy not kept", kept);
    }

    /// The component with `digest`, if it was kept and is whole.
    #[must_use]
    pub fn code(&self, digest: Digest) -> Option<Vec<u8>> {
        self.folder.as_ref()?.code(digest)
    }

    /// Keeps what there is to know about a fault, among the newest.
    pub fn keep_dump(&mut self, dump: &[u8]) {
        let Some(folder) = &mut self.folder else {
            return;
        };
        let kept = folder.keep_dump(dump);
        self.note("dump of a fault not kept", kept);
    }

    /// Where compiled code is kept; absent: it is not.
    pub fn cache(&mut self) -> Option<CompileCache> {
        let opened = CompileCache::open(&self.folder.as_ref()?.cache());
        opened
            .map_err(|error| self.fails("compiled policies are not kept", &error))
            .ok()
    }

    /// Shows and tells how it went, once for each way in which it fails.
    fn note(&mut self, what: &'static str, result: Result<(), StateError>) {
        match result {
            Ok(()) => self.shown.problem = None,
            Err(error) => self.fails(what, &error),
        }
    }

    fn fails(&mut self, what: &'static str, error: &dyn std::error::Error) {
        let why = match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        let problem = Some(format!("{what}: {why}"));
        if self.shown.problem != problem {
            warn!(why, "{what}");
            self.shown.problem = problem;
        }
    }
}
