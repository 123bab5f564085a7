//! Every name that goes out: OpenTelemetry's, as its conventions for generative AI have them, and the
//! host's own, which begin with `pointsman`.
//!
//! The conventions are in development and move. `host/docs/telemetry.md` lists what is here, and a test
//! of the whole keeps the two together. Names of metrics are those of `/metrics`.

/// The name of the instrumentation, and of the service unless another is configured.
pub(super) const SCOPE: &str = "pointsman";

// === Of the process ===

pub(super) const SERVICE_NAME: &str = "service.name";
pub(super) const SERVICE_VERSION: &str = "service.version";
pub(super) const SERVICE_INSTANCE: &str = "service.instance.id";

// === Of requests, by the conventions ===

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const REQUEST_STREAM: &str = "gen_ai.request.stream";
pub(super) const REQUEST_CHOICES: &str = "gen_ai.request.choice.count";
pub(super) const REQUEST_TOKENS_MAX: &str = "gen_ai.request.max_tokens";
pub(super) const REQUEST_SEED: &str = "gen_ai.request.seed";
pub(super) const REQUEST_TEMPERATURE: &str = "gen_ai.request.temperature";
pub(super) const REQUEST_TOP_P: &str = "gen_ai.request.top_p";
pub(super) const REQUEST_TOP_K: &str = "gen_ai.request.top_k";
pub(super) const REQUEST_FREQUENCY_PENALTY: &str = "gen_ai.request.frequency_penalty";
pub(super) const REQUEST_PRESENCE_PENALTY: &str = "gen_ai.request.presence_penalty";
/// The hash of the session's name, never the name.
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(super) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(super) const RESPONSE_ID: &str = "gen_ai.response.id";
pub(super) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(super) const FIRST_CHUNK_SECONDS: &str = "gen_ai.response.time_to_first_chunk";
pub(super) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const CACHED_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(super) const SERVER_ADDRESS: &str = "server.address";
pub(super) const SERVER_PORT: &str = "server.port";
pub(super) const ERROR_TYPE: &str = "error.type";
pub(super) const STATUS_CODE: &str = "http.response.status_code";

/// The provider where engines of this host answer, and of the host's own spans.
pub(super) const OWN_PROVIDER: &str = "pointsman";
/// The provider where a server elsewhere answers: the interface is known, and not whose it is.
pub(super) const OTHER_PROVIDER: &str = "openai";

// === Of requests, the host's own ===

/// The request's number, by which `/admin/decisions` knows it.
pub(super) const REQUEST: &str = "pointsman.request";
pub(super) const TENANT: &str = "pointsman.tenant";
pub(super) const OUTCOME: &str = "pointsman.outcome";
pub(super) const EXECUTOR: &str = "pointsman.executor";
/// The policy that routed the request.
pub(super) const POLICY: &str = "pointsman.policy";
pub(super) const REASON: &str = "pointsman.reason";
pub(super) const ATTEMPTS: &str = "pointsman.attempts";
/// Seconds without a place.
pub(super) const QUEUE_SECONDS: &str = "pointsman.queue.duration";
/// The end of a placement.
pub(super) const PLACEMENT_END: &str = "pointsman.placement.end";
pub(super) const PLACEMENT_TOKENS: &str = "pointsman.placement.output_tokens";

/// The span of a time without a place.
pub(super) const QUEUE_SPAN: &str = "queue";
/// The event of a request's first token.
pub(super) const FIRST_TOKEN_EVENT: &str = "pointsman.first_token";
/// The event of a placement that an executor took up.
pub(super) const STARTED_EVENT: &str = "pointsman.started";

/// Metrics that go out by the name of the conventions, too, each with the names of its labels there.
pub(super) const CONVENTIONAL: [Conventional; 3] = [
    Conventional {
        own: "pointsman_request_duration_seconds",
        name: "gen_ai.server.request.duration",
        labels: &[("model", REQUEST_MODEL), ("outcome", OUTCOME)],
    },
    Conventional {
        own: "pointsman_time_to_first_token_seconds",
        name: "gen_ai.server.time_to_first_token",
        labels: &[("model", RESPONSE_MODEL), ("executor", EXECUTOR)],
    },
    Conventional {
        own: "pointsman_inter_token_latency_seconds",
        name: "gen_ai.server.time_per_output_token",
        labels: &[("model", RESPONSE_MODEL), ("executor", EXECUTOR)],
    },
];

/// A metric that the conventions name.
pub(super) struct Conventional {
    /// The name in `/metrics`.
    pub(super) own: &'static str,
    pub(super) name: &'static str,
    /// The labels by their names in `/metrics`.
    pub(super) labels: &'static [(&'static str, &'static str)],
}
