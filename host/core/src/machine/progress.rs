//! What happened to sequences: started, made tokens, ended, failed, left, or were lost with their
//! executor.
//!
//! Messages of an earlier incarnation of an executor, or about a sequence that is not there (any
//! more), are ignored: the event that ended it has been counted.

use std::sync::Arc;

use crate::effect::Effect;
use crate::fact::{Fact, FailedWhy, Outcome, RequeuedWhy};
use crate::ids::{ExecutorId, Incarnation, Micros, RequestId};
use crate::input::{Progress, RetryClass, SequenceRef, StepReport};
use crate::log::RowKey;
use crate::rows::{Completion, Health, Stage};

use super::Machine;
use super::executor::SlotUse;
use super::pool::blocks_for;
use super::request::{AfterLeaving, Phase, Request, Short, Waiting};

/// What a step did for one sequence.
struct Advance {
    executor: ExecutorId,
    prefilled_now: u32,
    generated_now: u32,
    ttft: Option<Micros>,
    itl: Option<u64>,
}

// === impl Machine: while it runs ===

impl Machine {
    /// Whether a message is about a sequence that is there.
    fn is_current(&self, sequence: SequenceRef) -> bool {
        let placed = self
            .requests
            .get(&sequence.request)
            .and_then(Request::placed);
        placed.is_some_and(|placed| {
            placed.executor == sequence.executor && placed.incarnation == sequence.incarnation
        })
    }

    /// An engine took a sequence up.
    pub fn handle_sequence_started(&mut self, now: Micros, sequence: SequenceRef) {
        self.now = self.now.max(now);
        if !self.is_current(sequence) {
            return;
        }
        let request = self.requests.get_mut(&sequence.request);
        if let Some(placed) = request.and_then(Request::placed_mut) {
            placed.started_at.get_or_insert(now);
            self.fact(Fact::Started(sequence.request, sequence.executor));
            self.touch_sequence(sequence.request);
        }
    }

    /// An engine made a step.
    pub fn handle_step(&mut self, now: Micros, report: &StepReport) {
        self.now = self.now.max(now);
        let executor = self.executors.get(report.executor);
        if executor.is_none_or(|executor| executor.incarnation != report.incarnation) {
            return;
        }
        for progress in &report.progress {
            let sequence = SequenceRef {
                request: progress.request,
                executor: report.executor,
                incarnation: report.incarnation,
            };
            if self.is_current(sequence) {
                self.advance(*progress);
            }
        }
        self.count_tokenless(report);
        self.touch_load(report.executor);
    }

    fn advance(&mut self, progress: Progress) {
        let id = progress.request;
        let now = self.now;
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let advance = advance_request(request, progress, now);
        let (tenant, executor) = (request.row.tenant, advance.executor);
        if let Some(record) = self.executors.get_mut(executor) {
            record.prefill_tokens_pending -= u64::from(advance.prefilled_now);
            if let Some(ttft) = advance.ttft {
                record.measured_ttft(ttft);
            }
            if let Some(itl) = advance.itl {
                record.measured_itl(itl);
            }
        }
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.prompt_tokens_total += u64::from(advance.prefilled_now);
            tenant.output_tokens_total += u64::from(advance.generated_now);
        }
        self.touch_tenant(tenant);
        self.publish_prefix(id);
        self.grow(id);
    }

    /// Makes the full prompt blocks whose KV is there available to others.
    fn publish_prefix(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Some(placed) = request.placed() else {
            return;
        };
        if request.prompt_hashes.is_empty() {
            return;
        }
        let Some(record) = self.executors.get(placed.executor) else {
            return;
        };
        let Some(tokens_per_block) = record.spec.tokens_per_block else {
            return;
        };
        let full = (placed.prefilled / tokens_per_block.max(1)) as usize;
        let cached = (placed.cached_tokens / tokens_per_block.max(1)) as usize;
        let Some(pool) = self.devices[record.spec.device.0 as usize].pool_mut() else {
            return;
        };
        for (idx, hash) in request
            .prompt_hashes
            .iter()
            .enumerate()
            .take(full)
            .skip(cached)
        {
            pool.publish(id, idx, *hash);
        }
    }

    /// Grants a running sequence the blocks for its next token, ahead of it; where there are
    /// none, it is short of them from now on.
    fn grow(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Phase::Placed(placed) = &request.phase else {
            return;
        };
        let executor = placed.executor;
        let Some(record) = self.executors.get(executor) else {
            return;
        };
        let device = record.spec.device;
        let Some(tokens_per_block) = record.spec.tokens_per_block else {
            return;
        };
        let Some(pool) = self.devices[device.0 as usize].pool() else {
            return;
        };
        let tokens = request.tokens_ahead().min(request.tokens_bound());
        let needed = blocks_for(tokens, tokens_per_block);
        if needed as usize <= pool.lease(id).len() || placed.short.is_some() {
            return;
        }
        let since = self.now;
        if let Some(placed) = self.requests.get_mut(&id).and_then(Request::placed_mut) {
            placed.short = Some(Short {
                since,
                asked: None,
                blocks: needed,
            });
        }
        self.devices[device.0 as usize].short.insert(id);
        self.short_devices.insert(device);
        self.serve_claims(device);
        self.serve_short(device);
        let still_short = self.devices[device.0 as usize].short.contains(&id);
        if still_short {
            self.due = true;
            self.arm_request(id);
        }
    }

    /// Gives a short sequence what is free. True if it has all it needs now.
    pub(super) fn fill_short(&mut self, id: RequestId) -> bool {
        let Some(placed) = self.requests.get(&id).and_then(Request::placed) else {
            return true;
        };
        let Some(short) = placed.short else {
            return true;
        };
        let (executor, sequence) = (placed.executor, placed.sequence(id));
        let Some(device) = self.executors.get(executor).map(|e| e.spec.device) else {
            return true;
        };
        let record = &mut self.devices[device.0 as usize];
        let Some(pool) = record.pool_mut() else {
            return true;
        };
        let blocks = pool.grow(id, short.blocks);
        let filled = pool.lease(id).len() >= short.blocks as usize;
        if filled {
            record.short.remove(&id);
            record.drop_claim(id);
            if let Some(placed) = self.requests.get_mut(&id).and_then(Request::placed_mut) {
                placed.short = None;
            }
            self.arm_request(id);
        }
        if !blocks.is_empty() {
            if let Some(record) = self.executors.get_mut(executor) {
                record.blocks_used += blocks.len() as u64;
            }
            self.effect(Effect::Grant { sequence, blocks });
            self.touch_sequence(id);
            self.touch_load(executor);
            self.touch_blocks(device);
        }
        filled
    }

    /// Third liveness clock: counts the steps in which a running sequence that had its blocks
    /// got nothing.
    fn count_tokenless(&mut self, report: &StepReport) {
        let Some(executor) = self.executors.get(report.executor) else {
            return;
        };
        let device = executor.spec.device;
        let running = executor.slots.iter();
        let running: Vec<RequestId> = running
            .filter(|(_, slot)| **slot == SlotUse::Running)
            .map(|(id, _)| *id)
            .collect();
        let max = self.config.tokenless_steps_max;
        let mut starved = Vec::new();
        for id in running {
            let made = report.progress.iter().find(|p| p.request == id);
            let made = made.is_some_and(|p| p.prefilled + p.generated > 0);
            let request = self.requests.get_mut(&id);
            let Some(placed) = request.and_then(Request::placed_mut) else {
                continue;
            };
            if made || placed.short.is_some() {
                placed.steps_without_token = 0;
                continue;
            }
            placed.steps_without_token += 1;
            if placed.steps_without_token >= max {
                placed.steps_without_token = 0;
                starved.push(id);
            }
        }
        for id in starved {
            self.strike_tokenless(id, device);
        }
    }
}

/// Books the tokens of a step in a request.
fn advance_request(request: &mut Request, progress: Progress, now: Micros) -> Advance {
    let prompt_tokens = request.row.prompt_tokens;
    let first = request.first_token_at.is_none() && progress.generated > 0;
    if first {
        request.first_token_at = Some(now);
    }
    request.generated += progress.generated;
    let mut advance = Advance {
        executor: ExecutorId(0),
        prefilled_now: 0,
        generated_now: progress.generated,
        ttft: None,
        itl: None,
    };
    let Some(placed) = request.placed_mut() else {
        return advance;
    };
    advance.executor = placed.executor;
    advance.prefilled_now = progress
        .prefilled
        .min(prompt_tokens.saturating_sub(placed.prefilled));
    placed.prefilled += advance.prefilled_now;
    placed.generated += progress.generated;
    if progress.generated > 0 {
        match placed.last_token_at {
            None => advance.ttft = first.then(|| now.since(placed.placed_at)),
            Some(last) => {
                advance.itl = Some(now.since(last).0 / u64::from(progress.generated));
            }
        }
        placed.last_token_at = Some(now);
    }
    advance
}

// === impl Machine: how it ends ===

impl Machine {
    /// A sequence came to its end, and its blocks are no longer used.
    pub fn handle_sequence_finished(&mut self, now: Micros, sequence: SequenceRef) {
        self.now = self.now.max(now);
        if !self.is_current(sequence) {
            return;
        }
        let id = sequence.request;
        self.complete(id, Ended::Well);
        let gone = self.requests.get(&id).is_some_and(Request::is_gone);
        let output_tokens = self.requests.get(&id).map_or(0, |r| r.generated);
        self.take_out(id);
        self.forget_placed(id);
        if !gone {
            let outcome = Outcome::Finished { output_tokens };
            self.effect(Effect::Finish {
                request: id,
                outcome,
            });
            self.fact(Fact::Ended(id, outcome));
        }
    }

    /// A sequence failed, and its blocks are no longer used. Before the first token it is tried
    /// elsewhere, if the failure was of a kind that allows it.
    pub fn handle_sequence_failed(
        &mut self,
        now: Micros,
        sequence: SequenceRef,
        retry: RetryClass,
    ) {
        self.now = self.now.max(now);
        if !self.is_current(sequence) {
            return;
        }
        self.complete(sequence.request, Ended::Badly);
        self.close_stay(sequence.request);
        self.retry_or_fail(sequence, RequeuedWhy::Failed, retry);
        self.refill(sequence.executor);
        self.remove_if_detached(sequence.executor);
        self.due = true;
    }

    /// An evicted or cancelled sequence has left, and its blocks are no longer used.
    pub fn handle_sequence_left(&mut self, now: Micros, sequence: SequenceRef) {
        self.now = self.now.max(now);
        if !self.is_current(sequence) {
            return;
        }
        let id = sequence.request;
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        // An executor that lets go of what it was not told to let go of has failed it.
        let Phase::Leaving(_, after) = request.phase else {
            self.handle_sequence_failed(now, sequence, RetryClass::Elsewhere);
            return;
        };
        self.close_stay(id);
        match after {
            AfterLeaving::Gone => self.forget_placed(id),
            AfterLeaving::Requeue => self.requeue(id, RequeuedWhy::Evicted),
        }
        self.fact(Fact::Left(id, sequence.executor));
        self.refill(sequence.executor);
        self.remove_if_detached(sequence.executor);
        self.due = true;
    }

    /// An executor died: what ran there is gone, and its next life begins when it is up again.
    pub fn handle_executor_lost(&mut self, now: Micros, id: ExecutorId, incarnation: Incarnation) {
        self.now = self.now.max(now);
        let Some(executor) = self.executors.get_mut(id) else {
            return;
        };
        if executor.incarnation != incarnation {
            return;
        }
        executor.health = Health::Down;
        executor.incarnation = Incarnation(incarnation.0 + 1);
        let device = executor.spec.device;
        let slots = executor.slots.keys().copied();
        let placed: Vec<RequestId> = slots.chain(executor.queue.iter()).collect();
        self.fact(Fact::ExecutorLost(id));
        self.drop_reservations_on(id);
        for request in placed {
            self.lose(request, id, incarnation);
        }
        self.devices[device.0 as usize].forget_contents();
        let warm = self
            .executors
            .get(id)
            .map(|e| e.models.keys().copied().collect());
        let warm: Vec<_> = warm.unwrap_or_default();
        self.cool(id, &warm);
        self.allot_due.insert(device);
        self.touch_blocks(device);
        self.touch_load(id);
        self.refill(id);
        self.remove_if_detached(id);
        self.due = true;
    }

    fn lose(&mut self, id: RequestId, executor: ExecutorId, incarnation: Incarnation) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let after = match &request.phase {
            Phase::Leaving(_, after) => Some(*after),
            Phase::Placed(_) => None,
            Phase::Waiting(_) => return,
        };
        self.complete(id, Ended::Badly);
        self.close_stay(id);
        let sequence = SequenceRef {
            request: id,
            executor,
            incarnation,
        };
        match after {
            Some(AfterLeaving::Gone) => self.forget_placed(id),
            // On its way out, and has not failed: unless the tokens it had not given back are lost.
            Some(AfterLeaving::Requeue) if !self.has_generated(id) => {
                self.requeue(id, RequeuedWhy::Evicted);
            }
            Some(AfterLeaving::Requeue) | None => {
                self.retry_or_fail(sequence, RequeuedWhy::Lost, RetryClass::Elsewhere);
            }
        }
    }

    fn has_generated(&self, id: RequestId) -> bool {
        let request = self.requests.get(&id);
        request.is_some_and(|request| request.generated > 0)
    }

    /// What becomes of a request whose executor failed it and whose stay there is closed.
    fn retry_or_fail(&mut self, sequence: SequenceRef, why: RequeuedWhy, retry: RetryClass) {
        let id = sequence.request;
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if request.is_gone() {
            self.forget_placed(id);
            return;
        }
        request.failures += 1;
        // What waited in the queue of an executor that died had no part in it, and may go there
        // again when it is back.
        if why == RequeuedWhy::Failed || !request.is_queued_on_executor() {
            Arc::make_mut(&mut request.row)
                .failed_on
                .push(sequence.executor);
        }
        let failed = if retry == RetryClass::Never {
            Some(FailedWhy::NotRetryable)
        } else if request.generated > 0 {
            Some(FailedWhy::Lost)
        } else if request.failures >= self.config.attempts_max {
            Some(FailedWhy::AttemptsMax)
        } else {
            let request = &self.requests[&id];
            let mut executors = self.executors.iter();
            let somewhere = executors.any(|executor| self.may_serve(request, executor));
            (!somewhere).then_some(FailedWhy::NowhereLeft)
        };
        match failed {
            None => self.requeue(id, why),
            Some(why) => {
                self.forget_placed(id);
                let outcome = Outcome::Failed(why);
                self.effect(Effect::Finish {
                    request: id,
                    outcome,
                });
                self.fact(Fact::Ended(id, outcome));
            }
        }
    }

    /// Forgets a request whose stay is closed and whose outcome is set.
    fn forget_placed(&mut self, id: RequestId) {
        self.requests.remove(&id);
        self.timers.disarm_request(id);
        self.touch_sequence(id);
    }

    /// Puts a request whose stay is closed back into the queue. What it has generated counts as
    /// prompt from now on. It was admitted once, so the queue's bound does not apply.
    pub(super) fn requeue(&mut self, id: RequestId, why: RequeuedWhy) {
        let now = self.now;
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let generated = request.placed().map_or(0, |placed| placed.generated);
        let row = Arc::make_mut(&mut request.row);
        row.prompt_tokens = row.prompt_tokens.saturating_add(generated);
        row.output_tokens_max = row.output_tokens_max.saturating_sub(generated);
        row.stage = Stage::Queued;
        row.attempts += 1;
        request.phase = Phase::Waiting(Waiting::new(now));
        self.queue.insert(id);
        self.count_waiting(id, super::Step::Up);
        self.touch_sequence(id);
        self.touch_waiting(id);
        self.arm_request(id);
        self.due = true;
        self.fact(Fact::Requeued(id, why));
    }

    /// Keeps how a request's stay on an executor went, for policies that learn.
    fn complete(&mut self, id: RequestId, ended: Ended) {
        let now = self.now;
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let Some(placed) = request.placed() else {
            return;
        };
        let started = placed.started_at.unwrap_or(placed.placed_at);
        let arrived = request.row.arrived;
        let number = self.completions.push(Completion {
            request: id,
            executor: placed.executor,
            model: request.row.model,
            tenant: request.row.tenant,
            prompt_tokens: request.row.prompt_tokens,
            cached_tokens: placed.cached_tokens,
            output_tokens: request.generated,
            queued_micros: started.since(arrived).0,
            ttft_micros: request.first_token_at.map(|at| at.since(arrived).0),
            total_micros: now.since(arrived).0,
            ok: ended == Ended::Well,
        });
        self.log.note(RowKey::Completion(number));
    }
}

/// How a stay on an executor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Well,
    Badly,
}
