//! Policies of this workspace, whose crates check the properties in their tests.

use std::iter;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use pointsman_component::{Limits, SettingRange};
use pointsman_policy::start;
use serde_json::{Map, Value};

use super::{Plan, Property, Subject, check};
use pointsman_notation::chain;

use crate::component::Components;
use crate::kit::Flavour;
use crate::native::Make;
use crate::report::{Suite, Verdict};
use crate::scale;

/// A policy, both compiled into the test and as the component that `cargo xtask policies` made.
///
/// ```no_run
/// use pointsman_testkit::properties::{Property, Shipped};
///
/// # fn properties(instance: fn() -> Box<dyn pointsman_sdk::Instance>) {
/// let policy = Shipped::new("newest", instance).with("strict = true");
/// policy.lacking(&[Property::StarvesNobody]).assert();
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Shipped<'a> {
    name: &'a str,
    make: Make,
    settings: &'a str,
    lacking: &'a [Property],
    rush: u32,
}

// === impl Shipped ===

impl<'a> Shipped<'a> {
    /// The policy of this name with its default settings. It must have every property.
    #[must_use]
    pub fn new(name: &'a str, make: Make) -> Self {
        Self {
            name,
            make,
            settings: "",
            lacking: &[],
            rush: Plan::default().rush,
        }
    }

    /// Sets the policy's settings, in TOML.
    #[must_use]
    pub fn with(self, settings: &'a str) -> Self {
        Self { settings, ..self }
    }

    /// Sets the upper bound of a rush, see [`Plan::rush`].
    #[must_use]
    pub fn rushing(self, rush: u32) -> Self {
        Self { rush, ..self }
    }

    /// Names properties that the policy cannot have because of its purpose. A native run must break
    /// each of them.
    #[must_use]
    pub fn lacking(self, lacking: &'a [Property]) -> Self {
        Self { lacking, ..self }
    }

    /// Asserts that [`check`](Self::check) succeeds.
    ///
    /// # Panics
    /// With all problems, if it does not.
    pub fn assert(&self) {
        if let Err(wrong) = self.check() {
            panic!("{wrong}");
        }
    }

    /// Checks both flavours: natively with [`Plan::default`], except for the rush, and as a
    /// component with a smaller plan.
    ///
    /// # Errors
    /// All problems, for people: a property that is broken, one that should be lacking and is not
    /// broken, a component that is missing.
    pub fn check(&self) -> Result<(), String> {
        let settings = self.settings()?;
        let native = Subject::native(self.name, self.make, &settings);
        let mut components = Components::default();
        let component = components
            .component(self.name)
            .map_err(|error| error.to_string())?;
        let component = Subject::component(component, &settings, Limits::default());
        // Fresh instances of a component are slow to make.
        let many = Plan {
            rush: self.rush,
            ..Plan::default()
        };
        let few = Plan {
            runs: 3,
            events: 60,
            restart_every: 32,
            fleets: vec![8, 64],
            ..many.clone()
        };
        let mut wrong = Vec::new();
        for (subject, plan) in [(native, many), (component, few)] {
            let suite = check(&subject, &plan).map_err(|error| chain(&error))?;
            wrong.extend(self.wrong(subject.flavour(), &suite, &Property::ALL));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(wrong.join("\n"))
    }

    /// Asserts that the component answers a full batch over the largest fleet within its default
    /// fuel, for each kind of room: see [`scale::check_batches`].
    ///
    /// # Panics
    /// If the component does not.
    pub fn assert_batches(&self) {
        let settings = self.settings().map(Value::from);
        let fuel = settings.and_then(|settings| {
            let settings = settings.to_string();
            scale::check_batches(self.name, &settings)
        });
        if let Err(problem) = fuel {
            panic!("{}: {problem}", self.name);
        }
    }

    /// Asserts that the policy, compiled in, is neither refused nor lets anybody starve at any choice and at
    /// either end of any range of the settings that it describes, each with the others at their defaults.
    ///
    /// # Panics
    /// With all problems, if it is or does.
    pub fn assert_settings(&self) {
        let extremes: Vec<_> = self.extremes().collect();
        let left = Mutex::new(extremes.iter());
        let struck = || -> Vec<String> {
            let next = || left.lock().expect("nobody panics with it").next();
            iter::from_fn(next)
                .filter_map(|at| self.struck(at))
                .collect()
        };
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let mut wrong: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(struck)).collect();
            let each = threads.into_iter().map(|thread| {
                let struck = thread.join();
                struck.expect("its message is above")
            });
            each.flatten().collect()
        });
        wrong.sort();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The settings to try: each with one key.
    fn extremes(&self) -> impl Iterator<Item = Map<String, Value>> {
        let source = Subject::native(self.name, self.make, &Map::new());
        let started = start(source.source().clone()).expect("it starts with its defaults");
        let settings = started.description().settings.clone();
        let values = |values: &SettingRange| -> Vec<Value> {
            match values {
                SettingRange::Number(range) => vec![(*range.start()).into(), (*range.end()).into()],
                SettingRange::Duration(unit, range) => [range.start(), range.end()]
                    .map(|count| unit.of(*count).to_string().into())
                    .to_vec(),
                SettingRange::YesOrNo => vec![false.into(), true.into()],
                SettingRange::Choice(texts) => texts.iter().cloned().map(Value::from).collect(),
                SettingRange::Other(_) => Vec::new(),
            }
        };
        settings.into_iter().flat_map(move |setting| {
            let values = values(&setting.values).into_iter();
            values.map(move |value| Map::from_iter([(setting.key.clone(), value)]))
        })
    }

    /// The problem with these settings; absent: there is none.
    fn struck(&self, settings: &Map<String, Value>) -> Option<String> {
        let subject = Subject::native(self.name, self.make, settings);
        let few = Plan {
            runs: 4,
            rush: 24,
            restart_every: u32::MAX,
            fleets: vec![8, 16],
            ..Plan::default()
        };
        let judged = [Property::NeverRefused, Property::StarvesNobody];
        let wrong = match check(&subject, &few) {
            Ok(suite) => self.wrong(Flavour::Native, &suite, &judged),
            Err(error) => vec![chain(&error)],
        };
        let settings = Value::from(settings.clone());
        (!wrong.is_empty()).then(|| format!("{settings}: {}", wrong.join("\n")))
    }

    fn settings(&self) -> Result<Map<String, Value>, String> {
        toml::from_str(self.settings).map_err(|error| error.to_string())
    }

    /// The problems of these properties in a suite. A component has fewer runs, which need not show the
    /// properties that it lacks.
    fn wrong(&self, flavour: Flavour, suite: &Suite, judged: &[Property]) -> Vec<String> {
        let all = Property::ALL.into_iter().zip(&suite.cases);
        let cases = all.filter(|(property, _)| judged.contains(property));
        let wrong = cases.filter_map(|(property, case)| {
            let (name, is_lacking) = (&suite.name, self.lacking.contains(&property));
            match &case.verdict {
                Verdict::Passed(_) if is_lacking && flavour == Flavour::Native => Some(format!(
                    "{name}: {}, though it is said to lack that",
                    case.name
                )),
                Verdict::Passed(_) | Verdict::Skipped(_) => None,
                Verdict::Failed(_) if is_lacking => None,
                Verdict::Failed(problem) | Verdict::Broken(problem) => {
                    let (summary, detail) = (&problem.summary, &problem.detail);
                    let scenario = problem.scenario.as_deref().unwrap_or_default();
                    Some(format!(
                        "{name}: not so: {}: {summary}\n{detail}{scenario}",
                        case.name
                    ))
                }
            }
        });
        wrong.collect()
    }
}
