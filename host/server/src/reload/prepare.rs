//! From a file to a policy that can be put in force: read whole, validate, compile, start,
//! configure, test.
//!
//! [`Workshop`] reads and decides what is to be done; what takes its time is a [`Job`], which
//! `maker` does on a thread of its own. Guest code runs there under the limits of its policy; the
//! driver and the policies in force know nothing of it.
//!
//! # Invariants
//! 1. Code that was compiled is not compiled again while it is among the last [`COMPONENTS_MAX`],
//!    or as long as its file has not been touched (`tests/reload`).
//! 2. What is read from the folder makes nobody panic: its parsers' panics are refusals
//!    (`maker`).
//!
//! # Not here
//! State of a predecessor and what there is to observe (`keeper`).

use std::collections::{BTreeMap, VecDeque};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, thread};

use pointsman_policy::{
    COMPONENT_BYTES_MAX, CompileCache, Digest, Limits, LoadError, Mode, OnFailure, PolicyComponent,
    PolicyEngine, PolicySource, Runner, self_test,
};
use serde_json::{Map, Value};
use tracing::warn;

use super::attempt::{Attempt, Failure};
use super::folder::{Pair, Sight, Stamp};
use super::listing::{self, ReadError};
use super::report::Step;
use super::roster::{Origin, Version};
use super::sidecar::{self, SIDECAR_BYTES_MAX, Sidecar};

/// Compiled components kept for when their bytes come back.
const COMPONENTS_MAX: usize = 16;

/// Versions that passed the self-test and need not pass it again.
const TESTED_MAX: usize = 64;

/// Makes policies ready.
pub(crate) struct Workshop {
    // Immutable.
    engine: PolicyEngine,
    /// Compiled code from earlier lives; absent: none is kept.
    cache: Option<CompileCache>,
    /// What a policy may use at most.
    limits: Limits,
    /// By policy name, where no sidecar says otherwise.
    settings: BTreeMap<String, Map<String, Value>>,
    // Owned state.
    /// The most recently used last.
    components: VecDeque<PolicyComponent>,
    /// Fingerprints and limits that passed the self-test, the newest last.
    tested: VecDeque<(Digest, Limits)>,
    compiled: u64,
    cached: u64,
}

/// The code of a file as it was when it was seen as `stamp`.
#[derive(Debug)]
pub(crate) struct Loaded {
    stamp: Stamp,
    component: PolicyComponent,
}

/// A policy that can be put in force.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) version: Arc<Version>,
    pub(crate) started: Runner,
}

/// What is to be done about a file.
#[derive(Debug)]
pub(crate) enum Task {
    /// Nothing but to go by what its sidecar says of it: code, settings and limits are as before.
    Keep(Arc<Version>),
    /// Its policy has to be made ready.
    Make(Box<Work>),
}

/// Work that takes its time, and what has been done so far.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) attempt: Attempt,
}

/// Work that takes its time.
pub(crate) struct Work {
    engine: PolicyEngine,
    cache: Option<CompileCache>,
    code: Code,
    blank: Blank,
    /// Where the code is from; absent: not from the folder.
    stamp: Option<Stamp>,
    /// What need not be tested again.
    tested: Vec<(Digest, Limits)>,
}

/// What came of a job.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) attempt: Attempt,
    pub(crate) done: Result<Done, Failure>,
}

/// A job that succeeded.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) ready: Ready,
    /// Absent: the code did not come from the folder.
    pub(crate) loaded: Option<Loaded>,
    component: PolicyComponent,
    how: How,
}

/// How a component was come by.
#[derive(Clone, Copy, Debug)]
enum How {
    Known,
    Cached,
    Compiled,
}

/// A version but for its code.
struct Blank {
    origin: Origin,
    settings: Map<String, Value>,
    limits: Limits,
    mode: Mode,
    on_failure: OnFailure,
    sidecar: Option<String>,
}

/// Where code is to come from.
enum Code {
    Bytes(Digest, Vec<u8>),
    Component(PolicyComponent),
}

/// Why a file did not become a policy.
#[derive(Debug)]
pub(crate) enum Setback {
    /// It is being written: look again.
    Changed,
    /// Its sidecar is about another file, with this digest, which is waited for.
    Waits(Digest),
    /// It is of no use.
    Failed(Failure),
}

// === impl Setback ===

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ReadError> for Setback {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Changed => Self::Changed,
            ReadError::TooLarge { .. } | ReadError::Io(_) => {
                Self::Failed(Failure::new(Step::Read, &error))
            }
        }
    }
}

// === impl Workshop ===

impl Workshop {
    /// Policies may use `limits`; `settings` are those of the configuration.
    pub(crate) fn new(
        engine: PolicyEngine,
        limits: Limits,
        settings: BTreeMap<String, Map<String, Value>>,
    ) -> Self {
        Self {
            engine,
            cache: None,
            limits,
            settings,
            components: VecDeque::new(),
            tested: VecDeque::new(),
            compiled: 0,
            cached: 0,
        }
    }

    /// The same, where compiled code is kept in `cache`.
    pub(crate) fn with_cache(self, cache: Option<CompileCache>) -> Self {
        Self { cache, ..self }
    }

    /// Components compiled so far.
    pub(crate) fn compiled(&self) -> u64 {
        self.compiled
    }

    /// Components so far that were compiled in an earlier life.
    pub(crate) fn cached(&self) -> u64 {
        self.cached
    }

    // === Embedded policies ===

    /// Compiles all of `codes` at once. What cannot be compiled says so when it is its turn.
    pub(crate) fn compile_ahead(&mut self, codes: &[&[u8]]) {
        let (engine, cache) = (&self.engine, self.cache.as_ref());
        let loaded: Vec<_> = thread::scope(|scope| {
            let load = |code| scope.spawn(move || load(engine, cache, code));
            let threads: Vec<_> = codes.iter().copied().map(load).collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        for (component, how) in loaded.into_iter().flatten().flatten() {
            self.note(component, how);
        }
    }

    /// Makes the embedded policy `name` ready, here and now. It was tested with the server.
    pub(crate) fn embedded(
        &mut self,
        name: &str,
        wasm: &[u8],
        attempt: &mut Attempt,
    ) -> Result<Ready, Failure> {
        let digest = Digest::of(wasm);
        attempt.digest = Some(digest);
        let (component, how) = match self.known(digest) {
            Some(component) => (component, How::Known),
            None => attempt
                .time(Step::Compile, || {
                    load(&self.engine, self.cache.as_ref(), wasm)
                })
                .map_err(|error| Failure::load(&error))?,
        };
        self.note(component.clone(), how);
        let said = Sidecar::absent(&self.limits);
        let blank = self.blank((name, Origin::Embedded), said, None);
        let version = blank.version(&component);
        Ok(Ready {
            started: start(&version, attempt)?,
            version: Arc::new(version),
        })
    }

    // === Files ===

    /// What is to be done about the file at `path`, which was seen as `pair`. `loaded` is the code
    /// it had before, `in_use` the last version of it that was of use.
    pub(crate) fn file(
        &mut self,
        (name, path): (&str, PathBuf),
        pair: &Pair,
        (loaded, in_use): (Option<&Loaded>, Option<&Version>),
        attempt: &mut Attempt,
    ) -> Result<Task, Setback> {
        let stamp = file(&pair.wasm)?;
        let code = match loaded.filter(|loaded| loaded.stamp == *stamp) {
            Some(loaded) => Code::Component(loaded.component.clone()),
            None => {
                let read = attempt.time(Step::Read, || listing::read(stamp, COMPONENT_BYTES_MAX));
                self.code(read?)
            }
        };
        let digest = code.digest();
        attempt.digest = Some(digest);
        let text = match &pair.sidecar {
            Some(seen) => Some(listing::read(file(seen)?, SIDECAR_BYTES_MAX)?),
            None => None,
        };
        let (said, text) = self.said(name, text)?;
        if let Some(pinned) = said.sha256.filter(|pinned| *pinned != digest) {
            return Err(Setback::Waits(pinned));
        }
        let blank = self.blank((name, Origin::File(path)), said, text);
        if let Code::Component(component) = &code
            && let version = blank.version(component)
            && in_use.is_some_and(|in_use| in_use.is_same(&version))
        {
            return Ok(Task::Keep(Arc::new(version)));
        }
        let work = self.work(code, blank, Some(stamp.clone()));
        Ok(Task::Make(Box::new(work)))
    }

    /// What is to be done so that the `bytes` that the state folder has for `name`, with the
    /// `text` that stood beside them, are of use.
    pub(crate) fn kept(
        &mut self,
        (name, path): (&str, PathBuf),
        bytes: Vec<u8>,
        text: Option<String>,
    ) -> Result<Work, Failure> {
        let (said, text) = self.said(name, text.map(String::into_bytes))?;
        let blank = self.blank((name, Origin::Kept(path)), said, text);
        let code = self.code(bytes);
        Ok(self.work(code, blank, None))
    }

    /// Takes note of what a job has brought.
    pub(crate) fn take(&mut self, done: &Done) {
        self.note(done.component.clone(), done.how);
        let source = &done.ready.version.source;
        let passed = (source.fingerprint(), *source.limits());
        if !self.tested.contains(&passed) {
            if self.tested.len() >= TESTED_MAX {
                self.tested.pop_front();
            }
            self.tested.push_back(passed);
        }
    }

    /// What the sidecar of `name` says, and its text.
    fn said(
        &self,
        name: &str,
        bytes: Option<Vec<u8>>,
    ) -> Result<(Sidecar, Option<String>), Failure> {
        let Some(bytes) = bytes else {
            return Ok((Sidecar::absent(&self.limits), None));
        };
        let file = format!("{name}.toml");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let limits = self.limits;
        let parsed = catch_unwind(|| sidecar::parse(file.as_ref(), bytes, &limits));
        let step = Step::Validate;
        match parsed {
            Ok(Ok(said)) => Ok((said, Some(text))),
            Ok(Err(error)) => Err(Failure::new(step, &error)),
            Err(_panic) => {
                let why = format!("{file}: the parser of sidecars gave up");
                Err(Failure { step, why })
            }
        }
    }

    fn blank(&self, (name, origin): (&str, Origin), said: Sidecar, text: Option<String>) -> Blank {
        let configured = || self.settings.get(name).cloned().unwrap_or_default();
        Blank {
            origin,
            settings: said.settings.unwrap_or_else(configured),
            limits: said.limits,
            mode: said.mode,
            on_failure: said.on_failure,
            sidecar: text,
        }
    }

    fn work(&self, code: Code, blank: Blank, stamp: Option<Stamp>) -> Work {
        Work {
            engine: self.engine.clone(),
            cache: self.cache.clone(),
            code,
            blank,
            stamp,
            tested: self.tested.iter().copied().collect(),
        }
    }

    // === Components ===

    fn code(&self, bytes: Vec<u8>) -> Code {
        let digest = Digest::of(&bytes);
        let known = self.known(digest);
        known.map_or(Code::Bytes(digest, bytes), Code::Component)
    }

    fn known(&self, digest: Digest) -> Option<PolicyComponent> {
        let mut components = self.components.iter();
        components.find(|known| known.digest() == digest).cloned()
    }

    /// Keeps `component` among the last ones.
    fn note(&mut self, component: PolicyComponent, how: How) {
        match how {
            How::Known => {}
            How::Cached => self.cached += 1,
            How::Compiled => self.compiled += 1,
        }
        let digest = component.digest();
        self.components.retain(|known| known.digest() != digest);
        if self.components.len() >= COMPONENTS_MAX {
            self.components.pop_front();
        }
        self.components.push_back(component);
    }
}

// === impl Code, Blank and Work ===

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("digest", &self.code.digest())
            .field("origin", &self.blank.origin)
            .finish_non_exhaustive()
    }
}

impl Code {
    fn digest(&self) -> Digest {
        match self {
            Code::Bytes(digest, _) => *digest,
            Code::Component(component) => component.digest(),
        }
    }
}

impl Blank {
    fn version(&self, component: &PolicyComponent) -> Version {
        Version {
            origin: self.origin.clone(),
            source: PolicySource::component(component, &self.settings, self.limits),
            settings: self.settings.clone(),
            hooks: component.hooks(),
            mode: self.mode,
            on_failure: self.on_failure,
            sidecar: self.sidecar.clone(),
        }
    }
}

impl Work {
    /// Does it. Slow.
    pub(crate) fn carry_out(self, attempt: &mut Attempt) -> Result<Done, Failure> {
        attempt.digest = Some(self.code.digest());
        let (component, how) = match self.code {
            Code::Component(component) => (component, How::Known),
            Code::Bytes(_, bytes) => attempt
                .time(Step::Compile, || {
                    load(&self.engine, self.cache.as_ref(), &bytes)
                })
                .map_err(|error| Failure::load(&error))?,
        };
        let version = self.blank.version(&component);
        check_mode(&version)?;
        let started = start(&version, attempt)?;
        let passed = (version.source.fingerprint(), *version.source.limits());
        if !self.tested.contains(&passed) {
            attempt
                .time(Step::Test, || self_test(&version.source))
                .map_err(|error| Failure::new(Step::Test, &error))?;
        }
        let loaded = self.stamp.map(|stamp| Loaded {
            stamp,
            component: component.clone(),
        });
        let version = Arc::new(version);
        Ok(Done {
            ready: Ready { version, started },
            loaded,
            component,
            how,
        })
    }
}

/// A canary needs questions of which some can be put to it.
fn check_mode(version: &Version) -> Result<(), Failure> {
    let mut hooks = version.hooks.iter();
    match version.mode {
        Mode::Canary(_) if !hooks.any(pointsman_core::Hook::is_by_request) => Err(Failure {
            step: Step::Validate,
            why: "mode is canary, and it exports neither admission nor routing: only there can \
                  tenants be told apart"
                .to_owned(),
        }),
        Mode::Canary(_) | Mode::Enforce | Mode::Shadow => Ok(()),
    }
}

/// `code` compiled, by now or earlier.
fn load(
    engine: &PolicyEngine,
    cache: Option<&CompileCache>,
    code: &[u8],
) -> Result<(PolicyComponent, How), LoadError> {
    let Some(cache) = cache else {
        return Ok((PolicyComponent::load(engine, code)?, How::Compiled));
    };
    let (component, made) = PolicyComponent::load_cached(engine, code, cache)?;
    let how = match made {
        pointsman_policy::Made::Cached => How::Cached,
        pointsman_policy::Made::Compiled => How::Compiled,
        pointsman_policy::Made::Unkept(error) => {
            warn!(%error, "compiled policy not kept");
            How::Compiled
        }
    };
    Ok((component, how))
}

/// An instance of `version`, configured.
pub(crate) fn start(version: &Version, attempt: &mut Attempt) -> Result<Runner, Failure> {
    let source = version.source.clone();
    attempt
        .time(Step::Start, || pointsman_policy::start(source))
        .map_err(|error| Failure::start(&error))
}

/// The file that was seen, if it was one.
fn file(seen: &Sight) -> Result<&Stamp, Failure> {
    let why = match seen {
        Sight::File(stamp) => return Ok(stamp),
        Sight::NotAFile => "not a regular file".to_owned(),
        Sight::Unreadable(why) => why.clone(),
    };
    let step = Step::Read;
    Err(Failure { step, why })
}
