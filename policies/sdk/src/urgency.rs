//! The urgency of a request, by which sequences are made to give way.

use crate::mirror::Mirror;
use crate::wire::types::{Request, RequestClass, Sequence};

/// Class first, then the client's priority; the greater is the more urgent.
///
/// The host checks victims by this measure, which leaves out how long a request has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    critical: bool,
    priority: i32,
}

impl Urgency {
    /// The urgency of a class and a client priority.
    #[must_use]
    pub fn new(class: RequestClass, priority: i32) -> Self {
        Self {
            critical: class == RequestClass::LatencyCritical,
            priority,
        }
    }
}

impl Urgency {
    /// The urgency of a request that waits or runs, if it is known.
    #[must_use]
    pub fn of(mirror: &Mirror, request: u64) -> Option<Self> {
        match mirror.sequence(request) {
            Some(sequence) => Some(Self::from(sequence)),
            None => mirror.request(request).map(Self::from),
        }
    }
}

impl From<&Request> for Urgency {
    fn from(request: &Request) -> Self {
        Self::new(request.class, request.priority)
    }
}

impl From<&Sequence> for Urgency {
    fn from(sequence: &Sequence) -> Self {
        Self::new(sequence.class, sequence.priority)
    }
}
