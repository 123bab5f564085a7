//! An answer as it comes from the executor, in the terms of a response.
//!
//! # Cancellation
//! An [`Inflow`] that is dropped before its end cancels the request. The futures of its methods
//! lose nothing when they are dropped.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use pointsman_core::Outcome;
use pointsman_driver::message::{Ticket, TicketId};
use pointsman_executor::delivery::{Deliveries, Delivery, Placement, StopReason};

use crate::error::ApiError;

const REQUEST: HeaderName = HeaderName::from_static("x-pointsman-request");
const EXECUTOR: HeaderName = HeaderName::from_static("x-pointsman-executor");
const POLICY: HeaderName = HeaderName::from_static("x-pointsman-policy");
const DECISION: HeaderName = HeaderName::from_static("x-pointsman-decision");
const REASON: HeaderName = HeaderName::from_static("x-pointsman-reason");

/// The headers of an answer that [`Inflow::headers`] gives, each with its meaning.
pub(super) const HEADERS: [(HeaderName, &str); 5] = [
    (
        REQUEST,
        "Number of the request, also understood by `/admin/decisions`.",
    ),
    (EXECUTOR, "Name of the executor that gave the first token."),
    (POLICY, "Name of the policy that placed the request there."),
    (
        DECISION,
        "The round in which the request was placed, as in the decision journal.",
    ),
    (REASON, "The policy's reason."),
];

/// An answer on its way from the executor.
#[derive(Debug)]
pub(super) struct Inflow {
    // Immutable.
    id: TicketId,
    // Owned.
    deliveries: Deliveries,
    /// The hold on the request; absent once the end has come.
    ticket: Option<Ticket>,
    /// The newest placement before the first text; absent: there was none yet.
    placement: Option<Arc<Placement>>,
    tokens: u32,
    text_has_come: bool,
}

/// A part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// More text; never empty.
    Text(String),
    /// The end: the answer is whole, or has failed.
    End(Result<StopReason, ApiError>),
}

/// The text of a whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WholeText {
    pub(super) text: String,
    pub(super) stop: StopReason,
}

// === impl Inflow ===

impl Inflow {
    pub(super) fn new(ticket: Ticket, deliveries: Deliveries) -> Self {
        Self {
            id: ticket.id(),
            deliveries,
            ticket: Some(ticket),
            placement: None,
            tokens: 0,
            text_has_come: false,
        }
    }

    /// The number of tokens in the parts so far.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The next part. Not to be called again once the end has come.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Part> {
        loop {
            match self.deliveries.poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    if let Some(part) = self.part_of(delivery) {
                        return Poll::Ready(part);
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Part::End(Err(ApiError::draining()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next part, if it is there already.
    pub(super) fn try_next(&mut self) -> Option<Part> {
        while let Some(delivery) = self.deliveries.try_next() {
            if let Some(part) = self.part_of(delivery) {
                return Some(part);
            }
        }
        None
    }

    /// The first text, or an end without any.
    pub(super) async fn first(&mut self) -> Result<Part, ApiError> {
        match poll_fn(|cx| self.poll_next(cx)).await {
            Part::End(Err(error)) => Err(error),
            part @ (Part::Text(_) | Part::End(Ok(_))) => Ok(part),
        }
    }

    /// The whole answer.
    pub(super) async fn all(&mut self) -> Result<WholeText, ApiError> {
        let mut text = String::new();
        loop {
            match poll_fn(|cx| self.poll_next(cx)).await {
                Part::Text(more) => text.push_str(&more),
                Part::End(end) => return end.map(|stop| WholeText { text, stop }),
            }
        }
    }

    /// The headers with the request's number and, if the request was placed, the executor, the
    /// policy, the decision and the reason.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST, HeaderValue::from(self.id.0));
        if let Some(placement) = &self.placement {
            for (name, text) in [
                (EXECUTOR, &placement.executor),
                (POLICY, &placement.policy),
                (DECISION, &placement.decision),
                (REASON, &placement.reason),
            ] {
                headers.insert(name, header_text(text));
            }
        }
        headers
    }

    /// The part of the answer in a delivery, if there is one.
    fn part_of(&mut self, delivery: Delivery) -> Option<Part> {
        match delivery {
            Delivery::Placed(placement) => {
                if !self.text_has_come {
                    self.placement = Some(placement);
                }
                None
            }
            Delivery::Text(piece) => {
                self.tokens = self.tokens.saturating_add(piece.tokens);
                self.text_has_come |= !piece.text.is_empty();
                (!piece.text.is_empty()).then_some(Part::Text(piece.text))
            }
            Delivery::End(end) => {
                if let Some(ticket) = self.ticket.take() {
                    ticket.close();
                }
                Some(Part::End(match end.outcome {
                    Outcome::Finished { .. } => Ok(end.stop.unwrap_or(StopReason::Stop)),
                    Outcome::Refused(_)
                    | Outcome::Cancelled
                    | Outcome::Expired(_)
                    | Outcome::Failed(_) => Err(ApiError::Ended(end.outcome)),
                }))
            }
        }
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
