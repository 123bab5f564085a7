//! One policy: its file, its embedded version, the preparation of the next one, and the installed
//! ones.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_component::{Digest, PolicyComponent};
use pointsman_files::FileStamp;
use pointsman_interface::{HookSet, Micros};
use pointsman_policy::{Assignment, Mode, OnFailure, PolicySource};
use pointsman_sidecar::Sidecar;
use pointsman_state::{LastGood, Remembered};
use serde_json::{Map, Value};

use crate::background::JobId;
use crate::binding::Place;
use crate::folder::Pair;
use crate::preparer::{BegunJob, Prepared};
use crate::report::VersionRefusal;
use crate::transactions::Attempt;

/// The origin of a policy's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The policy is part of the server.
    Embedded,
    /// A file in the folder.
    File(PathBuf),
    /// The state folder, which has the last good version of a file that is of no use.
    LastGood(PathBuf),
}

/// One version of a policy: code, settings and limits that started together.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) origin: Origin,
    pub(crate) source: PolicySource,
    pub(crate) settings: Map<String, Value>,
    /// The hooks that the policy exports.
    pub(crate) hooks: HookSet,
    /// The mode that the sidecar sets. An order may set another one.
    pub(crate) mode: Mode,
    pub(crate) on_failure: OnFailure,
    /// The text of the sidecar; absent: there was none.
    pub(crate) sidecar: Option<String>,
}

/// A version that the host has.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) number: u32,
    /// The version, with the rest of its sidecar as it was last seen.
    pub(crate) version: Arc<Version>,
    /// The assignment that was wanted at the installation.
    pub(crate) assignment: Assignment,
    /// The hooks for which the version is in force.
    pub(crate) held: HookSet,
    pub(crate) is_on_probation: bool,
}

/// A policy's file.
#[derive(Debug, Default)]
pub(crate) struct OnDisk {
    /// The newest version that is of use.
    pub(crate) version: Option<Arc<Version>>,
    /// The newest code that could be loaded, and the code's file.
    pub(crate) code: Option<(FileStamp, PolicyComponent)>,
}

/// The source of a version that is to be prepared.
#[derive(Debug)]
pub(crate) enum Source {
    /// The files as they were seen.
    Files {
        pair: Pair,
        /// The time of the pass in which they settled. Files that have it in common are judged together;
        /// absent: these are late, and judged by themselves.
        settled_at: Option<Micros>,
    },
    /// The last good version, from the state folder.
    LastGood,
}

/// A change of a policy that is ready.
#[derive(Debug)]
pub(crate) enum Change {
    /// The version is of use.
    Version {
        version: Arc<Version>,
        /// An instance of it; absent: the version before goes on, for only the rest of the sidecar differs.
        started: Option<Started>,
    },
    /// The files are gone.
    Removal,
}

/// An instance of a version that can be put in force, and the attempt to do so.
pub(crate) type Started = (Attempt, Box<Prepared>);

/// The progress of a policy's next version.
///
/// A new source replaces any earlier one. A job that no entry waits for any more is ended, and its
/// result dropped.
#[derive(Debug, Default)]
enum Preparation {
    #[default]
    Idle,
    /// The source waits while others come first.
    Waiting(Source),
    Making(Making),
    /// The change waits to be judged, with those of the other files that settled at the same time.
    Ready {
        settled_at: Option<Micros>,
        change: Change,
    },
}

/// A version that is being made ready.
#[derive(Debug)]
pub(crate) struct Making {
    pub(crate) job: BegunJob,
    pub(crate) source: Source,
    /// Digest of the version's code.
    pub(crate) digest: Digest,
}

/// All that is known of one policy.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) embedded: Option<Arc<Version>>,
    /// The policy's file; absent: there is none.
    pub(crate) on_disk: Option<OnDisk>,
    /// The preparation of the files.
    preparation: Preparation,
    /// The preparation of the last good version, beside that of files that are late.
    fallback: Preparation,
    /// True if the last good version could not be compiled, which need not be the version's fault: it is
    /// not prepared again before the files change.
    pub(crate) is_spent: bool,
    /// The instance of the newest version that is of use, until that is judged.
    pub(crate) started: Option<Started>,
    /// The refusal of the newest version, or of the one that was in force; absent: none.
    pub(crate) refusal: Option<VersionRefusal>,
    /// The digest of the file that the sidecar is about, if that is another one than there is.
    pub(crate) waits_for: Option<Digest>,
    /// Installed versions, the newest last.
    pub(crate) installed: Vec<Installed>,
    /// Hooks that the policy has left closed: the policy faulted too often, and nobody may answer
    /// instead.
    pub(crate) closed: HookSet,
}

// === impl Source ===

impl Source {
    /// The time at which the files settled; absent: they are late, or no files.
    fn settled_at(&self) -> Option<Micros> {
        match self {
            Source::Files { settled_at, .. } => *settled_at,
            Source::LastGood => None,
        }
    }
}

// === impl Version ===

impl Version {
    /// The version that `source` and `sidecar`, with its `text`, make together.
    pub(crate) fn new(
        origin: Origin,
        source: PolicySource,
        sidecar: &Sidecar,
        text: Option<String>,
    ) -> Self {
        Self {
            origin,
            hooks: source.code().map_or(HookSet::EMPTY, PolicyComponent::hooks),
            source,
            settings: sidecar.settings.clone().unwrap_or_default(),
            mode: sidecar.mode,
            on_failure: sidecar.on_failure,
            sidecar: text,
        }
    }

    /// True if `other`, put in force in the place of this version, would change nothing.
    pub(crate) fn is_same(&self, other: &Version) -> bool {
        self.place() == other.place()
            && self.source.fingerprint() == other.source.fingerprint()
            && self.source.limits() == other.source.limits()
    }

    /// The version as the state folder remembers it, once it has proven itself.
    pub(crate) fn as_last_good(&self) -> LastGood {
        LastGood {
            digest: self.source.digest(),
            sidecar: self.sidecar.clone(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        match self.origin {
            Origin::Embedded => Place::Embedded,
            Origin::File(_) | Origin::LastGood(_) => Place::Folder,
        }
    }
}

// === impl Preparation ===

impl Preparation {
    /// The source that is made ready or waits for that; absent: none.
    fn source(&self) -> Option<&Source> {
        match self {
            Preparation::Waiting(source) | Preparation::Making(Making { source, .. }) => {
                Some(source)
            }
            Preparation::Idle | Preparation::Ready { .. } => None,
        }
    }

    /// The source that waits to be prepared, which does not wait any more.
    fn take_waiting(&mut self) -> Option<Source> {
        match std::mem::take(self) {
            Preparation::Waiting(source) => Some(source),
            other @ (Preparation::Idle | Preparation::Making(_) | Preparation::Ready { .. }) => {
                *self = other;
                None
            }
        }
    }

    /// The source of which `job` was made, which has ended; absent: the result is not wanted.
    fn take_made(&mut self, job: JobId) -> Option<Source> {
        match std::mem::take(self) {
            Preparation::Making(making) if making.job.id() == job => Some(making.source),
            other @ (Preparation::Idle
            | Preparation::Waiting(_)
            | Preparation::Making(_)
            | Preparation::Ready { .. }) => {
                *self = other;
                None
            }
        }
    }

    /// The change that is ready, unless its files settled at a time of which files are `awaited`.
    fn take_change(&mut self, awaited: &BTreeSet<Micros>) -> Option<Change> {
        match std::mem::take(self) {
            Preparation::Ready { settled_at, change }
                if settled_at.is_none_or(|at| !awaited.contains(&at)) =>
            {
                Some(change)
            }
            other @ (Preparation::Idle
            | Preparation::Waiting(_)
            | Preparation::Making(_)
            | Preparation::Ready { .. }) => {
                *self = other;
                None
            }
        }
    }
}

// === impl Entry ===

/// Preparation of the next version.
impl Entry {
    /// Has `source` prepared: files instead of anything that is being prepared, a last good version
    /// beside them.
    pub(crate) fn prepare(&mut self, source: Source) {
        self.on_disk.get_or_insert_default();
        match source {
            Source::Files { .. } => {
                self.fallback = Preparation::Idle;
                self.is_spent = false;
                self.preparation = Preparation::Waiting(source);
            }
            Source::LastGood => self.fallback = Preparation::Waiting(source),
        }
    }

    /// Notes that a job makes a source ready.
    pub(crate) fn make(&mut self, making: Making) {
        match making.source {
            Source::Files { .. } => self.preparation = Preparation::Making(making),
            Source::LastGood => self.fallback = Preparation::Making(making),
        }
    }

    /// Notes that a `change` is ready, which came of `source`.
    pub(crate) fn note_ready(&mut self, source: &Source, change: Change) {
        let settled_at = source.settled_at();
        let ready = Preparation::Ready { settled_at, change };
        match source {
            Source::Files { .. } => self.preparation = ready,
            Source::LastGood => self.fallback = ready,
        }
    }

    /// Notes that the files are gone, since `settled_at`.
    pub(crate) fn note_gone(&mut self, settled_at: Micros) {
        self.preparation = Preparation::Ready {
            settled_at: Some(settled_at),
            change: Change::Removal,
        };
    }

    /// Makes the files late that are being prepared, if `is_late` says so of the time at which they
    /// settled. Returns true if they are.
    pub(super) fn leave_behind(&mut self, is_late: impl Fn(Micros) -> bool) -> bool {
        let (Preparation::Waiting(source) | Preparation::Making(Making { source, .. })) =
            &mut self.preparation
        else {
            return false;
        };
        match source {
            Source::Files { settled_at, .. } => settled_at.take_if(|at| is_late(*at)).is_some(),
            Source::LastGood => false,
        }
    }

    /// True while a job makes a version ready, unless it is late.
    pub(super) fn is_being_made(&self) -> bool {
        let files = match &self.preparation {
            Preparation::Making(making) => making.source.settled_at().is_some(),
            Preparation::Idle | Preparation::Waiting(_) | Preparation::Ready { .. } => false,
        };
        files || matches!(self.fallback, Preparation::Making(_))
    }

    /// The time at which files settled for which others wait; absent: none do.
    pub(super) fn awaited_since(&self) -> Option<Micros> {
        self.preparation.source()?.settled_at()
    }

    /// The time at which files settled that are ready and wait to be judged; absent: none do.
    pub(super) fn ready_since(&self) -> Option<Micros> {
        match &self.preparation {
            Preparation::Ready { settled_at, .. } => *settled_at,
            Preparation::Idle | Preparation::Waiting(_) | Preparation::Making(_) => None,
        }
    }

    /// True if no version of the file is of use yet, and one comes that nothing waits for any longer.
    pub(super) fn is_late(&self) -> bool {
        let files = self.preparation.source();
        let is_late = files.is_some_and(|files| files.settled_at().is_none());
        let is_coming = is_late || !matches!(self.fallback, Preparation::Idle);
        is_coming && self.version(Place::Folder).is_none()
    }

    /// True if no version of the file is of use, none is about to be, and `good` would be one.
    pub(super) fn lacks(&self, good: &LastGood) -> bool {
        let is_about_to_be = match &self.preparation {
            Preparation::Idle => false,
            Preparation::Waiting(source) => source.settled_at().is_some(),
            // The same code would be no sooner.
            Preparation::Making(making) => {
                making.source.settled_at().is_some() || making.digest == good.digest
            }
            Preparation::Ready { .. } => true,
        };
        let on_disk = self.on_disk.as_ref();
        let is_useless = on_disk.is_some_and(|on_disk| on_disk.version.is_none());
        let is_idle = matches!(self.fallback, Preparation::Idle);
        is_useless && !is_about_to_be && is_idle && !self.is_spent
    }

    /// The source that waits to be prepared, which does not wait any more.
    pub(super) fn take_waiting(&mut self) -> Option<Source> {
        self.preparation.take_waiting()
    }

    /// The last good version that waits to be prepared, which does not wait any more.
    pub(super) fn take_waiting_fallback(&mut self) -> Option<Source> {
        self.fallback.take_waiting()
    }

    /// The source of which `job` was made, which has ended; absent: the result is not wanted.
    pub(super) fn take_made(&mut self, job: JobId) -> Option<Source> {
        let files = self.preparation.take_made(job);
        files.or_else(|| self.fallback.take_made(job))
    }

    /// The change that is ready, unless its files settled at a time of which files are `awaited`. That
    /// of the files makes the last good version needless.
    pub(super) fn take_change(&mut self, awaited: &BTreeSet<Micros>) -> Option<Change> {
        let change = self.preparation.take_change(awaited);
        if change.is_some() {
            self.fallback = Preparation::Idle;
            return change;
        }
        self.fallback.take_change(awaited)
    }

    /// Notes that nothing keeps the newest version of the file from being in force.
    pub(crate) fn accept(&mut self) {
        self.refusal = None;
        self.waits_for = None;
    }

    /// Notes that the newest version of the policy is of no use.
    pub(crate) fn refuse(&mut self, refusal: VersionRefusal) {
        self.refusal = Some(refusal);
        self.waits_for = None;
    }

    /// Notes that the sidecar waits for the file with the digest `pinned`.
    pub(crate) fn wait_for(&mut self, pinned: Digest) {
        self.refusal = None;
        self.waits_for = Some(pinned);
    }

    /// Notes that the file is gone. Returns its record.
    pub(crate) fn withdraw(&mut self) -> Option<OnDisk> {
        self.started = None;
        let on_disk = self.on_disk.take()?;
        self.accept();
        self.closed = HookSet::EMPTY;
        Some(on_disk)
    }
}

/// The versions, and the ones among them that the host has.
impl Entry {
    /// The newest version that is of use: of the file, or else the embedded one.
    pub(crate) fn current(&self) -> Option<&Arc<Version>> {
        self.version(Place::Folder).or(self.embedded.as_ref())
    }

    /// The newest version from `place` that is of use.
    pub(crate) fn version(&self, place: Place) -> Option<&Arc<Version>> {
        match place {
            Place::Embedded => self.embedded.as_ref(),
            Place::Folder => self.on_disk.as_ref()?.version.as_ref(),
        }
    }

    /// Makes `version` the newest of the file that is of use. Where the host has it, only the rest of the
    /// sidecar may differ, which counts there, too.
    pub(crate) fn renew(&mut self, version: &Arc<Version>) {
        let installed = self.installed.iter_mut();
        for it in installed.filter(|it| it.version.is_same(version)) {
            it.version = Arc::clone(version);
        }
        self.on_disk.get_or_insert_default().version = Some(Arc::clone(version));
    }

    /// The newest version from `place`, if the host has that version. Only the newest counts: an
    /// older one, even with the same code, lacks the state that later ones have gathered.
    fn installed(&self, place: Place) -> Option<&Installed> {
        let version = self.version(place)?;
        let mut installed = self.installed.iter().rev();
        let newest = installed.find(|it| it.version.place() == place)?;
        newest.version.is_same(version).then_some(newest)
    }

    /// The newest version from `place`, if that version may hold hooks.
    pub(super) fn enforcing(&self, place: Place) -> Option<&Installed> {
        let is_it = |installed: &&Installed| matches!(installed.assignment, Assignment::Enforce(_));
        self.installed(place).filter(is_it)
    }

    /// The newest version of the file, if that version is tried as wanted.
    pub(super) fn trying(&self, wanted: Assignment) -> Option<&Installed> {
        let installed = self.installed(Place::Folder)?;
        (installed.assignment == wanted).then_some(installed)
    }

    /// The newest version of the file, if it holds hooks and has proven itself, and none is left closed.
    pub(crate) fn proven(&self) -> Option<&Arc<Version>> {
        let holding = self.enforcing(Place::Folder)?;
        let is_proven = !holding.held.is_empty() && !holding.is_on_probation;
        let version = self.version(Place::Folder)?;
        (is_proven && self.closed.is_empty()).then_some(version)
    }

    /// The current version, if the host has that version.
    pub(crate) fn serving(&self) -> Option<&Installed> {
        self.installed(self.current()?.place())
    }

    /// The mode of the current version, as its sidecar or an order says.
    pub(crate) fn mode(&self, name: &str, remembered: &Remembered) -> Option<Mode> {
        let version = self.current()?;
        let order = remembered.modes.get(name);
        let order = order.filter(|order| order.instead_of == version.mode);
        Some(order.map_or(version.mode, |order| order.mode))
    }

    /// Goes on without `failed`: the last version of the file that the host still has is current
    /// again, or the embedded one.
    pub(crate) fn do_without(&mut self, failed: &Version) {
        if let Some(on_disk) = &mut self.on_disk
            && let Some(version) = &on_disk.version
            && version.is_same(failed)
        {
            let mut installed = self.installed.iter().rev().map(|it| &it.version);
            let older = installed.find(|it| it.place() == Place::Folder && !it.is_same(failed));
            on_disk.version = older.cloned();
        }
        self.embedded.take_if(|embedded| embedded.is_same(failed));
    }

    /// True if `installed`, which is not wanted for anything, has no place behind what is: its
    /// file is gone, it was tried and is not any more, or it would stay behind others, for hooks
    /// that the current version has given up.
    pub(super) fn has_outgrown(&self, installed: &Installed) -> bool {
        if self.is_default(installed) {
            return false;
        }
        let is_withdrawn = self.on_disk.is_none() && installed.version.place() == Place::Folder;
        let was_tried = match installed.assignment {
            Assignment::Enforce(_) => false,
            Assignment::Canary(..) | Assignment::Shadow(_) => true,
        };
        let has_given_up = self.current().is_some_and(|current| {
            let mut hooks = installed.version.hooks.iter();
            hooks.any(|hook| !current.hooks.contains(hook))
        });
        is_withdrawn || was_tried || has_given_up
    }

    /// True if `installed` is the embedded version.
    pub(super) fn is_default(&self, installed: &Installed) -> bool {
        let embedded = self.embedded.as_ref();
        embedded.is_some_and(|embedded| embedded.is_same(&installed.version))
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.current().is_none()
            && self.on_disk.is_none()
            && matches!(self.preparation, Preparation::Idle)
            && self.installed.is_empty()
            && self.refusal.is_none()
            && self.waits_for.is_none()
    }
}
