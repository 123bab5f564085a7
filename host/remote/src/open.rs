//! A request at a server, as the executor's task keeps it: its own task, and the tokens that were reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pointsman_events::{Progress, SequenceRef, StartOrder};
use pointsman_executor::job::JobState;
use tokio::task::AbortHandle;

use crate::watch::Usage;

/// A request at the server.
pub(crate) struct OpenCall {
    pub(crate) sequence: SequenceRef,
    /// The request, to be handed back.
    pub(crate) state: Box<JobState>,
    pub(crate) task: AbortHandle,
    prompt_tokens: u32,
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
    ) -> Self {
        Self {
            sequence: order.sequence,
            state,
            task,
            prompt_tokens: order.prompt_tokens,
            generated,
            reported: 0,
        }
    }

    /// The progress with which a stream begins: its prompt has been read, and its first token is here.
    pub(crate) fn begin(&mut self) -> Progress {
        self.reported = 1;
        Progress {
            request: self.sequence.request,
            prefilled: self.prompt_tokens,
            generated: 1,
        }
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
        self.made_up_to(self.generated.load(Ordering::Relaxed))
    }

    /// The tokens since the last report, once all have come.
    pub(crate) fn last(&mut self, usage: Usage) -> Option<Progress> {
        let counted = self.generated.load(Ordering::Relaxed);
        let prefilled = if self.has_begun() {
            0
        } else {
            self.prompt_tokens
        };
        let made = self.made_up_to(usage.output.unwrap_or(counted))?;
        Some(Progress { prefilled, ..made })
    }

    fn made_up_to(&mut self, generated: u32) -> Option<Progress> {
        let bound = self.state.job.output_tokens_max;
        let new = generated.min(bound).saturating_sub(self.reported);
        self.reported += new;
        (new > 0).then_some(Progress {
            request: self.sequence.request,
            prefilled: 0,
            generated: new,
        })
    }
}
