//! From a file to a policy that can be put in force: read whole, validate, compile, start,
//! configure, test.
//!
//! [`Preparer`] reads files and decides the work on each, on the reconciler's thread. Slow work is
//! a [`Job`]; threads of their own do up to [`JOBS_MAX`] of them at a time, so that several policies
//! which take all the time they may take it once.
//!
//! # Invariants
//! 1. Code that was compiled is not compiled again while it is among the last [`COMPONENTS_MAX`],
//!    or as long as its file has not been touched (`host/server/tests/reload`).
//! 2. Nothing in a file makes anybody panic: a parser's panic is a refusal (`job`).
//! 3. A compiler at work on what nobody wants any more is ended (`orders` in
//!    `host/server/tests/reload`).
//!
//! # Not here
//! State of a predecessor and the briefing (`reconciler`).

mod job;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use pointsman_component::{
    COMPONENT_BYTES_MAX, CompileCache, Digest, EmbeddedPolicy, Limits, Made, PolicyComponent,
    PolicyEngine,
};
use pointsman_files::FileStamp;
use pointsman_interface::{Bounds, Micros};
use pointsman_sidecar::{SIDECAR_BYTES_MAX, Sidecar};
use serde_json::{Map, Value};

use super::background::{Background, JobId};
use super::folder::{Pair, Sight};
use super::listing::read;
use super::registry::{OnDisk, Origin, Version};
use super::report::ReloadStep;
use super::settings::LifecycleSettings;
use super::transactions::{Attempt, Failure};
use job::{Code, Compiler, Tested};
pub(crate) use job::{Job, Prepared, start};

/// The fewest threads for jobs: one that is busy for long leaves another.
const JOBS_MIN: NonZeroUsize = NonZeroUsize::new(2).expect("it is not 0");
/// The most jobs at a time: each may take the memory of a compiler.
const JOBS_MAX: NonZeroUsize = NonZeroUsize::new(4).expect("it is not 0");

/// The most compiled components that are kept, in case their bytes come back.
const COMPONENTS_MAX: usize = 16;

/// Makes policies ready.
pub(crate) struct Preparer {
    // Immutable.
    compiler: Compiler,
    /// The most that a policy may use.
    limits: Limits,
    /// The bounds that policies are told.
    bounds: Bounds,
    /// Settings by policy name, where no sidecar has any.
    settings: BTreeMap<String, Map<String, Value>>,
    // Owned state.
    jobs: Background<ToDo, (Attempt, Result<Prepared, Failure>)>,
    /// Compiled components, the most recently used last.
    components: VecDeque<PolicyComponent>,
    compiled: u64,
    cached: u64,
}

/// A job, its attempt, and the sign that nobody wants the result.
type ToDo = (Job, Attempt, Arc<AtomicBool>);

/// A job that was begun, as long as its result is wanted: dropped, it ends the compiler at work.
#[derive(Debug)]
pub(crate) struct BegunJob {
    id: JobId,
    is_over: Arc<AtomicBool>,
}

/// The work to be done about a file.
pub(crate) enum Inspection {
    /// Code, settings and limits are as before: only the rest of the sidecar may differ.
    Unchanged(Arc<Version>),
    /// The policy has to be made ready.
    Changed(Box<Job>),
    /// The file is being written, and has to settle again.
    Unsettled,
    /// The sidecar is about another file, with this digest.
    WaitsFor(Digest),
}

impl Preparer {
    /// Starts the threads for jobs, which wake `waker` after each.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn spawn(
        (settings, bounds): (&LifecycleSettings, Bounds),
        engine: PolicyEngine,
        cache: Option<CompileCache>,
        waker: &Waker,
    ) -> io::Result<Self> {
        let compiler = Compiler { engine, cache };
        let compiles = compiler.clone();
        let tested = Tested::default();
        let work = move |(job, mut attempt, is_over): ToDo| {
            let result = job.prepare(&compiles.until(is_over), &tested, &mut attempt);
            (attempt, result)
        };
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = threads.clamp(JOBS_MIN, JOBS_MAX);
        Ok(Self {
            compiler,
            limits: settings.limits,
            bounds,
            settings: settings.settings.iter().cloned().collect(),
            jobs: Background::spawn(("policy-preparer", threads), waker, work)?,
            components: VecDeque::new(),
            compiled: 0,
            cached: 0,
        })
    }

    /// Components compiled so far.
    pub(crate) fn compiled(&self) -> u64 {
        self.compiled
    }

    /// Components so far that were compiled before this life.
    pub(crate) fn cached(&self) -> u64 {
        self.cached
    }

    // === Embedded policies ===

    /// Loads all of these policies at once. An error is told when the policy's turn comes.
    pub(crate) fn load_all(&mut self, policies: &[EmbeddedPolicy]) {
        let compiler = &self.compiler;
        let loaded: Vec<_> = thread::scope(|scope| {
            let load = |policy| scope.spawn(move || compiler.load_embedded(policy));
            let threads: Vec<_> = policies.iter().map(load).collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        for (component, made) in loaded.into_iter().flatten().flatten() {
            self.note(component, Some(&made));
        }
    }

    /// The version of the embedded policy `name`, which was tested with the server.
    pub(crate) fn embedded(
        &mut self,
        name: &str,
        wasm: &[u8],
        attempt: &mut Attempt,
    ) -> Result<Version, Failure> {
        let digest = Digest::of(wasm);
        attempt.digest = Some(digest);
        let (component, made) = match self.component(digest) {
            Some(component) => (component, None),
            None => self.compiler.compile(wasm, attempt)?,
        };
        self.note(component.clone(), made.as_ref());
        let (sidecar, text) = self.sidecar(name, None)?;
        let source = sidecar.source(&component, self.bounds).named(name);
        Ok(Version::new(Origin::Embedded, source, &sidecar, text))
    }

    // === Files ===

    /// Finds the work to be done about the file at `path`, which was seen as `pair`, and is known
    /// as `before`.
    pub(crate) fn inspect(
        &self,
        (name, path): (&str, PathBuf),
        pair: &Pair,
        before: &OnDisk,
        attempt: &mut Attempt,
    ) -> Result<Inspection, Failure> {
        let stamp = regular(&pair.wasm)?;
        let code = match &before.code {
            Some((seen, component)) if seen == stamp => Code::Component(component.clone()),
            Some(_) | None => {
                let read = attempt.time(ReloadStep::Read, || read(stamp, COMPONENT_BYTES_MAX));
                match read? {
                    Some(bytes) => self.code(bytes),
                    None => return Ok(Inspection::Unsettled),
                }
            }
        };
        let digest = code.digest();
        attempt.digest = Some(digest);
        let text = match &pair.sidecar {
            None => None,
            Some(seen) => match read(regular(seen)?, SIDECAR_BYTES_MAX)? {
                Some(bytes) => Some(bytes),
                None => return Ok(Inspection::Unsettled),
            },
        };
        let (sidecar, sidecar_text) = self.sidecar(name, text)?;
        if let Some(pinned) = sidecar.sha256.filter(|pinned| *pinned != digest) {
            return Ok(Inspection::WaitsFor(pinned));
        }
        let job = Job {
            name: name.to_owned(),
            origin: Origin::File(path),
            code,
            sidecar,
            sidecar_text,
            bounds: self.bounds,
            stamp: Some(stamp.clone()),
        };
        if let (Code::Component(component), Some(before)) = (&job.code, &before.version) {
            let version = job.version(component)?;
            if before.is_same(&version) {
                return Ok(Inspection::Unchanged(Arc::new(version)));
            }
        }
        Ok(Inspection::Changed(Box::new(job)))
    }

    /// The job that makes the last good version of `name` ready, from `bytes` and the `text` of the
    /// sidecar.
    pub(crate) fn last_good(
        &self,
        (name, path): (&str, PathBuf),
        bytes: Vec<u8>,
        text: Option<String>,
    ) -> Result<Job, Failure> {
        let (sidecar, sidecar_text) = self.sidecar(name, text.map(String::into_bytes))?;
        Ok(Job {
            name: name.to_owned(),
            origin: Origin::LastGood(path),
            code: self.code(bytes),
            sidecar,
            sidecar_text,
            bounds: self.bounds,
            stamp: None,
        })
    }

    /// The sidecar of `name` with its text; without settings in it, those of the configuration.
    fn sidecar(
        &self,
        name: &str,
        bytes: Option<Vec<u8>>,
    ) -> Result<(Sidecar, Option<String>), Failure> {
        let (mut sidecar, text) = match bytes {
            Some(bytes) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                (self.parsed(name, bytes)?, Some(text))
            }
            None => (Sidecar::absent(&self.limits), None),
        };
        if sidecar.settings.is_none() {
            sidecar.settings = self.settings.get(name).cloned();
        }
        Ok((sidecar, text))
    }

    fn parsed(&self, name: &str, bytes: Vec<u8>) -> Result<Sidecar, Failure> {
        let file = format!("{name}.toml");
        let limits = self.limits;
        let step = ReloadStep::Validate;
        match catch_unwind(|| pointsman_sidecar::parse(file.as_ref(), bytes, &limits)) {
            Ok(parsed) => parsed.map_err(|error| Failure::new(step, &error)),
            Err(_panic) => {
                let why = format!("{file}: the parser of sidecars gave up");
                Err(Failure { step, why })
            }
        }
    }

    // === Jobs ===

    /// True while a job is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.jobs.is_busy()
    }

    /// True while no other job can be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    /// Begins `job`. Call it when another job can be begun.
    pub(crate) fn begin(&mut self, job: Job, attempt: Attempt) -> BegunJob {
        let is_over = Arc::new(AtomicBool::new(false));
        let id = self.jobs.begin((job, attempt, Arc::clone(&is_over)));
        BegunJob { id, is_over }
    }

    /// A job that has ended, with its attempt and its result; absent: there is none.
    pub(crate) fn poll(&mut self) -> Option<(JobId, Attempt, Result<Prepared, Failure>)> {
        let (job, (attempt, result)) = self.jobs.poll()?;
        Some((job, attempt, self.noted(result)))
    }

    /// Waits for a job to end, for `most` at most, and returns what [`Self::poll`] does; absent: none
    /// is in progress, or has ended in that time.
    pub(crate) fn wait(
        &mut self,
        most: Micros,
    ) -> Option<(JobId, Attempt, Result<Prepared, Failure>)> {
        let (job, (attempt, result)) = self.jobs.wait(Duration::from_micros(most.0))?;
        Some((job, attempt, self.noted(result)))
    }

    fn noted(&mut self, result: Result<Prepared, Failure>) -> Result<Prepared, Failure> {
        result.inspect(|prepared| self.note(prepared.component.clone(), prepared.made.as_ref()))
    }

    // === Components ===

    fn code(&self, bytes: Vec<u8>) -> Code {
        let digest = Digest::of(&bytes);
        let component = self.component(digest);
        component.map_or(Code::Bytes(digest, bytes), Code::Component)
    }

    fn component(&self, digest: Digest) -> Option<PolicyComponent> {
        let mut components = self.components.iter();
        components.find(|known| known.digest() == digest).cloned()
    }

    /// Keeps `component` among the last ones, and counts it by its origin `made`.
    fn note(&mut self, component: PolicyComponent, made: Option<&Made>) {
        match made {
            None => {}
            Some(Made::Cached) => self.cached += 1,
            Some(Made::Compiled | Made::Unkept(_)) => self.compiled += 1,
        }
        let digest = component.digest();
        self.components.retain(|known| known.digest() != digest);
        if self.components.len() >= COMPONENTS_MAX {
            self.components.pop_front();
        }
        self.components.push_back(component);
    }
}

// === impl BegunJob ===

impl BegunJob {
    pub(crate) fn id(&self) -> JobId {
        self.id
    }
}

impl Drop for BegunJob {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The file that was seen, if there was one to read.
fn regular(seen: &Sight) -> Result<&FileStamp, Failure> {
    seen.as_ref().map_err(|why| Failure {
        step: ReloadStep::Read,
        why: why.clone(),
    })
}
