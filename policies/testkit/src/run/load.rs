//! The prompts that a scenario's fleet holds when the first step comes, and the requests that it has.
//!
//! All is brought in before any policy is asked. What a device whose blocks the host manages holds was computed
//! there, by a request that has ended; other caches say that they hold it. The requests that run are placed where
//! the scenario says, and their engines make steps until each has generated what it should. Those that wait
//! arrive at their times, and the first round with policies finds them.

use std::cmp::Reverse;

use pointsman_core::rows::{Change, SequenceState};
use pointsman_core::{
    Answer, Asked, BlockHash, BlockKind, ExecutorId, Input, Micros, NewRequest, Outcome, Policies,
    PrefixEvent, PromptBlocks, Question, Reply, RequestId, RowKind, RowKinds, Tier, routing,
};
use pointsman_policy::{Patience, PolicyHost};

use super::RunError;
use super::state::ScenarioRun;
use super::timeline::outcome_words;
use super::watch::{Watch, Watched};
use crate::scenario::load::{CachedTable, RunningTable, WaitingTable};
use crate::scenario::names::DEFAULT_TENANT;
use crate::scenario::step::TierName;
use crate::scenario::units::micros;
use crate::scenario::{Name, Scenario};

/// The author of the placements that a scenario makes itself.
pub(super) const AUTHOR: &str = "the scenario";

/// Places every request on one executor.
struct Placer {
    executor: ExecutorId,
    number: u32,
}

impl Policies for Placer {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Question::Routing(requests) = &asked.question else {
            return Answer::unbound();
        };
        let verdict = || routing::Verdict {
            choice: routing::Choice::Place(vec![self.executor]),
            reason: 0,
        };
        let verdicts = requests.iter().map(|_| verdict()).collect();
        Answer::by(self.number, Reply::Routing(verdicts))
    }
}

// === impl ScenarioRun ===

impl ScenarioRun {
    /// Brings in the requests that run and wait at the start. The policies hear of none of it before
    /// they are asked first.
    pub(super) fn load(&mut self, scenario: &Scenario) -> Result<(), RunError> {
        let load = &scenario.load;
        if load.cached.is_empty() && load.running.is_empty() && load.waiting.is_empty() {
            return Ok(());
        }
        let none = Watched {
            inner: PolicyHost::new(Patience::default()),
            sink: Watch::new(Default::default(), None),
        };
        let policies = std::mem::replace(&mut self.world.policies, none);
        let number = u32::try_from(self.policies.len()).unwrap_or(u32::MAX);
        self.policies.push(AUTHOR.to_owned());
        for table in &load.cached {
            for executor in &table.executor.0 {
                self.hold(table, executor, number)
                    .map_err(|why| impossible(scenario, executor, why))?;
            }
        }
        self.start(scenario, &load.running, number)?;
        self.wait(scenario, &load.waiting)?;
        self.world.policies = policies;
        for id in 0..self.requests.len() as u64 {
            self.watch_cost_of(RequestId(id));
        }
        self.judged = self.world.facts().len();
        self.set_mark();
        Ok(())
    }

    /// Brings the beginning of prompts to an executor. The error says why it is impossible.
    fn hold(&mut self, table: &CachedTable, on: &Name, number: u32) -> Result<(), String> {
        let executor = self.executor(on);
        let tokens_per_block = self.block_of_pieces()?;
        // What is common to prompts is held: the name "" belongs to no request.
        let hashes = table.prompt.hashes("", tokens_per_block);
        if hashes.is_empty() {
            return Err(format!(
                "the `prompt` has no block that can be held: write pieces with names, of {tokens_per_block} \
                 tokens at least"
            ));
        }
        let model = table.model.as_ref();
        let kind = BlockKind {
            model: model.map(|name| self.models[name.get_ref()]),
            adapter: None,
            tokens_per_block,
        };
        let snapshot = self.world.machine.executor_snapshot(executor);
        let device = snapshot.map(|snapshot| snapshot.device);
        let device = device.expect("the fleet is attached before it holds anything");
        let tier = match table.tier {
            TierName::Device if self.world.machine.owns_kv(device) => {
                self.requests.push(format!("(cached on {})", on.get_ref()));
                return self.compute(kind, hashes, Placer { executor, number });
            }
            TierName::Device => Tier::Device(device),
            TierName::Host => Tier::Host(device),
            TierName::Disk => Tier::Disk(device),
            TierName::Shared => {
                return Err(
                    "a shared cache is no executor's: say in a step what it holds, by `cache`"
                        .into(),
                );
            }
        };
        let stored = PrefixEvent::Stored(kind, hashes);
        self.world.input(Input::PrefixesReported(tier, stored));
        Ok(())
    }

    /// Computes blocks on an executor, by a request of their tokens that ends there.
    fn compute(
        &mut self,
        kind: BlockKind,
        hashes: Vec<BlockHash>,
        placer: Placer,
    ) -> Result<(), String> {
        let executor = placer.executor;
        let blocks = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
        let tokens = blocks.saturating_mul(kind.tokens_per_block);
        let new = NewRequest {
            model: kind.model,
            prompt_blocks: PromptBlocks {
                tokens_per_block: kind.tokens_per_block,
                hashes,
            },
            allowed: Some(vec![executor]),
            ..NewRequest::new(self.tenants[DEFAULT_TENANT], tokens, 1)
        };
        let id = self.world.arrive(new, 1);
        self.place(placer);
        // A step computes a token at least.
        for _ in 0..=tokens {
            if self.world.outcome(id).is_some() {
                break;
            }
            self.world.step(executor);
        }
        match self.world.outcome(id) {
            Some(Outcome::Finished { .. }) => Ok(()),
            other => Err(format!(
                "it has no room for the `prompt`, or does not take it; it is {}",
                other.map_or("waiting".to_owned(), |it| outcome_words(&it))
            )),
        }
    }

    fn start(
        &mut self,
        scenario: &Scenario,
        running: &[RunningTable],
        number: u32,
    ) -> Result<(), RunError> {
        // The one that has generated most begins first: each step of an engine is a token of all that
        // run there.
        let mut tables: Vec<&RunningTable> = running.iter().collect();
        tables.sort_by_key(|table| Reverse(table.generated));
        let mut begun: Vec<(&RunningTable, RequestId)> = Vec::new();
        let tokens = tables.iter().map(|table| table.generated);
        let next: Vec<u32> = tokens.skip(1).chain([0]).collect();
        for (table, next) in tables.into_iter().zip(next) {
            let executor = self.executor(&table.executor);
            for arrival in &table.request.0 {
                let first = self.requests.len() as u64;
                self.arrive(arrival)
                    .map_err(|why| impossible(scenario, &arrival.name, why))?;
                begun.extend((first..self.requests.len() as u64).map(|id| (table, RequestId(id))));
            }
            self.place(Placer { executor, number });
            for _ in next..table.generated {
                self.step_all();
            }
        }
        for (table, request) in begun {
            self.runs(table, request)
                .map_err(|why| impossible(scenario, &table.executor, why))?;
        }
        Ok(())
    }

    /// Has what arrived placed.
    fn place(&mut self, mut placer: Placer) {
        let now = self.world.now();
        self.world.machine.decide(now, |_recorder| &mut placer);
        self.world.settle();
    }

    fn step_all(&mut self) {
        let executors: Vec<ExecutorId> = self.executors.values().copied().collect();
        for executor in executors {
            self.world.step(executor);
        }
    }

    /// Checks that a request is as its table says; the error says how it is.
    fn runs(&self, table: &RunningTable, request: RequestId) -> Result<(), String> {
        let name = self.request_name(request);
        let on = table.executor.get_ref();
        let sequences = RowKinds::from_iter([RowKind::Sequence]);
        let rows = self.world.machine.view().rows(sequences);
        let row = rows.into_iter().find_map(|change| {
            if let Change::Sequence(row) = change {
                Some(row).filter(|row| row.request == request)
            } else {
                None
            }
        });
        let Some(row) = row else {
            let now = self.whereabouts(request);
            return Err(format!(
                "`{name}` cannot run on {on}: the executor has no room for it, or it has ended before \
                 the first step; it is {now}"
            ));
        };
        if self.executor(&table.executor) != row.executor {
            return Err(format!(
                "`{name}` cannot run on {on}: there is no room for it"
            ));
        }
        if row.tokens_generated == table.generated {
            return Ok(());
        }
        let state = match row.state {
            SequenceState::Queued => ", for it is in the queue there",
            SequenceState::Running | SequenceState::Leaving => {
                ": its `output` has to be more, and its prompt, and those beside it, have to fit in one \
                 step of the engine"
            }
        };
        Err(format!(
            "`{name}` cannot have generated {} tokens{state}; it has {}",
            table.generated, row.tokens_generated
        ))
    }

    fn wait(&mut self, scenario: &Scenario, waiting: &[WaitingTable]) -> Result<(), RunError> {
        let mut tables: Vec<&WaitingTable> = waiting.iter().collect();
        tables.sort_by_key(|table| Reverse(table.since));
        let longest = tables
            .first()
            .map_or(Micros(0), |table| micros(table.since));
        for table in tables {
            self.world.skip(longest.since(micros(table.since)));
            for arrival in &table.request.0 {
                self.arrive(arrival)
                    .map_err(|why| impossible(scenario, &arrival.name, why))?;
            }
        }
        self.world.skip(longest);
        Ok(())
    }
}

fn impossible(scenario: &Scenario, at: &Name, why: String) -> RunError {
    RunError::Impossible {
        place: scenario.source.location(at.span().start),
        step: 0,
        why,
    }
}
