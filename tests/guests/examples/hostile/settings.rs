//! The settings of the guest that misbehaves.

use serde::Deserialize;

/// The misbehaviour of the guest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Misbehaviour in the calls below; absent: none.
    pub outrage: Option<Outrage>,
    /// Calls in which it misbehaves.
    pub calls: Vec<Call>,
    /// Kind of the answers in all other calls.
    pub answers: Answers,
    /// Number of calls in which it behaves first.
    pub good_calls: u32,
    /// Rounds of idle work before each answer.
    pub toil: u32,
    /// Rounds of idle work in `configure`.
    pub start_toil: u32,
    /// Name of the tenant that is starved.
    pub tenant: String,
}

/// A misbehaviour that ends a call without an answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Outrage {
    /// Loops without an end.
    Loop,
    /// Panics in the call.
    Trap,
    /// Allocates without end.
    Allocate,
    /// Recurses without end.
    Recurse,
    /// Asks the time, which a component has not.
    Clock,
    /// Returns a list of a million rows.
    MillionRows,
    /// Returns a snapshot of a gigabyte.
    Gigabyte,
}

/// A call of the host.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "named like the interface's functions")]
pub enum Call {
    Configure,
    Observe,
    Snapshot,
    Restore,
    Admit,
    Order,
    Route,
    Evict,
    Allot,
    Arrange,
}

/// A kind of answers, most of them wrong or useless.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// Plain answers, all of them valid.
    #[default]
    Plain,
    /// Plain ones, which name every other executor after the first one with a slot.
    WithFallbacks,
    /// Places where the request does not allow it.
    IgnoreAllowed,
    /// Gives every verdict and every request twice.
    Twice,
    /// Refuses every arrival.
    Shed,
    /// Displaces a request that does not exist.
    DisplaceUnknown,
    /// Returns an empty order.
    OrderNothing,
    /// Places on executors that do not exist.
    UnknownExecutors,
    /// Places on an empty list.
    NoExecutors,
    /// Holds everything until the end of time.
    HoldForEver,
    /// Holds the requests of one tenant until the end of time, and places all others.
    StarveTenant,
    /// Gives everything up.
    GiveUp,
    /// Evicts the most urgent sequence.
    EvictMostUrgent,
    /// Has the newest sequences of an executor leave for host memory, whether there is room or not.
    SwapNewest,
    /// Allots no tokens.
    AllotNothing,
    /// Allots all tokens to each executor.
    AllotTooMuch,
}
