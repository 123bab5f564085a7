//! The rows of the table. Rows of one path stand together.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Body, Query, Route};
use crate::admin::{
    self, addition, decisions, devices, dumps, executors, journal, loads, models as served, orders,
    policies, route, tenants,
};
use crate::answer::{Function, Run};
use crate::auth::Access;
use crate::openai::{self, models};
use crate::{monitor, openapi, probes};

/// Makes the [`Function`] of a route from an `async fn`.
macro_rules! run {
    ($function:path) => {
        &Run(|call| Box::pin($function(call)))
    };
}

pub(super) static TABLE: &[Route] = &[
    post("/v1/chat/completions", run!(openai::chat))
        .named("createChatCompletion", "chat_completions")
        .access(Access::Clients)
        .about("Answers a conversation, whole or streamed.", COMPLETION)
        .takes(Body::Hinted(openai::chat_body))
        .fails(COMPLETION_FAILURES),
    post("/v1/completions", run!(openai::text))
        .named("createCompletion", "completions")
        .access(Access::Clients)
        .about("Continues one prompt, whole or streamed.", COMPLETION)
        .takes(Body::Hinted(openai::text_body))
        .fails(COMPLETION_FAILURES),
    elsewhere("/v1/responses", run!(openai::answers))
        .named("createResponse", "responses")
        .about("Answers in the form of OpenAI's responses.", ELSEWHERE),
    elsewhere("/v1/messages", run!(openai::answers))
        .named("createMessage", "messages")
        .about("Answers in the form of Anthropic's messages.", ELSEWHERE),
    elsewhere("/v1/embeddings", run!(openai::numbers))
        .named("createEmbedding", "embeddings")
        .about("Embeds texts.", ELSEWHERE),
    elsewhere("/v1/rerank", run!(openai::numbers))
        .named("rerank", "rerank")
        .about("Ranks documents by a query.", ELSEWHERE),
    elsewhere("/tokenize", run!(openai::numbers))
        .named("tokenize", "tokenize")
        .about("Gives the tokens of a text.", ELSEWHERE),
    elsewhere("/detokenize", run!(openai::numbers))
        .named("detokenize", "detokenize")
        .about("Gives the text of tokens.", ELSEWHERE),
    get("/v1/models", run!(models::list))
        .named("listModels", "models")
        .access(Access::Clients)
        .about("Lists the models.", ""),
    get("/v1/models/{name}", run!(models::one))
        .named("retrieveModel", "models")
        .access(Access::Clients)
        .about("Shows a model.", ""),
    get("/health", run!(probes::health))
        .named("checkHealth", "health")
        .about("Tells whether an executor is up.", ""),
    get("/ready", run!(probes::ready))
        .named("checkReadiness", "ready")
        .about(
            "Tells whether models are loaded and policies in force.",
            "Not before, and not while the server shuts down.",
        ),
    get("/metrics", run!(probes::metrics))
        .named("readMetrics", "metrics")
        .access(Access::Metrics)
        .about("Gives the metrics as OpenMetrics text.", ""),
    get("/openapi.json", run!(openapi::document))
        .named("readDocument", "openapi")
        .about("Gives this document.", ""),
    admin_get("/admin", run!(admin::index))
        .named("listAdminPaths", "admin")
        .about("Lists the paths of questions and orders.", ""),
    admin_get("/admin/policies", run!(policies::list))
        .named("listPolicies", "admin")
        .about("Shows everything about policies.", "")
        .fails(DRIVER_FAILURES),
    order("/admin/policies/{name}/mode", run!(orders::mode))
        .named("setPolicyMode", "admin")
        .about("Sets how far a policy's answers count.", ORDER)
        .takes(Body::Required(orders::mode_schema)),
    order("/admin/policies/{name}/promote", run!(orders::promote))
        .named("promotePolicy", "admin")
        .about("Gives a shadow or canary its hooks.", ORDER)
        .takes(Body::Optional(orders::empty_schema)),
    order("/admin/policies/{name}/rollback", run!(orders::rollback))
        .named("rollBackPolicy", "admin")
        .about("Puts the version before in force again.", ORDER)
        .takes(Body::Optional(orders::empty_schema)),
    order("/admin/bind", run!(orders::bind))
        .named("bindHook", "admin")
        .about("Binds a hook to a policy, or undoes that.", ORDER)
        .takes(Body::Required(orders::bind_schema))
        .fails(&[404, 409, 500, 503]),
    order("/admin/eject", run!(orders::eject))
        .named("ejectHooks", "admin")
        .about("Gives hooks back to the embedded defaults.", ORDER)
        .takes(Body::Optional(orders::eject_schema)),
    order("/admin/quarantine/{fingerprint}/release", run!(orders::release))
        .parameter(orders::fingerprint_schema)
        .named("releaseVersion", "admin")
        .about("Lets a version of a policy out of quarantine.", ORDER)
        .takes(Body::Optional(orders::empty_schema)),
    admin_get("/admin/executors", run!(executors::list))
        .named("listExecutors", "admin")
        .about("Lists the executors and devices.", "")
        .fails(DRIVER_FAILURES),
    order("/admin/executors", run!(executors::add))
        .named("addExecutor", "admin")
        .about(
            "Adds an executor, and its model unless that is served already.",
            "Answered when the model is loaded. With `models` in place of `name` it serves several, \
             all of them served already.",
        )
        .takes(Body::Required(addition::addition_schema))
        .status(StatusCode::CREATED),
    admin_get("/admin/executors/{name}", run!(executors::one))
        .named("retrieveExecutor", "admin")
        .about("Shows an executor.", "")
        .fails(DRIVER_FAILURES),
    at(Method::DELETE, "/admin/executors/{name}", run!(executors::remove))
        .named("removeExecutor", "admin")
        .access(Access::Orders)
        .about(
            "Removes an executor, and its model unless others serve that.",
            "It takes nothing new, and goes when its last request has ended.",
        )
        .status(StatusCode::ACCEPTED)
        .fails(ORDER_FAILURES),
    order("/admin/executors/{name}/drain", run!(executors::drain))
        .named("drainExecutor", "admin")
        .about("Has an executor take nothing new.", "Its requests go on."),
    order("/admin/executors/{name}/resume", run!(executors::resume))
        .named("resumeExecutor", "admin")
        .about("Has a drained executor take requests again.", ""),
    order("/admin/executors/{name}/share-weight", run!(executors::share_weight))
        .named("setExecutorShareWeight", "admin")
        .about("Gives an executor another share of its device's tokens.", "")
        .takes(Body::Required(executors::share_weight_schema)),
    order("/admin/executors/{name}/load", run!(loads::load))
        .named("tellExecutorLoad", "admin")
        .about(
            "Tells the load of a server elsewhere.",
            "It goes before what the server says when it is asked, for ten seconds; what is left out is \
             asked for as ever. The answer shows the executor as it was before.",
        )
        .takes(Body::Required(loads::load_schema)),
    admin_get("/admin/devices", run!(devices::list))
        .named("listDevices", "admin")
        .about("Lists the devices.", "")
        .fails(DRIVER_FAILURES),
    order("/admin/devices/{name}/tokens-per-step", run!(devices::tokens_per_step))
        .named("setDeviceTokensPerStep", "admin")
        .about("Sets the tokens that the engines of a device may schedule in a step.", "")
        .takes(Body::Required(devices::tokens_per_step_schema)),
    admin_get("/admin/models", run!(served::list))
        .named("listServedModels", "admin")
        .about("Lists the models with their executors and requests.", "")
        .fails(DRIVER_FAILURES),
    order("/admin/models/{name}/running-max", run!(served::running_max))
        .named("setModelRunningMax", "admin")
        .about("Sets how many requests of a model may run at once.", "The limit stays with the name.")
        .takes(Body::Required(served::running_max_schema)),
    admin_get("/admin/tenants", run!(tenants::list))
        .named("listTenants", "admin")
        .about("Lists the tenants with their terms, what they use, and how much of their limits.", "")
        .fails(DRIVER_FAILURES),
    order("/admin/route", run!(route::forecast))
        .named("forecastRoute", "admin")
        .access(Access::Operators)
        .about(
            "Tells where a request would go and why, executor by executor.",
            "Nothing is changed. The body is that of a completion; `prompt_tokens` may stand in the \
             place of the prompt.",
        )
        .takes(Body::Hinted(route::body_schema))
        .fails(&[404, 429, 500, 503]),
    admin_get("/admin/decisions", run!(decisions::list))
        .named("listDecisions", "admin")
        .about("Shows how the newest requests were decided.", "")
        .query("last", "N", decisions::last_schema)
        .fails(DRIVER_FAILURES),
    admin_get("/admin/decisions/{id}", run!(decisions::one))
        .named("retrieveDecisions", "admin")
        .about(
            "Shows how a request was decided.",
            "`id` is the id of a completion, or the value of its header `x-pointsman-request`.",
        )
        .fails(DRIVER_FAILURES),
    admin_get("/admin/dumps", run!(dumps::list))
        .named("listDumps", "admin")
        .about("Lists what faults of policies left behind.", "")
        .fails(&[404, 500]),
    admin_get("/admin/dumps/{number}", run!(dumps::one))
        .named("retrieveDump", "admin")
        .about("Shows what a fault of a policy left behind.", "")
        .fails(&[500]),
    admin_get("/admin/journal", run!(journal::show))
        .named("showJournal", "admin")
        .about("Shows whether the decision journal is written.", "")
        .fails(&[404]),
    get("/monitor", run!(monitor::page))
        .named("showMonitor", "monitor")
        .access(Access::OperatorsPage)
        .about("Gives a page that shows the state of the server, live.", ""),
    get("/monitor/data", run!(monitor::data))
        .named("readMonitorData", "monitor_data")
        .access(Access::Operators)
        .about("Gives the numbers of the monitor page.", "")
        .fails(DRIVER_FAILURES),
];

const COMPLETION: &str = "Hints about scheduling stand in the headers `x-pointsman-*`, or in the body's `pointsman`; \
     given in both places they have to be the same. Fields that would change the answer and are not \
     built are refused by name, other unknown fields are ignored. A failure after the first token of \
     a stream is an event with an `error`, and the stream ends without `[DONE]`.";
const ELSEWHERE: &str =
    "Passed on to a server elsewhere that serves the model, and answered in its words.";
const ORDER: &str = "Answered with what is in force then.";

const COMPLETION_FAILURES: &[u16] = &[404, 429, 500, 502, 503];
/// Failures of a question to the driver.
const DRIVER_FAILURES: &[u16] = &[500, 503];
const ORDER_FAILURES: &[u16] = &[409, 500, 503];

/// The row of a path that nobody here knows, for any method.
pub(super) static UNKNOWN: &[Route] = &[elsewhere("", run!(openai::numbers))
    .named("passOn", "passed_on")
    .about("Passes a request on to a server elsewhere.", ELSEWHERE)];

const fn elsewhere(path: &'static str, function: &'static dyn Function) -> Route {
    post(path, function)
        .access(Access::Clients)
        .takes(Body::Hinted(openai::passed_body))
        .fails(COMPLETION_FAILURES)
}

const fn get(path: &'static str, function: &'static dyn Function) -> Route {
    at(Method::GET, path, function)
}

const fn post(path: &'static str, function: &'static dyn Function) -> Route {
    at(Method::POST, path, function)
}

const fn admin_get(path: &'static str, function: &'static dyn Function) -> Route {
    get(path, function).access(Access::Operators)
}

const fn order(path: &'static str, function: &'static dyn Function) -> Route {
    post(path, function)
        .access(Access::Orders)
        .fails(ORDER_FAILURES)
}

const fn at(method: Method, path: &'static str, function: &'static dyn Function) -> Route {
    Route {
        method,
        path,
        name: "",
        label: "",
        access: Access::Open,
        function,
        status: StatusCode::OK,
        summary: "",
        description: "",
        parameter: some_text,
        query: None,
        body: Body::None,
        failures: &[],
    }
}

fn some_text() -> Value {
    json!({"type": "string", "minLength": 1})
}

// === impl Route ===

impl Route {
    const fn named(mut self, name: &'static str, label: &'static str) -> Self {
        self.name = name;
        self.label = label;
        self
    }

    const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    const fn about(mut self, summary: &'static str, description: &'static str) -> Self {
        self.summary = summary;
        self.description = description;
        self
    }

    const fn takes(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    const fn parameter(mut self, schema: fn() -> Value) -> Self {
        self.parameter = schema;
        self
    }

    const fn query(
        mut self,
        name: &'static str,
        placeholder: &'static str,
        schema: fn() -> Value,
    ) -> Self {
        self.query = Some(Query {
            name,
            placeholder,
            schema,
        });
        self
    }

    const fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    const fn fails(mut self, failures: &'static [u16]) -> Self {
        self.failures = failures;
        self
    }
}
