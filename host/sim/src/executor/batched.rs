//! A server that batches its requests and keeps its own KV blocks.
//!
//! The rules are those of vLLM's V1 scheduler, as Dynamo's mocker has them too. A step has a budget
//! of tokens. Running sequences come first, in order of admission: each gets what it still needs, a
//! token to decode or the rest of its prompt. Then waiting ones are admitted in order of arrival as
//! long as tokens, places and blocks for the whole prompt are left. A sequence for which there is no
//! block takes that of the one admitted last, which is computed anew later; nothing is admitted in
//! such a step. All tokens of a step come at its end.
//!
//! # Not here
//! Priorities, and sequences swapped out: such a server recomputes.

use std::collections::VecDeque;

use pointsman_core::{KvReport, Micros, RequestId};

use super::blocks::{Blocks, Contents};
use super::{Finished, FirstToken, Output, REPORT_EVERY, Report, Start, Work};
use crate::fleet::ExecutorPlan;
use crate::latency::{LatencyProfile, StepWork};
use crate::numbers::{float, whole};

/// A server with its own scheduler.
#[derive(Debug)]
pub(crate) struct Batched {
    profile: LatencyProfile,
    tokens_per_block: u32,
    sequences_max: usize,
    /// Tokens of a step, prompts and decode together.
    step_tokens: u32,
    blocks: Blocks,
    /// In order of admission.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    ends_at: Option<Micros>,
    reported_at: Micros,
    /// The factor of all times, and what it is while nothing slows it down.
    factor: f64,
    slowness: f64,
}

/// A sequence at the server.
#[derive(Debug)]
struct Sequence {
    request: RequestId,
    prompt: Vec<Contents>,
    output: Output,
    /// Tokens whose KV is there.
    computed: u32,
    table: Vec<u32>,
    /// Prompt tokens that were there when it was first admitted.
    cached_tokens: Option<u32>,
    /// True if it gets a token in the step that lasts.
    is_ready: bool,
}

/// The outcome of making room for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Made,
    /// It was itself the last one, and waits again.
    GaveWay,
}

impl Sequence {
    fn tokens(&self) -> u32 {
        self.output.prompt_tokens + self.output.generated
    }

    /// Tokens that it needs before it gets the next one.
    fn needs(&self) -> u32 {
        self.tokens() - self.computed
    }

    /// True if all but its newest token is there.
    fn decodes(&self) -> bool {
        self.output.generated > 0 && self.needs() == 1
    }
}

impl Batched {
    pub(crate) fn new(plan: &ExecutorPlan) -> Self {
        Self {
            profile: plan.profile.clone(),
            tokens_per_block: plan.tokens_per_block.max(1),
            sequences_max: plan.sequences_max.max(1) as usize,
            step_tokens: plan.step_tokens.max(1),
            blocks: Blocks::new(plan.blocks_total),
            running: Vec::new(),
            waiting: VecDeque::new(),
            ends_at: None,
            reported_at: Micros(0),
            factor: plan.slowness(),
            slowness: plan.slowness(),
        }
    }

    fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.tokens_per_block)
    }

    // === A step begins ===

    /// Gives running sequences their tokens of the step. Returns the tokens that are left; absent:
    /// somebody had to give way, so nobody is admitted.
    fn schedule_running(&mut self, work: &mut StepWork, report: &mut Report) -> Option<u32> {
        let mut budget = self.step_tokens;
        let mut gave_way = false;
        let mut idx = 0;
        while idx < self.running.len() && budget > 0 {
            let share = self.running[idx].needs().min(budget);
            let before = self.running.len();
            match self.make_room(idx, share, report) {
                Room::Made => {
                    budget -= share;
                    self.compute(idx, share, work);
                    idx += 1;
                }
                Room::GaveWay => {}
            }
            gave_way |= self.running.len() < before;
        }
        (!gave_way).then_some(budget)
    }

    /// Gets blocks for the next `share` tokens of a running sequence, from the one admitted last if
    /// there are none.
    fn make_room(&mut self, idx: usize, share: u32, report: &mut Report) -> Room {
        loop {
            let sequence = &mut self.running[idx];
            let blocks = (sequence.computed + share).div_ceil(self.tokens_per_block);
            if self.blocks.grow(&mut sequence.table, blocks) {
                return Room::Made;
            }
            let Some(mut last) = self.running.pop() else {
                return Room::GaveWay;
            };
            self.blocks.release(&mut last.table);
            last.computed = 0;
            last.is_ready = false;
            report.recomputed += 1;
            self.waiting.push_front(last);
            if self.running.len() <= idx {
                return Room::GaveWay;
            }
        }
    }

    /// Computes the next `share` tokens of a running sequence in this step. Its full blocks can be
    /// shared from then on.
    fn compute(&mut self, idx: usize, share: u32, work: &mut StepWork) {
        let sequence = &mut self.running[idx];
        if !sequence.decodes() {
            work.prefill_tokens += u64::from(share);
            let (from, tokens) = (u64::from(sequence.computed), u64::from(share));
            work.prefill_context += tokens * from + tokens * tokens / 2;
        }
        let full_before = (sequence.computed / self.tokens_per_block) as usize;
        sequence.computed += share;
        let full = (sequence.computed / self.tokens_per_block) as usize;
        for n in full_before..full.min(sequence.prompt.len()) {
            self.blocks.publish(sequence.table[n], sequence.prompt[n]);
        }
        sequence.is_ready = sequence.needs() == 0;
        if sequence.is_ready {
            work.decodes += 1;
            work.decode_context += u64::from(sequence.tokens());
        }
    }

    /// Admits waiting sequences while there is room.
    fn admit(&mut self, mut budget: u32, work: &mut StepWork, report: &mut Report) {
        while budget > 0 && self.running.len() < self.sequences_max {
            let Some(next) = self.waiting.front() else {
                return;
            };
            let needed = self.blocks_for(next.tokens());
            if needed > self.blocks.total() {
                report
                    .failed
                    .extend(self.waiting.pop_front().map(|it| it.request));
                continue;
            }
            // The last token is always computed, for its logits.
            let most = (next.tokens() - 1) / self.tokens_per_block;
            let hits = self.blocks.hits(&next.prompt).min(most);
            let taken = needed - hits + self.blocks.idle_hits(&next.prompt, hits);
            if taken > self.blocks.free() {
                return;
            }
            let Some(mut next) = self.waiting.pop_front() else {
                return;
            };
            self.blocks.share(&next.prompt, hits, &mut next.table);
            next.computed = hits * self.tokens_per_block;
            next.cached_tokens
                .get_or_insert(next.computed.min(next.output.prompt_tokens));
            let share = next.needs().min(budget);
            let blocks = self.blocks_for(next.computed + share);
            let has_room = self.blocks.grow(&mut next.table, blocks);
            debug_assert!(has_room, "there is room for the whole prompt");
            self.running.push(next);
            budget -= share;
            self.compute(self.running.len() - 1, share, work);
        }
    }

    // === A step ends ===

    fn generate(&mut self, now: Micros, report: &mut Report) {
        let is_due = self.is_report_due(now);
        for sequence in &mut self.running {
            let output = &mut sequence.output;
            if std::mem::take(&mut sequence.is_ready) {
                output.show(now, report);
            }
            let is_first = output.generated > 0 && output.reported == 0;
            if is_first {
                report.first.push(FirstToken {
                    request: sequence.request,
                    cached_tokens: sequence.cached_tokens.unwrap_or(0),
                });
            }
            if is_first || is_due || output.is_done() {
                output.tell(sequence.request, report);
            }
        }
    }

    fn is_report_due(&self, now: Micros) -> bool {
        now.since(self.reported_at) >= REPORT_EVERY
    }

    fn finish(&mut self, report: &mut Report) {
        let blocks = &mut self.blocks;
        let done = |sequence: &mut Sequence| sequence.output.is_done();
        for mut sequence in self.running.extract_if(.., done) {
            blocks.release(&mut sequence.table);
            report.finished.push(Finished {
                request: sequence.request,
                cached_tokens: sequence.cached_tokens,
            });
        }
    }

    /// Takes a sequence out, wherever it is.
    fn take(&mut self, request: RequestId) -> bool {
        let is_it = |sequence: &Sequence| sequence.request == request;
        if let Some(idx) = self.running.iter().position(is_it) {
            let mut sequence = self.running.remove(idx);
            self.blocks.release(&mut sequence.table);
            return true;
        }
        let idx = self.waiting.iter().position(is_it);
        idx.is_some_and(|idx| self.waiting.remove(idx).is_some())
    }
}

impl Work for Batched {
    fn start(&mut self, start: Start) {
        self.waiting.push_back(Sequence {
            request: start.order.sequence.request,
            output: Output::new(&start),
            prompt: start.prompt,
            computed: 0,
            table: Vec::new(),
            cached_tokens: None,
            is_ready: false,
        });
    }

    fn stop(&mut self, request: RequestId) -> bool {
        self.take(request);
        true
    }

    fn die(&mut self) {
        self.running.clear();
        self.waiting.clear();
        self.blocks.clear();
        self.ends_at = None;
    }

    fn fail(&mut self, request: RequestId) -> bool {
        self.take(request)
    }

    fn slow_down(&mut self, factor: f64) {
        self.factor = self.slowness * factor;
    }

    fn ends_at(&self) -> Option<Micros> {
        self.ends_at
    }

    fn end(&mut self, now: Micros, report: &mut Report) {
        self.ends_at = None;
        self.generate(now, report);
        self.finish(report);
        // Those that have ended hold no block any more.
        if self.is_report_due(now) {
            self.reported_at = now;
            report.kv = Some(self.blocks.report());
        }
        report.cache = self.blocks.take_news();
    }

    fn begin(&mut self, now: Micros, report: &mut Report) {
        if self.ends_at.is_some() || self.is_idle() {
            return;
        }
        let mut work = StepWork::default();
        let budget = self.schedule_running(&mut work, report);
        // One that gave way to itself alone comes back at once.
        let alone = self.running.is_empty().then_some(self.step_tokens);
        if let Some(budget) = budget.or(alone) {
            self.admit(budget, &mut work, report);
        }
        if self.running.is_empty() {
            return;
        }
        report.prefill_tokens += work.prefill_tokens;
        let kv_tokens = u64::from(self.blocks.total()) * u64::from(self.tokens_per_block);
        let took = self.profile.step(&work, kv_tokens);
        let took = Micros(whole(float(took.0) * self.factor).max(1));
        self.ends_at = Some(now.after(took));
    }

    fn untold(&self) -> Vec<(RequestId, u32)> {
        let all = self.running.iter().chain(&self.waiting);
        all.map(|it| (it.request, it.output.untold())).collect()
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn kv(&self) -> Option<KvReport> {
        Some(self.blocks.report())
    }
}
