//! Work that takes its time, on threads of its own.
//!
//! A job that is wanted waits with its owner until a thread is free. A job in progress has a
//! [`JobId`], and its result waits here until the owner takes it.

use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Stack of a thread on which compilers and guests are called, in bytes.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// The number of a job, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobId(u64);

/// Threads that turn jobs into results. Dropped, they end after the jobs in progress.
#[derive(Debug)]
pub(crate) struct Background<J, R> {
    /// The channel to the threads; absent once they are to end. It has at most one job for each.
    jobs: Option<Sender<(JobId, J)>>,
    results: Receiver<(JobId, R)>,
    threads: Vec<JoinHandle<()>>,
    /// Jobs whose results have not been taken.
    in_progress: usize,
    next: JobId,
}

impl<J: Send + 'static, R: Send + 'static> Background<J, R> {
    /// Starts the threads `name`, which do jobs by `work` and wake `waker` after each.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn spawn(
        (name, threads): (&str, NonZeroUsize),
        waker: &Waker,
        work: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let (outbox, results) = channel();
        // A thread that waits for a job holds the lock, and the others wait for that.
        let (inbox, work) = (Arc::new(Mutex::new(inbox)), Arc::new(work));
        let run = || {
            let (inbox, work) = (Arc::clone(&inbox), Arc::clone(&work));
            let (outbox, waker) = (outbox.clone(), waker.clone());
            thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    while let Ok((id, job)) = next(&inbox) {
                        // There may be nobody left to take it.
                        drop(outbox.send((id, work(job))));
                        waker.wake_by_ref();
                    }
                })
        };
        let threads = (0..threads.get())
            .map(|_| run())
            .collect::<io::Result<_>>()?;
        Ok(Self {
            jobs: Some(jobs),
            results,
            threads,
            in_progress: 0,
            next: JobId(0),
        })
    }

    /// True while a job is in progress, or its result has not been taken.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_progress > 0
    }

    /// True while every thread has a job.
    pub(crate) fn is_full(&self) -> bool {
        self.in_progress >= self.threads.len()
    }

    /// Begins `job`. Call it when a thread is free.
    pub(crate) fn begin(&mut self, job: J) -> JobId {
        debug_assert!(!self.is_full(), "a job for each thread");
        let id = self.next;
        let jobs = self.jobs.as_ref().expect("it is there until the drop");
        jobs.send((id, job))
            .expect("the threads outlive their owner");
        self.next = JobId(id.0 + 1);
        self.in_progress += 1;
        id
    }

    /// The result of a job that is done; absent: there is none.
    pub(crate) fn poll(&mut self) -> Option<(JobId, R)> {
        let result = self.results.try_recv().ok()?;
        self.in_progress -= 1;
        Some(result)
    }

    /// Waits for the result of a job, for `most` at most; absent: no job is in progress, or none has
    /// ended in that time.
    pub(crate) fn wait(&mut self, most: Duration) -> Option<(JobId, R)> {
        if !self.is_busy() {
            return None;
        }
        let result = match self.results.recv_timeout(most) {
            Err(RecvTimeoutError::Timeout) => return None,
            ended => ended.expect("the threads outlive their owner"),
        };
        self.in_progress -= 1;
        Some(result)
    }
}

fn next<T>(inbox: &Mutex<Receiver<T>>) -> Result<T, std::sync::mpsc::RecvError> {
    let inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
    inbox.recv()
}

impl<J, R> Drop for Background<J, R> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Longest wait for a thread.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn spawn<J: Send + 'static, R: Send + 'static>(
        threads: usize,
        work: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> Background<J, R> {
        let threads = NonZeroUsize::new(threads).unwrap();
        Background::spawn(("test", threads), Waker::noop(), work).unwrap()
    }

    #[test]
    fn a_result_waits_until_it_is_taken_and_has_the_number_of_its_job() {
        let mut doubled = spawn(1, |job: u32| job * 2);
        assert!(doubled.wait(PATIENCE).is_none());
        let first = doubled.begin(1);
        assert!(doubled.is_busy() && doubled.is_full());
        assert_eq!(doubled.wait(PATIENCE), Some((first, 2)));
        assert!(!doubled.is_busy());
        let second = doubled.begin(2);
        assert_ne!(first, second);
        assert_eq!(doubled.wait(PATIENCE), Some((second, 4)));
        assert_eq!(doubled.poll(), None);
    }

    #[test]
    fn each_thread_has_a_job() {
        let both = Barrier::new(2);
        let mut meeting = spawn(2, move |(): ()| both.wait().is_leader());
        let first = meeting.begin(());
        assert!(!meeting.is_full());
        let second = meeting.begin(());
        assert!(meeting.is_full());
        // Neither ends without the other.
        let mut ended = [(); 2].map(|()| meeting.wait(PATIENCE).unwrap());
        ended.sort_by_key(|(id, _)| id.0);
        assert_eq!(ended.map(|(id, _)| id), [first, second]);
        assert!(meeting.wait(PATIENCE).is_none());
    }

    #[test]
    fn a_job_that_takes_longer_is_not_waited_for_and_still_ends() {
        let both = Arc::new(Barrier::new(2));
        let its = Arc::clone(&both);
        let mut slow = spawn(1, move |(): ()| {
            its.wait();
        });
        let job = slow.begin(());
        assert_eq!(slow.wait(Duration::ZERO), None);
        assert!(slow.is_busy());
        both.wait();
        assert_eq!(slow.wait(PATIENCE), Some((job, ())));
    }

    #[test]
    fn a_thread_whose_result_nobody_takes_ends_with_its_owner() {
        let mut doubled = spawn(1, |job: u32| job * 2);
        doubled.begin(1);
        drop(doubled);
    }
}
