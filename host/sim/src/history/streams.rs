//! The work of a server elsewhere, which tells of no step: what it did from one report of a stream to the
//! next.
//!
//! First tokens and ends are told at once, and all tokens now and then. In between a sequence gets a
//! token with each step, so n tokens took n steps; in them were the prompts whose first tokens came
//! meanwhile, and the tokens of the streams beside it, which are spread evenly between their own reports.
//! A prompt that came to an idle server is a step by itself.
//!
//! Steps with a prompt take longer, so tokens are spread over the time without what prompts take. How long
//! that is comes from the speed that is fitted to the spread before, which at first takes prompts for nothing.

use std::collections::BTreeMap;

use pointsman_core::{Micros, Progress, RequestId};

use super::worked::Prompts;
use crate::latency::{LinearCost, LinearFit, StepWork, TimedWork};
use crate::numbers::{float, from_millis, whole};

/// Times that tokens are spread anew, at most. Few are needed until they stay where they are: two in the
/// journals of the tests.
const SPREADS_MAX: usize = 6;

/// The watch over a server's reports.
#[derive(Debug, Default)]
pub(super) struct Streams {
    running: BTreeMap<RequestId, Stream>,
    over: Vec<Stream>,
}

/// The time that is left of a server's once what prompts took is taken out.
#[derive(Debug)]
struct Rest {
    /// The times that prompts took, in order, each with the sum of those before it in microseconds.
    taken: Vec<(Micros, Micros, u64)>,
}

/// A sequence at a server.
#[derive(Clone, Debug)]
struct Stream {
    request: RequestId,
    /// Tokens of its answer that it came with, from elsewhere.
    carried: u32,
    started: Micros,
    /// True if nothing else was there when it started, nor came before its first token.
    is_alone: bool,
    /// The tokens it had got by the time of each report.
    told: Vec<(Micros, u32)>,
}

impl Streams {
    /// A sequence was taken up.
    pub(super) fn started(&mut self, now: Micros, request: RequestId, carried: u32) {
        for other in self.running.values_mut().filter(|it| it.told.is_empty()) {
            other.is_alone = false;
        }
        let stream = Stream {
            request,
            carried,
            started: now,
            is_alone: self.running.is_empty(),
            told: Vec::new(),
        };
        self.running.insert(request, stream);
    }

    /// A sequence is there no more.
    pub(super) fn left(&mut self, request: RequestId) {
        let stream = self.running.remove(&request);
        self.over.extend(stream.filter(Stream::has_begun));
    }

    /// Reports are missing, or all sequences are lost.
    pub(super) fn interrupted(&mut self) {
        let begun = std::mem::take(&mut self.running).into_values();
        self.over.extend(begun.filter(Stream::has_begun));
    }

    /// Sequences have got tokens.
    pub(super) fn stepped(&mut self, now: Micros, progress: &[Progress]) {
        for made in progress.iter().filter(|made| made.generated > 0) {
            if let Some(stream) = self.running.get_mut(&made.request) {
                let before = stream.tokens();
                stream.told.push((now, before + made.generated));
            }
        }
    }

    /// The streams in order of their first tokens.
    fn in_order(&self) -> Vec<&Stream> {
        let begun = self.running.values().filter(|it| it.has_begun());
        let mut all: Vec<&Stream> = self.over.iter().chain(begun).collect();
        all.sort_by_key(|stream| (stream.first(), stream.request));
        all
    }

    /// The times and their work. `prompts` says what is known of a request's.
    pub(super) fn times(&self, prompts: &Prompts<'_>) -> Vec<TimedWork> {
        let all = self.in_order();
        let mut times = spread(&all, &Rest { taken: Vec::new() }, prompts);
        for _ in 0..SPREADS_MAX {
            let Some(fit) = LinearFit::of(&times) else {
                break;
            };
            let anew = spread(&all, &Rest::of(&all, &fit.cost, prompts), prompts);
            if anew == times {
                break;
            }
            times = anew;
        }
        times
    }

    /// The time in which there was work, the prompt tokens that were computed, and the tokens that were
    /// generated.
    pub(super) fn done(&self, prompts: &Prompts<'_>) -> (Micros, u64, u64) {
        let mut all = self.in_order();
        all.sort_by_key(|stream| (stream.started, stream.request));
        let (mut busy, mut until) = (Micros(0), Micros(0));
        let (mut prefilled, mut generated) = (0, 0);
        for stream in all {
            let from = stream.started.max(until);
            busy = busy.after(stream.last().since(from));
            until = until.max(stream.last());
            prefilled += stream.computed(prompts);
            generated += u64::from(stream.tokens());
        }
        (busy, prefilled, generated)
    }
}

/// The times of these streams, in order of their first tokens, and the work in them.
fn spread(all: &[&Stream], rest: &Rest, prompts: &Prompts<'_>) -> Vec<TimedWork> {
    let mut times = Vec::new();
    // Those that began before and go on.
    let mut beside: Vec<&Stream> = Vec::new();
    for (at, stream) in all.iter().enumerate() {
        times.extend(stream.alone(prompts));
        beside.retain(|other| other.last() > stream.first());
        let meanwhile = all[at..].iter();
        let meanwhile = meanwhile.take_while(|other| other.first() <= stream.last());
        let others: Vec<&Stream> = beside.iter().chain(meanwhile).copied().collect();
        for pair in stream.told.windows(2) {
            let [(from, before), (to, after)] = *pair else {
                continue;
            };
            times.push(TimedWork {
                took: to.since(from),
                steps: u64::from(after - before),
                work: work(&others, (from, to), (rest, prompts)),
            });
        }
        beside.push(stream);
    }
    times
}

/// The work of these streams after one time and up to another.
fn work(
    streams: &[&Stream],
    (from, to): (Micros, Micros),
    (rest, prompts): (&Rest, &Prompts<'_>),
) -> StepWork {
    let mut work = StepWork::default();
    for stream in streams {
        if stream.first() > from && stream.first() <= to {
            stream.prefill(&mut work, prompts);
        }
        let (before, after) = (stream.tokens_at(from, rest), stream.tokens_at(to, rest));
        let (tokens, context) = (after - before, stream.prompt(prompts) + before);
        work.decodes += tokens;
        work.decode_context += tokens * context + tokens * tokens.saturating_sub(1) / 2;
    }
    work
}

// === impl Rest ===

impl Rest {
    /// The rest beside the prompts of these streams, in order of their first tokens, at this speed. A
    /// prompt ends with its first token; those that end together took their times one after the other.
    fn of(all: &[&Stream], cost: &LinearCost, prompts: &Prompts<'_>) -> Self {
        let mut taken: Vec<(Micros, Micros, u64)> = Vec::new();
        let (mut until, mut before) = (Micros(0), 0);
        for together in all.chunk_by(|one, other| one.first() == other.first()) {
            let mut work = StepWork::default();
            for stream in together {
                stream.prefill(&mut work, prompts);
            }
            let to = together.first().map_or(until, |stream| stream.first());
            let took = cost.prefill_token_ms * float(work.prefill_tokens)
                + cost.prefill_pair_ms * float(work.prefill_context);
            let from = Micros(to.0.saturating_sub(from_millis(took).0)).max(until);
            taken.push((from, to, before));
            before += to.since(from).0;
            until = to;
        }
        Self { taken }
    }

    /// The rest of the time up to this one, in microseconds.
    fn at(&self, at: Micros) -> u64 {
        let next = self.taken.partition_point(|(from, ..)| *from < at);
        let last = next.checked_sub(1).and_then(|last| self.taken.get(last));
        last.map_or(at.0, |(from, to, before)| {
            at.0 - before - at.min(*to).since(*from).0
        })
    }
}

impl Stream {
    fn has_begun(&self) -> bool {
        !self.told.is_empty()
    }

    fn first(&self) -> Micros {
        self.told.first().map_or(self.started, |(at, _)| *at)
    }

    fn last(&self) -> Micros {
        self.told.last().map_or(self.started, |(at, _)| *at)
    }

    fn tokens(&self) -> u32 {
        self.told.last().map_or(0, |(_, tokens)| *tokens)
    }

    /// The tokens it had got by a time, spread evenly over the rest between two reports.
    fn tokens_at(&self, at: Micros, rest: &Rest) -> u64 {
        let next = self.told.partition_point(|(told, _)| *told <= at);
        let Some((from, before)) = next.checked_sub(1).and_then(|last| self.told.get(last)) else {
            return 0;
        };
        let Some((to, after)) = self.told.get(next) else {
            return u64::from(*before);
        };
        let (begun, ended) = (rest.at(*from), rest.at(*to));
        let share = float(rest.at(at) - begun) / float((ended - begun).max(1));
        u64::from(*before) + whole(f64::from(after - before) * share)
    }

    /// Tokens of all that it began with.
    fn prompt(&self, prompts: &Prompts<'_>) -> u64 {
        u64::from(prompts(self.request).tokens) + u64::from(self.carried)
    }

    /// Tokens of that which were not cached.
    fn computed(&self, prompts: &Prompts<'_>) -> u64 {
        let cached = u64::from(prompts(self.request).cached);
        self.prompt(prompts).saturating_sub(cached)
    }

    fn prefill(&self, work: &mut StepWork, prompts: &Prompts<'_>) {
        let tokens = self.computed(prompts);
        let before = self.prompt(prompts) - tokens;
        work.prefill_tokens += tokens;
        work.prefill_context += tokens * before + tokens * tokens / 2;
    }

    /// The step of its prompt, if that was all that the server had to do.
    fn alone(&self, prompts: &Prompts<'_>) -> Option<TimedWork> {
        if !self.is_alone {
            return None;
        }
        let mut work = StepWork {
            decodes: 1,
            decode_context: self.prompt(prompts),
            ..StepWork::default()
        };
        self.prefill(&mut work, prompts);
        Some(TimedWork {
            took: self.first().since(self.started),
            steps: 1,
            work,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::worked::Prompt;
    use super::*;

    fn got(request: u64, generated: u32) -> Progress {
        Progress {
            request: RequestId(request),
            prefilled: 0,
            generated,
        }
    }

    #[test]
    fn a_stream_lasts_as_many_steps_as_it_has_tokens_after_the_first() {
        let mut server = Streams::default();
        server.started(Micros(0), RequestId(1), 0);
        server.stepped(Micros(40), &[got(1, 1)]);
        server.started(Micros(50), RequestId(2), 0);
        server.stepped(Micros(240), &[got(2, 1)]);
        server.stepped(Micros(300), &[got(1, 20)]);
        server.stepped(Micros(440), &[got(1, 20), got(2, 20)]);
        server.left(RequestId(1));
        server.left(RequestId(2));
        let prompts = |request| match request {
            RequestId(2) => Prompt {
                tokens: 60,
                cached: 16,
            },
            _ => Prompt {
                tokens: 100,
                cached: 0,
            },
        };
        let times = server.times(&prompts);
        let found = |at: usize| {
            let timed: &TimedWork = &times[at];
            let work = &timed.work;
            (timed.took.0, timed.steps, work.prefill_tokens, work.decodes)
        };
        assert_eq!(times.len(), 4);
        // The prompt of an idle server.
        assert_eq!(found(0), (40, 1, 100, 1));
        // The first stream's reports: the second's prompt and some of its tokens are in between.
        assert_eq!(found(1), (260, 20, 44, 20 + 1 + 6));
        assert_eq!(found(2), (140, 20, 0, 20 + 14));
        // In the second's 20 steps are the first's tokens that came meanwhile.
        assert_eq!(found(3), (200, 20, 0, 20 + 25));
        assert_eq!(server.done(&prompts), (Micros(440), 144, 62));
    }

    #[test]
    fn the_prompt_of_a_busy_server_is_no_step_by_itself() {
        let mut server = Streams::default();
        server.started(Micros(0), RequestId(1), 0);
        server.started(Micros(10), RequestId(2), 0);
        server.stepped(Micros(40), &[got(1, 1), got(2, 1)]);
        server.interrupted();
        assert_eq!(server.times(&|_| Prompt::default()), []);
    }
}
