//! The work of an engine in the host, which reports each step: the time of each, and what was in it.

use std::collections::BTreeMap;

use pointsman_core::{Micros, Progress, RequestId};

use super::worked::Prompts;
use crate::latency::TimedWork;

/// Reports that follow each other as fast were taken in together: no step is as short.
const TOGETHER: Micros = Micros(100);
/// Steps are put together to times of this length, against which the grain of the driver's clock and
/// its turns are small.
const LEAST: Micros = Micros(1000);

/// The watch over an engine's reports.
#[derive(Debug, Default)]
pub(super) struct Steps {
    running: BTreeMap<RequestId, Running>,
    /// The beginning of the time that lasts; absent: the engine is idle, or it is not known for how
    /// long it has engine.
    since: Option<Micros>,
    open: Stretch,
    stretches: Vec<Stretch>,
}

/// A sequence at the executor.
#[derive(Clone, Copy, Debug)]
struct Running {
    /// Tokens of its answer that it came with, from elsewhere.
    carried: u32,
    prefilled: u32,
    generated: u32,
}

/// A time with its work, as long as nothing is known of the prompts.
#[derive(Clone, Debug, Default)]
struct Stretch {
    took: Micros,
    until: Micros,
    steps: u64,
    decodes: Vec<Decode>,
    prefills: Vec<Prefill>,
}

/// Tokens that one sequence got.
#[derive(Clone, Copy, Debug)]
struct Decode {
    request: RequestId,
    tokens: u32,
    /// Tokens of its answer before them.
    before: u32,
}

/// A part of a prompt that was computed.
#[derive(Clone, Copy, Debug)]
struct Prefill {
    request: RequestId,
    tokens: u32,
    /// Tokens of the prompt that were computed before it.
    before: u32,
}

impl Steps {
    /// An order went out to take up a sequence. An engine without work is busy from then on.
    pub(super) fn ordered(&mut self, now: Micros) {
        if self.running.is_empty() && self.since.is_none() {
            self.begin(Some(now));
        }
    }

    /// A sequence was taken up.
    pub(super) fn started(&mut self, now: Micros, request: RequestId, carried: u32) {
        self.ordered(now);
        let running = Running {
            carried,
            prefilled: 0,
            generated: 0,
        };
        self.running.insert(request, running);
    }

    /// A sequence is there no more.
    pub(super) fn left(&mut self, request: RequestId) {
        self.running.remove(&request);
        if self.running.is_empty() {
            self.begin(None);
        }
    }

    /// Reports are missing, or all sequences are lost.
    pub(super) fn interrupted(&mut self) {
        self.running.clear();
        self.begin(None);
    }

    fn begin(&mut self, since: Option<Micros>) {
        self.since = since;
        self.open = Stretch::default();
    }

    /// The engine made a step.
    pub(super) fn stepped(&mut self, now: Micros, progress: &[Progress]) {
        for made in progress {
            let Some(running) = self.running.get_mut(&made.request) else {
                // It was there before the record began, so nothing is known of its share.
                self.begin(None);
                continue;
            };
            if made.prefilled > 0 {
                self.open.prefills.push(Prefill {
                    request: made.request,
                    tokens: made.prefilled,
                    before: running.prefilled,
                });
            }
            running.take(made, &mut self.open);
        }
        self.open.steps += 1;
        self.close(now);
    }

    /// Ends the time that lasts. What comes on the heels of the last report is of the time before: the
    /// driver took in several reports together.
    fn close(&mut self, now: Micros) {
        if let Some(since) = self.since {
            let took = now.since(since);
            let open = std::mem::take(&mut self.open);
            match self.stretches.last_mut() {
                Some(last) if last.until == since && last.is_followed_by(took) => {
                    last.absorb(open, now);
                }
                Some(_) | None => self.stretches.push(Stretch {
                    took,
                    until: now,
                    ..open
                }),
            }
        }
        self.begin(Some(now));
    }

    /// The times and their work. `prompts` says what is known of a request's.
    pub(super) fn times(&self, prompts: &Prompts<'_>) -> Vec<TimedWork> {
        let timed = |stretch: &Stretch| {
            let mut timed = TimedWork {
                took: stretch.took,
                steps: stretch.steps,
                ..TimedWork::default()
            };
            for part in &stretch.decodes {
                let tokens = u64::from(part.tokens);
                let prompt = u64::from(prompts(part.request).tokens);
                // The first of them reads the tokens before it, and each further one a token more.
                let first = prompt + u64::from(part.before);
                timed.work.decodes += tokens;
                timed.work.decode_context += tokens * first + tokens * tokens.saturating_sub(1) / 2;
            }
            for part in &stretch.prefills {
                let tokens = u64::from(part.tokens);
                let before = u64::from(part.before) + u64::from(prompts(part.request).cached);
                timed.work.prefill_tokens += tokens;
                timed.work.prefill_context += tokens * before + tokens * tokens / 2;
            }
            timed
        };
        self.stretches.iter().map(timed).collect()
    }

    /// The time in which there was work, the prompt tokens that were computed, and the tokens that were
    /// generated.
    pub(super) fn done(&self, prompts: &Prompts<'_>) -> (Micros, u64, u64) {
        let times = self.times(prompts).into_iter();
        times.fold((Micros(0), 0, 0), |(busy, prefilled, generated), timed| {
            let work = timed.work;
            (
                busy.after(timed.took),
                prefilled + work.prefill_tokens,
                generated + work.decodes,
            )
        })
    }
}

impl Stretch {
    /// True if what took so long after it belongs to it.
    fn is_followed_by(&self, took: Micros) -> bool {
        took < TOGETHER || self.took.after(took) < LEAST
    }

    fn absorb(&mut self, other: Stretch, now: Micros) {
        self.took = self.took.after(now.since(self.until));
        self.until = now;
        self.steps += other.steps;
        self.decodes.extend(other.decodes);
        self.prefills.extend(other.prefills);
    }
}

impl Running {
    fn take(&mut self, made: &Progress, stretch: &mut Stretch) {
        self.prefilled += made.prefilled;
        if made.generated > 0 {
            stretch.decodes.push(Decode {
                request: made.request,
                tokens: made.generated,
                before: self.carried + self.generated,
            });
        }
        self.generated += made.generated;
    }
}

#[cfg(test)]
mod tests {
    use super::super::worked::Prompt;
    use super::*;

    /// Prompts of 30 tokens, of which the first request's has ten in the cache.
    fn prompts(request: RequestId) -> Prompt {
        let cached = if request == RequestId(1) { 10 } else { 0 };
        Prompt { tokens: 30, cached }
    }

    fn made(request: u64, prefilled: u32, generated: u32) -> Progress {
        Progress {
            request: RequestId(request),
            prefilled,
            generated,
        }
    }

    #[test]
    fn each_step_is_a_time_and_idle_time_is_none() {
        let mut engine = Steps::default();
        engine.started(Micros(1000), RequestId(1), 0);
        engine.stepped(Micros(6000), &[made(1, 20, 1)]);
        engine.stepped(Micros(8000), &[made(1, 0, 1)]);
        engine.left(RequestId(1));
        engine.started(Micros(90_000), RequestId(2), 0);
        engine.stepped(Micros(94_000), &[made(2, 30, 1)]);
        let times = engine.times(&prompts);
        let took: Vec<u64> = times.iter().map(|it| it.took.0).collect();
        assert_eq!(took, [5000, 2000, 4000]);
        let first = times[0].work;
        assert_eq!((first.prefill_tokens, first.prefill_context), (20, 400));
        assert_eq!((first.decodes, first.decode_context), (1, 30));
        assert_eq!(times[1].work.decode_context, 31);
        assert_eq!(engine.done(&prompts), (Micros(11_000), 50, 3));
    }

    #[test]
    fn steps_that_are_told_together_are_of_the_time_before() {
        let mut engine = Steps::default();
        engine.started(Micros(0), RequestId(1), 0);
        engine.stepped(Micros(5000), &[made(1, 30, 1)]);
        engine.stepped(Micros(5002), &[made(1, 0, 1)]);
        engine.stepped(Micros(5070), &[made(1, 0, 1)]);
        engine.stepped(Micros(9000), &[made(1, 0, 1)]);
        let times = engine.times(&prompts);
        let found: Vec<_> = times.iter().map(|it| (it.took.0, it.steps)).collect();
        assert_eq!(found, [(5070, 3), (3930, 1)]);
        assert_eq!(times[0].work.decodes, 3);
    }

    #[test]
    fn short_steps_are_put_together() {
        let mut engine = Steps::default();
        engine.started(Micros(0), RequestId(1), 0);
        for step in 1..=10 {
            engine.stepped(Micros(step * 300), &[made(1, 0, 1)]);
        }
        let times = engine.times(&prompts);
        let found: Vec<_> = times.iter().map(|it| (it.took.0, it.steps)).collect();
        assert_eq!(found, [(900, 3), (900, 3), (900, 3), (300, 1)]);
    }

    #[test]
    fn what_was_there_before_the_record_is_not_counted() {
        let mut engine = Steps::default();
        engine.stepped(Micros(4000), &[made(1, 100, 1)]);
        engine.started(Micros(5000), RequestId(2), 0);
        engine.stepped(Micros(9000), &[made(1, 0, 1), made(2, 60, 1)]);
        assert_eq!(engine.times(&prompts), []);
    }
}
