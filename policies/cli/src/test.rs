//! `policy test`: a policy's file against scenarios and properties, for people, CI and programs.
//!
//! The testkit defines and runs both; here a file takes the place of the policy of its name in
//! scenarios, and the default policies stand ready beside it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_component::{
    EmbeddedPolicy, Instance, Limits, PolicyComponent, PolicyEngine, WasmInstance,
};
use pointsman_notation::Time;
use pointsman_policy::PolicySource;
use pointsman_testkit::properties::{self, Plan, Property};
use pointsman_testkit::report::{self, Case, Problem, Report, Suite, Verdict};
use pointsman_testkit::{Flavour, Kit, Registry, scenario_files};
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::settings::Given;
use super::stopwatch::stopwatch;
use super::{Done, build, check, code, file};

/// The time for the properties.
const TIME: Duration = Duration::from_secs(10);
/// The seed of the first run.
const SEED: u64 = 1;
/// Events of a run.
const EVENTS: u32 = 100;
/// The folder for scenarios of broken properties.
const SAVE: &str = "found";

/// Arguments of `policy test`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The policy, as `pointsman policy build` writes it, or its folder: that is built, and put through its
    /// scenarios and the properties
    #[arg(value_name = "FILE", default_value = ".")]
    policy: PathBuf,
    /// Scenarios, or folders of them [default for a folder: its `scenarios`]
    #[arg(value_name = "SCENARIOS")]
    scenarios: Vec<PathBuf>,
    #[command(flatten)]
    properties: PropertyArgs,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
    /// Write the report to a file; the terminal still shows it for people
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Arguments of the property checks.
#[derive(Clone, Debug, clap::Args)]
struct PropertyArgs {
    /// Check the properties of any good policy: never refused, the same after a restart, and so on. What is said
    /// about them says that, too
    #[arg(long)]
    properties: bool,
    /// The policy's [limits], and its [settings] while properties are checked; a scenario has settings of its own
    #[arg(long, value_name = "FILE.toml")]
    settings: Option<PathBuf>,
    /// Begin new runs, each with the next seed, for so long [default: 10s]
    #[arg(long = "for", value_name = "TIME", conflicts_with = "runs", value_parser = time)]
    time: Option<Duration>,
    /// Make so many runs, however long they take
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// The seed of the first run [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Events of a run: arrivals, failures, time passing [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    events: Option<u32>,
    /// Folder for the scenario that is left of each broken property [default: found]
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Human,
    Junit,
    Json,
}

/// The policy under test, with a note if the running scenario has bound it.
struct Subject {
    names: [String; 2],
    component: PolicyComponent,
    limits: Limits,
    bound: Arc<AtomicBool>,
}

/// A policy's file with all that it is put through.
struct Wanted {
    path: PathBuf,
    scenarios: Vec<PathBuf>,
    has_properties: bool,
    /// The result of a build, in lines.
    built: String,
}

/// All that a good policy has to pass, as `policy dev` asks for it at each change.
pub(super) struct Whole<'a> {
    pub(super) policy: &'a Path,
    pub(super) scenarios: Vec<PathBuf>,
    pub(super) settings: Option<PathBuf>,
    /// The time for the properties.
    pub(super) time: Duration,
}

/// Puts a policy through its scenarios and the properties.
pub(super) fn whole(whole: Whole<'_>, defaults: &'static [EmbeddedPolicy]) -> Result<Done> {
    let args = Args {
        policy: whole.policy.to_owned(),
        scenarios: whole.scenarios,
        properties: PropertyArgs {
            properties: true,
            settings: whole.settings,
            time: Some(whole.time),
            runs: None,
            seed: None,
            events: None,
            save: None,
        },
        format: Format::Human,
        output: None,
    };
    run(&args, defaults)
}

/// The digest of a policy that starts within these limits; the inner error says why it is none.
pub(super) fn digest(path: &Path, bytes: &[u8], limits: Limits) -> Result<Result<String, String>> {
    let subject = subject(path, bytes, limits)?;
    Ok(subject.map(|subject| subject.component.digest().to_string()))
}

pub(super) fn run(args: &Args, defaults: &'static [EmbeddedPolicy]) -> Result<Done> {
    let wanted = match Wanted::of(args)? {
        Ok(wanted) => wanted,
        Err(why) => return Ok(Done::not_good(why)),
    };
    let path = &wanted.path;
    let bytes = file::read(path)?;
    let scenarios = scenarios(&wanted.scenarios)?;
    let given = Given::read(args.properties.settings.as_deref())?;
    let subject = match subject(path, &bytes, given.limits)? {
        Ok(subject) => subject,
        Err(why) => return Ok(Done::not_good(format!("{}: {why}\n", path.display()))),
    };
    let mut suites = Vec::new();
    let mut saved = String::new();
    if !scenarios.is_empty() {
        let mut kit = Kit::new(registry(&subject, defaults));
        let cases = scenarios
            .iter()
            .flat_map(|path| case(&mut kit, &subject, path));
        let cases = cases.collect();
        suites.push(Suite {
            name: file::stem(path),
            cases,
        });
    }
    if wanted.has_properties {
        match args.properties.check(&subject.component, &given) {
            Ok(suite) => {
                saved = args.properties.save(path, &suite)?;
                suites.push(suite);
            }
            Err(why) => return Ok(Done::not_good(format!("{}: {why}\n", path.display()))),
        }
    }
    args.done(&Report { suites }, &wanted.built, &saved)
}

/// All scenario files in `paths`, which may be folders.
fn scenarios(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let shown = path.display();
        let found = scenario_files(path).with_context(|| format!("scenarios {shown}"))?;
        anyhow::ensure!(
            !found.is_empty(),
            "{shown} has no scenario: a scenario is a .toml file"
        );
        files.extend(found);
    }
    Ok(files)
}

/// Loads the policy and asks for its name; the inner error names the problem.
fn subject(path: &Path, bytes: &[u8], limits: Limits) -> Result<Result<Subject, String>> {
    let component = match file::load(bytes)? {
        Ok(component) => component,
        Err(why) => return Ok(Err(format!("no policy: {why}"))),
    };
    let described =
        WasmInstance::new(&component, limits).and_then(|mut instance| instance.describe());
    Ok(match described {
        Ok(said) => Ok(Subject {
            names: [said.name, file::stem(path)],
            component,
            limits,
            bound: Arc::default(),
        }),
        Err(fault) => Err(format!("faulted at the start: {fault}")),
    })
}

/// The subject under its own name and its file's, and the default policies.
fn registry(subject: &Subject, defaults: &'static [EmbeddedPolicy]) -> Registry {
    let mut registry = Registry::new();
    for policy in defaults {
        let loaded = OnceLock::new();
        registry = registry.with_source(policy.name, move |settings| {
            let component = loaded.get_or_init(|| default(policy));
            PolicySource::component(component, settings, Limits::default())
        });
    }
    for name in &subject.names {
        let (component, limits) = (subject.component.clone(), subject.limits);
        let bound = Arc::clone(&subject.bound);
        registry = registry.with_source(name, move |settings| {
            bound.store(true, Ordering::Relaxed);
            PolicySource::component(&component, settings, limits)
        });
    }
    registry
}

fn default(policy: &EmbeddedPolicy) -> PolicyComponent {
    let engine = PolicyEngine::new().expect("an engine was made for the policy under test");
    code::kept()
        .embedded(&engine, policy)
        .expect("what is embedded was built with this host")
}

/// Runs one scenario. One that does not bind the policy says nothing about it.
fn case(kit: &mut Kit, subject: &Subject, path: &Path) -> Vec<Case> {
    subject.bound.store(false, Ordering::Relaxed);
    let mut cases = kit.suite("", &[path.to_owned()], Flavour::Component).cases;
    if !subject.bound.load(Ordering::Relaxed) {
        let passed = |case: &&mut Case| matches!(case.verdict, Verdict::Passed(_));
        for case in cases.iter_mut().filter(passed) {
            case.verdict = Verdict::Broken(Problem::new(format!(
                "it is not about this policy: bind it with [policy.{}]",
                subject.names[0]
            )));
        }
    }
    cases
}

// === impl Args ===

impl Args {
    /// Writes the report. People are also told what was built and `saved`.
    fn done(&self, report: &Report, built: &str, saved: &str) -> Result<Done> {
        let mut text = self.format.write(report);
        if let Some(output) = &self.output {
            fs::write(output, &text)
                .with_context(|| format!("{} not written", output.display()))?;
            text = report::human(report);
        }
        if self.format == Format::Human || self.output.is_some() {
            text = [built, &text, saved].concat();
        }
        Ok(if report.is_passed() {
            Done::good(text)
        } else {
            Done::not_good(text)
        })
    }
}

// === impl Wanted ===

impl Wanted {
    /// The file that is named, or the one that the folder makes; the inner error says why it makes none.
    fn of(args: &Args) -> Result<Result<Self, String>> {
        let Args {
            policy, scenarios, ..
        } = args;
        if policy.is_dir() {
            return Ok(build::build(policy, None)?.map(|built| {
                let own = policy.join("scenarios");
                let has_own = scenarios.is_empty() && own.is_dir();
                Self {
                    built: built.text(),
                    path: built.path,
                    scenarios: if has_own {
                        vec![own]
                    } else {
                        scenarios.clone()
                    },
                    has_properties: true,
                }
            }));
        }
        let has_properties = args.properties.are_asked_for(scenarios);
        anyhow::ensure!(
            has_properties || !scenarios.is_empty(),
            "name scenarios, or say `--properties`; a folder in the place of the file is built and put \
             through both",
        );
        Ok(Ok(Self {
            path: policy.clone(),
            scenarios: scenarios.clone(),
            has_properties,
            built: String::new(),
        }))
    }
}

// === impl PropertyArgs ===

impl PropertyArgs {
    /// Returns whether properties are to be checked beside these scenarios: something is said about them. Settings
    /// are about them where there are no scenarios, which have the limits of them, too.
    fn are_asked_for(&self, scenarios: &[PathBuf]) -> bool {
        let Self {
            properties,
            settings,
            time,
            runs,
            seed,
            events,
            save,
        } = self;
        let numbers = seed.is_some() || events.is_some() || runs.is_some() || time.is_some();
        let is_set = settings.is_some() && scenarios.is_empty();
        *properties || numbers || is_set || save.is_some()
    }

    /// Checks all properties; the error says why the policy cannot be checked.
    fn check(&self, component: &PolicyComponent, given: &Given) -> Result<Suite, String> {
        let subject = properties::Subject::component(component, &given.settings, given.limits);
        let plan = Plan {
            seed: self.seed.unwrap_or(SEED),
            runs: self.runs.unwrap_or(u32::MAX),
            events: self.events.unwrap_or(EVENTS),
            ..Plan::default()
        };
        let (elapsed, is_timed) = (stopwatch(), self.runs.is_none());
        let time = self.time.unwrap_or(TIME);
        let mut goes_on = || !is_timed || elapsed() < time;
        let checked = properties::check_while(&subject, &plan, &mut goes_on);
        checked.map_err(|error| check::explained(&error))
    }

    /// Writes the scenario that is left of each broken property. Returns how to run it again.
    fn save(&self, policy: &Path, suite: &Suite) -> Result<String> {
        let mut lines = String::new();
        // Its limits are in no scenario.
        let settings = self.settings.as_ref();
        let settings = settings.map(|path| format!(" --settings {}", path.display()));
        let settings = settings.unwrap_or_default();
        for (property, case) in Property::ALL.into_iter().zip(&suite.cases) {
            let Verdict::Failed(Problem {
                scenario: Some(scenario),
                ..
            }) = &case.verdict
            else {
                continue;
            };
            let folder = self.save.as_deref().unwrap_or(Path::new(SAVE));
            let shown = folder.display();
            fs::create_dir_all(folder).with_context(|| format!("{shown} not made"))?;
            let file = folder.join(format!("{}.toml", property.name()));
            let (policy, shown) = (policy.display(), file.display());
            fs::write(&file, scenario).with_context(|| format!("{shown} not written"))?;
            writeln!(
                lines,
                "again: pointsman policy test {policy} {shown}{settings}"
            )?;
        }
        Ok(lines)
    }
}

/// Reads a duration of the command line.
pub(super) fn time(text: &str) -> Result<Duration, ValueError> {
    let Time(time) = Time::deserialize(StrDeserializer::new(text))?;
    Ok(time)
}

// === impl Format ===

impl Format {
    fn write(self, report: &Report) -> String {
        match self {
            Self::Human => report::human(report),
            Self::Junit => report::junit(report),
            Self::Json => report::json(report),
        }
    }
}
