//! The slow part of making a policy ready: compile, start, configure, test.
//!
//! A [`Job`] is done on a thread of its own and ends as a [`Prepared`] policy. Guest code runs
//! there under the limits of its policy; the driver and the policies in force know nothing of it.
//!
//! # Invariants
//! 1. Anything that a policy's code makes the compiler or an instance do, a panic included, ends as
//!    a failure of that policy (`a_panic_is_a_failure_of_the_policy`).

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pointsman_component::{
    CompileCache, Digest, EmbeddedPolicy, Limits, LoadError, Made, PolicyComponent, PolicyEngine,
};
use pointsman_files::FileStamp;
use pointsman_interface::Bounds;
use pointsman_policy::{Runner, self_test};
use pointsman_sidecar::Sidecar;
use tracing::warn;

use crate::registry::{Origin, Version};
use crate::report::ReloadStep;
use crate::transactions::{Attempt, Failure};

/// The most versions that passed the self-test and need not pass it again.
const TESTED_MAX: usize = 64;

/// A version of a policy that is to be made ready.
pub(crate) struct Job {
    /// Name of the policy, after its file.
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) code: Code,
    /// The sidecar; without settings in the file, it has those of the configuration.
    pub(super) sidecar: Sidecar,
    pub(super) sidecar_text: Option<String>,
    pub(super) bounds: Bounds,
    /// The code's file; absent: the code is not from the folder.
    pub(super) stamp: Option<FileStamp>,
}

/// The code of a version.
pub(super) enum Code {
    Bytes(Digest, Vec<u8>),
    Component(PolicyComponent),
}

/// A policy that can be put in force.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) version: Arc<Version>,
    pub(crate) started: Runner,
    pub(crate) component: PolicyComponent,
    /// The code's file; absent: the code is not from the folder.
    pub(crate) stamp: Option<FileStamp>,
    /// The origin of the compiled code; absent: the component was at hand.
    pub(super) made: Option<Made>,
}

/// A compiler of code, which also takes code that an earlier life of the server has compiled.
#[derive(Clone)]
pub(super) struct Compiler {
    pub(super) engine: PolicyEngine,
    /// The cache of compiled code; absent: compiled code is not kept.
    pub(super) cache: Option<CompileCache>,
}

/// Fingerprints and limits that passed the self-test, the newest last. Locked to look and to add.
#[derive(Debug, Default)]
pub(super) struct Tested(Mutex<VecDeque<(Digest, Limits)>>);

// === impl Job and Code ===

impl Job {
    /// Does the job; a panic is a failure of the step in which it happens.
    pub(super) fn prepare(
        self,
        compiler: &Compiler,
        tested: &Tested,
        attempt: &mut Attempt,
    ) -> Result<Prepared, Failure> {
        guarded(attempt, |attempt| {
            attempt.digest = Some(self.code.digest());
            let (component, made) = match &self.code {
                Code::Component(component) => (component.clone(), None),
                Code::Bytes(_, bytes) => compiler.compile(bytes, attempt)?,
            };
            let version = self.version(&component)?;
            let started = start(&version, attempt)?;
            test(&version, tested, attempt)?;
            Ok(Prepared {
                version: Arc::new(version),
                started,
                component,
                stamp: self.stamp,
                made,
            })
        })
    }

    /// Digest of the version's code.
    pub(crate) fn digest(&self) -> Digest {
        self.code.digest()
    }

    /// The version that the job makes of `component`, if the sidecar's mode is one for it.
    pub(super) fn version(&self, component: &PolicyComponent) -> Result<Version, Failure> {
        let text = self.sidecar_text.clone();
        let source = self.sidecar.source(component, self.bounds);
        let source = source.named(&self.name);
        let version = Version::new(self.origin.clone(), source, &self.sidecar, text);
        let checked = version.mode.check(version.hooks);
        checked.map_err(|error| Failure::new(ReloadStep::Validate, &error))?;
        Ok(version)
    }
}

impl Code {
    pub(super) fn digest(&self) -> Digest {
        match self {
            Code::Bytes(digest, _) => *digest,
            Code::Component(component) => component.digest(),
        }
    }
}

// === impl Compiler ===

impl Compiler {
    /// The same compiler, which ends its compilations once `over` is true.
    pub(super) fn until(&self, over: Arc<AtomicBool>) -> Self {
        Self {
            engine: self.engine.until(over),
            cache: self.cache.clone(),
        }
    }

    pub(super) fn compile(
        &self,
        code: &[u8],
        attempt: &mut Attempt,
    ) -> Result<(PolicyComponent, Option<Made>), Failure> {
        let loaded = attempt.time(ReloadStep::Compile, || self.load(code));
        let (component, made) = loaded.map_err(|error| Failure::load(&error))?;
        Ok((component, Some(made)))
    }

    /// Loads a policy of the binary, by the code that was made ahead where it can be used.
    pub(super) fn load_embedded(
        &self,
        policy: &EmbeddedPolicy,
    ) -> Result<(PolicyComponent, Made), LoadError> {
        match policy.precompiled(&self.engine)? {
            Some(component) => Ok((component, Made::Cached)),
            None => self.load(policy.wasm),
        }
    }

    pub(super) fn load(&self, code: &[u8]) -> Result<(PolicyComponent, Made), LoadError> {
        let Some(cache) = &self.cache else {
            return Ok((PolicyComponent::load(&self.engine, code)?, Made::Compiled));
        };
        let (component, made) = PolicyComponent::load_cached(&self.engine, code, cache)?;
        if let Made::Unkept(error) = &made {
            warn!(%error, "compiled policy not kept");
        }
        Ok((component, made))
    }
}

// === The other steps ===

/// Starts an instance of `version`, configured.
pub(crate) fn start(version: &Version, attempt: &mut Attempt) -> Result<Runner, Failure> {
    let source = version.source.clone();
    attempt
        .time(ReloadStep::Start, || pointsman_policy::start(source))
        .map_err(|error| Failure::start(&error))
}

/// Puts `version` through the self-test, unless it is among the `tested` ones.
fn test(version: &Version, tested: &Tested, attempt: &mut Attempt) -> Result<(), Failure> {
    let passed = (version.source.fingerprint(), *version.source.limits());
    if tested.list().contains(&passed) {
        return Ok(());
    }
    let test = attempt.time(ReloadStep::Test, || self_test(&version.source));
    test.map_err(|error| Failure::new(ReloadStep::Test, &error))?;
    let mut list = tested.list();
    if list.len() >= TESTED_MAX {
        list.pop_front();
    }
    list.push_back(passed);
    Ok(())
}

impl Tested {
    fn list(&self) -> MutexGuard<'_, VecDeque<(Digest, Limits)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === Panics ===

fn guarded<R>(
    attempt: &mut Attempt,
    work: impl FnOnce(&mut Attempt) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let done = catch_unwind(AssertUnwindSafe(|| work(&mut *attempt)));
    done.unwrap_or_else(|panic| {
        Err(Failure {
            step: attempt.step().unwrap_or(ReloadStep::Validate),
            why: format!("panicked: {}", message_of(panic.as_ref())),
        })
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("origin", &self.origin)
            .field("digest", &self.code.digest())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pointsman_interface::Micros;

    use super::*;

    #[test]
    fn a_panic_is_a_failure_of_the_policy() {
        let mut attempt = Attempt::new(&(Arc::new(|| Micros(0)) as _));
        let done: Result<(), Failure> = guarded(&mut attempt, |attempt| {
            attempt.time(ReloadStep::Compile, || ());
            attempt.time(ReloadStep::Start, || panic!("as it was told"))
        });
        let failure = done.unwrap_err();
        assert_eq!(failure.step, ReloadStep::Start);
        assert_eq!(failure.why, "panicked: as it was told");
    }
}
