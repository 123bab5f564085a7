//! A scripted engine: obeys the machine's orders as a real one does, without computing anything.
//!
//! Per step it spends its token budget on decode first, one token per sequence, then on prefill:
//! a token for each prompt, and the rest in the order that it was told. It writes KV only into
//! blocks it was given, so a sequence without the block for its next token stalls until it is
//! granted one.

use std::collections::BTreeMap;

use pointsman_core::{
    Arrangement, BlockId, DeviceId, ExecutorId, HostBlockId, Incarnation, Micros, Progress,
    RequestId, StartOrder,
};

/// The speed of an engine: a step takes `step` plus `token` for each token scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineProfile {
    /// Fixed time of a step, in µs.
    pub step: Micros,
    /// Time of each scheduled token, in µs.
    pub token: Micros,
    /// Steps an evicted sequence takes to leave, at least one.
    pub leave_steps: u32,
    /// The division of what decode leaves of a step.
    pub prefill: PrefillShares,
}

/// The prompts that get a part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillShares {
    /// All of them, as an executor must.
    #[default]
    Each,
    /// The first, and the next only what that one leaves: a broken engine, for tests of the clock
    /// that notices.
    FirstOnly,
}

impl Default for EngineProfile {
    fn default() -> Self {
        Self {
            step: Micros(10_000),
            token: Micros(10),
            leave_steps: 1,
            prefill: PrefillShares::Each,
        }
    }
}

/// A sequence in a slot.
#[derive(Debug)]
struct Sequence {
    /// Tokens to have in KV before the first new one.
    prompt_tokens: u32,
    /// Prompt tokens whose KV is there.
    prefilled: u32,
    generated: u32,
    /// Tokens that the sequence will generate in this placement.
    output_tokens: u32,
    blocks: Vec<BlockId>,
    /// Steps until the sequence has left; absent: it stays.
    leaving: Option<u32>,
    /// Host blocks to which its KV is copied before it has left.
    host_blocks: Vec<HostBlockId>,
}

impl Sequence {
    /// Tells whether the sequence's blocks hold `tokens` tokens; without blocks, any number is
    /// held.
    fn holds(&self, tokens: u32, tokens_per_block: Option<u32>) -> bool {
        tokens_per_block.is_none_or(|per_block| {
            u64::from(tokens) <= self.blocks.len() as u64 * u64::from(per_block)
        })
    }

    /// Leading tokens whose KV is in host memory once the sequence has left. That of the last token
    /// generated was not computed.
    fn swapped_tokens(&self) -> u32 {
        if self.host_blocks.is_empty() {
            return 0;
        }
        self.prefilled + self.generated.saturating_sub(1)
    }
}

/// A message of an engine after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Started(RequestId),
    Finished(RequestId),
    Left {
        request: RequestId,
        swapped_tokens: u32,
    },
}

/// The results of one step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) progress: Vec<Progress>,
    pub(crate) said: Vec<Said>,
    /// Blocks written in this step, each with its writer.
    pub(crate) written: Vec<(BlockId, RequestId)>,
    /// Host blocks written in this step, each with the request and the place in its table of the block
    /// that was copied there.
    pub(crate) swapped: Vec<(HostBlockId, (RequestId, usize))>,
    pub(crate) took: Micros,
}

/// One scripted engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) id: ExecutorId,
    pub(crate) device: DeviceId,
    pub(crate) incarnation: Incarnation,
    pub(crate) profile: EngineProfile,
    tokens_per_block: Option<u32>,
    tokens_max: Option<u32>,
    arrangement: Arrangement,
    sequences: BTreeMap<RequestId, Sequence>,
    /// Requests in order of start; `true` until the engine has said that the sequence started.
    order: Vec<(RequestId, bool)>,
    /// The time at which the next step ends; absent: the engine has no work.
    pub(crate) next_step: Option<Micros>,
    /// Tokens scheduled so far, prefill and decode.
    tokens_total: u64,
}

impl Engine {
    pub(crate) fn new(
        id: ExecutorId,
        device: DeviceId,
        tokens_per_block: Option<u32>,
        profile: EngineProfile,
    ) -> Self {
        Self {
            id,
            device,
            incarnation: Incarnation(0),
            profile,
            tokens_per_block,
            tokens_max: None,
            arrangement: Arrangement::default(),
            sequences: BTreeMap::new(),
            order: Vec::new(),
            next_step: None,
            tokens_total: 0,
        }
    }

    /// Tokens that the engine may schedule in a step; absent: no limit was set.
    #[must_use]
    pub fn tokens_max(&self) -> Option<u32> {
        self.tokens_max
    }

    /// Tokens that the engine has scheduled so far, prefill and decode.
    #[must_use]
    pub fn tokens_total(&self) -> u64 {
        self.tokens_total
    }

    /// The requests that the engine runs.
    pub fn sequences(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.sequences.keys().copied()
    }

    /// The tokens that each sequence has generated here.
    pub(crate) fn generated(&self) -> Vec<(RequestId, u32)> {
        let sequences = self.sequences.iter();
        sequences.map(|(id, s)| (*id, s.generated)).collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(crate) fn start(&mut self, order: &StartOrder, output_tokens: u32) {
        let sequence = Sequence {
            prompt_tokens: order.prompt_tokens,
            prefilled: order.cached_tokens,
            generated: 0,
            output_tokens: output_tokens.min(order.output_tokens_max),
            blocks: order.blocks.clone(),
            leaving: None,
            host_blocks: Vec::new(),
        };
        let earlier = self.sequences.insert(order.sequence.request, sequence);
        assert!(
            earlier.is_none(),
            "{} was started twice",
            order.sequence.request
        );
        self.order.push((order.sequence.request, true));
    }

    pub(crate) fn grant(&mut self, request: RequestId, blocks: &[BlockId]) {
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.blocks.extend_from_slice(blocks);
        }
    }

    /// Stops a sequence; it has left after `leave_steps` more steps, with its KV in these host blocks.
    pub(crate) fn stop(&mut self, request: RequestId, host_blocks: &[HostBlockId]) {
        let steps = self.profile.leave_steps.max(1);
        if let Some(sequence) = self.sequences.get_mut(&request) {
            sequence.leaving.get_or_insert(steps);
            sequence.host_blocks = host_blocks.to_vec();
        }
    }

    pub(crate) fn set_budget(&mut self, tokens_max: u32) {
        self.tokens_max = Some(tokens_max);
    }

    pub(crate) fn arrange(&mut self, arrangement: Arrangement) {
        self.arrangement = arrangement;
    }

    /// Loses all sequences and begins a new life.
    pub(crate) fn die(&mut self) {
        self.arrangement = Arrangement::default();
        self.sequences.clear();
        self.order.clear();
        self.next_step = None;
        self.incarnation = Incarnation(self.incarnation.0 + 1);
    }

    /// Takes a sequence out, as a failure does.
    pub(crate) fn fail(&mut self, request: RequestId) -> bool {
        self.order.retain(|(other, _)| *other != request);
        self.sequences.remove(&request).is_some()
    }

    /// Makes one step: decode, then prefill, within the budget; then sequences finish or leave.
    pub(crate) fn step(&mut self) -> Step {
        let mut step = Step::default();
        let mut budget = self.tokens_max.unwrap_or(u32::MAX);
        for (request, fresh) in &mut self.order {
            if std::mem::take(fresh) {
                step.said.push(Said::Started(*request));
            }
        }
        self.decode(&mut step, &mut budget);
        self.prefill(&mut step, &mut budget);
        let scheduled: u64 = step
            .progress
            .iter()
            .map(|made| u64::from(made.prefilled.max(made.generated)))
            .sum();
        self.tokens_total += scheduled;
        let took = self.profile.token.0.saturating_mul(scheduled);
        step.took = self.profile.step.after(Micros(took));
        self.close(&mut step);
        step
    }

    fn decode(&mut self, step: &mut Step, budget: &mut u32) {
        for (request, _) in &self.order {
            let Some(sequence) = self.sequences.get_mut(request) else {
                continue;
            };
            let decoding = sequence.leaving.is_none()
                && sequence.prefilled == sequence.prompt_tokens
                && sequence.generated > 0
                && sequence.generated < sequence.output_tokens;
            let held = sequence.prompt_tokens + sequence.generated;
            if !decoding || *budget == 0 || !sequence.holds(held, self.tokens_per_block) {
                continue;
            }
            *budget -= 1;
            sequence.generated += 1;
            if let Some(per_block) = self.tokens_per_block {
                let block = sequence.blocks[((held - 1) / per_block) as usize];
                step.written.push((block, *request));
            }
            step.progress.push(Progress {
                request: *request,
                prefilled: 0,
                generated: 1,
            });
        }
    }

    /// Prompts in the order that was set, each with its share of `budget`. A prompt whose every
    /// token is there still needs a pass for its first token.
    fn prefill_shares(&self, budget: u32) -> Vec<(RequestId, u32)> {
        let places = self.arrangement.places();
        let ordered = self.order.iter().filter_map(|(request, _)| {
            let sequence = self.sequences.get(request)?;
            let wants = sequence.leaving.is_none() && sequence.generated == 0;
            let left = (sequence.prompt_tokens - sequence.prefilled).max(1);
            let place = places.get(request).copied().unwrap_or(usize::MAX);
            wants.then_some((place, *request, left))
        });
        let mut prompts: Vec<(usize, RequestId, u32)> = ordered.collect();
        prompts.sort_unstable();
        let n = u32::try_from(prompts.len()).unwrap_or(u32::MAX);
        let least = match self.profile.prefill {
            PrefillShares::Each => 1,
            PrefillShares::FirstOnly => 0,
        };
        let prefill_max = self.arrangement.prefill_max.unwrap_or(u32::MAX);
        let mut rest = budget.min(prefill_max.max(n)).saturating_sub(n * least);
        let mut floors = budget.min(n * least);
        let shares = prompts.into_iter().map(|(_, request, left)| {
            let floor = floors.min(least);
            let more = rest.min(left - floor);
            floors -= floor;
            rest -= more;
            (request, floor + more)
        });
        shares.filter(|(_, share)| *share > 0).collect()
    }

    fn prefill(&mut self, step: &mut Step, budget: &mut u32) {
        for (request, share) in &self.prefill_shares(*budget) {
            let Some(sequence) = self.sequences.get_mut(request) else {
                continue;
            };
            let chunk = (sequence.prompt_tokens - sequence.prefilled).min(*share);
            assert!(
                sequence.holds(sequence.prefilled + chunk, self.tokens_per_block),
                "{request} has no block for its prompt"
            );
            if let Some(per_block) = self.tokens_per_block
                && chunk > 0
            {
                let last = sequence.prefilled + chunk - 1;
                let blocks = sequence.prefilled / per_block..=last / per_block;
                step.written
                    .extend(blocks.map(|idx| (sequence.blocks[idx as usize], *request)));
            }
            *budget -= share;
            sequence.prefilled += chunk;
            let done = sequence.prefilled == sequence.prompt_tokens && sequence.output_tokens > 0;
            sequence.generated = u32::from(done);
            step.progress.push(Progress {
                request: *request,
                prefilled: chunk,
                generated: sequence.generated,
            });
        }
    }

    fn close(&mut self, step: &mut Step) {
        let mut closed = Vec::new();
        for (request, sequence) in &mut self.sequences {
            let prefilled = sequence.prefilled == sequence.prompt_tokens;
            match &mut sequence.leaving {
                Some(steps) => {
                    *steps -= 1;
                    if *steps == 0 {
                        let swapped_tokens = sequence.swapped_tokens();
                        let blocks = blocks_of(swapped_tokens, self.tokens_per_block);
                        let hosts = sequence.host_blocks.iter().copied().take(blocks);
                        let hosts = hosts.enumerate();
                        step.swapped
                            .extend(hosts.map(|(place, host)| (host, (*request, place))));
                        closed.push(Said::Left {
                            request: *request,
                            swapped_tokens,
                        });
                    }
                }
                None if prefilled && sequence.generated >= sequence.output_tokens => {
                    closed.push(Said::Finished(*request));
                }
                None => {}
            }
        }
        for said in closed {
            if let Said::Finished(request) | Said::Left { request, .. } = said {
                self.fail(request);
            }
            step.said.push(said);
        }
    }
}

/// The number of blocks that hold `tokens` tokens.
fn blocks_of(tokens: u32, tokens_per_block: Option<u32>) -> usize {
    tokens_per_block.map_or(0, |per_block| tokens.div_ceil(per_block.max(1)) as usize)
}
