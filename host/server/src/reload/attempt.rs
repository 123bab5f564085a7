//! What is being done about one policy, step by step, and the step at which it fails.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use pointsman_core::Micros;
use pointsman_policy::{Digest, LoadError, Restored, StartError};

use super::report::{Phase, Step};

/// Bytes of a reason.
const WHY_BYTES_MAX: usize = 4096;

/// Reads the host's clock.
pub(crate) type Now = Arc<dyn Fn() -> Micros + Send + Sync>;

/// What is being done about one policy, for the record.
pub(crate) struct Attempt {
    clock: Now,
    /// When it began.
    pub(crate) at: Micros,
    pub(crate) digest: Option<Digest>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) restored: Option<Restored>,
    /// The step that has begun and has not ended.
    step: Option<Step>,
}

/// Which step of an attempt did not succeed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) why: String,
}

impl Attempt {
    pub(crate) fn new(clock: &Now) -> Self {
        Self {
            clock: Arc::clone(clock),
            at: clock(),
            digest: None,
            phases: Vec::new(),
            restored: None,
            step: None,
        }
    }

    /// Does `work` and notes how long it took.
    pub(crate) fn time<R>(&mut self, step: Step, work: impl FnOnce() -> R) -> R {
        self.step = Some(step);
        let begun = (self.clock)();
        let done = work();
        let took = (self.clock)().since(begun);
        self.phases.push(Phase { step, took });
        self.step = None;
        done
    }

    /// The step that has begun and has not ended.
    pub(crate) fn at_step(&self) -> Option<Step> {
        self.step
    }
}

impl Failure {
    /// `error` with all its sources.
    pub(crate) fn new(step: Step, error: &(dyn Error + 'static)) -> Self {
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            why = format!("{why}: {cause}");
            source = cause.source();
        }
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Self { step, why }
    }

    pub(crate) fn load(error: &LoadError) -> Self {
        let compiler = matches!(
            error,
            LoadError::Compile(_) | LoadError::Link(_) | LoadError::Panicked(_)
        );
        let step = if compiler {
            Step::Compile
        } else {
            Step::Validate
        };
        Self::new(step, error)
    }

    pub(crate) fn start(error: &StartError) -> Self {
        let configure = matches!(
            error,
            StartError::ConfigureFaulted(_) | StartError::SettingsRefused(_)
        );
        let step = if configure {
            Step::Configure
        } else {
            Step::Start
        };
        Self::new(step, error)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("digest", &self.digest)
            .field("phases", &self.phases)
            .finish_non_exhaustive()
    }
}
