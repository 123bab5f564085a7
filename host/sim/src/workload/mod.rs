//! Workloads: who asks for what, and when.
//!
//! A [`Workload`] hands out [`Arrival`]s in order of time. One of sessions hears when an answer has
//! ended, because the next turn of a session comes after that.
//!
//! | module | arrivals |
//! |---|---|
//! | `mooncake` | of a trace with the hashes of prompt blocks |
//! | `azure` | of a trace of lengths |
//! | `servegen` | of tenants, each with its own rates and lengths |
//! | `open` | at random: steady, in bursts, with one tenant that floods |
//! | `agents` | of sessions whose turns share what was said before |
//! | `shaped` | of another workload, faster, slower, spread out or cut off |

mod agents;
mod azure;
mod mooncake;
mod open;
mod prompt;
mod servegen;
mod shaped;

use std::collections::BTreeMap;
use std::fmt;

use pointsman_core::Micros;
use pointsman_core::rows::RequestClass;

pub use agents::{Agents, AgentsPlan};
pub use azure::azure;
pub use mooncake::mooncake;
pub use open::{Bursts, Flood, Lengths, OpenLoad, OpenPlan};
pub use prompt::PromptText;
pub use servegen::{ServegenPlan, servegen};
pub use shaped::{Reshaping, Shaped};

/// A source of requests.
pub trait Workload: fmt::Debug + Send {
    /// The names that the arrivals use.
    fn roll(&self) -> &Roll;

    /// The time of the next arrival, as far as it is known: the end of a request may bring an earlier
    /// one.
    fn next_at(&self) -> Option<Micros>;

    /// Takes the next arrival.
    fn pop(&mut self) -> Option<Arrival>;

    /// Hears that a request has ended, well or not, of all whose arrivals asked for it
    /// ([`Arrival::ticket`]).
    fn ended(&mut self, ticket: u64, at: Micros) {
        let _ = (ticket, at);
    }

    /// The number of arrivals in all, where it is known.
    fn total(&self) -> Option<u64>;
}

/// Names that arrivals use, by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// The tenants, at least one, each with its weight.
    pub tenants: Vec<TenantEntry>,
    /// The models; none: requests name no model.
    pub models: Vec<String>,
    /// Requests of a model that may run at once, by the model's place; absent: any number.
    pub running_max: BTreeMap<u32, u32>,
    /// The labels, as `key=value`.
    pub labels: Vec<String>,
}

/// A tenant of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantEntry {
    /// The name of the tenant.
    pub name: String,
    /// The relative share of the tenant.
    pub weight: u32,
    /// Tokens a minute that the tenant may use; absent: unlimited.
    pub tokens_per_minute: Option<u64>,
}

/// One request, and the time at which it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time of the arrival.
    pub at: Micros,
    /// The place of the tenant in the [`Roll`].
    pub tenant: u32,
    /// The place of the model in the [`Roll`]; absent: any model will do.
    pub model: Option<u32>,
    /// The places of the labels in the [`Roll`].
    pub labels: Vec<u32>,
    /// The session; absent: none.
    pub session: Option<u64>,
    /// The class of the request.
    pub class: RequestClass,
    /// The priority: larger is more urgent.
    pub priority: i32,
    /// The time after which the answer is worthless; absent: never.
    pub patience: Option<Micros>,
    /// The prompt.
    pub prompt: PromptText,
    /// Tokens that the answer has, which nobody knows before.
    pub output_tokens: u32,
    /// The number by which the workload is told of the end; absent: it does not want to know.
    pub ticket: Option<u64>,
    /// The bounds and hints of its client, where they were recorded; absent: those of all
    /// ([`crate::RequestPlan`]).
    pub asked: Option<ClientBounds>,
    /// The places of the only executors allowed, in attach order; absent: any that serves the model.
    pub allowed: Option<Vec<u32>>,
    /// The topology group that the request asks for; absent: any.
    pub group: Option<u32>,
}

/// Bounds and hints that a client gave with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientBounds {
    /// Most tokens of the answer.
    pub output_tokens_max: u32,
    /// The likely number of tokens of the answer; absent: nothing was said.
    pub output_tokens_expected: Option<u32>,
    /// True if the request may wait outside the queue.
    pub may_wait: bool,
    /// The waiting time in µs that is granted in advance.
    pub head_start: Micros,
}

impl Arrival {
    /// A latency-critical request of the first tenant.
    #[must_use]
    pub fn new(at: Micros, prompt: PromptText, output_tokens: u32) -> Self {
        Self {
            at,
            tenant: 0,
            model: None,
            labels: Vec::new(),
            session: None,
            class: RequestClass::LatencyCritical,
            priority: 0,
            patience: None,
            prompt,
            output_tokens: output_tokens.max(1),
            ticket: None,
            asked: None,
            allowed: None,
            group: None,
        }
    }
}

impl Roll {
    /// A roll of one tenant and no model.
    #[must_use]
    pub fn single() -> Self {
        Self::of_tenants(["default"])
    }

    /// A roll of tenants of equal weight and no model.
    #[must_use]
    pub fn of_tenants<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Self {
        Self {
            tenants: names.into_iter().map(TenantEntry::new).collect(),
            ..Self::default()
        }
    }
}

impl TenantEntry {
    /// A tenant of weight 1 without a limit.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: 1,
            tokens_per_minute: None,
        }
    }
}

/// A reason for which a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A line is not of the trace's format.
    #[error("line {line}: {why}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// The fault of the line.
        why: String,
    },
    /// There is no arrival in it.
    #[error("there is no request in it")]
    Empty,
}

impl TraceError {
    fn line(idx: usize, why: impl fmt::Display) -> Self {
        Self::Line {
            line: idx + 1,
            why: why.to_string(),
        }
    }
}

/// Arrivals that are all known from the beginning.
#[derive(Clone, Debug)]
pub struct Listed {
    roll: Roll,
    /// In order of time, the next one last.
    left: Vec<Arrival>,
    total: u64,
}

impl Listed {
    /// Makes a workload of arrivals, in whatever order they are. Those of one time stay in theirs.
    #[must_use]
    pub fn new(roll: Roll, mut arrivals: Vec<Arrival>) -> Self {
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals.reverse();
        Self {
            roll,
            total: arrivals.len() as u64,
            left: arrivals,
        }
    }

    /// Parts the arrivals: the first so many, and the rest. All stay at their times.
    #[must_use]
    pub fn split(self, first: u64) -> (Self, Self) {
        let Self { roll, mut left, .. } = self;
        let rest = usize::try_from(first).map_or(0, |first| left.len().saturating_sub(first));
        let first = left.split_off(rest);
        let part = |left: Vec<Arrival>| Self {
            roll: roll.clone(),
            total: left.len() as u64,
            left,
        };
        (part(first), part(left))
    }
}

impl Workload for Listed {
    fn roll(&self) -> &Roll {
        &self.roll
    }

    fn next_at(&self) -> Option<Micros> {
        self.left.last().map(|arrival| arrival.at)
    }

    fn pop(&mut self) -> Option<Arrival> {
        self.left.pop()
    }

    fn total(&self) -> Option<u64> {
        Some(self.total)
    }
}

impl<W: Workload + ?Sized> Workload for Box<W> {
    fn roll(&self) -> &Roll {
        (**self).roll()
    }

    fn next_at(&self) -> Option<Micros> {
        (**self).next_at()
    }

    fn pop(&mut self) -> Option<Arrival> {
        (**self).pop()
    }

    fn ended(&mut self, ticket: u64, at: Micros) {
        (**self).ended(ticket, at);
    }

    fn total(&self) -> Option<u64> {
        (**self).total()
    }
}
