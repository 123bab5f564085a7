//! Measures of a simulation: what clients saw, and what executors did.
//!
//! [`Measures`] collects while a simulation runs; [`RunReport`] is what comes of it.
//!
//! | module | measures |
//! |---|---|
//! | `histogram` | times that are too many to keep |
//! | `series` | courses over time, for charts |
//! | `report` | the whole run, by tenant and by executor |

mod histogram;
mod report;
mod series;

use pointsman_core::rows::RequestClass;
use pointsman_core::{Fact, HookMap, Micros, Outcome, RequeuedWhy, Stamped};

pub use histogram::Histogram;
pub(crate) use report::jain_of;
pub use report::{ExecutorReport, Goodput, RunReport, TenantReport, TimeSpread};
pub use series::{Course, Sample, Series};

/// The course of one request, as its client and the host saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The place of the tenant in the workload's roll.
    pub tenant: u32,
    /// The class of the request.
    pub class: RequestClass,
    /// The time of its arrival.
    pub arrived: Micros,
    /// The time at which an executor first took it up.
    pub started: Option<Micros>,
    /// The time of its first token.
    pub first_token: Option<Micros>,
    /// The time of its end.
    pub ended: Option<Micros>,
    /// The place of the executor that it was placed on last, in attach order.
    pub executor: Option<u32>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// The part of them that was cached where it had its first token.
    pub cached_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// The way in which it ended.
    pub outcome: Option<Outcome>,
}

impl RequestRecord {
    /// Time to the first token.
    #[must_use]
    pub fn ttft(&self) -> Option<Micros> {
        self.first_token.map(|at| at.since(self.arrived))
    }

    /// Time until an executor took it up.
    #[must_use]
    pub fn wait(&self) -> Option<Micros> {
        self.started.map(|at| at.since(self.arrived))
    }

    /// Time to the end of an answer that came to its end.
    #[must_use]
    pub fn whole(&self) -> Option<Micros> {
        let is_finished = matches!(self.outcome, Some(Outcome::Finished { .. }));
        let ended = self.ended.filter(|_| is_finished);
        ended.map(|at| at.since(self.arrived))
    }

    /// The mean time between two tokens of an answer that came to its end, in ms.
    #[must_use]
    pub fn mean_gap_ms(&self) -> Option<f64> {
        let (first, whole) = (self.ttft()?, self.whole()?);
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(crate::numbers::millis(whole.since(first)) / f64::from(gaps))
    }
}

/// Counts of what happened in the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Rounds of the machine.
    pub rounds: u64,
    /// Requests that were evicted.
    pub evicted: u64,
    /// Requests that went on elsewhere after a failure or a loss.
    pub failed_over: u64,
    /// Liveness bounds that ran out under a policy.
    pub strikes: u64,
    /// Answers that the interlock refused, by hook.
    pub refused_answers: HookMap<u64>,
    /// Faults of policies.
    pub faults: u64,
    /// Holds on purpose and without a time.
    pub holds: u64,
}

impl HostCounts {
    /// Counts a fact.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only some of the facts are counted"
    )]
    pub fn count(&mut self, stamped: &Stamped) {
        match &stamped.fact {
            Fact::Evicted { .. } => self.evicted += 1,
            Fact::Requeued(_, RequeuedWhy::Failed | RequeuedWhy::Lost) => self.failed_over += 1,
            Fact::Strike(..) => self.strikes += 1,
            Fact::Refused(_, hook, _) => self.refused_answers[*hook] += 1,
            Fact::Fault(..) => self.faults += 1,
            Fact::Held(..) => self.holds += 1,
            _ => {}
        }
        self.rounds = self.rounds.max(stamped.round.0);
    }
}

/// The measures of a simulation so far.
#[derive(Debug, Default)]
pub struct Measures {
    /// The requests, by their number.
    pub records: Vec<RequestRecord>,
    /// Times between two tokens of a stream.
    pub gaps: Histogram,
    /// Courses over time.
    pub series: Series,
    /// Counts of the host.
    pub host: HostCounts,
    /// The time and tokens of each executor, in attach order.
    pub executors: Vec<ExecutorMeasures>,
}

/// The time and tokens of one executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorMeasures {
    /// The executor's name.
    pub name: String,
    /// The time for which it computed.
    pub busy: Micros,
    /// Prompt tokens that it computed.
    pub prefill_tokens: u64,
    /// Tokens that it generated.
    pub decode_tokens: u64,
    /// Sequences that it made give way by itself.
    pub recomputed: u64,
    /// Models that it loaded in another one's place.
    pub swaps: u64,
}
