//! A streamed answer: server-sent events, sent as they come.
//!
//! The text that came since the last write goes into one chunk, so that a slow reader gets fewer
//! and longer chunks. A failure after the first byte can no longer have a status: the failure
//! becomes an event with an `error`, and the stream ends without `[DONE]`.

use std::convert::Infallible;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use pointsman_driver::clock::SystemClock;
use pointsman_driver::metrics::StreamMetrics;
use pointsman_events::Micros;
use pointsman_http::error::ApiError;

use super::envelope::Envelope;
use super::inflow::{Ending, Inflows, Part, mixed};
use super::params::UsageChunk;
use super::tools::AnswerPart;

/// The body of a streamed answer.
#[derive(Debug)]
pub(crate) struct EventStream {
    // Immutable.
    envelope: Envelope,
    usage: UsageChunk,
    // Owned.
    inflows: Inflows,
    pace: Pace,
    progress: Progress,
}

/// Progress of an [`EventStream`].
#[derive(Debug)]
enum Progress {
    /// Nothing is written yet; this is the first part of the first choice.
    Opening(Part),
    Flowing,
    Over,
}

/// Measures the times at which a client's tokens are written.
#[derive(Debug)]
pub(super) struct Pace {
    clock: SystemClock,
    metrics: StreamMetrics,
    /// The time when the request had been read, then when the last tokens were written.
    last: Micros,
    tokens: u32,
}

// === impl EventStream ===

impl EventStream {
    /// A stream that begins with the part `first`.
    pub(super) fn new(
        envelope: Envelope,
        usage: UsageChunk,
        first: Part,
        inflows: Inflows,
        pace: Pace,
    ) -> Self {
        Self {
            envelope,
            usage,
            inflows,
            pace,
            progress: Progress::Opening(first),
        }
    }

    /// Writes `first` of a choice, and all of it that is there already.
    fn write(&mut self, index: u32, first: Part, to: &mut Vec<u8>) {
        let inflow = self.inflows.choice(index);
        let mut parts = Vec::new();
        let mut next = Some(first);
        let mut ended = None;
        while let Some(part) = next {
            next = match part {
                Part::More(more) => {
                    gather(&mut parts, more);
                    inflow.try_next()
                }
                Part::Embedding(_) | Part::Relayed(_) => {
                    ended = Some(Err(mixed()));
                    None
                }
                Part::End(end) => {
                    ended = Some(end);
                    None
                }
            };
        }
        for part in &parts {
            let told = inflow.take_told();
            self.envelope
                .write_part(to, (index, part, &told), self.usage.field());
        }
        self.pace.written(self.inflows.tokens().generated);
        match ended {
            None => {}
            Some(Ok(end)) => self.write_end(index, end, to),
            Some(Err(error)) => self.write_error(&error, to),
        }
    }

    /// Writes the end of a choice, and of the stream if it is the last one.
    fn write_end(&mut self, index: u32, end: Ending, to: &mut Vec<u8>) {
        let told = self.inflows.choice(index).take_told();
        self.envelope
            .write_stop(to, (index, end, &told), self.usage.field());
        if self.inflows.end(index) {
            return;
        }
        self.progress = Progress::Over;
        if self.usage == UsageChunk::Sent {
            self.envelope.write_usage(to, self.inflows.tokens());
        }
        to.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Writes an error, with which the stream is over for all choices.
    fn write_error(&mut self, error: &ApiError, to: &mut Vec<u8>) {
        tracing::debug!(%error, "a stream broke off");
        self.progress = Progress::Over;
        self.inflows.cancel();
        to.extend_from_slice(b"data: ");
        to.extend_from_slice(&error.json());
        to.extend_from_slice(b"\n\n");
    }
}

/// Adds a part to those that are to be written, one with the last of them where they go together.
fn gather(parts: &mut Vec<AnswerPart>, more: AnswerPart) {
    match (parts.last_mut(), &more) {
        (Some(AnswerPart::Text(text)), AnswerPart::Text(more)) => text.push_str(more),
        (Some(AnswerPart::Arguments(of, text)), AnswerPart::Arguments(number, more))
            if of == number =>
        {
            text.push_str(more);
        }
        _ => parts.push(more),
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut written = Vec::new();
        let (index, first) = match mem::replace(&mut self.progress, Progress::Flowing) {
            Progress::Opening(first) => {
                let usage = self.usage.field();
                for index in self.inflows.indexes() {
                    self.envelope.write_opening(&mut written, index, usage);
                }
                (0, first)
            }
            Progress::Flowing => ready!(self.inflows.poll_next(cx)),
            Progress::Over => {
                self.progress = Progress::Over;
                return Poll::Ready(None);
            }
        };
        self.write(index, first, &mut written);
        Poll::Ready(Some(Ok(Frame::data(written.into()))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.progress, Progress::Over)
    }
}

// === impl Pace ===

impl Pace {
    /// The pace of a request that had been read at `read`.
    pub(super) fn new(clock: SystemClock, read: Micros, metrics: StreamMetrics) -> Self {
        Self {
            clock,
            metrics,
            last: read,
            tokens: 0,
        }
    }

    /// Notes the first token of an answer that is sent whole.
    pub(super) fn first(&self, at: Micros) {
        let since = Duration::from_micros(at.since(self.last).0);
        self.metrics.first_token.observe(since.as_secs_f64());
    }

    /// Notes that `tokens` are written by now, in all. Tokens written together share the time since
    /// the tokens before them.
    pub(super) fn written(&mut self, tokens: u32) {
        let now = self.clock.now();
        let since = Duration::from_micros(now.since(self.last).0).as_secs_f64();
        let new = tokens.saturating_sub(self.tokens);
        if new == 0 {
            return;
        }
        if self.tokens == 0 {
            self.metrics.first_token.observe(since);
        } else {
            for _ in 0..new {
                self.metrics.inter_token.observe(since / f64::from(new));
            }
        }
        self.last = now;
        self.tokens = tokens;
    }
}
