//! What the guest does wrong.

use serde::Deserialize;

/// What to do, and when.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// What it does in the calls below; absent: nothing.
    pub outrage: Option<Outrage>,
    /// In which calls.
    pub calls: Vec<Call>,
    /// What it answers where it answers.
    pub answers: Answers,
    /// In how many calls it behaves before it begins.
    pub good_calls: u32,
    /// Rounds of idle work before each answer.
    pub toil: u32,
    /// The tenant that is starved, by name.
    pub tenant: String,
}

/// What ends a call without an answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Outrage {
    /// It never returns.
    Loop,
    /// It panics.
    Trap,
    /// It allocates without end.
    Allocate,
    /// It recurses without end.
    Recurse,
    /// It returns a list of a million rows.
    MillionRows,
    /// Its snapshot is a gigabyte.
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
}

/// Answers that are out of order, or of no use.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// As plain as can be.
    #[default]
    Plain,
    /// Places where the request does not allow it.
    IgnoreAllowed,
    /// Every verdict and every request twice.
    Twice,
    /// Refuses every arrival.
    Shed,
    /// Displaces a request that does not exist.
    DisplaceUnknown,
    /// Puts nothing in order.
    OrderNothing,
    /// Places on executors that do not exist.
    UnknownExecutors,
    /// Places on nothing.
    NoExecutors,
    /// Holds everything until the end of time.
    HoldForEver,
    /// Holds the requests of one tenant until the end of time, and places all others.
    StarveTenant,
    /// Gives everything up.
    GiveUp,
    /// Evicts the most urgent sequence there is.
    EvictMostUrgent,
    /// Allots nothing to anybody.
    AllotNothing,
    /// Allots all there is to each.
    AllotTooMuch,
}
