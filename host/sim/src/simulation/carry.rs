//! The machine's orders, carried out; and what executors say, told to the machine.

use pointsman_core::rows::Health;
use pointsman_core::{
    Effect, ExecutorId, ExecutorUpdate, Input, Kept, Micros, Outcome, Policies, PromptCount,
    RequestId, RetryClass, SequenceRef, StepReport,
};

use super::Simulation;
use super::failures::Failure;
use super::requests::ToStart;
use crate::executor::{Report, Start, Station};
use crate::numbers::narrow_len;
use crate::workload::Workload;

impl Station {
    /// The name of a sequence that runs here.
    fn sequence(&self, request: RequestId) -> SequenceRef {
        SequenceRef {
            request,
            executor: self.id,
            incarnation: self.incarnation,
        }
    }
}

// === impl Simulation: orders ===

impl<P: Policies, W: Workload> Simulation<P, W> {
    /// Carries out what the machine orders, and counts what happened in it.
    pub(super) fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out_one(effect);
        }
        while let Some(fact) = self.machine.poll_fact() {
            self.measures.host.count(&fact);
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Start(order) => self.start(order),
            Effect::Grant { sequence, blocks } => {
                if let Some(idx) = self.station_of(sequence) {
                    self.stations[idx].work.grant(sequence.request, &blocks);
                    self.touched.insert(idx);
                }
            }
            Effect::Evict { sequence, .. } | Effect::Cancel(sequence) => self.stop(sequence),
            Effect::SetBudget {
                executor,
                tokens_max,
            } => {
                if let Some(idx) = self.station(executor) {
                    self.stations[idx].work.set_budget(tokens_max);
                    self.touched.insert(idx);
                }
            }
            Effect::Arrange {
                executor,
                arrangement,
            } => {
                if let Some(idx) = self.station(executor) {
                    self.stations[idx].work.arrange(arrangement);
                }
            }
            Effect::Finish { request, outcome } => {
                self.remember_session(request, outcome);
                let ticket = self.requests.end(request, outcome, self.now);
                if let Some(ticket) = ticket {
                    self.workload.ended(ticket, self.now);
                }
            }
            Effect::Detached { .. } => {}
        }
    }

    /// Notes the executor that served a session, at the end of an answer.
    fn remember_session(&mut self, request: RequestId, outcome: Outcome) {
        if let Outcome::Finished { .. } = outcome
            && let Some(served) = self.requests.served_of_session(request)
        {
            let executor = self.stations[served.station].id;
            let by = (executor, served.model);
            self.sessions.served(self.now, served.session, by);
        }
    }

    fn start(&mut self, order: pointsman_core::StartOrder) {
        let (sequence, request) = (order.sequence, order.sequence.request);
        let Some(idx) = self.station_of(sequence) else {
            return;
        };
        let executor = narrow_len(idx);
        let block = self.stations[idx].tokens_per_block;
        let Some(ToStart {
            prompt,
            output_tokens,
            last_token_at,
            attempt,
        }) = self.requests.start(request, executor, block, self.now)
        else {
            return;
        };
        let start = Start {
            order,
            prompt,
            output_tokens,
            last_token_at,
        };
        self.edit(idx, |station, now| station.start(now, start));
        self.failures.note_start((request, attempt), idx, self.now);
        self.tell(Input::SequenceStarted(sequence));
        // An executor without work begins with the first that it gets.
        self.begin_spell(idx);
    }

    fn stop(&mut self, sequence: SequenceRef) {
        let Some(idx) = self.station_of(sequence) else {
            return;
        };
        let has_left = self.edit(idx, |station, now| station.stop(now, sequence.request));
        self.requests.displace(sequence.request);
        if has_left {
            self.tell(Input::SequenceLeft(sequence, 0));
        }
    }

    /// Changes a station, which may have something to begin then.
    fn edit<T>(&mut self, idx: usize, change: impl FnOnce(&mut Station, Micros) -> T) -> T {
        let before = self.stations[idx].next_at();
        let done = change(&mut self.stations[idx], self.now);
        self.reschedule(idx, before);
        self.touched.insert(idx);
        done
    }

    fn tell(&mut self, input: Input) {
        self.machine.handle(self.now, input);
    }

    /// The place of an executor; executors are numbered as they were attached.
    fn station(&self, executor: ExecutorId) -> Option<usize> {
        let found = self
            .stations
            .binary_search_by_key(&executor, |station| station.id);
        found.ok()
    }

    /// The place of a sequence's executor, if it is in the same life.
    fn station_of(&self, sequence: SequenceRef) -> Option<usize> {
        let idx = self.station(sequence.executor)?;
        (self.stations[idx].incarnation == sequence.incarnation).then_some(idx)
    }
}

// === impl Simulation: reports ===

impl<P: Policies, W: Workload> Simulation<P, W> {
    pub(super) fn end_spell(&mut self, idx: usize) {
        let mut report = Report::default();
        self.stations[idx].end(self.now, &mut report);
        while let Some(event) = self.stations[idx].take_news(self.now) {
            let tier = pointsman_core::Tier::Device(self.stations[idx].device);
            self.tell(Input::PrefixesReported(tier, event));
        }
        self.take_report(idx, report);
        self.reschedule(idx, None);
    }

    pub(super) fn begin_spell(&mut self, idx: usize) {
        let mut report = Report::default();
        let before = self.stations[idx].next_at();
        self.stations[idx].begin(self.now, &mut report);
        self.take_report(idx, report);
        self.reschedule(idx, before);
    }

    fn take_report(&mut self, idx: usize, report: Report) {
        let measures = &mut self.measures;
        let executor = &mut measures.executors[idx];
        executor.prefill_tokens += report.prefill_tokens;
        executor.decode_tokens += report.decode_tokens;
        executor.recomputed += u64::from(report.recomputed);
        measures.series.gaps(self.now, &report.gaps);
        for gap in &report.gaps {
            measures.gaps.add(*gap);
        }
        for first in &report.first {
            if let Some(ttft) = self.requests.first_token(*first, self.now) {
                measures.series.first_token(self.now, ttft);
            }
        }
        self.tell_report(idx, report);
    }

    fn tell_report(&mut self, idx: usize, report: Report) {
        for made in &report.progress {
            self.requests.progress(*made, self.now);
        }
        let station = &self.stations[idx];
        let (executor, incarnation, device) = (station.id, station.incarnation, station.device);
        let of = |request| SequenceRef {
            request,
            executor,
            incarnation,
        };
        if let Some(kv) = report.kv {
            self.tell(Input::KvReported(device, kv));
        }
        if !report.progress.is_empty() {
            self.tell(Input::StepFinished(StepReport {
                executor,
                incarnation,
                progress: report.progress,
            }));
        }
        for finished in report.finished {
            let sequence = of(finished.request);
            if let Some(cached) = finished.cached_tokens {
                let tokens = self.requests.prompt_tokens(finished.request);
                let count = PromptCount { tokens, cached };
                self.tell(Input::PromptCounted(sequence, count));
            }
            self.requests.displace(finished.request);
            self.tell(Input::SequenceFinished(sequence));
        }
        for request in report.left {
            self.tell(Input::SequenceLeft(of(request), 0));
        }
        for request in report.failed {
            self.requests.displace(request);
            let kept = self.requests.keep(request, 0, self.now);
            self.tell(Input::SequenceFailed {
                sequence: of(request),
                retry: RetryClass::Never,
                kept,
            });
        }
    }
}

// === impl Simulation: failures ===

impl<P: Policies, W: Workload> Simulation<P, W> {
    pub(super) fn fail_due(&mut self) {
        while let Some(failure) = self.failures.pop_due(self.now) {
            match failure {
                Failure::Dies(idx) => self.lose(idx),
                Failure::Returns(idx) => {
                    self.edit(idx, |station, _| station.is_down = false);
                    let executor = self.stations[idx].id;
                    let up = ExecutorUpdate::Health(Health::Up);
                    self.tell(Input::ExecutorUpdated(executor, up));
                }
                Failure::Slows(idx) => {
                    let factor = self.failures.slow_factor();
                    self.stations[idx].work.slow_down(factor);
                }
                Failure::Recovers(idx) => self.stations[idx].work.slow_down(1.0),
                Failure::Fails(request, idx) => self.fail(request, idx),
                Failure::Leaves(request) => self.tell(Input::RequestCancelled(request)),
            }
        }
    }

    fn lose(&mut self, idx: usize) {
        let station = &self.stations[idx];
        let (executor, incarnation) = (station.id, station.incarnation);
        let untold = station.work.untold();
        let kept = untold.into_iter().map(|(request, untold)| Kept {
            request,
            generated: self.requests.keep(request, untold, self.now),
        });
        let kept: Vec<Kept> = kept.collect();
        for it in &kept {
            self.requests.displace(it.request);
        }
        self.edit(idx, |station, now| {
            station.die(now);
            station.is_down = true;
        });
        self.tell(Input::ExecutorLost {
            executor,
            incarnation,
            kept,
        });
    }

    /// Fails a placement, if the request is still there.
    fn fail(&mut self, request: RequestId, idx: usize) {
        let sequence = self.stations[idx].sequence(request);
        let untold = self.stations[idx].work.untold();
        let untold = untold.iter().find(|(other, _)| *other == request);
        let untold = untold.map_or(0, |(_, untold)| *untold);
        if self.edit(idx, |station, now| station.fail(now, request)) {
            self.requests.displace(request);
            let kept = self.requests.keep(request, untold, self.now);
            self.tell(Input::SequenceFailed {
                sequence,
                retry: RetryClass::Elsewhere,
                kept,
            });
        }
    }
}
