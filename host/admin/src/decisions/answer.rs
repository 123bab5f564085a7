//! An answer about one request: its JSON, and its words.

use pointsman_core::{ExecutorId, admission};
use pointsman_driver::decisions::TracedAnswer;
use schemars::JsonSchema;
use serde::Serialize;

/// An answer about one request.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub(super) enum GivenAnswer {
    Admit,
    Park,
    Shed {
        retry_after_s: u32,
    },
    Displace {
        request: u64,
        retry_after_s: u32,
    },
    Place {
        /// The first of the executors named.
        executors: Vec<String>,
        /// The number of executors named.
        named: usize,
    },
    Hold {
        until_micros: Option<u64>,
    },
    GiveUp,
    Evict {
        victims: usize,
    },
}

impl GivenAnswer {
    /// An answer with the names of its executors.
    pub(super) fn of(answer: &TracedAnswer, name: impl Fn(ExecutorId) -> String) -> Self {
        match answer {
            TracedAnswer::Admission(admission::Choice::Admit) => Self::Admit,
            TracedAnswer::Admission(admission::Choice::Park) => Self::Park,
            TracedAnswer::Admission(admission::Choice::Shed(seconds)) => Self::Shed {
                retry_after_s: *seconds,
            },
            TracedAnswer::Admission(admission::Choice::Displace(displaced)) => Self::Displace {
                request: displaced.request.0,
                retry_after_s: displaced.retry_after,
            },
            TracedAnswer::Place(executors, of) => Self::Place {
                executors: executors.iter().copied().map(name).collect(),
                named: *of,
            },
            TracedAnswer::Hold(until) => Self::Hold {
                until_micros: until.map(|until| until.0),
            },
            TracedAnswer::GiveUp => Self::GiveUp,
            TracedAnswer::Evict(victims) => Self::Evict { victims: *victims },
        }
    }

    /// The answer in a few words.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Admit => "admit".to_owned(),
            Self::Park => "park".to_owned(),
            Self::Shed { .. } => "shed".to_owned(),
            Self::Displace { request, .. } => format!("displace request {request}"),
            Self::Place { executors, .. } => format!("place on {}", executors.join(", ")),
            Self::Hold { .. } => "hold".to_owned(),
            Self::GiveUp => "give up".to_owned(),
            Self::Evict { victims } => format!("evict {victims}"),
        }
    }
}
