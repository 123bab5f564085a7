//! An answer as it comes from the executor, in the terms of a response.
//!
//! # Cancellation
//! Dropped before the end has come, the request is cancelled. The futures of its methods lose
//! nothing when they are dropped.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use pointsman_core::Outcome;
use pointsman_executor::delivery::{Deliveries, Delivery, Placement, StopReason};

use crate::driver::message::{Ticket, TicketId};
use crate::http::error::ApiError;

const REQUEST: HeaderName = HeaderName::from_static("x-pointsman-request");
const EXECUTOR: HeaderName = HeaderName::from_static("x-pointsman-executor");
const POLICY: HeaderName = HeaderName::from_static("x-pointsman-policy");
const DECISION: HeaderName = HeaderName::from_static("x-pointsman-decision");
const REASON: HeaderName = HeaderName::from_static("x-pointsman-reason");

/// One answer on its way.
#[derive(Debug)]
pub(super) struct Inflow {
    // Immutable.
    id: TicketId,
    // Owned.
    deliveries: Deliveries,
    /// Gone once the end has come.
    ticket: Option<Ticket>,
    /// The newest before the first text.
    placement: Option<Arc<Placement>>,
    tokens: u32,
    text_has_come: bool,
}

/// Something that was said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// More text; never empty.
    Text(String),
    /// The answer is whole, or never will be.
    End(Result<StopReason, ApiError>),
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
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

    /// Tokens of what has been said so far.
    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The next thing said. Not to be asked again once the end has come.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Said> {
        loop {
            match self.deliveries.poll_next(cx) {
                Poll::Ready(Some(delivery)) => {
                    if let Some(said) = self.hear(delivery) {
                        return Poll::Ready(said);
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Said::End(Err(ApiError::draining()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next thing said, if it is there already.
    pub(super) fn try_next(&mut self) -> Option<Said> {
        while let Some(delivery) = self.deliveries.try_next() {
            if let Some(said) = self.hear(delivery) {
                return Some(said);
            }
        }
        None
    }

    /// The first text, or an end without any.
    pub(super) async fn first(&mut self) -> Result<Said, ApiError> {
        match poll_fn(|cx| self.poll_next(cx)).await {
            Said::End(Err(error)) => Err(error),
            said @ (Said::Text(_) | Said::End(Ok(_))) => Ok(said),
        }
    }

    /// The whole answer.
    pub(super) async fn all(&mut self) -> Result<Answer, ApiError> {
        let mut text = String::new();
        loop {
            match poll_fn(|cx| self.poll_next(cx)).await {
                Said::Text(more) => text.push_str(&more),
                Said::End(end) => return end.map(|stop| Answer { text, stop }),
            }
        }
    }

    /// Which request it was, and who decided where it ran.
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

    /// What a delivery says, if it says something to the client.
    fn hear(&mut self, delivery: Delivery) -> Option<Said> {
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
                (!piece.text.is_empty()).then_some(Said::Text(piece.text))
            }
            Delivery::End(end) => {
                if let Some(ticket) = self.ticket.take() {
                    ticket.close();
                }
                Some(Said::End(match end.outcome {
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

/// A header's value: what is no visible ASCII becomes a question mark, what is too long is cut.
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
