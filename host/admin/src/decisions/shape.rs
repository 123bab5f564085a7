//! The JSON of decisions.

use schemars::JsonSchema;
use serde::Serialize;

use super::answer::GivenAnswer;

/// The newest requests, each with its decisions.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DecisionList {
    pub(super) decisions: Vec<Decisions>,
}

/// The decisions about one request.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Decisions {
    /// The number of the header `x-pointsman-request`.
    pub(super) id: u64,
    /// The machine's number of the request, as in the decision journal.
    pub(super) request: u64,
    pub(super) tenant: String,
    /// Null: the client named none.
    pub(super) model: Option<String>,
    /// The request as policies saw it when it arrived; null: it ended then, or allows too many executors.
    pub(super) asked: Option<RequestRow>,
    pub(super) steps: Vec<DecisionStep>,
    /// Steps between the first and the last ones that were forgotten.
    pub(super) steps_forgotten: u32,
    /// Null: the request has not ended.
    pub(super) outcome: Option<OutcomeShape>,
}

/// The decisions about one request, and the words of the policy that routes now on each executor.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ExplainedDecisions {
    #[serde(flatten)]
    pub(super) decisions: Decisions,
    pub(super) explanation: Explanation,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct RequestRow {
    pub(super) arrived_micros: u64,
    /// `latency-critical` or `throughput`.
    pub(super) class: &'static str,
    pub(super) priority: i32,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens_max: u32,
    pub(super) output_tokens_expected: Option<u32>,
    pub(super) deadline_micros: Option<u64>,
    pub(super) may_wait: bool,
    pub(super) head_start_micros: u64,
    pub(super) group: Option<u32>,
    pub(super) session: Option<String>,
    /// The number of executors allowed; null: all.
    pub(super) executors_allowed: Option<usize>,
}

/// A step of a request's way.
#[derive(Serialize, JsonSchema)]
pub(super) struct DecisionStep {
    #[serde(flatten)]
    pub(super) event: StepEvent,
    /// The step in words.
    pub(super) told: String,
    pub(super) at_micros: u64,
    pub(super) round: String,
    /// The rounds in a row that had this step, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[schemars(inline)]
pub(super) enum StepEvent {
    Asked(Box<Asked>),
    Admitted(Decider),
    Parked(Decider),
    Unparked,
    TurnedAway(Decider),
    Held {
        #[serde(flatten)]
        decider: Decider,
        until_micros: Option<u64>,
    },
    Placed {
        #[serde(flatten)]
        decider: Decider,
        /// `slot` or `queue`.
        into: &'static str,
        executor: String,
    },
    #[serde(rename = "refused by the interlock")]
    Refused {
        hook: &'static str,
        why: String,
        by: String,
        executor: Option<String>,
    },
    #[serde(rename = "a liveness bound ran out, the built-in rule stepped in")]
    Struck {
        hook: &'static str,
    },
    Started {
        executor: String,
    },
    Evicted {
        #[serde(flatten)]
        decider: Decider,
        /// `recompute` or `swap`.
        how: &'static str,
        for_request: u64,
        executor: String,
        /// Blocks that it gives back: those that it shares with nobody.
        kv_blocks_freed: u32,
    },
    #[serde(rename = "waits again")]
    Requeued {
        why: &'static str,
    },
    Ended {
        outcome: OutcomeShape,
    },
}

/// The author of a decision, and the reason.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Decider {
    pub(super) by: String,
    pub(super) reason: String,
}

/// A question about a request, and its answer.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Asked {
    pub(super) hook: &'static str,
    /// Requests that were asked about together.
    pub(super) requests_asked_about: usize,
    pub(super) cached: Option<CachedPrompt>,
    /// Null: no answer could be used.
    pub(super) answer: Option<GivenAnswer>,
    #[serde(flatten)]
    pub(super) decider: Decider,
    pub(super) policy_number: Option<u32>,
    /// The policies that failed before.
    pub(super) faults: Vec<AnswerFault>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct CachedPrompt {
    pub(super) overlaps: Vec<CachedOn>,
    pub(super) shared_tokens: u32,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct CachedOn {
    pub(super) executor: String,
    pub(super) device_tokens: u32,
    pub(super) host_tokens: u32,
    pub(super) disk_tokens: u32,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct AnswerFault {
    pub(super) policy_number: u32,
    pub(super) kind: String,
}

/// The end of a request.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ending")]
pub(super) struct OutcomeShape {
    /// `finished`, `cancelled`, `refused`, `expired` or `failed`.
    pub(super) how: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_tokens: Option<u32>,
    /// The end in words.
    pub(super) told: String,
}

/// The words of the policy that routes now.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Explanation {
    /// The policy; null: it says nothing.
    pub(super) by: Option<String>,
    /// `now`.
    pub(super) as_of: &'static str,
    pub(super) candidates: Option<Vec<ExplainedCandidate>>,
    /// The reason why there are no candidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why_not: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ExplainedCandidate {
    pub(super) executor: String,
    pub(super) eligible: bool,
    /// Smaller is better; comparable within one answer only.
    pub(super) cost: i64,
    pub(super) note: String,
}
