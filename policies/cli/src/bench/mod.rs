//! `policy bench`: the cost of a question, by the size of the fleet, beside the default policy.
//!
//! The command asks as the driver does: first it tells the policy the changed rows, then it asks
//! the question. Only the question is timed. Fuel is the same on every machine, time is not.
//!
//! # Not here
//! The cost of a whole round (`cargo xtask bench decide`).

mod fleet;

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use pointsman_component::{
    EmbeddedPolicy, Fault, Instance, PolicyComponent, WasmInstance, configured,
};
use pointsman_core::rows::Extent;
use pointsman_core::{Config, Micros};
use pointsman_notation::Time;
use pointsman_notation::grouped;
use pointsman_policy::observe_all;
use serde_json::Value;

use super::hooks::Hook;
use super::settings::Given;
use super::stopwatch::stopwatch;
use super::{Done, PolicyFileArg, SettingsArg, file};
use fleet::Fleet;

/// Arguments of `policy bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: PolicyFileArg,
    #[command(flatten)]
    settings: SettingsArg,
    /// Sizes of the fleet
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,64,1024",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    executors: Vec<u32>,
    /// Questions of each kind to each policy
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    questions: u32,
}

/// A policy to be asked.
struct Contender {
    label: String,
    component: PolicyComponent,
    given: Given,
}

/// The cost of questions of one kind.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    median: Duration,
    /// The time that at most one question in a hundred exceeds.
    p99: Duration,
    /// The most fuel that one question used.
    fuel: u64,
}

pub(super) fn run(args: &Args, defaults: &[EmbeddedPolicy]) -> Result<Done> {
    let path = &args.file.file;
    let bytes = file::read(path)?;
    let given = Given::read(args.settings.path())?;
    let component = match file::load(&bytes)? {
        Ok(component) => component,
        Err(error) => {
            return Ok(Done::not_good(format!(
                "{}: no policy: {error}\n",
                path.display()
            )));
        }
    };
    let contender = Contender {
        label: file::stem(path),
        component,
        given,
    };
    let mut text = format!(
        "{:<11} {:>9}  {:<32} {:>8} {:>8} {:>12}\n",
        "hook", "executors", "policy", "p50", "p99", "fuel at most"
    );
    let questions = Hook::all();
    for question in questions.filter(|question| question.is_answered_by(&contender.component)) {
        let default = default_for(question, defaults)?;
        for &executors in &args.executors {
            for contender in [&contender, &default] {
                match measure(contender, question, executors, args.questions) {
                    Ok(cost) => row(&mut text, (question, executors), &contender.label, &cost)?,
                    Err(fault) => {
                        let label = &contender.label;
                        writeln!(text, "{label} faulted with {executors} executors: {fault}")?;
                        return Ok(Done::not_good(text));
                    }
                }
            }
        }
    }
    Ok(Done::good(text))
}

/// The default policy that answers this question.
fn default_for(question: Hook, defaults: &[EmbeddedPolicy]) -> Result<Contender> {
    for policy in defaults {
        let component = file::load(policy.wasm)?;
        let component = component.map_err(|error| anyhow::anyhow!("{}: {error}", policy.name))?;
        if question.is_answered_by(&component) {
            let label = format!("{} (default)", policy.name);
            return Ok(Contender {
                label,
                component,
                given: Given::default(),
            });
        }
    }
    anyhow::bail!(
        "no default policy in this binary exports {}: build it with `cargo xtask serve`",
        question.as_str()
    )
}

fn row(
    text: &mut String,
    (question, executors): (Hook, u32),
    label: &str,
    cost: &Cost,
) -> std::fmt::Result {
    let (hook, fuel) = (question.as_str(), grouped(cost.fuel));
    let (median, p99) = (Time(cost.median), Time(cost.p99));
    writeln!(
        text,
        "{hook:<11} {executors:>9}  {label:<32} {median:>8.2} {p99:>8.2} {fuel:>12}"
    )
}

fn measure(
    contender: &Contender,
    question: Hook,
    executors: u32,
    questions: u32,
) -> Result<Cost, Fault> {
    let Contender {
        component, given, ..
    } = contender;
    let mut policy = WasmInstance::new(component, given.limits)?;
    let described = policy.describe()?;
    let kinds = described.needs.all();
    let refused = |refusal: &dyn std::fmt::Display| {
        let kind = pointsman_core::FaultKind::Start;
        Fault::new(kind, format!("refused its settings: {refusal}"))
    };
    let settings = configured(&described.settings, &given.settings);
    let settings = Value::Object(settings.map_err(|bad| refused(&bad))?).to_string();
    let configured = policy.configure(&settings, &Config::default().bounds())?;
    configured.map_err(|refusal| refused(&refusal))?;
    let mut fleet = Fleet::new(executors, kinds);
    let limits = &given.limits;
    let told = (Micros(0), Extent::Everything);
    observe_all(&mut policy, limits, told, &fleet.everything())?;
    let time = stopwatch();
    let mut times = Vec::new();
    let mut fuel = 0;
    let warm_up = questions / 10;
    for asked in 0..questions + warm_up {
        let told = (Micros(0), Extent::SinceLast);
        observe_all(&mut policy, limits, told, &fleet.change())?;
        let begun = time();
        fleet.ask(&mut policy, question)?;
        let took = time().saturating_sub(begun);
        if asked >= warm_up {
            times.push(took);
            fuel = fuel.max(policy.last_fuel().unwrap_or(0));
        }
    }
    times.sort_unstable();
    Ok(Cost {
        median: quantile(&times, 50),
        p99: quantile(&times, 99),
        fuel,
    })
}

/// The value that `percent` of the sorted values do not exceed: the nearest rank.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pointsman_testkit::component::component_path;

    use super::*;

    #[test]
    fn a_quantile_is_the_value_of_the_nearest_rank() {
        let times: Vec<_> = (1..=200).map(Duration::from_nanos).collect();
        assert_eq!(quantile(&times, 50), Duration::from_nanos(100));
        assert_eq!(quantile(&times, 99), Duration::from_nanos(198));
        assert_eq!(quantile(&times[..1], 99), Duration::from_nanos(1));
    }

    #[test]
    fn every_default_policy_answers_its_questions_and_uses_the_same_fuel_each_time() {
        let defaults = ["aging", "memory-aware", "budget"].map(|name| {
            let wasm = fs::read(component_path(name)).unwrap();
            EmbeddedPolicy {
                name,
                wasm: wasm.leak(),
                code: None,
            }
        });
        for question in Hook::all() {
            let contender = default_for(question, &defaults).unwrap();
            let fuel = |executors| {
                let cost = measure(&contender, question, executors, 10);
                cost.unwrap().fuel
            };
            assert!(fuel(1) > 0, "{question:?}");
            assert_eq!(fuel(20), fuel(20), "{question:?}");
        }
    }
}
