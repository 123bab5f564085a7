//! The urgency of a request, by which sequences are made to give way.

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
