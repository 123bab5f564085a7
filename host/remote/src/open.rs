//! A request at a server, as the executor's task keeps it: its own task, and the tokens that were reported.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pointsman_events::{Progress, PromptCount, SequenceRef, StartOrder};
use pointsman_executor::contract::Event;
use pointsman_executor::job::JobState;
use pointsman_executor::server::ServerUrl;
use tokio::task::AbortHandle;

use crate::watch::Usage;

/// The most tokens of an answer for which a server's word is taken.
const TOLD_TOKENS_MAX: u32 = 1 << 24;

/// A request at the server.
pub(crate) struct OpenCall {
    pub(crate) sequence: SequenceRef,
    /// The request, to be handed back.
    pub(crate) state: Box<JobState>,
    pub(crate) task: AbortHandle,
    /// The server's address when it began.
    pub(crate) url: ServerUrl,
    /// Tokens of the prompt that were not reported as read.
    unread: u32,
    /// True once the prompt was taken to be read, before anything has come.
    is_taken_as_read: bool,
    /// Tokens generated, and those of them that were reported.
    generated: Arc<AtomicU32>,
    reported: u32,
}

// === impl OpenCall ===

impl OpenCall {
    /// A request of which nothing has come yet.
    pub(crate) fn new(
        order: &StartOrder,
        state: Box<JobState>,
        task: AbortHandle,
        generated: Arc<AtomicU32>,
        url: ServerUrl,
    ) -> Self {
        Self {
            sequence: order.sequence,
            state,
            task,
            url,
            unread: order.prompt_tokens,
            is_taken_as_read: false,
            generated,
            reported: 0,
        }
    }

    /// The progress with which a stream begins: its prompt has been read, and its first token is here.
    pub(crate) fn begin(&mut self) -> Progress {
        self.reported = 1;
        Progress {
            request: self.sequence.request,
            prefilled: mem::take(&mut self.unread),
            generated: 1,
        }
    }

    /// The progress of a request whose answer comes as a whole, once its prompt is taken to be read; absent: that was reported.
    pub(crate) fn take_as_read(&mut self) -> Option<Progress> {
        let prefilled = mem::take(&mut self.unread);
        self.is_taken_as_read |= prefilled > 0;
        self.report(prefilled, 0)
    }

    /// True once the beginning of a stream was reported.
    fn has_begun(&self) -> bool {
        self.reported > 0
    }

    /// The tokens since the last report; absent: there are none.
    pub(crate) fn made(&mut self) -> Option<Progress> {
        if !self.has_begun() {
            return None;
        }
        let counted = self.counted();
        self.report(0, counted)
    }

    /// The tokens since the last report, once all have come: as many as the server tells, or as were counted.
    pub(crate) fn last(&mut self, usage: Usage) -> Option<Progress> {
        let told = usage.output.map(|tokens| tokens.min(TOLD_TOKENS_MAX));
        let made = told.unwrap_or_else(|| self.counted());
        let is_read = usage.is_prompt_read || made > 0;
        let prefilled = if is_read {
            mem::take(&mut self.unread)
        } else {
            0
        };
        self.report(prefilled, made)
    }

    /// The news of the prompt as the server counts it, once all has come: nothing of it where it was taken to be read and was
    /// not; absent: the server does not tell.
    pub(crate) fn prompt_counted(&self, usage: Usage) -> Option<Event> {
        let is_nothing = self.is_taken_as_read && !usage.is_prompt_read && !self.has_begun();
        let nothing = PromptCount {
            tokens: 0,
            cached: 0,
        };
        let count = usage.prompt.or(is_nothing.then_some(nothing))?;
        Some(Event::PromptCounted(self.sequence, count))
    }

    /// Tokens generated, as far as events tell: there may be more events than tokens.
    fn counted(&self) -> u32 {
        let counted = self.generated.load(Ordering::Relaxed);
        let job = &self.state.job;
        counted.min(job.output_tokens_max.saturating_mul(job.answers))
    }

    /// Reports tokens of the prompt, and those generated since the last report.
    fn report(&mut self, prefilled: u32, generated: u32) -> Option<Progress> {
        let new = generated.saturating_sub(self.reported);
        self.reported += new;
        (prefilled > 0 || new > 0).then_some(Progress {
            request: self.sequence.request,
            prefilled,
            generated: new,
        })
    }
}
