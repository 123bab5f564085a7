//! Properties that any policy should have, checked on random fleets and loads.
//!
//! [`check`] puts a policy through seeded runs of a whole host, in which the built-in rules make
//! the decisions that the policy does not make, and reports each property of [`Property::ALL`]. A
//! broken property is reported with the seed and the smallest number of events that show it: these
//! make the same run again.
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

mod copies;
mod fuel;
mod load;
mod shipped;
mod shrink;
mod subject;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pointsman_core::Micros;
use pointsman_policy::{Patience, PolicyHost, PolicySource, StartError, start};

use crate::native::panic_message;
use crate::report::{Case, Problem, Suite, Verdict};
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

/// The first problem of each broken property.
type Broken = BTreeMap<Property, Problem>;

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

/// The outcome of one run.
enum Outcome {
    Ran(load::Ran),
    HostBroke(Problem),
}

/// Checks every property. If the host breaks an invariant of its own, all properties that runs
/// would show are reported as broken.
///
/// # Errors
/// If the policy does not start.
pub fn check(subject: &Subject, plan: &Plan) -> Result<Suite, StartError> {
    let started = start(subject.source())?;
    let name = started.description().name.clone();
    let mut broken = Broken::new();
    let (mut compared, mut explained, mut evictions) = (0, 0, 0);
    let mut host_broke = None;
    for run in 0..plan.runs {
        let seed = plan.seed.wrapping_add(u64::from(run));
        match run_once(subject, plan, seed)? {
            Outcome::Ran(ran) => {
                compared += ran.compared;
                explained += ran.explained;
                evictions += ran.evictions;
                for (property, problem) in ran.broken {
                    if broken.contains_key(&property) {
                        continue;
                    }
                    let least = shrink::least((subject, plan, seed), property, problem)?;
                    broken.insert(property, least);
                }
            }
            Outcome::HostBroke(problem) => {
                host_broke = Some(problem);
                break;
            }
        }
    }
    let runs = format!("{} runs from seed {}", plan.runs, plan.seed);
    let cases = Property::ALL.map(|property| Case {
        name: property.sentence().to_owned(),
        place: None,
        verdict: match (property, &host_broke, broken.remove(&property)) {
            (Property::BoundedFuel, _, _) => fuel::check(subject, plan),
            (_, Some(problem), _) => Verdict::Broken(problem.clone()),
            (_, None, Some(problem)) => Verdict::Failed(problem),
            (Property::SurvivesRestart | Property::IgnoresRowOrder, None, None) => {
                Verdict::Passed(format!("{runs}, {compared} answers compared"))
            }
            (Property::SparesVictims, None, None) if evictions == 0 => {
                Verdict::Skipped("it evicts nobody".to_owned())
            }
            (Property::SparesVictims, None, None) => {
                Verdict::Passed(format!("{runs}, {evictions} evictions"))
            }
            (Property::ExplainsItself, None, None) if explained == 0 => {
                Verdict::Skipped("it explains no placement".to_owned())
            }
            (Property::ExplainsItself, None, None) => {
                Verdict::Passed(format!("{runs}, {explained} answers explained"))
            }
            (Property::NeverRefused | Property::StarvesNobody, None, None) => {
                Verdict::Passed(runs.clone())
            }
        },
    });
    Ok(Suite {
        name: format!("{name} ({})", subject.flavour()),
        cases: cases.into(),
    })
}

fn run_once(subject: &Subject, plan: &Plan, seed: u64) -> Result<Outcome, StartError> {
    let ran = catch_unwind(AssertUnwindSafe(|| load::run(subject, plan, seed)));
    match ran {
        Ok(ran) => Ok(Outcome::Ran(ran?)),
        Err(payload) => Ok(Outcome::HostBroke(Problem {
            summary: format!(
                "seed {seed}, {} events: the host broke an invariant",
                plan.events
            ),
            detail: panic_message(payload.as_ref()),
        })),
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
