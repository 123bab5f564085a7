//! Inputs about sequences: taken up, advanced by a step, finished, failed, or left.

use std::collections::BTreeMap;

use pointsman_events::rows::Completion;
use pointsman_events::{
    Clock, ExecutorId, ExpiredWhy, Fact, FailedWhy, Hook, Outcome, Progress, PromptCount,
    RequestId, RequeuedWhy, RetryClass, SequenceRef, StepReport,
};

use super::super::Machine;
use super::super::interlock::check_eligible;
use super::super::ledger::Attachment;
use super::super::requests::{AfterLeaving, Phase};

/// The way in which a placement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    Badly,
}

// === impl Machine: while a sequence runs ===

impl Machine {
    /// Tells whether a message is about a sequence that is there.
    pub(super) fn is_current(&self, sequence: SequenceRef) -> bool {
        let request = self.requests.find(sequence.request);
        let placed = request.and_then(|request| request.placed());
        placed.is_some_and(|placed| {
            placed.executor == sequence.executor && placed.incarnation == sequence.incarnation
        })
    }

    pub(super) fn started(&mut self, sequence: SequenceRef) {
        let SequenceRef {
            request, executor, ..
        } = sequence;
        self.out.fact(Fact::Started(request, executor));
        self.requests.started(request, &mut self.out);
        match self.requests[request].phase {
            // Its KV is on the device again.
            Phase::Placed(_) => self.ledger.drop_swapped(request, &mut self.out),
            // The host memory is settled when it has left.
            Phase::Leaving(..) | Phase::Waiting(_) => {}
        }
    }

    pub(super) fn step(&mut self, report: &StepReport) {
        let StepReport {
            executor,
            incarnation,
            progress,
        } = report;
        let record = self.ledger.find(*executor);
        if record.is_none_or(|record| record.incarnation != *incarnation) {
            return;
        }
        let mut advanced = Vec::with_capacity(progress.len());
        for made in progress {
            let sequence = SequenceRef {
                request: made.request,
                executor: *executor,
                incarnation: *incarnation,
            };
            if self.is_current(sequence) {
                self.advance(*made);
                advanced.push(made.request);
            }
        }
        self.grow(*executor, &advanced);
        self.count_step(*executor, progress);
        self.ledger.touch_load(*executor, &mut self.out);
    }

    /// Takes a server's word for the tokens of a prompt. Only the first word about a sequence counts.
    pub(super) fn prompt_counted(&mut self, sequence: SequenceRef, count: PromptCount) {
        let request = &self.requests[sequence.request];
        if request.placement().counted.is_none() {
            self.ledger.settle_prompt(request, count, &mut self.out);
            self.requests.count_prompt(sequence.request, count);
        }
    }

    fn advance(&mut self, made: Progress) {
        let id = made.request;
        let made = self.requests.advance(made, self.out.now());
        let request = &self.requests[id];
        self.ledger.advance(request, &made, &mut self.out);
        if made.prefilled > 0 {
            self.ledger.publish(request);
        }
    }

    /// Grants sequences of an engine the blocks for their next tokens, ahead of them. All are known to
    /// lack some before the first gets one, so that their order decides. Those for whom there are
    /// none are short of them from now on.
    fn grow(&mut self, executor: ExecutorId, sequences: &[RequestId]) {
        let now = self.out.now();
        let mut lacking = Vec::new();
        for id in sequences {
            if let Some(blocks) = self.newly_lacked(*id) {
                self.ledger.lack(*id, executor);
                self.requests.lack(*id, blocks, now);
                lacking.push(*id);
            }
        }
        if lacking.is_empty() {
            return;
        }
        self.serve(self.ledger[executor].spec.device);
        for id in lacking {
            if self.requests[id].placement().short.is_some() {
                self.out.due = true;
                self.arm_request(id);
            }
        }
    }

    /// The number of blocks that a running sequence must have in all for its next token; absent where
    /// it has them, or is known to be short of them.
    fn newly_lacked(&self, id: RequestId) -> Option<u32> {
        let request = &self.requests[id];
        match &request.phase {
            Phase::Placed(placed) if placed.short.is_none() => self.ledger.blocks_lacked(request),
            Phase::Placed(_) | Phase::Waiting(_) | Phase::Leaving(..) => None,
        }
    }

    /// Third liveness clock, where there are budgets: counts the steps in which a running sequence that
    /// had its blocks got nothing. The next budgets of the device and the next order of the engine are the
    /// built-in ones where that were too many, and the policy is told of the strike then.
    fn count_step(&mut self, executor: ExecutorId, progress: &[Progress]) {
        let record = &self.ledger[executor];
        let device = record.spec.device;
        if self.ledger[device].spec.tokens_per_step.is_none() {
            return;
        }
        let max = self.config.tokenless_steps_max;
        let tokens = |made: &Progress| (made.request, made.prefilled.max(made.generated));
        let tokens: BTreeMap<RequestId, u32> = progress.iter().map(tokens).collect();
        let is_starved = |id: &RequestId| {
            let tokens = tokens.get(id).copied().unwrap_or(0);
            self.requests.count_step(*id, tokens, max)
        };
        let starved: Vec<RequestId> = record.running().filter(is_starved).collect();
        for id in starved {
            let strike = Fact::Strike(Clock::Tokenless, Hook::Budget, id);
            self.out.fact(strike);
            self.ledger.allot_built_in(device);
            self.ledger.arrange_built_in(executor);
            self.out.due = true;
        }
    }
}

// === impl Machine: when a sequence ends ===

impl Machine {
    /// Ends a request that was served to its end.
    pub(super) fn finished(&mut self, sequence: SequenceRef) {
        let id = sequence.request;
        self.complete(id, Ended::Well);
        self.ledger.forgive(sequence.executor, &mut self.out);
        let request = &self.requests[id];
        let (is_gone, output_tokens) = (request.is_gone(), request.generated);
        let freed = self.release(id);
        self.refill(freed);
        self.forget(id);
        if !is_gone {
            self.out.end(id, Outcome::Finished { output_tokens });
        }
    }

    /// Has a request whose sequence failed go on elsewhere from the `kept` tokens of its answer that
    /// are left, if the failure was of a kind that allows it.
    pub(super) fn failed(&mut self, sequence: SequenceRef, retry: RetryClass, kept: u32) {
        let id = sequence.request;
        self.complete(id, Ended::Badly);
        let why = match retry {
            RetryClass::Never => RequeuedWhy::Failed,
            RetryClass::Elsewhere | RetryClass::TooLate => {
                self.fault(sequence.executor);
                RequeuedWhy::Failed
            }
            RetryClass::Anywhere => RequeuedWhy::TurnedBack,
        };
        let freed = self.release(id);
        self.ledger.drop_swapped(id, &mut self.out);
        self.requests.keep(id, kept);
        self.retry_or_fail(id, sequence.executor, why, retry);
        self.refill(freed);
    }

    /// Lets an evicted or cancelled sequence go, with the KV of `swapped_tokens` leading tokens in host
    /// memory. An executor that lets go of one that it was not told to has failed it.
    pub(super) fn left(&mut self, sequence: SequenceRef, swapped_tokens: u32) {
        let id = sequence.request;
        let Phase::Leaving(_, after) = self.requests[id].phase else {
            let kept = self.requests[id].generated;
            self.failed(sequence, RetryClass::Elsewhere, kept);
            return;
        };
        let freed = self.release(id);
        match after {
            AfterLeaving::Gone => self.forget(id),
            AfterLeaving::Requeue => {
                self.requeue(id, RequeuedWhy::Evicted);
                let tokens = swapped_tokens.min(self.requests[id].row.prompt_tokens);
                self.ledger.swapped_out(id, tokens, &mut self.out);
            }
        }
        self.out.fact(Fact::Left(id, sequence.executor));
        self.refill(freed);
    }

    /// Requeues or ends a request that its executor failed, and whose placement is closed.
    pub(super) fn retry_or_fail(
        &mut self,
        id: RequestId,
        executor: ExecutorId,
        why: RequeuedWhy,
        retry: RetryClass,
    ) {
        if self.requests[id].is_gone() {
            self.forget(id);
            return;
        }
        self.requests.failed(id, executor, why);
        match self.last_outcome(id, retry) {
            None => self.requeue(id, why),
            Some(outcome) => {
                self.forget(id);
                self.out.end(id, outcome);
            }
        }
    }

    /// The outcome of a request for which no further try is made; absent: it waits for the next one.
    fn last_outcome(&self, id: RequestId, retry: RetryClass) -> Option<Outcome> {
        let request = &self.requests[id];
        match retry {
            RetryClass::Never | RetryClass::TooLate => {
                return Some(Outcome::Failed(FailedWhy::NotRetryable));
            }
            // It waits for room, as long as any request may.
            RetryClass::Anywhere => {
                let stay = request.placement().stay_resumed(RequeuedWhy::TurnedBack);
                let has_waited = stay.is_some_and(|stay| self.has_waited_out(&stay));
                return has_waited.then_some(Outcome::Expired(ExpiredWhy::Wait));
            }
            RetryClass::Elsewhere => {}
        }
        if request.failures >= self.config.attempts_max {
            return Some(Outcome::Failed(FailedWhy::AttemptsMax));
        }
        let mut executors = self.ledger.executors();
        let somewhere = executors.any(|executor| {
            executor.attachment == Attachment::Attached
                && check_eligible(&self.ledger, request, executor).is_ok()
        });
        (!somewhere).then_some(Outcome::Failed(FailedWhy::NowhereLeft))
    }

    /// Keeps the course of a placement, for policies that learn.
    pub(super) fn complete(&mut self, id: RequestId, ended: Ended) {
        let request = &self.requests[id];
        let (row, placed) = (&request.row, request.placement());
        let started = placed.started_at.unwrap_or(placed.placed_at);
        self.out.complete(Completion {
            request: id,
            executor: placed.executor,
            model: row.model,
            tenant: row.tenant,
            prompt_tokens: row.prompt_tokens,
            cached_tokens: placed.cached_tokens,
            output_tokens: request.generated,
            queued_micros: started.since(row.arrived).0,
            ttft_micros: request.first_token_at.map(|at| at.since(row.arrived).0),
            total_micros: self.out.now().since(row.arrived).0,
            ok: ended == Ended::Well,
        });
    }
}
