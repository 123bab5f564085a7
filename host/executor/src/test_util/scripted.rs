//! A scripted executor: a fake that keeps the contract and does nothing until a test tells it to.
//!
//! The driver has its end of the command channel; the test has the [`ScriptedExecutor`], makes it
//! step, fail or lose everything, and hands the events on. Each token is a function of all tokens
//! before and has a word for its text.

use pointsman_events::{
    Arrangement, BlockId, ExecutorId, Incarnation, Progress, RequestId, RetryClass, SequenceRef,
    StepReport,
};
use tokio::sync::mpsc;

use crate::contract::{Command, Event, Events, Start};
use crate::delivery::StopReason;
use crate::job::{Job, JobState, Sampling};
use crate::shares::{self, Need};
use crate::text::{DecodeError, Detokenizer};

/// Commands that may wait for a scripted executor.
const COMMANDS_MAX: usize = 1024;

/// The test's hold on a scripted executor.
#[derive(Debug)]
pub struct ScriptedExecutor {
    executor: ExecutorId,
    incarnation: Incarnation,
    tokens_per_block: usize,
    commands: mpsc::Receiver<Command>,
    /// Tokens in a step.
    budget: usize,
    arrangement: Arrangement,
    /// Steps so far.
    steps: u64,
    /// Sequences in order of start.
    running: Vec<ScriptedSequence>,
    /// Events not yet reported.
    events: Vec<Event>,
}

#[derive(Debug)]
struct ScriptedSequence {
    id: SequenceRef,
    sequence: JobState,
    blocks: Vec<BlockId>,
    /// Tokens to have in KV before the first one is generated here.
    prompt_tokens: usize,
    /// Tokens whose KV is in `blocks`.
    in_kv: usize,
    output_tokens_left: usize,
    last_step: u64,
}

// === impl ScriptedExecutor ===

impl ScriptedExecutor {
    /// Makes an executor in the life `incarnation`, and the driver's end of its commands.
    pub fn new(
        executor: ExecutorId,
        incarnation: Incarnation,
        tokens_per_block: u32,
    ) -> (Self, mpsc::Sender<Command>) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let scripted = Self {
            executor,
            incarnation,
            tokens_per_block: tokens_per_block as usize,
            commands,
            budget: usize::MAX,
            arrangement: Arrangement::default(),
            steps: 0,
            running: Vec::new(),
            events: Vec::new(),
        };
        (scripted, sender)
    }

    /// Takes the commands that have come, makes a step if a sequence can go on, and reports.
    pub fn step(&mut self) -> Events {
        self.obey();
        let mut progress = Vec::new();
        let mut ended = Vec::new();
        let needs = self.running.iter().map(|r| r.need(self.tokens_per_block));
        let needs: Vec<Need> = needs.collect();
        let shares = shares::share(&needs, self.budget, &self.arrangement);
        self.steps += 1;
        for (mut running, tokens) in std::mem::take(&mut self.running).into_iter().zip(shares) {
            let (made, stop) = running.advance(tokens);
            if tokens > 0 {
                running.last_step = self.steps;
                progress.push(made);
            }
            match stop {
                None => self.running.push(running),
                Some(stop) => ended.push(Event::Finished {
                    sequence: running.id,
                    stop,
                }),
            }
        }
        if !progress.is_empty() {
            self.events.push(Event::Stepped(StepReport {
                executor: self.executor,
                incarnation: self.incarnation,
                progress,
            }));
        }
        self.events.append(&mut ended);
        self.report()
    }

    /// Takes the commands that have come, fails a running request, and reports.
    pub fn fail(&mut self, request: RequestId, retry: RetryClass) -> Events {
        self.obey();
        let running = self.running.iter();
        let at = running
            .map(|running| running.id.request)
            .position(|id| id == request);
        let failed = self.running.remove(at.expect("the request runs"));
        self.events.push(Event::Failed {
            sequence: failed.id,
            retry,
            why: "the test says so".to_owned(),
            state: Some(Box::new(failed.sequence)),
        });
        self.report()
    }

    /// Takes the commands that have come, loses all that runs, and reports. The next life begins.
    pub fn lose(&mut self) -> Events {
        self.obey();
        self.running.clear();
        let why = "the test says so".to_owned();
        self.events.push(Event::Lost { why });
        let events = self.report();
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        events
    }

    fn report(&mut self) -> Events {
        Events {
            executor: self.executor,
            incarnation: self.incarnation,
            list: std::mem::take(&mut self.events),
        }
    }

    fn obey(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Start(start) => self.start(*start),
                Command::Grant { sequence, blocks } => {
                    let mut running = self.running.iter_mut();
                    if let Some(running) = running.find(|running| running.id == sequence) {
                        running.blocks.extend(blocks);
                    }
                }
                Command::Evict {
                    sequence,
                    host_blocks,
                } => self.leave(sequence, host_blocks.len()),
                Command::Cancel(sequence) => self.leave(sequence, 0),
                Command::SetBudget { tokens_max } => self.budget = tokens_max as usize,
                Command::Arrange(arrangement) => self.arrangement = arrangement,
                Command::Load(_) | Command::Configure { .. } => {}
            }
        }
    }

    fn start(&mut self, start: Start) {
        let id = start.order.sequence;
        if (id.executor, id.incarnation) != (self.executor, self.incarnation) {
            return;
        }
        let prompt_tokens = start.sequence.tokens.len();
        self.events.push(Event::Started(id));
        self.running.push(ScriptedSequence {
            id,
            prompt_tokens,
            in_kv: (start.order.cached_tokens as usize).min(prompt_tokens - 1),
            output_tokens_left: start.output_tokens_left() as usize,
            sequence: start.sequence,
            blocks: start.order.blocks,
            last_step: self.steps,
        });
    }

    /// Has a sequence leave, for so many blocks of host memory.
    fn leave(&mut self, sequence: SequenceRef, host_blocks: usize) {
        if let Some(at) = self
            .running
            .iter()
            .position(|running| running.id == sequence)
        {
            let running = self.running.remove(at);
            let swapped_tokens = running.in_kv.min(host_blocks * self.tokens_per_block);
            self.events.push(Event::Left {
                sequence,
                state: Box::new(running.sequence),
                swapped_tokens: u32::try_from(swapped_tokens).unwrap(),
            });
        }
    }
}

// === impl ScriptedSequence ===

impl ScriptedSequence {
    fn need(&self, tokens_per_block: usize) -> Need {
        let room = self.blocks.len() * tokens_per_block - self.in_kv;
        Need {
            request: self.id.request,
            tokens: room.min(self.sequence.tokens.len() - self.in_kv),
            is_prompt: self.in_kv < self.prompt_tokens,
            last_step: self.last_step,
        }
    }

    /// Computes `tokens` tokens, and generates one if no other is left to compute. Returns a reason
    /// if generation ends with it.
    fn advance(&mut self, tokens: usize) -> (Progress, Option<StopReason>) {
        let prompt_left = self.prompt_tokens.saturating_sub(self.in_kv);
        let mut progress = Progress {
            request: self.id.request,
            prefilled: u32::try_from(tokens.min(prompt_left)).unwrap(),
            generated: 0,
        };
        self.in_kv += tokens;
        if tokens == 0 || self.in_kv < self.sequence.tokens.len() {
            return (progress, None);
        }
        if self.sequence.job.is_to_embed() {
            self.sequence
                .deliver_embedding(embedding(&self.sequence.tokens));
            return (progress, Some(StopReason::Stop));
        }
        progress.generated = 1;
        self.output_tokens_left -= 1;
        let token = next_token(&self.sequence.job, &self.sequence.tokens);
        let accepted = self.sequence.accept(token, self.output_tokens_left, &Words);
        let stop = accepted.expect("each token has a word");
        match stop {
            None => self.sequence.deliver_text(),
            Some(_) => self.sequence.deliver(stop),
        }
        (progress, stop)
    }
}

/// Returns the token that a scripted executor generates after `tokens`: any function that scatters.
fn next_token(job: &Job, tokens: &[u32]) -> u32 {
    let seed = if job.sampling == Sampling::GREEDY {
        0
    } else {
        job.sampling.seed
    };
    let scattered = tokens.iter().fold(seed, |all, token| {
        let all = all.rotate_left(29) ^ u64::from(*token);
        all.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    u32::try_from(scattered >> 58).unwrap()
}

/// Returns the embedding that a scripted executor makes of `tokens`: of any length but 1.
fn embedding(tokens: &[u32]) -> Vec<f32> {
    let numbers = tokens.iter().map(|token| *token as f32);
    vec![numbers.sum(), tokens.len() as f32]
}

/// The text of the tokens: a word each, but for the end of sequence.
struct Words;

const EOS: u32 = 0;
const WORDS: [&str; 7] = ["a", " b", "ab", "é", " 東", "aab", "."];

impl Detokenizer for Words {
    fn decode(&self, ids: &[u32]) -> Result<String, DecodeError> {
        let words = ids.iter().filter(|id| !self.is_special(**id));
        Ok(words.map(|id| WORDS[*id as usize % WORDS.len()]).collect())
    }

    fn is_special(&self, id: u32) -> bool {
        id == EOS
    }

    fn special_text(&self, id: u32) -> String {
        if self.is_special(id) {
            return "<end>".to_owned();
        }
        String::new()
    }

    fn eos(&self) -> &[u32] {
        &[EOS]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::delivery;
    use crate::test_util::{
        EXECUTOR, ExecutorUnderTest, FIRST_LIFE, WholeAnswer, answer_alone, job, reference, start,
    };

    struct Subject {
        scripted: ScriptedExecutor,
        commands: mpsc::Sender<Command>,
    }

    impl Subject {
        fn new() -> Self {
            let (scripted, commands) = ScriptedExecutor::new(EXECUTOR, FIRST_LIFE, 4);
            Self { scripted, commands }
        }
    }

    impl ExecutorUnderTest for Subject {
        fn send(&mut self, command: Command) {
            self.commands.try_send(command).unwrap();
        }

        fn events(&mut self) -> Events {
            self.scripted.step()
        }

        fn is_stepped(&self) -> bool {
            true
        }

        fn tokens_per_block(&self) -> u32 {
            4
        }

        fn blocks_total(&self) -> u32 {
            48
        }

        fn host_blocks(&self) -> u32 {
            30
        }

        fn alone(&self, job: &Job) -> WholeAnswer {
            if job.is_to_embed() {
                return WholeAnswer::embedded(embedding(&job.prompt));
            }
            answer_alone(job, &Words, u32::MAX, |tokens| next_token(job, tokens))
        }

        fn prompts_that_end(&self) -> Vec<Vec<u32>> {
            let prompts = (20..).map(|id| vec![id]);
            let ending = prompts.filter(|p| self.alone(&job(p, 60)).stop == StopReason::Stop);
            ending.take(3).collect()
        }
    }

    crate::contract_suite!(scripted_executor, Subject::new(), 30);

    fn command(request: u64, incarnation: Incarnation) -> Command {
        let name = SequenceRef {
            incarnation,
            ..reference(RequestId(request))
        };
        let job = Arc::new(job(&[30, 31], 5));
        let (sink, _closing, _deliveries) = delivery::channel(job.output_tokens_max);
        let sequence = JobState::new(job, sink);
        Command::Start(Box::new(start(name, sequence, vec![BlockId(0)])))
    }

    #[test]
    fn a_request_that_is_to_fail_comes_back_with_what_it_generated() {
        let mut subject = Subject::new();
        subject.send(command(1, FIRST_LIFE));
        drop(subject.scripted.step());
        let events = subject.scripted.fail(RequestId(1), RetryClass::Elsewhere);
        let [
            Event::Failed {
                sequence,
                state: Some(state),
                ..
            },
        ] = &events.list[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(*sequence, reference(RequestId(1)));
        assert_eq!(state.generated().len(), 1);
        assert!(subject.scripted.step().list.is_empty());
    }

    #[test]
    fn commands_for_the_life_that_was_lost_change_nothing() {
        let mut subject = Subject::new();
        subject.send(command(1, FIRST_LIFE));
        let lost = subject.scripted.lose();
        assert_eq!(lost.incarnation, FIRST_LIFE);
        assert!(matches!(
            lost.list[..],
            [Event::Started(_), Event::Lost { .. }]
        ));
        let next = Incarnation(FIRST_LIFE.0 + 1);
        subject.send(command(2, FIRST_LIFE));
        subject.send(command(3, next));
        let events = subject.scripted.step();
        assert_eq!(events.incarnation, next);
        let [Event::Started(started), Event::Stepped(_)] = &events.list[..] else {
            panic!("{events:?}")
        };
        assert_eq!(started.request, RequestId(3));
    }
}
