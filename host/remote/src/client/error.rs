//! The reasons why a server was not heard, and which of them this machine is to blame for.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::uri::InvalidUri;
use hyper_util::client::legacy;
use pointsman_notation::{Time, causes, chain};

/// The numbers of the errors by which this machine has no room for more files: `ENFILE` and `EMFILE`.
pub(super) const NO_FILES: [i32; 2] = [23, 24];

/// The reason why a server was not heard.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection could be made: nothing of the request has reached the server.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke before an answer.
    #[error("{0}")]
    Connection(String),
    /// This machine has no file or memory left for it, which says nothing of the server.
    #[error("{0}")]
    NoMeans(String),
    /// Nothing came for too long.
    #[error("no answer within {}", Time(*.0))]
    Timeout(Duration),
    /// The answer is longer than an answer to such a question is.
    #[error("its answer has more than {bytes_max} bytes, or broke off")]
    Answer {
        /// The most bytes that it may have.
        bytes_max: usize,
    },
    /// The path cannot be asked for.
    #[error("the path is none: {0}")]
    Path(#[from] InvalidUri),
}

// === impl CallError ===

impl CallError {
    /// The error of a request that has no answer.
    pub(super) fn of(error: &legacy::Error) -> Self {
        if error.is_connect() && !is_of_this_machine(error) {
            Self::Unreachable(chain(error))
        } else {
            Self::of_sent(error)
        }
    }

    /// The error of a request that its server may have had.
    pub(super) fn of_sent(error: &legacy::Error) -> Self {
        let why = chain(error);
        if is_of_this_machine(error) {
            Self::NoMeans(why)
        } else {
            Self::Connection(why)
        }
    }
}

/// True for a request that has no answer by a fault of this machine.
fn is_of_this_machine(error: &legacy::Error) -> bool {
    causes(error).any(is_own_fault)
}

/// True for a fault of this machine, which says nothing of a server: it has no file or memory left. An address that cannot
/// be had is none: so ends a name's second address, where IPv6 is off, once the first has refused.
pub(super) fn is_own_fault(cause: &(dyn Error + 'static)) -> bool {
    let error = cause.downcast_ref::<io::Error>();
    let number = error.and_then(io::Error::raw_os_error);
    let lacks_files = number.is_some_and(|number| NO_FILES.contains(&number));
    lacks_files || error.map(io::Error::kind) == Some(io::ErrorKind::OutOfMemory)
}
