//! The step loop: continuous batching with chunked prefill, and preemption by recompute or by swap.
//!
//! [`StepLoop`] is the loop's state without its thread: commands in ([`StepLoop::handle`]), a step
//! ([`StepLoop::step`]), events out ([`StepLoop::take_events`]). [`crate::thread::spawn`] turns the
//! loop, and begins another life when the device fails.
//!
//! An engine may serve several models. Their sequences share its slots, its blocks and the tokens of
//! a step, in which each model computes its own ([`LoopModel`]).
//!
//! A sequence starts from its tokens: the prompt, and the tokens generated before it was
//! preempted. That makes a resumed sequence the same computation as an uninterrupted one, whether its KV
//! is computed again or comes back from host memory (`swaps`).
//!
//! # Invariants
//! The [contract](pointsman_executor::contract), which `tests/contract.rs` checks, and these:
//! 1. Batched, chunked and preempted sequences give the same tokens and text as alone, bit by bit
//!    (`tests/step_loop.rs`; under the real machine `tests/machine` and `tests/soak`).
//! 2. No client makes the loop wait (`slow_clients_and_those_that_left_change_nothing`).
//! 3. Whatever fails in a step, no text of that step has been shown
//!    (`nothing_of_a_step_that_fails_is_shown`).
//!
//! # Not here
//! The choice of sequences and their blocks (the core): a block table is taken as it is given, with
//! blocks of other sequences or without.

mod model;
mod running;
mod swaps;

use std::fmt;
use std::sync::Arc;

use pointsman_events::{
    Arrangement, ExecutorId, Incarnation, ModelId, Progress, RetryClass, SequenceRef, StepReport,
};
use pointsman_executor::contract::{Command, Event, Start};
use pointsman_executor::shares::{self, Need};
use pointsman_executor::stats::EngineStats;

use crate::backend::{DeviceError, Logits};
use crate::sample::Sampler;

pub use model::LoopModel;
use running::{RunningSequence, Turn, TurnOutcome, a_token};
use swaps::LeavingSequence;

/// The sequences of one life of an engine, and the models that compute them.
pub struct StepLoop {
    // Immutable.
    executor: ExecutorId,
    incarnation: Incarnation,
    slots: usize,
    /// Tokens in a block, the same for all models.
    tokens_per_block: usize,
    stats: Arc<EngineStats>,
    // Owned state.
    /// The models, never none.
    models: Vec<LoopModel>,
    sampler: Sampler,
    /// Sequences in order of start, at most `slots`: few enough to be searched from the front.
    running: Vec<RunningSequence>,
    /// Sequences that were told to leave, and have copies to wait for.
    leaving: Vec<LeavingSequence>,
    tokens_max: Option<u32>,
    arrangement: Arrangement,
    steps: u64,
    // Events not yet taken.
    started: Vec<Event>,
    stepped: Option<Event>,
    ended: Vec<Event>,
}

/// The parts of a [`StepLoop`].
pub struct StepLoopParts {
    /// Most sequences at once.
    pub slots: u32,
    /// The models that the engine serves, at least one. All have as many tokens in a block.
    pub models: Vec<LoopModel>,
    /// The counters, shared by all lives of the engine.
    pub stats: Arc<EngineStats>,
}

impl fmt::Debug for StepLoopParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepLoopParts")
            .field("slots", &self.slots)
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}

/// The outcome of [`StepLoop::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// A step was made, or a swap has come to its end.
    Stepped,
    /// No sequence can go on before another command comes.
    Nothing,
}

impl StepLoop {
    /// A loop that runs nothing yet and has no budget.
    ///
    /// # Panics
    /// If there is no model, or the models differ in the tokens of a block.
    #[must_use]
    pub fn new(executor: ExecutorId, incarnation: Incarnation, parts: StepLoopParts) -> Self {
        let mut sizes = parts.models.iter().map(LoopModel::tokens_per_block);
        let tokens_per_block = sizes.next().expect("an engine has a model");
        assert!(
            sizes.all(|size| size == tokens_per_block),
            "the models of an engine have as many tokens in a block"
        );
        Self {
            executor,
            incarnation,
            slots: parts.slots as usize,
            tokens_per_block: tokens_per_block as usize,
            stats: parts.stats,
            models: parts.models,
            sampler: Sampler::default(),
            running: Vec::new(),
            leaving: Vec::new(),
            tokens_max: None,
            arrangement: Arrangement::default(),
            steps: 0,
            started: Vec::new(),
            stepped: None,
            ended: Vec::new(),
        }
    }

    /// Returns true if no sequence is here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.leaving.is_empty()
    }

    /// Takes the events since the last call: starts, the step, ends.
    pub fn take_events(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.started);
        events.extend(self.stepped.take());
        events.append(&mut self.ended);
        events
    }
}

// === impl StepLoop: commands ===

impl StepLoop {
    /// Obeys a command. A command about a sequence that is not here changes nothing.
    ///
    /// # Panics
    /// If a sequence is started twice.
    pub fn handle(&mut self, command: Command) {
        match command {
            Command::Start(start) => self.start(*start),
            Command::Grant { sequence, blocks } => {
                if let Some(idx) = self.find(sequence) {
                    self.running[idx].grant(&blocks);
                }
            }
            Command::Evict {
                sequence,
                host_blocks,
            } => self.leave(sequence, host_blocks),
            Command::Cancel(sequence) => self.leave(sequence, Vec::new()),
            Command::SetBudget { tokens_max } => self.tokens_max = Some(tokens_max),
            Command::Arrange(arrangement) => self.arrangement = arrangement,
            // Not for an engine.
            Command::Load(_) | Command::Configure { .. } => {}
        }
    }

    fn find(&self, sequence: SequenceRef) -> Option<usize> {
        let mut running = self.running.iter();
        running.position(|running| running.id() == sequence)
    }

    fn start(&mut self, start: Start) {
        let id = start.order.sequence;
        if (id.executor, id.incarnation) != (self.executor, self.incarnation) {
            return;
        }
        assert!(self.find(id).is_none(), "{} is started twice", id.request);
        let model = self.model_of(start.order.model);
        let refused = match model {
            Some(model) => self.refuse(&start, &self.models[model]),
            None => Some((
                RetryClass::Elsewhere,
                "the model is not served here".to_owned(),
            )),
        };
        let mut running = RunningSequence::new(start, model.unwrap_or(0), self.steps);
        let refused = refused.or_else(|| {
            let begun = running.begin_form(self.models[model?].text());
            begun
                .err()
                .map(|error| (RetryClass::Never, error.to_string()))
        });
        if refused.is_some() || running.is_here() {
            self.started.push(Event::Started(id));
        }
        match refused {
            None => self.running.push(running),
            Some((retry, why)) => self.ended.push(running.fail(retry, why)),
        }
    }

    /// The place of a model among those that are served here; without one, that of the first.
    fn model_of(&self, model: Option<ModelId>) -> Option<usize> {
        let mut models = self.models.iter();
        models.position(|served| model.is_none_or(|model| served.model == model))
    }

    /// Returns the reason why a sequence cannot be run, if there is one. No such start comes from a
    /// host that keeps its own books; run nevertheless, it would take the others down with it.
    fn refuse(&self, start: &Start, model: &LoopModel) -> Option<(RetryClass, String)> {
        if self.running.len() + self.leaving.len() >= self.slots {
            let why = format!("all {} slots are taken", self.slots);
            return Some((RetryClass::Elsewhere, why));
        }
        let tokens = &start.sequence.tokens;
        let ordered = start.order.prompt_tokens as usize;
        let (vocab_size, context) = (model.vocab_size(), model.context_tokens());
        let why = if tokens.is_empty() || ordered != tokens.len() {
            format!(
                "{ordered} tokens were ordered, and there are {}",
                tokens.len()
            )
        } else if tokens.len() > context {
            format!(
                "{} tokens are more than the context of {context}",
                tokens.len()
            )
        } else if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab_size) {
            format!("token {id} is beyond the model's vocabulary of {vocab_size}")
        } else if start.output_tokens_left() == 0 && !start.sequence.job.is_to_embed() {
            "nothing is left to generate".to_owned()
        } else {
            return None;
        };
        Some((RetryClass::Never, why))
    }
}

// === impl StepLoop: steps ===

/// A step's result for one sequence.
struct Made {
    idx: usize,
    progress: Progress,
    outcome: TurnOutcome,
}

impl StepLoop {
    /// Makes a step if a sequence can go on; if none can, waits for a swap that is under way.
    ///
    /// # Errors
    /// If the device fails. All that ran is lost, and the loop is of no use any more.
    pub fn step(&mut self) -> Result<StepOutcome, DeviceError> {
        self.swap()?;
        let turns = self.plan();
        if turns.is_empty() {
            return self.wait_for_swap();
        }
        for (place, model) in self.models.iter_mut().enumerate() {
            let turns = turns.iter().map(|turn| (turn, &self.running[turn.idx]));
            let turns = turns.filter(|(_, running)| running.model() == place);
            let (mut chunks, mut choices) = (Vec::new(), Vec::new());
            for (turn, running) in turns {
                chunks.push(running.chunk(turn));
                if turn.logits == Logits::Kept {
                    choices.push(running.choice());
                }
            }
            if !chunks.is_empty() {
                model.forward(&chunks, &choices)?;
            }
        }
        self.steps += 1;
        let made = self.generate(&turns);
        self.publish(made);
        Ok(StepOutcome::Stepped)
    }

    /// Gives each sequence its turn in the next step; none to those that cannot go on.
    fn plan(&self) -> Vec<Turn> {
        let needs = self.running.iter().map(|r| r.need(self.tokens_per_block));
        let needs: Vec<Need> = needs.collect();
        let here = needs.iter().zip(&self.running);
        let sat_out = here.filter(|(need, running)| need.tokens == 0 && running.is_here());
        self.stats.sat_out.add(sat_out.count() as u64);
        let budget = self.tokens_max.map_or(usize::MAX, |max| max as usize);
        let shares = shares::share(&needs, budget, &self.arrangement);
        let shares = shares.into_iter().enumerate();
        shares
            .filter(|(_, tokens)| *tokens > 0)
            .map(|(idx, tokens)| {
                let running = &self.running[idx];
                running.turn(idx, tokens, &self.models[running.model()])
            })
            .collect()
    }

    /// Chooses the next token of each sequence that has a row of logits, and embeds the prompts that have a hidden
    /// state. Shows nothing yet.
    fn generate(&mut self, turns: &[Turn]) -> Vec<Made> {
        let mut models: Vec<_> = self.models.iter_mut().map(LoopModel::made).collect();
        let mut made = Vec::with_capacity(turns.len());
        for turn in turns {
            let running = &mut self.running[turn.idx];
            let model = &mut models[running.model()];
            let mut progress = running.computed(turn, self.steps);
            let chosen = match turn.logits {
                Logits::None => None,
                Logits::Hidden => {
                    let outcome = running::embedded(model.next_hidden());
                    made.push(Made {
                        idx: turn.idx,
                        progress,
                        outcome,
                    });
                    continue;
                }
                Logits::Kept => Some(a_token(model.next_chosen())),
                Logits::Last => {
                    let row = model.next_row();
                    let chosen = running.choose(&mut self.sampler, row);
                    if let Ok(token) = chosen {
                        running.tell(token, row, model.text);
                    }
                    Some(chosen)
                }
            };
            progress.generated = u32::from(matches!(chosen, Some(Ok(_))));
            let outcome = match chosen {
                None => TurnOutcome::GoesOn,
                Some(Ok(token)) => running.accept(token, model.text, model.context_tokens),
                Some(Err((retry, why))) => TurnOutcome::Failed(retry, why),
            };
            made.push(Made {
                idx: turn.idx,
                progress,
                outcome,
            });
        }
        made
    }

    /// Shows and reports the results of a step. Nothing here can fail, so that clients have seen of
    /// every step what the machine is told.
    fn publish(&mut self, made: Vec<Made>) {
        let progress: Vec<Progress> = made.iter().map(|made| made.progress).collect();
        self.stats.count_step(&progress);
        self.stepped = Some(Event::Stepped(StepReport {
            executor: self.executor,
            incarnation: self.incarnation,
            progress,
        }));
        let mut removed = 0;
        for Made { idx, outcome, .. } in made {
            let idx = idx - removed;
            let ended = match outcome {
                TurnOutcome::GoesOn => {
                    self.running[idx].deliver_text();
                    continue;
                }
                TurnOutcome::Finished(stop) => self.running.remove(idx).finish(stop),
                TurnOutcome::Embedded(numbers) => self.running.remove(idx).finish_embedded(numbers),
                TurnOutcome::Failed(retry, why) => self.running.remove(idx).fail(retry, why),
            };
            self.ended.push(ended);
            removed += 1;
        }
    }
}

impl fmt::Debug for StepLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepLoop")
            .field("executor", &self.executor)
            .field("incarnation", &self.incarnation)
            .field("running", &self.running)
            .field("leaving", &self.leaving)
            .finish_non_exhaustive()
    }
}
