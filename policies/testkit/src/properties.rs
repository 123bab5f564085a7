//! Properties that any policy should have, checked on random fleets and loads.
//!
//! [`check`] puts a policy through seeded runs of a whole host in which the built-in rules make
//! the decisions it does not make, and reports each property of [`Property::ALL`]. What is broken
//! is said with the seed and the fewest events that show it, which make the same run again.
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
//! What a policy is for: its scenarios say that.

mod fuel;
mod load;
mod shipped;
mod shrink;
mod subject;
mod twin;

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

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// The interlock refuses none of its answers, and it never faults.
    NeverRefused,
    /// A fresh instance with its state, told everything anew, answers as it does.
    SurvivesRestart,
    /// In which order it is told makes no difference; among executors that it explains to cost
    /// the same it may choose any.
    IgnoresRowOrder,
    /// No liveness clock of the host runs out, and every request has an outcome in the end.
    StarvesNobody,
    /// What it chooses is the best of what it explains, and nothing that could be chosen is held.
    ExplainsItself,
    /// What a question costs grows at most in proportion to the fleet and what runs there.
    BoundedFuel,
}

/// How thoroughly to check. The same plan makes the same runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Of the first run; each later one takes the next.
    pub seed: u64,
    /// Runs.
    pub runs: u32,
    /// Events of a run: arrivals, failures, changed limits, time passing.
    pub events: u32,
    /// In a rush fewer requests than that come at once.
    pub rush: u32,
    /// Of so many questions one is also asked of fresh instances, which takes its time.
    pub restart_every: u32,
    /// Executors of the fleets on which fuel is compared, ascending.
    pub fleets: Vec<u32>,
}

/// What is wrong, by property; the first of each.
type Broken = BTreeMap<Property, Problem>;

// === impl Plan ===

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 8,
            events: 100,
            rush: 8,
            restart_every: 16,
            fleets: vec![8, 64, 256],
        }
    }
}

// === impl Property ===

impl Property {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NeverRefused,
        Self::SurvivesRestart,
        Self::IgnoresRowOrder,
        Self::StarvesNobody,
        Self::ExplainsItself,
        Self::BoundedFuel,
    ];

    /// It, as a sentence about a policy.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NeverRefused => "is never refused and never faults",
            Self::SurvivesRestart => "answers alike after a restart",
            Self::IgnoresRowOrder => "answers alike in whatever order it is told",
            Self::StarvesNobody => "starves nobody",
            Self::ExplainsItself => "does what it explains",
            Self::BoundedFuel => "uses bounded fuel as the fleet grows",
        }
    }
}

/// What came of one run.
enum Outcome {
    Ran(load::Ran),
    HostBroke(Problem),
}

/// Checks every property. A host that breaks an invariant of its own breaks all that its runs
/// would show.
///
/// # Errors
/// If the policy does not start.
pub fn check(subject: &Subject, plan: &Plan) -> Result<Suite, StartError> {
    let started = start(subject.source())?;
    let name = started.description().name.clone();
    let mut broken = Broken::new();
    let (mut compared, mut explained) = (0, 0);
    let mut host_broke = None;
    for run in 0..plan.runs {
        let seed = plan.seed.wrapping_add(u64::from(run));
        match run_once(subject, plan, seed)? {
            Outcome::Ran(ran) => {
                compared += ran.compared;
                explained += ran.explained;
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

/// A host in which the policy of `source` makes all the decisions it can make. It is number 0.
fn host_of(source: PolicySource) -> Result<PolicyHost, StartError> {
    let runner = start(source)?;
    let hooks = runner.hooks();
    let mut host = PolicyHost::new(Patience::default());
    let number = host.add(runner).expect("nobody is in quarantine there");
    host.bind(Micros(0), number, hooks)
        .expect("it exports these hooks");
    Ok(host)
}
