//! `policy check`: loads, starts and tests a policy as a server would, and names the problems to fix.

use std::path::{Path, PathBuf};

use anyhow::Result;
use pointsman_component::{LogLine, PolicyComponent, SettingSchema};
use pointsman_core::{FaultKind, Needs, RowKind};
use pointsman_notation::chain;
use pointsman_policy::{
    POLICY_NAME, PolicySource, Runner, SelfTestError, StartError, is_policy_name, self_test, start,
};

use super::facts::FileFacts;
use super::settings::Given;
use super::table::Facts;
use super::{Done, SettingsArg, build, file, inspect};
use pointsman_notation::grouped;

/// Arguments of `policy check`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The policy, as `pointsman policy build` writes it, or its folder, which is built
    #[arg(value_name = "FILE")]
    policy: PathBuf,
    #[command(flatten)]
    settings: SettingsArg,
}

/// Memory grows by pages of this size.
const PAGE: u64 = 64 << 10;

pub(super) fn run(args: &Args) -> Result<Done> {
    if !args.policy.is_dir() {
        return check(&args.policy, args, String::new());
    }
    match build::build(&args.policy, None)? {
        Ok(built) => check(&built.path, args, built.text()),
        Err(why) => Ok(Done::not_good(why)),
    }
}

/// Checks a file. `built` is what was said of its build.
fn check(path: &Path, args: &Args, built: String) -> Result<Done> {
    let bytes = file::read(path)?;
    let given = Given::read(args.settings.path())?;
    let head = format!("{built}{}\n", path.display());
    let component = match file::load(&bytes)? {
        Ok(component) => component,
        Err(error) => return Ok(Done::not_good(format!("{head}no policy: {error}\n"))),
    };
    let mut facts = inspect::identity(&bytes);
    let interfaces = FileFacts::read(&bytes)?.component.unwrap_or_default();
    facts.list("imports", interfaces.imports);
    facts.list("exports", interfaces.exports);
    let hooks: Vec<_> = component.hooks().iter().map(|hook| hook.as_str()).collect();
    facts.add("decides", hooks.join(", "));
    let source = PolicySource::component(&component, &given.settings, given.limits);
    let source = source.named(&file::stem(path));
    let mut started = match start(source.clone()) {
        Ok(started) => started,
        Err(error) => {
            let (facts, why) = (facts.text(), explained(&error));
            return Ok(Done::not_good(format!(
                "{head}{facts}does not start: {why}\n"
            )));
        }
    };
    describe(&mut facts, &started);
    let (used, most) = (
        memory(&component, &given) >> 10,
        given.limits.memory_bytes >> 10,
    );
    let (used, most) = (grouped(used), grouped(most));
    facts.add(
        "memory",
        format!("starts with {used} KiB of the {most} KiB it may have"),
    );
    let facts = facts.text();
    let notes = notes(path, &given, &component, &mut started);
    Ok(match taken(&given, &component, &source) {
        Ok(()) => Done::good(format!("{head}{facts}{notes}good: a server takes it\n")),
        Err(why) => Done::not_good(format!("{head}{facts}{notes}a server {why}\n")),
    })
}

/// The error says what a server does with a policy that starts, instead of taking it.
fn taken(given: &Given, component: &PolicyComponent, source: &PolicySource) -> Result<(), String> {
    let pinned = given.sha256.filter(|pinned| *pinned != component.digest());
    if let Some(pinned) = pinned {
        return Err(format!(
            "waits for the file that `--settings` is about, whose sha256 is {pinned}\nto fix it: change \
             `sha256` in what `--settings` names, or leave it out"
        ));
    }
    let mode = given.mode.check(component.hooks());
    mode.map_err(|error| format!("refuses it: {error}"))?;
    self_test(source).map_err(|error| format!("refuses it: {}", untested(&error)))
}

/// Adds the policy's own description.
fn describe(facts: &mut Facts, started: &Runner) {
    let said = started.description();
    facts.add("name", format!("{} {}", said.name, said.version));
    facts.add("summary", said.summary.as_str());
    facts.list("reads", reads(&said.needs));
    facts.list("reasons", &said.reasons);
    facts.list("settings", said.settings.iter().map(setting));
}

/// A line about a setting: its key, values, default and meaning.
pub(super) fn setting(setting: &SettingSchema) -> String {
    let SettingSchema {
        key,
        about,
        values,
        default: _,
    } = setting;
    let default = setting.default_written();
    let default = default.as_deref().unwrap_or("left out");
    format!("{key}: {values}; {default} by default. {about}")
}

/// A line for each hook that reads rows.
fn reads(needs: &Needs) -> impl Iterator<Item = String> {
    let decisions = needs.decisions.iter();
    let decisions = decisions.map(|(hook, kinds)| (hook.as_str(), *kinds));
    let all = decisions.chain([("explanation", needs.explanation)]);
    all.filter(|(_, kinds)| !kinds.is_empty())
        .map(|(hook, kinds)| {
            let kinds: Vec<_> = kinds.iter().map(RowKind::as_str).collect();
            format!("{hook}: {}", kinds.join(", "))
        })
}

/// Remarks about a policy that is good.
fn notes(path: &Path, given: &Given, component: &PolicyComponent, started: &mut Runner) -> String {
    let mut notes = given.raised();
    let (stem, name) = (file::stem(path), &started.description().name);
    if !is_policy_name(&stem) {
        notes.push(format!(
            "a policy folder passes over a file of the name {stem}: {POLICY_NAME}"
        ));
    } else if stem != *name {
        notes.push(format!(
            "in a policy folder it is called {stem}, after its file, not {name}"
        ));
    }
    let unknown = component.unknown_exports().iter();
    notes.extend(unknown.map(|interface| format!("this host does not ask {interface}")));
    let mut log: Vec<LogLine> = Vec::new();
    let dropped = started.take_log(&mut log);
    notes.extend(
        log.into_iter()
            .map(|line| format!("it logged: {}", line.message)),
    );
    if dropped > 0 {
        notes.push(format!("{dropped} more log lines were dropped"));
    }
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

/// The reason why a policy does not start, with advice where the message has none.
pub(super) fn explained(error: &StartError) -> String {
    let advice = if matches!(
        error,
        StartError::SettingsRefused(_) | StartError::ConfigureFaulted(_)
    ) {
        "change what `--settings` names; without it the settings are empty"
    } else if matches!(error, StartError::Description(_)) {
        "change what `describe` returns"
    } else {
        return chain(error);
    };
    format!("{}\nto fix it: {advice}", chain(error))
}

/// The reason why a policy does not pass the server's self-test, with advice.
fn untested(error: &SelfTestError) -> String {
    let mut why = chain(error);
    let advice = match error {
        SelfTestError::Start(error) => return explained(error),
        SelfTestError::Faulted { fault, .. } => {
            // The policy's functions stand below the first line.
            why.push_str(&fault.detail[fault.headline().len()..]);
            match fault.kind {
                FaultKind::Fuel | FaultKind::Deadline | FaultKind::Memory | FaultKind::Oversize => {
                    "do less in one call, or raise `[limits]` of what `--settings` names"
                }
                FaultKind::Trap | FaultKind::Start | FaultKind::Struck => {
                    "answer every question: also of a host without executors, and of one that is full"
                }
            }
        }
        SelfTestError::Malformed { .. } | _ => {
            "one verdict for each row of a question, and only ids that the host has named"
        }
    };
    format!("{why}\nto fix it: {advice}")
}

/// The smallest memory, in bytes, that a policy starts with. A large fleet needs more.
fn memory(component: &PolicyComponent, given: &Given) -> u64 {
    let starts = |pages: u64| {
        let mut limits = given.limits;
        limits.memory_bytes = pages * PAGE;
        start(PolicySource::component(component, &given.settings, limits)).is_ok()
    };
    let (mut too_few, mut enough) = (0, given.limits.memory_bytes.div_ceil(PAGE));
    while too_few + 1 < enough {
        let middle = too_few.midpoint(enough);
        if starts(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    enough * PAGE
}

#[cfg(test)]
mod tests {
    use pointsman_component::{SettingRange, TimeUnit};

    use super::*;

    #[test]
    fn a_default_is_shown_as_an_operator_would_write_it() {
        let described = |values, default: Option<&str>| SettingSchema {
            key: "pace".to_owned(),
            about: "About it.".to_owned(),
            values,
            default: default.map(str::to_owned),
        };
        let duration = || SettingRange::Duration(TimeUnit::Seconds, 0..=3600);
        for (described, shown) in [
            (
                described(duration(), Some("120")),
                "pace: 0s to 1h; \"2min\" by default. About it.",
            ),
            (
                described(duration(), None),
                "pace: 0s to 1h; left out by default. About it.",
            ),
            (
                described(SettingRange::YesOrNo, Some("true")),
                "pace: true or false; true by default. About it.",
            ),
        ] {
            assert_eq!(setting(&described), shown);
        }
    }
}
