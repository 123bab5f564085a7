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
use hyper::body::{Body, Frame};
use pointsman_core::Micros;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::metrics::StreamMetrics;
use pointsman_executor::delivery::StopReason;

use super::envelope::Envelope;
use super::inflow::{Inflow, Part, mixed};
use super::params::UsageChunk;
use crate::error::ApiError;

/// The body of a streamed answer.
#[derive(Debug)]
pub(crate) struct EventStream {
    // Immutable.
    envelope: Envelope,
    usage: UsageChunk,
    // Owned.
    inflow: Inflow,
    pace: Pace,
    progress: Progress,
}

/// Progress of an [`EventStream`].
#[derive(Debug)]
enum Progress {
    /// Nothing is written yet; this is the first part.
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
        inflow: Inflow,
        pace: Pace,
    ) -> Self {
        Self {
            envelope,
            usage,
            inflow,
            pace,
            progress: Progress::Opening(first),
        }
    }

    /// Writes `first`, and all that is there already after it.
    fn write(&mut self, first: Part, to: &mut Vec<u8>) {
        let mut text = String::new();
        let mut next = Some(first);
        let mut ended = None;
        while let Some(part) = next {
            next = match part {
                Part::Text(more) => {
                    text.push_str(&more);
                    self.inflow.try_next()
                }
                Part::Relayed(_) => {
                    ended = Some(Err(mixed()));
                    None
                }
                Part::End(end) => {
                    ended = Some(end);
                    None
                }
            };
        }
        self.pace.written(self.inflow.tokens().generated);
        if !text.is_empty() {
            let told = self.inflow.take_told();
            self.envelope
                .write_text(to, (&text, &told), self.usage.field());
        }
        if let Some(end) = ended {
            self.progress = Progress::Over;
            self.write_end(end, to);
        }
    }

    fn write_end(&mut self, end: Result<StopReason, ApiError>, to: &mut Vec<u8>) {
        match end {
            Ok(stop) => {
                let told = self.inflow.take_told();
                self.envelope
                    .write_stop(to, (stop, &told), self.usage.field());
                if self.usage == UsageChunk::Sent {
                    self.envelope.write_usage(to, self.inflow.tokens());
                }
                to.extend_from_slice(b"data: [DONE]\n\n");
            }
            Err(error) => {
                tracing::debug!(%error, "a stream broke off");
                to.extend_from_slice(b"data: ");
                to.extend_from_slice(&error.json());
                to.extend_from_slice(b"\n\n");
            }
        }
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
        let first = match mem::replace(&mut self.progress, Progress::Flowing) {
            Progress::Opening(first) => {
                self.envelope
                    .write_opening(&mut written, self.usage.field());
                first
            }
            Progress::Flowing => ready!(self.inflow.poll_next(cx)),
            Progress::Over => {
                self.progress = Progress::Over;
                return Poll::Ready(None);
            }
        };
        self.write(first, &mut written);
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
