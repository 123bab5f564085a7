//! Turns: long requests are parsed and tokenised on threads of their own, where they hold up no
//! other connection; so many at once as there are processors.
//!
//! # Bounds
//! Those that wait for a turn are counted; one more is refused. What a turn may cost is bounded by
//! `openai::prompt` and by the size of a body.
//!
//! # Cancellation
//! A client that leaves before its turn leaves nothing. Work that has begun cannot be stopped: it goes
//! on, and keeps its turn until it has ended.
//!
//! # Invariants
//! 1. Work that runs has a turn, whether or not its client is there
//!    (`tests::work_keeps_its_turn_when_its_client_leaves`).
//! 2. The number of those that wait is bounded (`tests::one_more_than_may_wait_is_refused`).

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::body::{RequestBody, SMALL_BYTES_MAX};
use super::error::ApiError;
use super::settings::HttpSettings;

/// The turns of long requests.
#[derive(Debug)]
pub(super) struct Turns {
    /// A permit for each thread that may work.
    turns: Arc<Semaphore>,
    /// A permit for each request that works or waits.
    places: Arc<Semaphore>,
    retry_after: u32,
}

// === impl Turns ===

impl Turns {
    /// Turns for `at_once` requests, and places for as many more as the settings let wait.
    pub(super) fn new(at_once: NonZeroUsize, settings: &HttpSettings) -> Self {
        let waiting = usize::try_from(settings.reading_queue_max).unwrap_or(usize::MAX);
        let places = at_once.get().saturating_add(waiting);
        Self {
            turns: Arc::new(Semaphore::new(at_once.get())),
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            retry_after: settings.retry_after_secs,
        }
    }

    /// Reads a body: a small one in place, which takes well under a millisecond, another in its turn.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        body: RequestBody,
        read: impl FnOnce(RequestBody) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if body.len() <= SMALL_BYTES_MAX {
            return read(body);
        }
        let retry_after = self.retry_after;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_full| ApiError::ReadingQueueFull { retry_after })?;
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("the semaphore is never closed");
        let work = spawn_blocking(move || {
            let understood = read(body);
            // The place first: whoever has the turn next finds it free.
            drop((place, turn));
            understood
        });
        work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading a request panicked");
            Err(ApiError::Internal)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::{Context, Waker};

    use super::*;

    type Reading<'a> = Pin<Box<dyn Future<Output = Result<(), ApiError>> + 'a>>;

    fn turns(at_once: usize, waiting: usize) -> Turns {
        Turns {
            turns: Arc::new(Semaphore::new(at_once)),
            places: Arc::new(Semaphore::new(at_once + waiting)),
            retry_after: 7,
        }
    }

    fn long() -> RequestBody {
        RequestBody::of(&[b' '; SMALL_BYTES_MAX + 1])
    }

    /// Begins to read a long body, until `end` speaks; `begun` is told of the beginning.
    fn reading<'a>(turns: &'a Turns, begun: &Sender<()>, end: Receiver<()>) -> Reading<'a> {
        let begun = begun.clone();
        let body = long();
        let mut reading: Reading<'a> = Box::pin(turns.read(body, move |_| {
            begun.send(()).unwrap();
            end.recv().unwrap();
            Ok(())
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(reading.as_mut().poll(&mut cx).is_pending());
        reading
    }

    #[tokio::test]
    async fn work_keeps_its_turn_when_its_client_leaves() {
        let turns = turns(1, 1);
        let (begun, begins) = channel();
        let (first_ends, first_end) = channel();
        let first = reading(&turns, &begun, first_end);
        begins.recv().unwrap();
        drop(first);
        assert_eq!(turns.turns.available_permits(), 0);
        assert_eq!(turns.places.available_permits(), 1);
        let (second_ends, second_end) = channel();
        let second = reading(&turns, &begun, second_end);
        assert!(begins.try_recv().is_err(), "the first one still works");
        first_ends.send(()).unwrap();
        second_ends.send(()).unwrap();
        assert_eq!(second.await, Ok(()));
        assert_eq!(turns.turns.available_permits(), 1);
        assert_eq!(turns.places.available_permits(), 2);
    }

    #[tokio::test]
    async fn one_more_than_may_wait_is_refused() {
        let turns = turns(1, 1);
        let (begun, _begins) = channel();
        let (ends, end) = channel();
        let works = reading(&turns, &begun, end);
        let waits = reading(&turns, &begun, channel().1);
        let refused = turns.read(long(), |_| Ok(())).await;
        assert_eq!(refused, Err(ApiError::ReadingQueueFull { retry_after: 7 }));
        // A short one needs no turn.
        assert_eq!(turns.read(RequestBody::of(&[]), |_| Ok(())).await, Ok(()));
        // The place of one that leaves is another's.
        drop(waits);
        let next = pin!(turns.read(long(), |_| Ok(())));
        ends.send(()).unwrap();
        assert_eq!(works.await, Ok(()));
        assert_eq!(next.await, Ok(()));
    }
}
