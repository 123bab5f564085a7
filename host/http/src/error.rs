//! Errors as clients see them: status, body in OpenAI's shape, headers.
//!
//! This is the one place that maps causes to them. The text is stable and says nothing of the
//! host's inside; the maker of an error logs the details that an operator needs.
//!
//! # Invariants
//! 1. A client that is told to come back later is told when: 429, drain and a wait that was too long carry `Retry-After`
//!    (`a_failure_before_the_first_text_has_its_status` in `host/server/tests/http`).
//! 2. Text of a client is quoted shortened (`tests::quotes_are_short_and_printable`).

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use pointsman_driver::message::TicketId;
use pointsman_driver::quota::{LimitKind, OverLimit};
use pointsman_events::{ExpiredWhy, FailedWhy, Outcome, RefusedWhy};
use pointsman_executor::delivery::Authorship;
use pointsman_notation::Time;
use schemars::JsonSchema;
use serde::Serialize;

use super::answer::{HttpReply, JSON, json_text, reply};
use super::authorship;

/// Every status of an error, with its meaning for a client.
pub(super) const STATUSES: [(u16, &str); 12] = [
    (
        400,
        "A field is wrong (`param` names it), or prompt and answer can never fit.",
    ),
    (401, "There is no key, or an unknown one."),
    (
        403,
        "This address does not serve that, operators have no access yet, or a page of another site asks: the message says what to configure.",
    ),
    (
        404,
        "There is no such model, executor, policy or other thing: the message names those there are.",
    ),
    (408, "The body did not come in time."),
    (409, "The order does not fit how things are."),
    (413, "The body is too large."),
    (
        415,
        "The body has a content encoding that is not understood.",
    ),
    (
        429,
        "There is no room, or a limit of the tenant is used up: `Retry-After` says when to try again.",
    ),
    (500, "The server or its executor failed."),
    (
        502,
        "Every executor that could serve the request failed it.",
    ),
    (
        503,
        "The request's deadline or the host's bound on waiting passed, no executor that may serve it works, admission is closed, the server starts or shuts down, or a policy gives the request up.",
    ),
];

/// The reason why a client gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    #[error("the body {0}")]
    Body(String),
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("{message}")]
    Field { param: String, message: String },
    #[error("`{param}` is not built; leave it out{}", alternatives(.neutral))]
    Unbuilt {
        param: &'static str,
        /// The values that are accepted all the same, since they change nothing.
        neutral: &'static [&'static str],
    },
    #[error(
        "this server has room for {context_tokens} tokens of the model's context, the prompt has {prompt_tokens}, and \
         {output_tokens} more are asked for"
    )]
    ContextExceeded {
        param: &'static str,
        context_tokens: u32,
        prompt_tokens: usize,
        output_tokens: u32,
    },
    #[error(
        "this server has room for {context_tokens} tokens of the model's context, and the prompt has {tokens_min} or \
         more"
    )]
    PromptTooLong {
        param: &'static str,
        context_tokens: u32,
        tokens_min: usize,
    },
    #[error("this address speaks TLS: ask by https://")]
    NotTls,
    #[error("the content encoding {0} is not understood; send the body as it is")]
    Encoding(String),
    #[error("no valid API key: send `Authorization: Bearer KEY`, or `x-api-key: KEY`")]
    Unauthorized,
    #[error(
        "no valid admin key: send `Authorization: Bearer KEY` with `admin.key` of the configuration"
    )]
    AdminUnauthorized,
    #[error("{0}")]
    Forbidden(&'static str),
    /// An operator asks for something that is not there.
    #[error("{0}")]
    Absent(String),
    /// An operator's order does not fit the state of things.
    #[error("{0}")]
    Conflict(String),
    #[error("there is no {path}; there are: {known}")]
    UnknownPath { path: String, known: String },
    #[error("there is no model `{name}`; {}", there_are(.known))]
    UnknownModel { name: String, known: String },
    #[error("this path answers {allow} only")]
    MethodNotAllowed { allow: String },
    #[error("the body did not arrive in time")]
    BodyTimeout,
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: usize },
    #[error(
        "as many requests are in hand as the server takes; try again in {}",
        secs(*retry_after)
    )]
    HandsFull { retry_after: u32 },
    #[error(
        "as many long requests wait to be read as the server lets wait; try again in {}",
        secs(*retry_after)
    )]
    ReadingQueueFull { retry_after: u32 },
    #[error(
        "the requests under way take all the memory that they may; try again in {}",
        secs(*retry_after)
    )]
    BodiesFull { retry_after: u32 },
    #[error(
        "as many clients are connected as the server takes; try again in {}",
        secs(*retry_after)
    )]
    ConnectionsFull { retry_after: u32 },
    #[error("{}", over_limit_message(.0))]
    OverLimit(OverLimit),
    #[error("the server is starting: {why}")]
    Starting { why: &'static str, retry_after: u32 },
    #[error("the server is shutting down")]
    Draining { retry_after: u32 },
    #[error("{}", unserved_message(.0))]
    Ended(Box<Unserved>),
    #[error("the server elsewhere that answered broke off; send the request again")]
    BrokenOff,
    #[error("an internal error; the server's log has more")]
    Internal,
}

/// A request that the driver took and that was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The request's number.
    pub request: TicketId,
    /// The request's end.
    pub outcome: Outcome,
    /// The decision by which it was not; absent: none.
    pub refused_by: Option<Authorship>,
}

/// Everything about an error but its message.
struct Terms {
    status: StatusCode,
    code: &'static str,
    param: Option<String>,
    retry_after: Option<u32>,
}

/// An error in OpenAI's shape.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ErrorDetail {
    /// Text for people.
    message: String,
    #[serde(rename = "type")]
    kind: ErrorKind,
    /// The field or header that is wrong.
    param: Option<String>,
    /// A stable name of the cause, for programs.
    code: &'static str,
}

/// OpenAI's kinds of errors.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
enum ErrorKind {
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
}

/// Seconds that a client is told to wait where nothing better is known.
const RETRY_AFTER_DEFAULT: u32 = 5;

// === impl ApiError ===

impl ApiError {
    /// A field or header with a wrong value.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::Field {
            param: param.into(),
            message: message.into(),
        }
    }

    /// The error of a host that takes nothing new, or that ended without a word about the request.
    pub fn draining() -> Self {
        ApiError::Draining {
            retry_after: RETRY_AFTER_DEFAULT,
        }
    }

    /// Tells errors that are found before the request's body is read.
    pub(super) fn leaves_body_unread(&self) -> bool {
        match self {
            ApiError::NotTls
            | ApiError::Encoding(_)
            | ApiError::Unauthorized
            | ApiError::AdminUnauthorized
            | ApiError::Forbidden(_)
            | ApiError::UnknownPath { .. }
            | ApiError::MethodNotAllowed { .. }
            | ApiError::BodyTimeout
            | ApiError::BodyTooLarge { .. }
            | ApiError::BodiesFull { .. }
            | ApiError::ConnectionsFull { .. }
            | ApiError::Starting { .. }
            | ApiError::Draining { .. } => true,
            ApiError::Body(_)
            | ApiError::Missing(_)
            | ApiError::Field { .. }
            | ApiError::Unbuilt { .. }
            | ApiError::ContextExceeded { .. }
            | ApiError::PromptTooLong { .. }
            | ApiError::UnknownModel { .. }
            | ApiError::Absent(_)
            | ApiError::Conflict(_)
            | ApiError::HandsFull { .. }
            | ApiError::ReadingQueueFull { .. }
            | ApiError::OverLimit(_)
            | ApiError::Ended(_)
            | ApiError::BrokenOff
            | ApiError::Internal => false,
        }
    }

    /// The error as a response.
    pub fn into_reply(self) -> HttpReply {
        let terms = self.terms();
        let mut reply = reply(terms.status, JSON, self.json());
        let headers = reply.headers_mut();
        if let Some(seconds) = terms.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if terms.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"pointsman\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let ApiError::Ended(unserved) = &self {
            authorship::insert_request(headers, unserved.request);
            if let Some(by) = &unserved.refused_by {
                authorship::insert(headers, by);
            }
        }
        if let ApiError::MethodNotAllowed { allow } = self {
            let allow = HeaderValue::try_from(allow).expect("methods can be a header's value");
            headers.insert(header::ALLOW, allow);
        }
        reply
    }

    /// The error as JSON, also for streams that have begun.
    pub fn json(&self) -> Vec<u8> {
        let terms = self.terms();
        json_text(&ErrorBody {
            error: ErrorDetail {
                message: self.to_string(),
                kind: kind(terms.status),
                param: terms.param,
                code: terms.code,
            },
        })
    }

    /// The status, and the stable name of the cause.
    pub(super) fn status(&self) -> (StatusCode, &'static str) {
        match self {
            ApiError::Body(_) => (StatusCode::BAD_REQUEST, "invalid_body"),
            ApiError::Missing(_) => (StatusCode::BAD_REQUEST, "missing_required_parameter"),
            ApiError::Field { .. } => (StatusCode::BAD_REQUEST, "invalid_value"),
            ApiError::Unbuilt { .. } => (StatusCode::BAD_REQUEST, "unsupported_parameter"),
            ApiError::ContextExceeded { .. } | ApiError::PromptTooLong { .. } => {
                (StatusCode::BAD_REQUEST, "context_length_exceeded")
            }
            ApiError::NotTls => (StatusCode::BAD_REQUEST, "not_tls"),
            ApiError::Encoding(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding"),
            ApiError::Unauthorized => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            ApiError::AdminUnauthorized => (StatusCode::UNAUTHORIZED, "invalid_admin_key"),
            ApiError::Absent(_) => (StatusCode::NOT_FOUND, "not_found"),
            ApiError::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            ApiError::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            ApiError::UnknownPath { .. } => (StatusCode::NOT_FOUND, "unknown_path"),
            ApiError::UnknownModel { .. } => (StatusCode::NOT_FOUND, "model_not_found"),
            ApiError::MethodNotAllowed { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
            }
            ApiError::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            ApiError::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            ApiError::HandsFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "hands_full"),
            ApiError::ReadingQueueFull { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "reading_queue_full")
            }
            ApiError::BodiesFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "bodies_full"),
            ApiError::ConnectionsFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "connections_full"),
            ApiError::OverLimit(over) => over_limit_status(*over),
            ApiError::Starting { .. } => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            ApiError::Draining { .. } => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            ApiError::Ended(unserved) => outcome_status(unserved.outcome),
            ApiError::BrokenOff => (StatusCode::BAD_GATEWAY, "server_broke_off"),
            ApiError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }

    fn terms(&self) -> Terms {
        let (status, code) = self.status();
        Terms {
            status,
            code,
            param: self.param(),
            retry_after: self.retry_after(),
        }
    }

    fn param(&self) -> Option<String> {
        if let ApiError::Field { param, .. } = self {
            Some(param.clone())
        } else if let ApiError::Missing(param)
        | ApiError::Unbuilt { param, .. }
        | ApiError::ContextExceeded { param, .. }
        | ApiError::PromptTooLong { param, .. } = self
        {
            Some((*param).to_owned())
        } else if let ApiError::UnknownModel { .. } = self {
            Some("model".to_owned())
        } else {
            None
        }
    }

    fn retry_after(&self) -> Option<u32> {
        if let ApiError::HandsFull { retry_after }
        | ApiError::ReadingQueueFull { retry_after }
        | ApiError::BodiesFull { retry_after }
        | ApiError::ConnectionsFull { retry_after }
        | ApiError::Starting { retry_after, .. }
        | ApiError::Draining { retry_after } = self
        {
            Some(*retry_after)
        } else if let ApiError::OverLimit(OverLimit::Later { retry_after, .. }) = self {
            Some(*retry_after)
        } else if let ApiError::Ended(unserved) = self {
            outcome_retry_after(unserved.outcome)
        } else {
            None
        }
    }
}

/// Status and code of a request that is over a limit of its tenant.
fn over_limit_status(over: OverLimit) -> (StatusCode, &'static str) {
    let code = match over {
        OverLimit::Never { limit, .. } => {
            let code = match limit {
                LimitKind::Tokens => "prompt_over_limit",
                LimitKind::Requests | LimitKind::Concurrent => "request_over_limit",
            };
            return (StatusCode::BAD_REQUEST, code);
        }
        OverLimit::Later { limit, .. } => match limit {
            LimitKind::Requests => "requests_per_minute_exceeded",
            LimitKind::Tokens => "tokens_per_minute_exceeded",
            LimitKind::Concurrent => "concurrent_requests_exceeded",
        },
    };
    (StatusCode::TOO_MANY_REQUESTS, code)
}

fn over_limit_message(over: &OverLimit) -> String {
    match *over {
        OverLimit::Never { limit, needed, max } => match limit {
            LimitKind::Tokens => format!(
                "its prompts have {needed} tokens, and your tenant may use {max} tokens a minute; send less at once"
            ),
            LimitKind::Requests => format!(
                "it counts as {needed} requests, and your tenant may send {max} a minute; send it in parts"
            ),
            LimitKind::Concurrent => format!(
                "it counts as {needed} requests at once, and your tenant may have {max} in hand; send it in parts"
            ),
        },
        OverLimit::Later {
            limit,
            max,
            retry_after,
        } => {
            let what = match limit {
                LimitKind::Requests => "send that many requests a minute",
                LimitKind::Tokens => "use that many tokens a minute, prompts and answers",
                LimitKind::Concurrent => "have that many requests in hand at once",
            };
            let again = secs(retry_after);
            format!("your tenant may {what}: {max}; try again in {again}")
        }
    }
}

fn kind(status: StatusCode) -> ErrorKind {
    if status == StatusCode::TOO_MANY_REQUESTS {
        ErrorKind::RateLimit
    } else if status.is_server_error() {
        ErrorKind::Server
    } else {
        ErrorKind::InvalidRequest
    }
}

/// Seconds after which a request with this outcome may be sent again; absent: it would fare the same.
fn outcome_retry_after(outcome: Outcome) -> Option<u32> {
    match outcome {
        Outcome::Refused(
            RefusedWhy::NoRoom { retry_after }
            | RefusedWhy::Displaced { retry_after }
            | RefusedWhy::Closed { retry_after }
            | RefusedWhy::Unserved { retry_after },
        ) => Some(retry_after),
        Outcome::Cancelled | Outcome::Expired(_) => Some(RETRY_AFTER_DEFAULT),
        Outcome::Refused(RefusedWhy::GaveUp | RefusedWhy::NeverFits { .. })
        | Outcome::Failed(_)
        | Outcome::Finished { .. } => None,
    }
}

/// Status and code of the outcome of a request that has no answer.
fn outcome_status(outcome: Outcome) -> (StatusCode, &'static str) {
    match outcome {
        Outcome::Refused(RefusedWhy::NoRoom { .. }) => (StatusCode::TOO_MANY_REQUESTS, "no_room"),
        Outcome::Refused(RefusedWhy::Displaced { .. }) => {
            (StatusCode::TOO_MANY_REQUESTS, "displaced")
        }
        Outcome::Refused(RefusedWhy::Closed { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "admission_closed")
        }
        Outcome::Refused(RefusedWhy::GaveUp) => (StatusCode::SERVICE_UNAVAILABLE, "given_up"),
        Outcome::Refused(RefusedWhy::NeverFits { .. }) => (StatusCode::BAD_REQUEST, "never_fits"),
        Outcome::Refused(RefusedWhy::Unserved { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "unserved")
        }
        Outcome::Expired(ExpiredWhy::Deadline) => {
            (StatusCode::SERVICE_UNAVAILABLE, "deadline_exceeded")
        }
        Outcome::Expired(ExpiredWhy::Wait) => (StatusCode::SERVICE_UNAVAILABLE, "wait_exceeded"),
        // The client has not left, or nobody could be told: the host cut the request off.
        Outcome::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        Outcome::Failed(FailedWhy::NotRetryable) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "executor_failed")
        }
        Outcome::Failed(FailedWhy::AttemptsMax) => (StatusCode::BAD_GATEWAY, "attempts_exhausted"),
        Outcome::Failed(FailedWhy::NowhereLeft) => (StatusCode::BAD_GATEWAY, "nowhere_left"),
        Outcome::Finished { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
    }
}

fn secs(secs: u32) -> Time {
    Time::from_secs(secs.into())
}

fn there_are(known: &str) -> String {
    if known.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are: {known}")
    }
}

fn unserved_message(unserved: &Unserved) -> String {
    let by = authorship::words(unserved.refused_by.as_ref());
    outcome_message(unserved.outcome) + &by
}

fn outcome_message(outcome: Outcome) -> String {
    match outcome {
        Outcome::Refused(RefusedWhy::NoRoom { retry_after }) => {
            format!("there is no room; try again in {}", secs(retry_after))
        }
        Outcome::Refused(RefusedWhy::Displaced { retry_after }) => {
            let later = secs(retry_after);
            format!("its place was given to a more urgent request; try again in {later}")
        }
        Outcome::Refused(RefusedWhy::Closed { retry_after }) => {
            let later = secs(retry_after);
            format!("new requests are not taken for the moment; try again in {later}")
        }
        Outcome::Refused(RefusedWhy::Unserved { retry_after }) => format!(
            "no executor that may run it is there and works; try again in {}",
            secs(retry_after)
        ),
        Outcome::Refused(RefusedWhy::GaveUp) => {
            "it could not have been served in time to be of use".to_owned()
        }
        Outcome::Refused(RefusedWhy::NeverFits {
            blocks_needed,
            blocks_total,
        }) => format!(
            "prompt and output bound need {blocks_needed} KV blocks and can have {blocks_total}; \
             shorten the prompt or ask for fewer tokens"
        ),
        Outcome::Expired(ExpiredWhy::Deadline) => {
            "its deadline passed before it had been answered".to_owned()
        }
        Outcome::Expired(ExpiredWhy::Wait) => {
            "it waited for a place as long as the server lets a request wait (`core.wait-max`)"
                .to_owned()
        }
        Outcome::Cancelled => "the server is shutting down".to_owned(),
        Outcome::Failed(FailedWhy::NotRetryable) => "the executor could not go on".to_owned(),
        Outcome::Failed(FailedWhy::AttemptsMax) => "every attempt to run it failed".to_owned(),
        Outcome::Failed(FailedWhy::NowhereLeft) => {
            "every executor that may run it has failed it".to_owned()
        }
        Outcome::Finished { .. } => "an internal error; the server's log has more".to_owned(),
    }
}

fn alternatives(neutral: &[&str]) -> String {
    neutral
        .iter()
        .map(|value| format!(" or at {value}"))
        .collect()
}

/// Text of a client, to be quoted back: printable and short.
pub fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 64;
    let mut printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut quote: String = printable.by_ref().take(CHARS_MAX).collect();
    if printable.next().is_some() {
        quote.push('…');
    }
    quote
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_openais_shape() {
        let error = ApiError::field("top_p", "`top_p` must be smaller");
        assert_eq!(
            String::from_utf8(error.json()).unwrap(),
            r#"{"error":{"message":"`top_p` must be smaller","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}"#
        );
        assert_eq!(
            String::from_utf8(ApiError::HandsFull { retry_after: 1 }.json()).unwrap(),
            r#"{"error":{"message":"as many requests are in hand as the server takes; try again in 1s","type":"rate_limit_error","param":null,"code":"hands_full"}}"#
        );
    }

    #[test]
    fn quotes_are_short_and_printable() {
        assert_eq!(quoted("a\nb\u{1b}[31m"), "a?b?[31m");
        assert_eq!(quoted(&"ä".repeat(100)), format!("{}…", "ä".repeat(64)));
    }
}
