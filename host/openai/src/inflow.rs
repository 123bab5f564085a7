//! An answer as it comes from the executor, in the terms of a response.
//!
//! # Cancellation
//! An [`Inflow`] that is dropped before its end cancels the request. The futures of its methods
//! lose nothing when they are dropped.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::HeaderMap;
use pointsman_driver::message::{Ticket, TicketId};
use pointsman_events::Outcome;
use pointsman_executor::delivery::{Deliveries, Delivery, Embedding, End, Placement, StopReason};
use pointsman_executor::relay::RelayedResponse;
use pointsman_http::authorship;
use pointsman_http::error::{ApiError, Unserved};

use super::envelope::Tokens;
use super::logprobs::Told;
use super::tools::{AnswerPart, CallParser};

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
    /// The probabilities of tokens, until they are taken.
    told: Told,
    text_has_come: bool,
    /// The reader of the answer's calls of tools; absent: the model is told of none.
    calls: Option<CallParser>,
    /// Parts that have come and were not asked for.
    parts: VecDeque<Part>,
}

/// The choices of an answer on their way, each a request of its own.
#[derive(Debug)]
pub(super) struct Inflows {
    /// In order of their indexes, never none; absent: the choice has ended.
    choices: Vec<Option<Inflow>>,
    /// Choices of the same prompt, one after the other.
    of_prompt: usize,
    /// The tokens of choices that have ended.
    ended: Tokens,
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Part {
    /// More of the answer.
    More(AnswerPart),
    /// The embedding of the prompt, in the place of text.
    Embedding(Embedding),
    /// The response of another server, in the place of text; its frames come by themselves.
    Relayed(RelayedResponse),
    /// The end: the answer is whole, or has failed.
    End(Result<Ending, ApiError>),
}

/// The end of a whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) stop: StopReason,
    /// True if the answer has a call of a tool.
    pub(super) has_called: bool,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct WholeText {
    pub(super) text: String,
    pub(super) calls: Vec<WholeCall>,
    /// The probabilities of its tokens, where the client asks for them.
    pub(super) told: Told,
    pub(super) end: Ending,
}

/// A call of a tool.
#[derive(Debug)]
pub(super) struct WholeCall {
    pub(super) name: String,
    /// The arguments, as text.
    pub(super) arguments: String,
}

// === impl Inflows ===

impl Inflows {
    /// The choices of an answer, so many of each prompt.
    pub(super) fn new(choices: Vec<Inflow>, of_prompt: usize) -> Self {
        Self {
            choices: choices.into_iter().map(Some).collect(),
            of_prompt: of_prompt.max(1),
            ended: Tokens {
                cached: 0,
                generated: 0,
            },
        }
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.choices.len()).unwrap_or(u32::MAX)
    }

    /// A choice that has not ended.
    pub(super) fn choice(&mut self, index: u32) -> &mut Inflow {
        let choice = self.choices[index as usize].as_mut();
        choice.expect("a choice that has a part has not ended")
    }

    /// The next part of any choice, with its index. Not to be called again once all have ended.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(u32, Part)> {
        for (index, choice) in (0..).zip(&mut self.choices) {
            if let Some(inflow) = choice
                && let Poll::Ready(part) = inflow.poll_next(cx)
            {
                return Poll::Ready((index, part));
            }
        }
        Poll::Pending
    }

    /// Notes that a choice has ended. Returns true if others have not.
    pub(super) fn end(&mut self, index: u32) -> bool {
        self.ended = self.tokens_with(self.ended, index as usize);
        self.choices[index as usize] = None;
        self.choices.iter().any(Option::is_some)
    }

    /// Cancels what has not ended.
    pub(super) fn cancel(&mut self) {
        self.choices.fill_with(|| None);
    }

    /// The tokens that the parts so far took. A prompt of several choices counts once.
    pub(super) fn tokens(&self) -> Tokens {
        let indexes = 0..self.choices.len();
        indexes.fold(self.ended, |sum, index| self.tokens_with(sum, index))
    }

    /// A sum with the tokens of a choice, if it has not ended.
    fn tokens_with(&self, sum: Tokens, index: usize) -> Tokens {
        let Some(inflow) = &self.choices[index] else {
            return sum;
        };
        let Tokens { cached, generated } = inflow.tokens();
        let first = index.is_multiple_of(self.of_prompt);
        Tokens {
            cached: sum.cached + if first { cached } else { 0 },
            generated: sum.generated.saturating_add(generated),
        }
    }

    /// The whole answer, whose first choice begins with `first`.
    pub(super) async fn all(&mut self, first: Part) -> Result<Vec<WholeText>, ApiError> {
        let mut first = Some(first);
        let mut answers = Vec::with_capacity(self.choices.len());
        for inflow in self.choices.iter_mut().flatten() {
            let begun = match first.take() {
                Some(part) => part,
                None => inflow.first().await?,
            };
            answers.push(inflow.all(begun).await?);
        }
        Ok(answers)
    }

    /// The only choice, of an answer that another server may give.
    pub(super) fn only(mut self) -> Inflow {
        let only = self.choices.pop().flatten();
        only.expect("a request that others may serve has one choice, which has begun")
    }
}

// === impl Inflow ===

impl Inflow {
    /// The answer to the request of `ticket`, whose calls of tools are read by `calls`.
    pub(super) fn new(ticket: Ticket, deliveries: Deliveries, calls: Option<CallParser>) -> Self {
        Self {
            id: ticket.id(),
            deliveries,
            ticket: Some(ticket),
            placement: None,
            tokens: 0,
            told: Told::default(),
            text_has_come: false,
            calls,
            parts: VecDeque::new(),
        }
    }

    /// The tokens that the parts so far took.
    pub(super) fn tokens(&self) -> Tokens {
        let placement = self.placement.as_ref();
        Tokens {
            cached: placement.map_or(0, |placement| placement.cached_tokens),
            generated: self.tokens,
        }
    }

    /// Takes the probabilities of the tokens that have come.
    pub(super) fn take_told(&mut self) -> Told {
        self.told.take()
    }

    /// The next part. Not to be called again once the end has come.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Part> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(part);
            }
            match self.deliveries.poll_next(cx) {
                Poll::Ready(Some(delivery)) => self.take(delivery),
                Poll::Ready(None) => return Poll::Ready(Part::End(Err(ApiError::draining()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next part, if it is there already.
    pub(super) fn try_next(&mut self) -> Option<Part> {
        while self.parts.is_empty()
            && let Some(delivery) = self.deliveries.try_next()
        {
            self.take(delivery);
        }
        self.parts.pop_front()
    }

    /// The first text or response, or an end without any.
    pub(super) async fn first(&mut self) -> Result<Part, ApiError> {
        match poll_fn(|cx| self.poll_next(cx)).await {
            Part::End(Err(error)) => Err(error),
            part @ (Part::More(_) | Part::Embedding(_) | Part::Relayed(_) | Part::End(Ok(_))) => {
                Ok(part)
            }
        }
    }

    /// The whole answer that begins with `first`.
    pub(super) async fn all(&mut self, first: Part) -> Result<WholeText, ApiError> {
        let (mut text, mut calls): (String, Vec<WholeCall>) = Default::default();
        let mut next = first;
        loop {
            match next {
                Part::More(AnswerPart::Text(more)) => text.push_str(&more),
                Part::More(AnswerPart::CallBegins(_, name)) => calls.push(WholeCall {
                    name,
                    arguments: String::new(),
                }),
                Part::More(AnswerPart::Arguments(_, more)) => {
                    if let Some(call) = calls.last_mut() {
                        call.arguments.push_str(&more);
                    }
                }
                Part::Embedding(_) | Part::Relayed(_) => return Err(mixed()),
                Part::End(end) => {
                    let told = self.take_told();
                    return end.map(|end| WholeText {
                        text,
                        calls,
                        told,
                        end,
                    });
                }
            }
            next = poll_fn(|cx| self.poll_next(cx)).await;
        }
    }

    /// The embedding of the prompt, once the request has ended.
    pub(super) async fn embedding(&mut self) -> Result<Vec<f32>, ApiError> {
        let mut embedding = None;
        loop {
            match poll_fn(|cx| self.poll_next(cx)).await {
                Part::Embedding(Embedding(numbers)) => embedding = Some(numbers),
                Part::End(end) => {
                    end?;
                    return embedding.ok_or_else(mixed);
                }
                Part::More(_) | Part::Relayed(_) => return Err(mixed()),
            }
        }
    }

    /// Ends the hold on the request, whose whole answer is here: there is nothing to cancel.
    pub(super) fn close(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.close();
        }
    }

    /// The model that answers; absent: the request has no place yet.
    pub(super) fn model(&self) -> Option<&str> {
        self.placement.as_ref().map(|placement| &*placement.model)
    }

    /// The executor that answers; absent: the request has no place yet.
    pub(super) fn executor(&self) -> Option<&str> {
        self.placement
            .as_ref()
            .map(|placement| &*placement.executor)
    }

    /// The headers with the request's number and, if the request was placed, the executor, the
    /// policy, the decision and the reason.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        authorship::insert_request(&mut headers, self.id);
        if let Some(placement) = &self.placement {
            authorship::insert_executor(&mut headers, &placement.executor);
            authorship::insert(&mut headers, &placement.by);
        }
        headers
    }

    /// Takes in a delivery: the parts of the answer in it are the next ones.
    fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Placed(placement) => {
                if !self.text_has_come {
                    self.placement = Some(placement);
                }
            }
            Delivery::Text(piece) => {
                self.tokens = self.tokens.saturating_add(piece.tokens);
                self.told.tokens.extend(piece.logprobs);
                self.text_has_come |= !piece.text.is_empty();
                match &mut self.calls {
                    Some(calls) => {
                        let read = calls.push(&piece.text).into_iter();
                        self.parts.extend(read.map(Part::More));
                    }
                    None if piece.text.is_empty() => {}
                    None => self
                        .parts
                        .push_back(Part::More(AnswerPart::Text(piece.text))),
                }
            }
            Delivery::Embedding(embedding) => {
                self.text_has_come = true;
                self.parts.push_back(Part::Embedding(embedding));
            }
            Delivery::Relayed(relayed) => {
                self.text_has_come = true;
                self.parts.push_back(Part::Relayed(relayed));
            }
            Delivery::End(end) => {
                self.close();
                self.end(end);
            }
        }
    }

    /// Takes in the end of the answer, after what was held back of it.
    fn end(&mut self, end: End) {
        let ended = match end.outcome {
            Outcome::Finished { .. } => {
                let calls = self.calls.as_mut();
                let held = calls.map(CallParser::finish).unwrap_or_default();
                self.parts.extend(held.into_iter().map(Part::More));
                Ok(Ending {
                    stop: end.stop.unwrap_or(StopReason::Stop),
                    has_called: self.calls.as_ref().is_some_and(CallParser::has_called),
                })
            }
            Outcome::Refused(_) | Outcome::Cancelled | Outcome::Expired(_) | Outcome::Failed(_) => {
                Err(ApiError::Ended(Box::new(Unserved {
                    request: self.id,
                    outcome: end.outcome,
                    refused_by: end.refused_by,
                })))
            }
        };
        self.parts.push_back(Part::End(ended));
    }
}

/// The error of an answer of one kind where another was ordered, or begun: no executor gives it.
pub(super) fn mixed() -> ApiError {
    tracing::error!("an answer is of two kinds, or of another one than was ordered");
    ApiError::Internal
}
