//! Work that takes its time, on a thread of its own: one job at a time.
//!
//! A job that is wanted waits with its owner. The job in progress has a [`JobId`], and its result
//! waits here until the owner takes it.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Waker;
use std::thread::{self, JoinHandle};

/// Stack of a thread on which compilers and guests are called, in bytes.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// The number of a job, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobId(u64);

/// A thread that turns jobs into results. Dropped, it ends after the job in progress.
#[derive(Debug)]
pub(crate) struct Background<J, R> {
    /// The channel to the thread; absent once the thread is to end.
    jobs: Option<SyncSender<J>>,
    results: Receiver<R>,
    thread: Option<JoinHandle<()>>,
    in_progress: Option<JobId>,
    next: JobId,
}

impl<J: Send + 'static, R: Send + 'static> Background<J, R> {
    /// Starts the thread `name`, which does jobs by `work` and wakes `waker` after each.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn spawn(
        name: &str,
        waker: Waker,
        mut work: impl FnMut(J) -> R + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, inbox) = sync_channel(1);
        let (outbox, results) = sync_channel(1);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                while let Ok(job) = inbox.recv() {
                    if outbox.send(work(job)).is_err() {
                        return;
                    }
                    waker.wake_by_ref();
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            results,
            thread: Some(thread),
            in_progress: None,
            next: JobId(0),
        })
    }

    /// True while a job is in progress, or its result has not been taken.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Begins `job`. Call it when no job is in progress.
    pub(crate) fn begin(&mut self, job: J) -> JobId {
        debug_assert!(!self.is_busy(), "one job at a time");
        let jobs = self.jobs.as_ref().expect("it is there until the drop");
        jobs.send(job).expect("the thread outlives its owner");
        let id = self.next;
        self.next = JobId(id.0 + 1);
        self.in_progress = Some(id);
        id
    }

    /// The result of the job in progress, once it is done.
    pub(crate) fn poll(&mut self) -> Option<(JobId, R)> {
        let result = self.results.try_recv().ok()?;
        Some((self.in_progress.take()?, result))
    }

    /// Waits for the result of the job in progress; absent: there is no job.
    pub(crate) fn wait(&mut self) -> Option<(JobId, R)> {
        let id = self.in_progress.take()?;
        let result = self.results.recv();
        Some((id, result.expect("the thread outlives its owner")))
    }
}

impl<J, R> Drop for Background<J, R> {
    fn drop(&mut self) {
        self.jobs = None;
        // The thread does not wait for its result to be taken once there is nobody to take it.
        let (_, nobody) = sync_channel(0);
        self.results = nobody;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_waits_until_it_is_taken_and_has_the_number_of_its_job() {
        let waker = Waker::noop().clone();
        let mut doubled = Background::spawn("test", waker, |job: u32| job * 2).unwrap();
        assert!(doubled.wait().is_none());
        let first = doubled.begin(1);
        assert!(doubled.is_busy());
        assert_eq!(doubled.wait(), Some((first, 2)));
        assert!(!doubled.is_busy());
        let second = doubled.begin(2);
        assert_ne!(first, second);
        assert_eq!(doubled.wait(), Some((second, 4)));
        assert_eq!(doubled.poll(), None);
    }

    #[test]
    fn a_thread_whose_result_nobody_takes_ends_with_its_owner() {
        let waker = Waker::noop().clone();
        let mut doubled = Background::spawn("test", waker, |job: u32| job * 2).unwrap();
        doubled.begin(1);
        drop(doubled);
    }
}
