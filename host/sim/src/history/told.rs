//! The parts of a simulation that a run which happened gives: workload, fleet, speeds, and the report
//! to compare with.

use std::collections::BTreeMap;

use pointsman_core::{Config, KvSpec, Micros, Outcome, RequestId, SessionKey};

use super::names::PastDevice;
use super::worked::Prompt;
use super::{History, Past};
use crate::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use crate::latency::{LatencyProfile, LinearCost, LinearFit, TimedWork};
use crate::measure::{ExecutorMeasures, Goodput, RequestRecord, RunReport};
use crate::workload::{Arrival, ClientBounds, Listed, PromptText, Roll};

/// Times that are too few to fit a speed to.
const SAMPLES_MIN: usize = 20;
/// The blocks of a server that never told how many it has.
const BLOCKS_UNTOLD: u32 = 16_384;
/// The size of blocks where there are none.
const TOKENS_PER_BLOCK: u32 = 16;
/// The tokens of a step of a server, which does not tell: as vLLM's default.
const STEP_TOKENS: u32 = 8192;

/// All that a simulation of the run needs, and the run's own report.
#[derive(Debug)]
pub struct Basis {
    /// The requests.
    pub workload: Listed,
    /// The executors, as fast as they were.
    pub fleet: FleetPlan,
    /// The bounds of the machine.
    pub config: Config,
    /// The run as it was.
    pub report: RunReport,
    /// The speed of each executor.
    pub speeds: Vec<Speed>,
    /// Parts of the run that a simulation does not repeat.
    pub lacks: Lacks,
}

/// The speed of one executor.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// The executor's name.
    pub executor: String,
    /// The speed.
    pub fit: LinearFit,
    /// The steps that it was fitted to.
    pub from: SpeedFrom,
}

/// The steps that a speed was fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedFrom {
    /// The executor's own.
    Own,
    /// The steps of all executors: it made too few itself.
    All,
}

/// Counts of what a simulation of a run does not repeat, or had to guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Requests that were under way when the record began. They are left out.
    pub under_way: u64,
    /// Requests that had not ended when the record did. They get as many tokens as they had.
    pub unended: u64,
    /// Requests of which nobody knows how long their answers would have been.
    pub unknown_lengths: u64,
    /// The length that those get: the median of all others.
    pub guessed_tokens: u32,
    /// Times at which entries are missing.
    pub gaps: u64,
    /// Executors that were lost with all that ran there. Nothing is lost in the simulation.
    pub losses: u64,
    /// Executors that were attached after the first request. They serve from the beginning.
    pub joined: u64,
    /// Executors that were detached. They serve to the end.
    pub detached: u64,
    /// Times that an executor was drained. It takes requests all the same.
    pub drained: u64,
    /// Executors whose number of blocks nobody told. They have 16,384.
    pub untold_blocks: u64,
    /// Executors that shared a device's blocks. Each has an equal part.
    pub sharing: u64,
    /// Executors that hold a bounded number of models. Models load at once.
    pub swapping: u64,
    /// Requests that preferred an executor of which the simulation does not know: their conversation names
    /// no session, or began before the record. They prefer none.
    pub returns: u64,
    /// Times that an executor found a request too long. It is kept to the others from its arrival on.
    pub too_long: u64,
    /// Times that an answer broke off, and only some executors could go on with it. None breaks off in the
    /// simulation.
    pub broken_off: u64,
}

/// A reason for which a run cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Nobody asked for anything.
    #[error("no request arrived in it")]
    NoRequest,
    /// There was no executor.
    #[error("no executor was attached in it")]
    NoExecutor,
    /// The executors' speed is not known.
    #[error(
        "it has {samples} reports of steps, too few to fit the executors' speed to: at least \
         {SAMPLES_MIN} are needed, so take a journal of more work"
    )]
    TooFewSteps {
        /// Times between reports in which an executor was not idle.
        samples: usize,
    },
}

impl History {
    /// The parts of a simulation of this run. An answer within `goodput` is a good one.
    ///
    /// # Errors
    /// If there was no request or no executor, or the executors told too little to know their speed.
    pub fn told(mut self, goodput: Goodput) -> Result<Basis, HistoryError> {
        if self.requests.is_empty() {
            return Err(HistoryError::NoRequest);
        }
        let (fleet, speeds) = self.fleet()?;
        let roll = self.names.roll();
        let workload = self.workload(roll.clone());
        self.fill_measures();
        Ok(Basis {
            workload,
            fleet,
            report: RunReport::new(&self.measures, &roll, goodput),
            config: self.config,
            speeds,
            lacks: self.lacks,
        })
    }

    // === The executors ===

    fn prompt(&self, request: RequestId) -> Prompt {
        let past = self.requests.get(&request);
        past.map_or_else(Prompt::default, |past| Prompt {
            tokens: past.record.prompt_tokens,
            cached: past.counted.unwrap_or(0),
        })
    }

    /// The work of each executor name, in attach order.
    fn times(&self) -> Vec<(String, Vec<TimedWork>)> {
        let names = self.names.executor_names().into_iter();
        let mut all: Vec<(String, Vec<TimedWork>)> = names.map(|name| (name, Vec::new())).collect();
        for (id, worked) in &self.executors {
            let place = self
                .names
                .place_of(*id)
                .and_then(|at| all.get_mut(at as usize));
            if let Some((_, times)) = place {
                times.extend(worked.times(&|request| self.prompt(request)));
            }
        }
        all
    }

    fn speeds(&self) -> Result<Vec<Speed>, HistoryError> {
        let times = self.times();
        let of = |times: &[TimedWork]| {
            let is_enough = times.len() >= SAMPLES_MIN;
            is_enough.then(|| LinearFit::of(times)).flatten()
        };
        let all: Vec<TimedWork> = times.iter().flat_map(|it| it.1.iter().copied()).collect();
        let samples = all.len();
        let pooled = of(&all).ok_or(HistoryError::TooFewSteps { samples })?;
        let speed = |(executor, times): (String, Vec<TimedWork>)| {
            let own = of(&times);
            Speed {
                executor,
                fit: own.unwrap_or(pooled),
                from: own.map_or(SpeedFrom::All, |_| SpeedFrom::Own),
            }
        };
        Ok(times.into_iter().map(speed).collect())
    }

    fn fleet(&mut self) -> Result<(FleetPlan, Vec<Speed>), HistoryError> {
        if self.names.executor_names().is_empty() {
            return Err(HistoryError::NoExecutor);
        }
        let speeds = self.speeds()?;
        let mut plans: BTreeMap<u32, ExecutorPlan> = BTreeMap::new();
        for (id, spec, device) in self.names.executors() {
            let Some((place, speed)) = self
                .names
                .place_of(id)
                .and_then(|place| Some((place, speeds.get(place as usize)?)))
            else {
                continue;
            };
            let sharing = self.names.sharing(spec.device).max(1);
            plans.insert(place, plan(spec, device, sharing, speed.fit.cost));
            let is_told = device.is_some_and(|device| device.blocks_total > 0);
            self.lacks.untold_blocks += u64::from(!is_told);
            self.lacks.sharing += u64::from(sharing > 1);
            self.lacks.swapping += u64::from(spec.models_max.is_some());
        }
        let executors = plans.into_values().collect();
        Ok((FleetPlan { executors }, speeds))
    }

    // === The requests ===

    fn workload(&mut self, roll: Roll) -> Listed {
        let begins = self.begins.unwrap_or_default();
        let mut lengths: Vec<u32> = self.requests.values().filter_map(Past::length).collect();
        lengths.sort_unstable();
        let median = lengths.get(lengths.len() / 2).copied().unwrap_or(1);
        self.lacks.guessed_tokens = median;
        let mut arrivals = Vec::with_capacity(self.requests.len());
        for past in self.requests.values() {
            self.lacks.unended += u64::from(past.record.outcome.is_none());
            let length = past.length().unwrap_or_else(|| {
                self.lacks.unknown_lengths += 1;
                median.min(past.new.output_tokens_max)
            });
            let allowed = past.new.allowed.as_deref();
            arrivals.push(Arrival {
                allowed: allowed.map(|allowed| self.names.places_of(allowed)),
                ..past.arrival(begins, length)
            });
        }
        Listed::new(roll, arrivals)
    }

    fn fill_measures(&mut self) {
        let begins = self.begins.unwrap_or_default();
        let records = self.requests.values().map(|past| past.record(begins));
        self.measures.records = records.collect();
        let names = self.names.executor_names().into_iter();
        let mut executors: Vec<ExecutorMeasures> = names
            .map(|name| ExecutorMeasures {
                name,
                ..ExecutorMeasures::default()
            })
            .collect();
        for (id, worked) in &self.executors {
            let place = self.names.place_of(*id);
            let measures = place.and_then(|at| executors.get_mut(at as usize));
            if let Some(measures) = measures {
                let (busy, prefilled, generated) = worked.done(&|request| self.prompt(request));
                measures.busy = measures.busy.after(busy);
                measures.prefill_tokens += prefilled;
                measures.decode_tokens += generated;
            }
        }
        self.measures.executors = executors;
    }
}

impl Past {
    /// Tokens of the answer, as far as they are known: what came of it, unless it was cut short before
    /// anything came.
    fn length(&self) -> Option<u32> {
        match self.record.outcome {
            Some(Outcome::Finished { output_tokens }) => Some(output_tokens),
            Some(
                Outcome::Refused(_) | Outcome::Cancelled | Outcome::Expired(_) | Outcome::Failed(_),
            )
            | None => Some(self.record.output_tokens).filter(|tokens| *tokens > 0),
        }
    }

    /// The request, but for the executors that it is allowed.
    fn arrival(&self, begins: Micros, output_tokens: u32) -> Arrival {
        let new = &self.new;
        let blocks = &new.prompt_blocks;
        // A block's hash stands for the text up to its end, and so does the name of a piece.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "half of a hash is a name, too"
        )]
        let pieces = blocks.hashes.iter().map(|hash| hash.0 as u64);
        let prompt = PromptText::of_pieces(new.prompt_tokens, blocks.tokens_per_block, pieces);
        let at = self.record.arrived;
        let arrival = Arrival::new(at.since(begins), prompt, output_tokens);
        Arrival {
            tenant: new.tenant.0,
            model: new.model.map(|model| model.0),
            labels: new.labels.iter().map(|label| label.0).collect(),
            session: new.session.map(|SessionKey(session)| session),
            class: new.class,
            priority: new.priority,
            patience: new.deadline.map(|deadline| deadline.since(at)),
            asked: Some(ClientBounds {
                output_tokens_max: new.output_tokens_max,
                output_tokens_expected: new.output_tokens_expected,
                may_wait: new.may_wait,
                head_start: new.head_start,
            }),
            group: new.group,
            ..arrival
        }
    }

    /// The record with times from the first arrival on.
    fn record(&self, begins: Micros) -> RequestRecord {
        let from = |at: Option<Micros>| at.map(|at| at.since(begins));
        let record = &self.record;
        RequestRecord {
            arrived: record.arrived.since(begins),
            started: from(record.started),
            first_token: from(record.first_token),
            ended: from(record.ended),
            cached_tokens: self.counted.unwrap_or(0).min(record.prompt_tokens),
            ..*record
        }
    }
}

/// An executor as fast as it was. One of several that share a device has an equal part of its blocks.
fn plan(
    spec: &pointsman_core::ExecutorSpec,
    device: Option<&PastDevice>,
    sharing: u32,
    cost: LinearCost,
) -> ExecutorPlan {
    let blocks = device.map_or(0, |device| device.blocks_total);
    let blocks = if blocks == 0 { BLOCKS_UNTOLD } else { blocks };
    let step_tokens = device.and_then(|device| device.spec.tokens_per_step);
    let serves = spec.serves.as_ref();
    ExecutorPlan {
        name: spec.name.clone(),
        count: 1,
        profile: LatencyProfile::Linear(cost),
        speed: 1.0,
        kv: match device.map(|device| device.spec.kv) {
            Some(KvSpec::Owned { .. }) => KvKeeper::Host,
            Some(KvSpec::Assumed) => KvKeeper::UntoldServer,
            Some(KvSpec::Remote) | None => KvKeeper::Server,
        },
        blocks_total: (blocks / sharing).max(1),
        tokens_per_block: spec.tokens_per_block.unwrap_or(TOKENS_PER_BLOCK),
        sequences_max: spec.slots_total,
        slots: None,
        step_tokens: step_tokens.unwrap_or(STEP_TOKENS),
        queue_limit: spec.queue_limit,
        group: spec.group,
        role: spec.role,
        serves: serves.map(|models| models.iter().map(|model| model.0).collect()),
        models_max: spec.models_max,
        model_load: Micros(0),
        model_unload_delay: spec.model_unload_delay,
        cache_news_delay: Micros(0),
    }
}
