//! Runs of a journal that are passed over: [`PassedOver`].
//!
//! A journal keeps the runs from before an upgrade. Another version has other rules, and another build of this
//! version may have another machine in its keyframes. Replays and simulations have each entry heard here, read what
//! is not passed over, and fail where nothing is left.
//!
//! # Invariants
//! 1. No entry of another version is read (`runs_of_others_are_passed_over_and_fail_alone` in
//!    `tests/tests/operating/replay.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use pointsman_journal::{Entry, Header, Located};

use crate::replay::ReplayError;

/// Runs that are passed over, counted, with the reason for the first one.
#[derive(Debug, Default)]
pub struct PassedOver {
    /// Number of runs of each other version.
    versions: BTreeMap<String, u64>,
    /// Number of runs of this version with a machine that cannot be read.
    unreadable: u64,
    reason: Option<ReplayError>,
    /// Start of the run that is being read, which names it.
    started: Option<u64>,
    writer: Writer,
}

/// The writer of the run that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writer {
    /// This build, as far as is known.
    #[default]
    ThisBuild,
    /// Another build of this version.
    OtherBuild,
    /// Another version.
    OtherVersion,
}

impl PassedOver {
    /// Hears an entry. Returns whether it is to be passed over, as another version wrote it.
    pub fn hear(&mut self, located: &Located) -> bool {
        if let Entry::Header(header) = &located.entry {
            self.header(&located.file, header);
        }
        self.is_passing()
    }

    /// Returns whether an entry that is heard next is the header of another run than the one that is
    /// being read.
    #[must_use]
    pub fn begins_run(&self, next: &Located) -> bool {
        matches!(&next.entry, Entry::Header(header) if Some(header.started_unix_ms) != self.started)
    }

    /// Hears that the machine of a keyframe cannot be read, with the error that says so. The caller
    /// goes on with the next keyframe.
    pub fn unreadable(&mut self, error: ReplayError) {
        if self.writer == Writer::ThisBuild {
            self.writer = Writer::OtherBuild;
            self.unreadable += 1;
        }
        self.reason.get_or_insert(error);
    }

    /// Returns whether the run that is being read is of another version.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.writer == Writer::OtherVersion
    }

    /// The runs in words, a line for each kind of them.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let versions = self.versions.iter();
        let versions = versions.map(|(version, runs)| {
            format!(
                "{runs} runs by Pointsman {version} are passed over: only that version reads them"
            )
        });
        let unreadable = (self.unreadable > 0).then(|| {
            format!(
                "{} runs have a keyframe that cannot be read, as another build wrote it: what follows is \
                 passed over up to the next one",
                self.unreadable
            )
        });
        versions.chain(unreadable).collect()
    }

    /// Takes the reason for which the first run was passed over; absent: none was.
    #[must_use]
    pub fn take_reason(&mut self) -> Option<ReplayError> {
        self.reason.take()
    }

    fn header(&mut self, file: &Path, header: &Header) {
        let started = Some(header.started_unix_ms);
        if std::mem::replace(&mut self.started, started) == started {
            return;
        }
        let found = &header.pointsman;
        if found == env!("CARGO_PKG_VERSION") {
            self.writer = Writer::ThisBuild;
            return;
        }
        self.writer = Writer::OtherVersion;
        *self.versions.entry(found.clone()).or_default() += 1;
        self.reason
            .get_or_insert_with(|| ReplayError::OtherVersion {
                file: file.display().to_string(),
                found: found.clone(),
            });
    }
}
