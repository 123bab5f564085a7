//! Headers that tell a client who decided about its request, and why.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use pointsman_driver::message::TicketId;
use pointsman_executor::delivery::{Authorship, BUILT_IN};

const REQUEST: HeaderName = HeaderName::from_static("x-pointsman-request");
const EXECUTOR: HeaderName = HeaderName::from_static("x-pointsman-executor");
const POLICY: HeaderName = HeaderName::from_static("x-pointsman-policy");
const DECISION: HeaderName = HeaderName::from_static("x-pointsman-decision");
const REASON: HeaderName = HeaderName::from_static("x-pointsman-reason");

/// The headers, each with its meaning.
pub const HEADERS: [(HeaderName, &str); 5] = [
    (
        REQUEST,
        "Number of the request, also understood by `/admin/decisions`.",
    ),
    (EXECUTOR, "Name of the executor that gave the first token."),
    (
        POLICY,
        "Name of the policy that placed the request there, or refused it.",
    ),
    (
        DECISION,
        "The round in which that was decided, as in the decision journal.",
    ),
    (REASON, "The policy's reason."),
];

/// Tells the number of a request.
pub fn insert_request(headers: &mut HeaderMap, request: TicketId) {
    headers.insert(REQUEST, HeaderValue::from(request.0));
}

/// Tells the executor that a request was placed on.
pub fn insert_executor(headers: &mut HeaderMap, executor: &str) {
    headers.insert(EXECUTOR, header_text(executor));
}

/// Tells the author of a decision about a request.
pub fn insert(headers: &mut HeaderMap, by: &Authorship) {
    for (name, text) in [
        (POLICY, &by.policy),
        (DECISION, &by.decision),
        (REASON, &by.reason),
    ] {
        headers.insert(name, header_text(text));
    }
}

/// The author of a refusal, as the end of a sentence; empty where it is no policy.
pub(super) fn words(by: Option<&Authorship>) -> String {
    match by {
        Some(by) if by.policy == BUILT_IN => String::new(),
        Some(by) if by.reason.is_empty() => format!(" (by policy `{}`)", by.policy),
        Some(by) => format!(" (by policy `{}`: {})", by.policy, by.reason),
        None => String::new(),
    }
}

/// `text` as a header's value: cut to a bound, and a question mark for all but visible ASCII.
fn header_text(text: &str) -> HeaderValue {
    const CHARS_MAX: usize = 256;
    let visible = |c: char| {
        if c == ' ' || c.is_ascii_graphic() {
            c
        } else {
            '?'
        }
    };
    let text: String = text.chars().take(CHARS_MAX).map(visible).collect();
    HeaderValue::try_from(text).expect("visible ASCII can be a header's value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policys_words_cannot_break_out_of_a_header() {
        assert_eq!(header_text("a\r\nset-cookie: ä"), "a??set-cookie: ?");
        assert_eq!(header_text(&"x".repeat(300)).len(), 256);
    }
}
