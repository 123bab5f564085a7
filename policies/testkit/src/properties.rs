//! Properties that any policy should have, checked on random fleets and loads.
//!
//! [`check`] puts a policy through seeded runs of a whole host, in which the built-in rules make
//! the decisions that the policy does not make, and reports each property of [`Property::ALL`]. A
//! broken property is reported like a scenario that fails, and with it: the least that is left of the
//! run and still breaks it.
//!
//! ```no_run
//! use pointsman_testkit::properties::{Plan, Subject, check};
//! use pointsman_testkit::report::{Report, human};
//!
//! # fn properties(instance: fn() -> Box<dyn pointsman_sdk::Instance>) {
//! let subject = Subject::native("newest", instance, &serde_json::Map::new());
//! let suite = check(&subject, &Plan::default()).unwrap();
//! let report = Report { suites: vec![suite] };
//! assert!(report.is_passed(), "{}", human(&report));
//! # }
//! ```
//!
//! # Not here
//! The purpose of one policy: its scenarios.

mod draw;
mod event;
mod fuel;
mod play;
mod shipped;
mod subject;

use std::collections::BTreeMap;

use pointsman_core::{Hook, HookSet, Micros};
use pointsman_policy::{Patience, PolicyHost, PolicySource, StartError, start};

use crate::report::{Case, Problem, Suite, Verdict};
use crate::run::Exercised;
use play::Stage;
pub use shipped::Shipped;
pub use subject::Subject;

#[cfg(test)]
mod tests;

/// A property of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// The interlock refuses none of its answers, and no call faults.
    NeverRefused,
    /// A fresh instance with its state, told everything anew, gives the same answers.
    SurvivesRestart,
    /// Its answers do not depend on the order in which it is told rows. Executors with the same
    /// explained cost may be exchanged.
    IgnoresRowOrder,
    /// No liveness clock of the host runs out, and every request ends with an outcome.
    StarvesNobody,
    /// Each of its victims is needed: without any one of them the others would not cover the shortage.
    SparesVictims,
    /// Its choices are the best ones by its own explanation, and it holds no request that it could
    /// place.
    ExplainsItself,
    /// The fuel of a question grows no faster than the fleet and its load.
    BoundedFuel,
}

/// The extent of a check. The same plan makes the same runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of the first run; each further run takes the next number.
    pub seed: u64,
    /// Number of runs.
    pub runs: u32,
    /// Events of a run: arrivals, failures, changed limits, and time that passes.
    pub events: u32,
    /// Upper bound, exclusive, of the requests that arrive at once in a rush.
    pub rush: u32,
    /// One of this many questions is also asked of fresh instances, which is slow.
    pub restart_every: u32,
    /// Sizes of the fleets on which fuel is compared, ascending.
    pub fleets: Vec<u32>,
}

// === impl Plan ===

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 12,
            events: 100,
            rush: 8,
            restart_every: 16,
            fleets: vec![8, 64, 256],
        }
    }
}

// === impl Property ===

impl Property {
    /// All properties, in the order of a report.
    pub const ALL: [Self; 7] = [
        Self::NeverRefused,
        Self::SurvivesRestart,
        Self::IgnoresRowOrder,
        Self::StarvesNobody,
        Self::SparesVictims,
        Self::ExplainsItself,
        Self::BoundedFuel,
    ];

    /// The properties that runs show.
    pub(crate) const IN_RUNS: [Self; 6] = [
        Self::NeverRefused,
        Self::SurvivesRestart,
        Self::IgnoresRowOrder,
        Self::StarvesNobody,
        Self::SparesVictims,
        Self::ExplainsItself,
    ];

    /// The property's name in a scenario.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NeverRefused => "never-refused",
            Self::SurvivesRestart => "survives-restart",
            Self::IgnoresRowOrder => "ignores-row-order",
            Self::StarvesNobody => "starves-nobody",
            Self::SparesVictims => "spares-victims",
            Self::ExplainsItself => "explains-itself",
            Self::BoundedFuel => "bounded-fuel",
        }
    }

    /// The property as the end of a sentence about a policy.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NeverRefused => "is never refused and never faults",
            Self::SurvivesRestart => "answers alike after a restart",
            Self::IgnoresRowOrder => "answers alike in whatever order it is told",
            Self::StarvesNobody => "starves nobody",
            Self::SparesVictims => "evicts nobody that it could spare",
            Self::ExplainsItself => "does what it explains",
            Self::BoundedFuel => "uses bounded fuel as the fleet grows",
        }
    }
}

/// Checks every property. If the host breaks an invariant of its own, all properties that runs
/// would show are reported as broken.
///
/// # Errors
/// If the policy does not start.
pub fn check(subject: &Subject, plan: &Plan) -> Result<Suite, StartError> {
    check_while(subject, plan, &mut || true)
}

/// Checks every property, as [`check`] does, in runs that begin while `goes_on` says so: one of each
/// kind at least, and at most as many as planned.
///
/// # Errors
/// If the policy does not start.
pub fn check_while(
    subject: &Subject,
    plan: &Plan,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Suite, StartError> {
    let started = start(subject.source().clone())?;
    let name = started.description().name.clone();
    let mut found = Found::default();
    while found.runs < plan.runs && (found.runs < KINDS_OF_RUNS || goes_on()) {
        if !found.run((subject, &name), plan) {
            break;
        }
    }
    let cases = Property::ALL.into_iter().map(|property| Case {
        name: property.sentence().to_owned(),
        place: None,
        verdict: if property == Property::BoundedFuel {
            fuel::check(subject, plan)
        } else {
            found.verdict(property, plan)
        },
    });
    let mut cases: Vec<Case> = cases.collect();
    cases.push(found.exercises(started.hooks()));
    Ok(Suite {
        name: format!("{name} ({})", subject.flavour()),
        cases,
    })
}

/// Number of kinds of runs, one of which each seed makes.
const KINDS_OF_RUNS: u32 = 4;

/// Findings of the runs so far.
#[derive(Debug, Default)]
struct Found {
    runs: u32,
    broken: BTreeMap<Property, Problem>,
    host_broke: Option<Problem>,
    exercised: Exercised,
}

// === impl Found ===

impl Found {
    /// Makes the next run. False if it says nothing about the policy, as no other would.
    fn run(&mut self, (subject, name): (&Subject, &str), plan: &Plan) -> bool {
        let seed = plan.seed.wrapping_add(u64::from(self.runs));
        self.runs += 1;
        let (stage, played) = match Stage::drawn((subject, name), plan, seed) {
            Ok(drawn) => drawn,
            Err(error) => {
                self.host_broke = Some(Problem::new(format!("seed {seed}: {error}")));
                return false;
            }
        };
        self.exercised.add(&played.exercised);
        for (property, (summary, by_then)) in played.broken {
            let events = &played.events[..by_then];
            let problem = || stage.problem(property, &summary, events);
            self.broken.entry(property).or_insert_with(problem);
        }
        true
    }

    fn verdict(&mut self, property: Property, plan: &Plan) -> Verdict {
        if let Some(problem) = &self.host_broke {
            return Verdict::Broken(problem.clone());
        }
        if let Some(problem) = self.broken.remove(&property) {
            return Verdict::Failed(problem);
        }
        let runs = format!("{} runs from seed {}", self.runs, plan.seed);
        let Exercised {
            compared,
            explained,
            choices,
            ..
        } = &self.exercised;
        match property {
            Property::SurvivesRestart | Property::IgnoresRowOrder => {
                Verdict::Passed(format!("{runs}, {compared} answers compared"))
            }
            Property::SparesVictims => match choices.get("evicts") {
                None => Verdict::Skipped("it evicts nobody".to_owned()),
                Some(evictions) => Verdict::Passed(format!("{runs}, {evictions} evictions")),
            },
            Property::ExplainsItself if *explained == 0 => {
                Verdict::Skipped("it explains no placement".to_owned())
            }
            Property::ExplainsItself => {
                Verdict::Passed(format!("{runs}, {explained} answers explained"))
            }
            Property::NeverRefused | Property::StarvesNobody | Property::BoundedFuel => {
                Verdict::Passed(runs)
            }
        }
    }

    /// The case that says what the runs did not exercise.
    fn exercises(&self, hooks: HookSet) -> Case {
        let Exercised {
            answers, choices, ..
        } = &self.exercised;
        let unasked = hooks.iter().filter(|hook| !answers.contains_key(hook));
        let unasked = unasked.map(|hook| format!("{} was not asked", hook.as_str()));
        let asked = hooks.iter().filter(|hook| answers.contains_key(hook));
        let kinds = asked.flat_map(|hook| hook.answers().iter().map(move |kind| (hook, kind)));
        let never = kinds.filter(|(_, kind)| !choices.contains_key(*kind));
        let never = never.map(|(hook, kind)| format!("{} never {kind}", hook.as_str()));
        let lacking: Vec<String> = unasked.chain(never).collect();
        let asked = hooks.iter().map(|hook: Hook| {
            let count = answers.get(&hook).copied().unwrap_or(0);
            format!("{} {count}", hook.as_str())
        });
        let asked = format!("answers: {}", asked.collect::<Vec<_>>().join(", "));
        Case {
            name: "is exercised in all that it decides".to_owned(),
            place: None,
            verdict: if lacking.is_empty() {
                Verdict::Passed(asked)
            } else {
                Verdict::Skipped(format!("{}; {asked}", lacking.join(", ")))
            },
        }
    }
}

/// A host in which the policy of `source` has number 0 and makes all decisions that it can make.
fn host_of(source: PolicySource) -> Result<PolicyHost, StartError> {
    let runner = start(source)?;
    let hooks = runner.hooks();
    let mut host = PolicyHost::new(Patience::default());
    let number = host.add(runner).expect("nobody is in quarantine there");
    host.bind(Micros(0), number, hooks)
        .expect("it exports these hooks");
    Ok(host)
}
