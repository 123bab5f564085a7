//! A policy of this workspace, put through the properties in its own crate's tests.

use pointsman_policy::Limits;
use serde_json::{Map, Value};

use super::{Plan, Property, Subject, check};
use crate::component::Components;
use crate::kit::Flavour;
use crate::native::Make;
use crate::report::{Problem, Suite, Verdict};
use crate::scale;

/// A policy as compiled into the test and as the component that `cargo xtask policies` made.
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
    /// The policy of this name with its default settings, which is to have every property.
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

    /// With these settings, in TOML.
    #[must_use]
    pub fn with(self, settings: &'a str) -> Self {
        Self { settings, ..self }
    }

    /// In a rush up to so many requests come at once, less one: see [`Plan::rush`].
    #[must_use]
    pub fn rushing(self, rush: u32) -> Self {
        Self { rush, ..self }
    }

    /// It cannot have these by what it is for, and is held to that: natively, each must be broken.
    #[must_use]
    pub fn lacking(self, lacking: &'a [Property]) -> Self {
        Self { lacking, ..self }
    }

    /// [`check`](Self::check), for a test.
    ///
    /// # Panics
    /// With all that is not as it should be.
    pub fn assert(&self) {
        if let Err(wrong) = self.check() {
            panic!("{wrong}");
        }
    }

    /// Checks both; natively under [`Plan::default`] but for the rush, as a component under a smaller plan.
    ///
    /// # Errors
    /// All that is not as it should be, for people: a property broken, one said to be lacking and
    /// not broken, a component that is not there.
    pub fn check(&self) -> Result<(), String> {
        let settings = self.settings()?;
        let native = Subject::native(self.name, self.make, &settings);
        let mut components = Components::default();
        let component = components
            .component(self.name)
            .map_err(|error| error.to_string())?;
        let component = Subject::component(component, &settings, Limits::default());
        // A fresh instance of a component takes its time.
        let many = Plan {
            rush: self.rush,
            ..Plan::default()
        };
        let few = Plan {
            runs: 2,
            events: 60,
            restart_every: 32,
            fleets: vec![8, 64],
            ..many.clone()
        };
        let mut wrong = Vec::new();
        for (subject, plan) in [(native, many), (component, few)] {
            let suite = check(&subject, &plan).map_err(|error| format!("{error:?}"))?;
            wrong.extend(self.wrong(subject.flavour(), &suite));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(wrong.join("\n"))
    }

    /// Asserts that the component answers a full batch over the largest fleet within the fuel it has
    /// by default, wherever there is room: see [`scale::check_batches`].
    ///
    /// # Panics
    /// If it does not.
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

    fn settings(&self) -> Result<Map<String, Value>, String> {
        toml::from_str(self.settings).map_err(|error| error.to_string())
    }

    /// What of a suite is not as it should be. A component is given fewer runs, in which what it
    /// lacks need not show.
    fn wrong(&self, flavour: Flavour, suite: &Suite) -> Vec<String> {
        let cases = Property::ALL.into_iter().zip(&suite.cases);
        let wrong = cases.filter_map(|(property, case)| {
            let (name, is_lacking) = (&suite.name, self.lacking.contains(&property));
            match &case.verdict {
                Verdict::Passed(_) if is_lacking && flavour == Flavour::Native => Some(format!(
                    "{name}: {}, though it is said to lack that",
                    case.name
                )),
                Verdict::Passed(_) | Verdict::Skipped(_) => None,
                Verdict::Failed(_) if is_lacking => None,
                Verdict::Failed(Problem { summary, detail })
                | Verdict::Broken(Problem { summary, detail }) => Some(format!(
                    "{name}: not so: {}: {summary}\n{detail}",
                    case.name
                )),
            }
        });
        wrong.collect()
    }
}
