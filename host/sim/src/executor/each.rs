//! A server whose requests do not wait for each other, as llm-d's inference simulator is one.
//!
//! A request has a place, or waits for one in order of arrival. Its prompt and each of its tokens
//! take a time that grows with the number of requests that have a place at its beginning. KV blocks
//! are kept for prefix hits; where there are none for a prompt, it has no hits and takes none.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use pointsman_core::{KvReport, Micros, RequestId};

use super::blocks::{Blocks, Contents};
use super::{Finished, FirstToken, Output, REPORT_EVERY, Report, Start, Work};
use crate::fleet::ExecutorPlan;
use crate::latency::EachCost;
use crate::numbers::narrow_len;

/// A server with a time of its own for each request.
#[derive(Debug)]
pub(crate) struct Each {
    cost: EachCost,
    places: u32,
    tokens_per_block: u32,
    blocks: Blocks,
    running: BTreeMap<RequestId, Sequence>,
    waiting: VecDeque<Start>,
    /// The next token of each running request.
    due: BinaryHeap<Reverse<(Micros, RequestId)>>,
    reported_at: Micros,
    /// The factor of all times, and what it is while nothing slows it down.
    factor: f64,
    slowness: f64,
}

/// A request with a place.
#[derive(Debug)]
struct Sequence {
    prompt: Vec<Contents>,
    output: Output,
    cached_tokens: u32,
    table: Vec<u32>,
}

impl Each {
    pub(crate) fn new(plan: &ExecutorPlan, cost: EachCost) -> Self {
        Self {
            cost,
            places: plan.sequences_max.max(1),
            tokens_per_block: plan.tokens_per_block.max(1),
            blocks: Blocks::new(plan.blocks_total),
            running: BTreeMap::new(),
            waiting: VecDeque::new(),
            due: BinaryHeap::new(),
            reported_at: Micros(0),
            factor: plan.slowness(),
            slowness: plan.slowness(),
        }
    }

    fn load_factor(&self) -> f64 {
        let running = narrow_len(self.running.len());
        self.cost.factor(running, self.places) * self.factor
    }

    fn admit(&mut self, now: Micros, start: Start, report: &mut Report) {
        let per_block = self.tokens_per_block;
        let output = Output::new(&start);
        let prompt_tokens = output.prompt_tokens;
        let most = (prompt_tokens - 1) / per_block;
        let mut hits = self.blocks.hits(&start.prompt).min(most);
        let needed = prompt_tokens.div_ceil(per_block);
        let taken = needed - hits + self.blocks.idle_hits(&start.prompt, hits);
        let mut table = Vec::new();
        if taken <= self.blocks.free() {
            self.blocks.share(&start.prompt, hits, &mut table);
            self.blocks.grow(&mut table, needed);
        } else {
            hits = 0;
        }
        let cached_tokens = hits * per_block;
        let request = start.order.sequence.request;
        let sequence = Sequence {
            prompt: start.prompt,
            output,
            cached_tokens,
            table,
        };
        self.running.insert(request, sequence);
        let uncached = prompt_tokens - cached_tokens;
        report.prefill_tokens += u64::from(uncached);
        let took = self.cost.prefill(uncached, self.load_factor());
        self.due
            .push(Reverse((now.after(at_least_one(took)), request)));
    }

    /// Shows a token of a request, and begins the next one.
    fn token(&mut self, now: Micros, request: RequestId, report: &mut Report) {
        let took = self.cost.decode(self.load_factor());
        let Some(sequence) = self.running.get_mut(&request) else {
            return;
        };
        let output = &mut sequence.output;
        if output.generated == 0 {
            report.first.push(FirstToken {
                request,
                cached_tokens: sequence.cached_tokens,
            });
            for (id, hash) in sequence.table.iter().zip(&sequence.prompt) {
                self.blocks.publish(*id, *hash);
            }
        }
        output.show(now, report);
        if output.reported == 0 {
            output.tell(request, report);
        }
        if !output.is_done() {
            self.due
                .push(Reverse((now.after(at_least_one(took)), request)));
            return;
        }
        output.tell(request, report);
        report.finished.push(Finished {
            request,
            cached_tokens: Some(sequence.cached_tokens),
        });
        self.take(request);
    }

    fn take(&mut self, request: RequestId) -> bool {
        let Some(mut sequence) = self.running.remove(&request) else {
            let is_it = |start: &Start| start.order.sequence.request == request;
            let idx = self.waiting.iter().position(is_it);
            return idx.is_some_and(|idx| self.waiting.remove(idx).is_some());
        };
        self.blocks.release(&mut sequence.table);
        if self.running.is_empty() {
            // Only tokens of those that were taken out are left.
            self.due.clear();
        }
        true
    }
}

fn at_least_one(time: Micros) -> Micros {
    time.max(Micros(1))
}

impl Work for Each {
    fn start(&mut self, start: Start) {
        self.waiting.push_back(start);
    }

    fn stop(&mut self, request: RequestId) -> bool {
        self.take(request);
        true
    }

    fn die(&mut self) {
        self.running.clear();
        self.waiting.clear();
        self.due.clear();
        self.blocks.clear();
    }

    fn fail(&mut self, request: RequestId) -> bool {
        self.take(request)
    }

    fn slow_down(&mut self, factor: f64) {
        self.factor = self.slowness * factor;
    }

    fn ends_at(&self) -> Option<Micros> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn end(&mut self, now: Micros, report: &mut Report) {
        while let Some(Reverse((at, request))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            self.token(now, request, report);
        }
        if now.since(self.reported_at) >= REPORT_EVERY {
            self.reported_at = now;
            for (request, sequence) in &mut self.running {
                sequence.output.tell(*request, report);
            }
            report.kv = Some(self.blocks.report());
        }
        report.cache = self.blocks.take_news();
    }

    fn begin(&mut self, now: Micros, report: &mut Report) {
        while self.running.len() < self.places as usize
            && let Some(start) = self.waiting.pop_front()
        {
            self.admit(now, start, report);
        }
    }

    fn untold(&self) -> Vec<(RequestId, u32)> {
        let running = self.running.iter();
        running.map(|(id, it)| (*id, it.output.untold())).collect()
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn kv(&self) -> Option<KvReport> {
        Some(self.blocks.report())
    }
}
