//! The requests that a scenario's fleet has when the first step comes.
//!
//! They are brought in before any policy is asked. Those that run are placed where the scenario says,
//! and their engines make steps until each has generated what it should. Those that wait arrive at
//! their times, and the first round with policies finds them.

use std::cmp::Reverse;

use pointsman_core::rows::{Change, SequenceState};
use pointsman_core::{
    Answer, Asked, ExecutorId, Micros, Policies, Question, Reply, RequestId, RowKind, RowKinds,
    routing,
};
use pointsman_policy::{Patience, PolicyHost};

use super::RunError;
use super::state::ScenarioRun;
use super::watch::{Watch, Watched};
use crate::scenario::load::{RunningTable, WaitingTable};
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
        if load.running.is_empty() && load.waiting.is_empty() {
            return Ok(());
        }
        let none = Watched {
            inner: PolicyHost::new(Patience::default()),
            sink: Watch::new(Default::default(), None),
        };
        let policies = std::mem::replace(&mut self.world.policies, none);
        self.start(scenario, &load.running)?;
        self.wait(scenario, &load.waiting)?;
        self.world.policies = policies;
        self.judged = self.world.facts().len();
        self.set_mark();
        Ok(())
    }

    fn start(&mut self, scenario: &Scenario, running: &[RunningTable]) -> Result<(), RunError> {
        let number = u32::try_from(self.policies.len()).unwrap_or(u32::MAX);
        self.policies.push(AUTHOR.to_owned());
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
