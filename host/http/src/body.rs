//! Requests' bodies: each bounded in size and time, and all together in memory.
//!
//! # Bounds
//! Memory is counted as it is taken, so that a client that announces much and sends little has
//! little. The first bytes of one body at a time of each connection are not counted: whatever large bodies
//! take, there is room for small ones, and a connection that brings many side by side (HTTP/2) has no more of
//! it than others. All bodies together hold `bodies-max`, and so many bytes more for each connection.
//! A body that finds no room is refused at once: those that have begun can then end.
//!
//! # Invariants
//! 1. A body's memory is counted until the body is dropped, whoever holds it then
//!    (`tests::a_body_takes_the_room_of_what_has_come`, `turns::tests` for work without a client, and
//!    `a_body_that_is_passed_on_without_its_hints_is_counted_to_its_end`, in `tests/tests/remote/bodies.rs`).
//! 2. The bodies that clients have only announced take no room
//!    (`tests::a_body_takes_the_room_of_what_has_come`).
//! 3. Of a connection's bodies at once one alone has bytes that are not counted
//!    (`tests::one_body_of_a_connection_at_a_time_has_bytes_that_are_not_counted`, and by HTTP/2
//!    `of_bodies_side_by_side_one_alone_has_room_beyond_the_bound`, in `tests/tests/http2.rs`).

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_ENCODING;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::error::{ApiError, quoted};
use super::settings::HttpSettings;

/// The most bytes of a small body. So many of one body at a time of each connection are not counted.
pub(super) const SMALL_BYTES_MAX: usize = 16 << 10;
/// The bytes of a body that come in a second from a client with a slow line. One that sends no fewer is not cut off,
/// however large its body is.
const BYTES_PER_SECOND: u64 = 256 << 10;
/// The bytes of all bodies from which on their memory is worth giving back to the system.
const MUCH_BYTES: usize = 16 << 20;

/// The memory of all bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    // Immutable.
    bytes_max: usize,
    retry_after: u32,
    /// Gives freed memory back to the system.
    freed: fn(),
    // Owned.
    bytes: AtomicUsize,
    /// True if there was much since memory was last given back.
    was_much: AtomicBool,
}

/// A request's body, with its part of the memory of all.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Vec<u8>,
    /// Dropped after the bytes.
    share: Share,
}

/// The bytes of a connection's bodies that are not counted, which one of them has at a time.
#[derive(Clone, Debug)]
pub(super) struct Uncounted(Arc<Semaphore>);

/// A part of the memory of all bodies.
#[derive(Debug)]
struct Share {
    bodies: Arc<Bodies>,
    /// The bytes that are counted.
    bytes: usize,
    /// The hold on the bytes that are not; absent: another body of the connection had it.
    uncounted: Option<OwnedSemaphorePermit>,
}

/// Reads a request's body whole.
///
/// # Cancellation
/// The part that was read is dropped.
pub(super) async fn read(
    request: Request<Incoming>,
    settings: &HttpSettings,
    (bodies, uncounted): (&Arc<Bodies>, &Uncounted),
) -> Result<RequestBody, ApiError> {
    let bytes_max = settings.body_bytes_max;
    let too_large = ApiError::BodyTooLarge { bytes_max };
    let (head, body) = request.into_parts();
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        return Err(ApiError::Encoding(quoted(&encoding)));
    }
    // Before a byte is read: a client that asks with `Expect: 100-continue` need not send them.
    if usize::try_from(body.size_hint().lower()).is_ok_and(|bytes| bytes > bytes_max) {
        return Err(too_large);
    }
    collect(body, settings, RequestBody::empty(bodies, uncounted)).await
}

/// Adds all that comes to `body`, as long as it is not too large and comes in time.
async fn collect(
    mut incoming: Incoming,
    settings: &HttpSettings,
    mut body: RequestBody,
) -> Result<RequestBody, ApiError> {
    let bytes_max = settings.body_bytes_max;
    let begun = Instant::now();
    let announced = incoming.size_hint().upper();
    let announced = announced.and_then(|bytes| usize::try_from(bytes).ok());
    let most = announced.unwrap_or(bytes_max).min(bytes_max);
    loop {
        let patience = settings.read_timeout + time_of(body.len());
        let frame = timeout_at(begun + patience, incoming.frame()).await;
        let Some(frame) = frame.map_err(|_elapsed| ApiError::BodyTimeout)? else {
            return Ok(body);
        };
        let frame = frame.map_err(|error| {
            tracing::debug!(%error, "a body broke off");
            ApiError::Body("broke off".to_owned())
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if body.len().saturating_add(data.len()) > bytes_max {
            return Err(ApiError::BodyTooLarge { bytes_max });
        }
        body.push(&data, most)?;
    }
}

/// The time that a client has for so many bytes of a body, beside the timeout.
fn time_of(bytes: usize) -> Duration {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_SECOND)
}

// === impl Bodies ===

impl Bodies {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        Self {
            bytes_max: settings.bodies_bytes_max,
            retry_after: settings.retry_after_secs,
            freed: settings.memory_freed,
            bytes: AtomicUsize::new(0),
            was_much: AtomicBool::new(false),
        }
    }

    /// Takes `more` bytes, if there is room.
    fn take(&self, more: usize) -> Result<(), ApiError> {
        let grown = |bytes: usize| bytes.checked_add(more).filter(|b| *b <= self.bytes_max);
        let before = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        let before = before.map_err(|_full| ApiError::BodiesFull {
            retry_after: self.retry_after,
        })?;
        if before + more >= MUCH_BYTES {
            self.was_much.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Gives `bytes` back. The last ones after there was much take the allocator's memory along.
    fn give(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before == bytes && self.was_much.swap(false, Ordering::Relaxed) {
            let freed = self.freed;
            // Slow where much is free: not on a worker. Without a runtime the process is about to end.
            if let Ok(runtime) = Handle::try_current() {
                drop(runtime.spawn_blocking(freed));
            }
        }
    }
}

// === impl RequestBody ===

impl RequestBody {
    /// Takes a part out. Its memory stays, and stays counted.
    pub fn cut(&mut self, part: Range<usize>) {
        self.bytes.drain(part);
    }

    fn empty(bodies: &Arc<Bodies>, uncounted: &Uncounted) -> Self {
        Self {
            bytes: Vec::new(),
            share: Share {
                bodies: Arc::clone(bodies),
                bytes: 0,
                uncounted: uncounted.take(),
            },
        }
    }

    /// Adds `data` to a body that will have at most `most` bytes.
    fn push(&mut self, data: &[u8], most: usize) -> Result<(), ApiError> {
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        let needed = length + data.len();
        if needed > capacity {
            let grown = capacity.saturating_mul(2).min(most).max(needed);
            self.share.grow(grown)?;
            self.bytes.reserve_exact(grown - length);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl Deref for RequestBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for RequestBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

// === impl Uncounted ===

impl Uncounted {
    /// The hold on these bytes; absent: a body has it.
    fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

impl Default for Uncounted {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

// === impl Share ===

impl Share {
    /// Takes what is missing for a body of `bytes`, if there is room.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let counted = match &self.uncounted {
            Some(_) => bytes.saturating_sub(SMALL_BYTES_MAX),
            None => bytes,
        };
        self.bodies.take(counted - self.bytes)?;
        self.bytes = counted;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.bodies.give(self.bytes);
        }
    }
}

#[cfg(test)]
impl RequestBody {
    /// A body of `bytes`, for which there is room.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut body = Self::empty(&bodies(usize::MAX, || ()), &Uncounted::default());
        body.push(bytes, bytes.len()).unwrap();
        body
    }
}

#[cfg(test)]
fn bodies(bytes_max: usize, freed: fn()) -> Arc<Bodies> {
    Arc::new(Bodies {
        bytes_max,
        retry_after: 7,
        freed,
        bytes: AtomicUsize::new(0),
        was_much: AtomicBool::new(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 4 << 20;

    fn counted(bodies: &Bodies) -> usize {
        bodies.bytes.load(Ordering::Relaxed)
    }

    /// A body of which so many bytes of 4 MiB have come by a connection of its own, in pieces of 4 KiB.
    fn begun(bodies: &Arc<Bodies>, bytes: usize) -> Result<RequestBody, ApiError> {
        begun_by(&Uncounted::default(), bodies, bytes)
    }

    /// The same by a connection that may have others.
    fn begun_by(
        connection: &Uncounted,
        bodies: &Arc<Bodies>,
        bytes: usize,
    ) -> Result<RequestBody, ApiError> {
        let mut body = RequestBody::empty(bodies, connection);
        for piece in vec![b' '; bytes].chunks(4 << 10) {
            body.push(piece, LARGE)?;
        }
        Ok(body)
    }

    #[test]
    fn a_body_takes_the_room_of_what_has_come() {
        let bodies = bodies(LARGE, || ());
        // Each announces 4 MiB and sends little.
        let slow: Vec<RequestBody> = (0..1000)
            .map(|_| begun(&bodies, SMALL_BYTES_MAX).unwrap())
            .collect();
        assert_eq!(counted(&bodies), 0);
        let whole = begun(&bodies, LARGE).unwrap();
        assert_eq!(counted(&bodies), LARGE - SMALL_BYTES_MAX);
        assert_eq!(whole.bytes.capacity(), LARGE);
        drop((slow, whole));
        assert_eq!(counted(&bodies), 0);
        // At no time is more than twice counted of what has come.
        for bytes in [64 << 10, 1 << 20, (1 << 20) + 1] {
            let body = begun(&bodies, bytes).unwrap();
            assert!(counted(&bodies) < 2 * bytes, "{}", counted(&bodies));
            assert!(body.bytes.capacity() <= counted(&bodies) + SMALL_BYTES_MAX);
        }
    }

    #[test]
    fn a_body_of_which_a_part_is_taken_out_keeps_its_room() {
        let bodies = bodies(LARGE, || ());
        let mut body = begun(&bodies, LARGE).unwrap();
        body.cut(1..LARGE - 1);
        assert_eq!(&*body, b"  ");
        assert_eq!(body.bytes.capacity(), LARGE);
        assert_eq!(counted(&bodies), LARGE - SMALL_BYTES_MAX);
        drop(body);
        assert_eq!(counted(&bodies), 0);
    }

    #[test]
    fn a_body_without_room_is_refused_and_leaves_its_room_to_others() {
        let bodies = bodies(LARGE, || ());
        let first = begun(&bodies, LARGE).unwrap();
        let refused = begun(&bodies, LARGE).err();
        assert_eq!(refused, Some(ApiError::BodiesFull { retry_after: 7 }));
        assert_eq!(counted(&bodies), LARGE - SMALL_BYTES_MAX);
        // A small one is taken all the same.
        assert!(begun(&bodies, SMALL_BYTES_MAX).is_ok());
        drop(first);
        assert!(begun(&bodies, LARGE).is_ok());
    }

    #[test]
    fn one_body_of_a_connection_at_a_time_has_bytes_that_are_not_counted() {
        let bodies = bodies(SMALL_BYTES_MAX, || ());
        let connection = Uncounted::default();
        let small = || begun_by(&connection, &bodies, SMALL_BYTES_MAX);
        let first = small().unwrap();
        assert_eq!(counted(&bodies), 0);
        let second = small().unwrap();
        assert_eq!(counted(&bodies), SMALL_BYTES_MAX);
        let refused = small().err();
        assert_eq!(refused, Some(ApiError::BodiesFull { retry_after: 7 }));
        // Other connections have as much.
        assert!(begun(&bodies, SMALL_BYTES_MAX).is_ok());
        // The next one has what the first had, and the second stays counted.
        drop(first);
        let third = small().unwrap();
        assert_eq!(counted(&bodies), SMALL_BYTES_MAX);
        assert!(small().is_err());
        drop((second, third));
        assert_eq!(counted(&bodies), 0);
    }

    #[tokio::test]
    async fn memory_goes_back_to_the_system_once_much_was_freed() {
        static FREED: Semaphore = Semaphore::const_new(0);
        let bodies = bodies(64 << 20, || FREED.add_permits(1));
        for (together, is_much) in [(4, false), (5, true), (1, false), (5, true)] {
            let held = (0..together).map(|_| begun(&bodies, LARGE).unwrap());
            let held: Vec<RequestBody> = held.collect();
            assert_eq!(bodies.was_much.load(Ordering::Relaxed), is_much);
            drop(held);
            assert!(!bodies.was_much.load(Ordering::Relaxed));
        }
        drop(FREED.acquire_many(2).await.unwrap());
        assert_eq!(FREED.available_permits(), 2);
    }
}
