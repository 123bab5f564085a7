//! An engine in the host: its KV blocks, its budget and its order are the machine's to say.
//!
//! A step is divided as the engine of this project divides one (`pointsman_executor::shares`). A
//! sequence without the block for its next token sits out until it is granted one.

use pointsman_core::{Arrangement, BlockId, KvReport, Micros, Progress, RequestId};
use pointsman_executor::shares::{self, Need};

use super::{Finished, FirstToken, Output, Report, Start, Work};
use crate::fleet::ExecutorPlan;
use crate::latency::{LatencyProfile, StepWork};
use crate::numbers::{float, narrow_len, whole};

/// An engine in the host.
#[derive(Debug)]
pub(crate) struct Hosted {
    profile: LatencyProfile,
    /// Absent: the machine hands out no blocks.
    tokens_per_block: Option<u32>,
    kv_tokens: u64,
    /// Tokens of a step, whatever the machine allows.
    step_tokens: u32,
    tokens_max: Option<u32>,
    arrangement: Arrangement,
    /// In order of start.
    running: Vec<Sequence>,
    /// Sequences that are to leave at the end of the step.
    leaving: Vec<RequestId>,
    steps: u64,
    ends_at: Option<Micros>,
    /// The factor of all times, and what it is while nothing slows it down.
    factor: f64,
    slowness: f64,
}

/// A sequence in a slot.
#[derive(Debug)]
struct Sequence {
    request: RequestId,
    output: Output,
    cached_tokens: u32,
    /// Tokens whose KV is there.
    computed: u32,
    blocks: u32,
    last_step: u64,
    /// Tokens that are computed for it in the step that lasts.
    share: u32,
}

impl Sequence {
    fn tokens(&self) -> u32 {
        self.output.prompt_tokens + self.output.generated
    }

    /// Tokens to compute for which there are blocks; none if there is too little for the next one.
    fn able(&self, tokens_per_block: Option<u32>) -> u32 {
        let held = tokens_per_block.map_or(u32::MAX, |per| self.blocks.saturating_mul(per));
        self.tokens().min(held).saturating_sub(self.computed)
    }

    fn is_prompt(&self) -> bool {
        self.computed < self.output.prompt_tokens
    }
}

impl Hosted {
    pub(crate) fn new(plan: &ExecutorPlan) -> Self {
        let kv_tokens = u64::from(plan.blocks_total) * u64::from(plan.tokens_per_block.max(1));
        Self {
            profile: plan.profile.clone(),
            tokens_per_block: Some(plan.tokens_per_block.max(1)),
            kv_tokens,
            step_tokens: plan.step_tokens.max(1),
            tokens_max: None,
            arrangement: Arrangement::default(),
            running: Vec::new(),
            leaving: Vec::new(),
            steps: 0,
            ends_at: None,
            factor: plan.slowness(),
            slowness: plan.slowness(),
        }
    }

    /// Divides the next step. True if somebody has a part in it.
    fn plan_step(&mut self, work: &mut StepWork) -> bool {
        let per_block = self.tokens_per_block;
        let need = |it: &Sequence| Need {
            request: it.request,
            tokens: it.able(per_block) as usize,
            is_prompt: it.is_prompt(),
            last_step: it.last_step,
        };
        let needs: Vec<Need> = self.running.iter().map(need).collect();
        let budget = self.tokens_max.unwrap_or(u32::MAX).min(self.step_tokens);
        let shares = shares::share(&needs, budget as usize, &self.arrangement);
        let mut is_any = false;
        for (sequence, share) in self.running.iter_mut().zip(shares) {
            sequence.share = narrow_len(share);
            is_any |= share > 0;
            if share == 0 {
                continue;
            }
            let (from, tokens) = (u64::from(sequence.computed), u64::from(sequence.share));
            if sequence.output.generated == 0 || sequence.is_prompt() {
                work.prefill_tokens += tokens;
                work.prefill_context += tokens * from + tokens * tokens / 2;
            }
            if sequence.computed + sequence.share == sequence.tokens() {
                work.decodes += 1;
                work.decode_context += u64::from(sequence.tokens());
            }
        }
        is_any
    }

    fn advance(&mut self, now: Micros, report: &mut Report) {
        self.steps += 1;
        for sequence in &mut self.running {
            let share = std::mem::take(&mut sequence.share);
            if share == 0 {
                continue;
            }
            sequence.last_step = self.steps;
            let prompt_tokens = sequence.output.prompt_tokens;
            let left = prompt_tokens.saturating_sub(sequence.computed);
            sequence.computed += share;
            let is_ready = sequence.computed == sequence.tokens();
            if is_ready {
                if sequence.output.generated == 0 {
                    report.first.push(FirstToken {
                        request: sequence.request,
                        cached_tokens: sequence.cached_tokens,
                    });
                }
                sequence.output.show(now, report);
            }
            report.progress.push(Progress {
                request: sequence.request,
                prefilled: share.min(left),
                generated: u32::from(is_ready),
            });
        }
    }

    fn take(&mut self, request: RequestId) -> bool {
        let idx = self.running.iter().position(|it| it.request == request);
        idx.map(|idx| self.running.remove(idx)).is_some()
    }
}

impl Work for Hosted {
    fn start(&mut self, start: Start) {
        let order = &start.order;
        self.running.push(Sequence {
            request: order.sequence.request,
            output: Output::new(&start),
            cached_tokens: order.cached_tokens,
            computed: order.cached_tokens,
            blocks: narrow_len(order.blocks.len()),
            last_step: self.steps,
            share: 0,
        });
    }

    fn grant(&mut self, request: RequestId, blocks: &[BlockId]) {
        let mut running = self.running.iter_mut();
        if let Some(sequence) = running.find(|it| it.request == request) {
            sequence.blocks += narrow_len(blocks.len());
        }
    }

    fn stop(&mut self, request: RequestId) -> bool {
        if self.ends_at.is_none() {
            self.take(request);
            return true;
        }
        self.leaving.push(request);
        false
    }

    fn set_budget(&mut self, tokens_max: u32) {
        self.tokens_max = Some(tokens_max);
    }

    fn arrange(&mut self, arrangement: Arrangement) {
        self.arrangement = arrangement;
    }

    fn die(&mut self) {
        self.running.clear();
        self.leaving.clear();
        self.arrangement = Arrangement::default();
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
        self.advance(now, report);
        let leaving = std::mem::take(&mut self.leaving);
        for request in leaving {
            // It may have ended in the step.
            let is_done = |it: &Sequence| it.request == request && it.output.is_done();
            if !self.running.iter().any(is_done) && self.take(request) {
                report.left.push(request);
            }
        }
        let done = |it: &mut Sequence| it.output.is_done();
        for sequence in self.running.extract_if(.., done) {
            report.finished.push(Finished {
                request: sequence.request,
                cached_tokens: None,
            });
        }
    }

    fn begin(&mut self, now: Micros, report: &mut Report) {
        if self.ends_at.is_some() || self.running.is_empty() {
            return;
        }
        let mut work = StepWork::default();
        if !self.plan_step(&mut work) {
            return;
        }
        report.prefill_tokens += work.prefill_tokens;
        let took = self.profile.step(&work, self.kv_tokens);
        let took = Micros(whole(float(took.0) * self.factor).max(1));
        self.ends_at = Some(now.after(took));
    }

    fn untold(&self) -> Vec<(RequestId, u32)> {
        let running = self.running.iter();
        running.map(|it| (it.request, 0)).collect()
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn kv(&self) -> Option<KvReport> {
        None
    }
}
