//! Everything that can happen in a small world.

use std::fmt;

/// Something that can happen. The number is that of a request by its kind, or of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request arrives.
    Arrives(u8),
    /// The client of a request hangs up.
    HangsUp(u8),
    /// An engine says that it has taken the request up.
    Starts(u8),
    /// An engine says that it has made one more token, the first together with the prompt.
    Token(u8),
    /// An engine says that it has served the request to its end.
    Finishes(u8),
    /// An engine says that the request has left, as it was told.
    Leaves(u8),
    /// An engine fails a request.
    Fails(u8),
    /// An executor dies.
    Dies(u8),
    /// An executor that died is up again.
    Returns(u8),
    /// The machine decides.
    Round,
    /// Time passes up to the next timer, and the machine decides.
    Time,
}

/// The name of a request by its kind.
pub(crate) fn name(kind: u8) -> &'static str {
    [
        "the bulky request",
        "the urgent request",
        "the brief request",
    ][usize::from(kind)]
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Arrives(kind) => write!(f, "{} arrives", name(*kind)),
            Event::HangsUp(kind) => write!(f, "the client of {} hangs up", name(*kind)),
            Event::Starts(kind) => write!(f, "{} is taken up", name(*kind)),
            Event::Token(kind) => write!(f, "{} gets a token", name(*kind)),
            Event::Finishes(kind) => write!(f, "{} is finished", name(*kind)),
            Event::Leaves(kind) => write!(f, "{} has left its executor", name(*kind)),
            Event::Fails(kind) => write!(f, "{} fails on its executor", name(*kind)),
            Event::Dies(executor) => write!(f, "executor {executor} dies"),
            Event::Returns(executor) => write!(f, "executor {executor} is up again"),
            Event::Round => write!(f, "round"),
            Event::Time => write!(f, "time passes to the next timer"),
        }
    }
}
