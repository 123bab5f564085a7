//! The thread on which policies of the folder are made ready, one at a time: compiled, started,
//! configured and tested. Slow, and nobody waits for it: the keeper goes on with what else there
//! is.
//!
//! # Invariants
//! 1. Whatever the code of a policy makes the compiler or an instance do, a panic included, ends
//!    as a failure of that policy (`a_panic_is_a_failure_of_the_policy`).
//!
//! # Bounds
//! One job at a time; the next one waits with the keeper.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use crate::bell::Bell;
use crate::reload::attempt::{Attempt, Failure};
use crate::reload::prepare::{Job, Made};
use crate::reload::report::Step;

/// Compilers and guests are called on this thread.
const STACK_BYTES: usize = 8 << 20;

/// The way to the thread. Dropped, it ends the thread after the job it is at, and waits for that.
#[derive(Debug)]
pub(crate) struct Maker {
    /// Absent once the thread is to end.
    jobs: Option<SyncSender<Job>>,
    made: Receiver<Made>,
    thread: Option<JoinHandle<()>>,
}

impl Maker {
    /// Starts the thread, which rings `bell` when a job is done.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub(crate) fn spawn(bell: Bell) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel::<Job>(1);
        let (outbox, made) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("policy-maker".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                while let Ok(job) = inbox.recv() {
                    if outbox.send(make(job)).is_err() {
                        return;
                    }
                    bell.ring();
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            made,
            thread: Some(thread),
        })
    }

    /// Begins `job`. Call it when there is none.
    pub(crate) fn begin(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("it is there until the drop");
        jobs.send(job).expect("the thread outlives its maker");
    }

    /// What came of the job, if it is done.
    pub(crate) fn poll(&self) -> Option<Made> {
        self.made.try_recv().ok()
    }

    /// What came of the job. Call it when there is one.
    pub(crate) fn wait(&self) -> Made {
        self.made.recv().expect("the thread outlives its maker")
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.jobs = None;
        // It does not wait for its result to be taken once there is nobody to take it.
        let (_, nobody) = sync_channel(0);
        self.made = nobody;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// `job` done, whatever happens on the way.
fn make(job: Job) -> Made {
    let Job { work, mut attempt } = job;
    let done = guarded(&mut attempt, |attempt| work.carry_out(attempt));
    Made { attempt, done }
}

/// What `work` makes; a panic is a failure at the step it happened at.
fn guarded<R>(
    attempt: &mut Attempt,
    work: impl FnOnce(&mut Attempt) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let done = catch_unwind(AssertUnwindSafe(|| work(&mut *attempt)));
    done.unwrap_or_else(|panic| {
        Err(Failure {
            step: attempt.at_step().unwrap_or(Step::Validate),
            why: format!("panicked: {}", message_of(panic.as_ref())),
        })
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pointsman_core::Micros;

    use super::*;

    #[test]
    fn a_panic_is_a_failure_of_the_policy() {
        let mut attempt = Attempt::new(&(Arc::new(|| Micros(0)) as _));
        let done: Result<(), Failure> = guarded(&mut attempt, |attempt| {
            attempt.time(Step::Compile, || ());
            attempt.time(Step::Start, || panic!("as it was told"))
        });
        let failure = done.unwrap_err();
        assert_eq!(failure.step, Step::Start);
        assert_eq!(failure.why, "panicked: as it was told");
    }
}
