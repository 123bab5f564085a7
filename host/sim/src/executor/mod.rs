//! Executors of a simulation: what they have to do, and how long it takes them.
//!
//! | module | executor |
//! |---|---|
//! | `batched` | a server elsewhere that batches its requests and keeps its own KV blocks, as vLLM does |
//! | `each` | a server elsewhere whose requests do not wait for each other, as a mock server's do |
//! | `hosted` | an engine in the host, whose KV blocks are the machine's |
//!
//! An executor works in spells: a step, or a token of one request. It decides what is in a spell at
//! its beginning, and shows the results at its end.

mod batched;
mod blocks;
mod each;
mod hosted;
mod station;

use std::fmt;

use pointsman_core::{Arrangement, BlockId, KvReport, Micros, Progress, RequestId, StartOrder};

use batched::Batched;
use blocks::CacheNews;
pub(crate) use blocks::Contents;
use each::Each;
use hosted::Hosted;
pub(crate) use station::Station;

/// The time between two reports of tokens and of KV by a server elsewhere. A first token is told at
/// once, and so is the KV of a server that has become idle.
pub(crate) const REPORT_EVERY: Micros = Micros(500_000);

/// A sequence that an executor takes up.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) order: StartOrder,
    /// The full blocks of the prompt, of the executor's size.
    pub(crate) prompt: Vec<Contents>,
    /// Tokens that are left to generate, at least 1.
    pub(crate) output_tokens: u32,
    /// The time at which the client had its last token, from an earlier placement.
    pub(crate) last_token_at: Option<Micros>,
}

/// The results of a spell, for the machine and for the clients.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) progress: Vec<Progress>,
    /// First tokens of a placement.
    pub(crate) first: Vec<FirstToken>,
    /// Times between two tokens that clients saw.
    pub(crate) gaps: Vec<Micros>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) left: Vec<RequestId>,
    /// Sequences that the executor could never have room for.
    pub(crate) failed: Vec<RequestId>,
    pub(crate) cache: CacheNews,
    pub(crate) kv: Option<KvReport>,
    /// Sequences that lost their place to others and are computed anew.
    pub(crate) recomputed: u32,
    /// Tokens that were computed: prompts, and generated ones.
    pub(crate) prefill_tokens: u64,
    pub(crate) decode_tokens: u64,
}

/// The first token of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstToken {
    pub(crate) request: RequestId,
    /// Tokens of the prompt that were not computed.
    pub(crate) cached_tokens: u32,
}

/// The end of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) request: RequestId,
    /// Tokens of the prompt that were not computed, where only the executor knows.
    pub(crate) cached_tokens: Option<u32>,
}

/// The prompt and the answer of a sequence that is at work.
#[derive(Debug)]
struct Output {
    prompt_tokens: u32,
    generated: u32,
    /// Generated tokens that the machine was told of.
    reported: u32,
    /// Tokens that there are in the end.
    tokens: u32,
    last_token_at: Option<Micros>,
}

impl Output {
    fn new(start: &Start) -> Self {
        Self {
            prompt_tokens: start.order.prompt_tokens.max(1),
            generated: 0,
            reported: 0,
            tokens: start.output_tokens,
            last_token_at: start.last_token_at,
        }
    }

    fn is_done(&self) -> bool {
        self.generated >= self.tokens
    }

    fn untold(&self) -> u32 {
        self.generated - self.reported
    }

    /// Shows the next token to the client.
    fn show(&mut self, now: Micros, report: &mut Report) {
        self.generated += 1;
        report.decode_tokens += 1;
        let before = self.last_token_at.replace(now);
        report.gaps.extend(before.map(|before| now.since(before)));
    }

    /// Tells the machine of the tokens since it was last told. It takes the first one for the end of
    /// the prompt.
    fn tell(&mut self, request: RequestId, report: &mut Report) {
        let generated = self.untold();
        if generated > 0 {
            let is_first = self.reported == 0;
            report.progress.push(Progress {
                request,
                prefilled: if is_first { self.prompt_tokens } else { 0 },
                generated,
            });
            self.reported = self.generated;
        }
    }
}

/// The work of an executor.
pub(crate) trait Work: fmt::Debug {
    /// Takes a sequence up.
    fn start(&mut self, start: Start);

    /// Gives a running sequence more blocks. Only an engine in the host is given any, as only that is
    /// told how to spend its steps.
    fn grant(&mut self, _request: RequestId, _blocks: &[BlockId]) {}

    /// Stops a sequence. True if it has left at once; otherwise it is told when it has.
    fn stop(&mut self, request: RequestId) -> bool;

    /// Bounds the tokens of a step.
    fn set_budget(&mut self, _tokens_max: u32) {}

    /// Sets the order of prompts.
    fn arrange(&mut self, _arrangement: Arrangement) {}

    /// Loses all sequences and all that is cached.
    fn die(&mut self);

    /// Takes a sequence out, as a failure does. False if it is not there.
    fn fail(&mut self, request: RequestId) -> bool;

    /// Makes all that begins from now on take so many times as long.
    fn slow_down(&mut self, factor: f64);

    /// The end of the spell that lasts; absent: there is none.
    fn ends_at(&self) -> Option<Micros>;

    /// Ends the spell that is due.
    fn end(&mut self, now: Micros, report: &mut Report);

    /// Begins a spell, if there is work and none lasts.
    fn begin(&mut self, now: Micros, report: &mut Report);

    /// The sequences there, with the tokens that each has generated and the machine was not told
    /// of.
    fn untold(&self) -> Vec<(RequestId, u32)>;

    /// True if no sequence is there.
    fn is_idle(&self) -> bool;

    /// The counts of blocks, as a server tells them; absent: the machine keeps them.
    fn kv(&self) -> Option<KvReport>;
}
