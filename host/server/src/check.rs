//! `pointsman serve --check`: everything that a server would refuse at its start, without a server.
//!
//! Policies go the whole way of a start, the self-test included, with a machine that serves nobody. Not
//! checked are the numbers of a model's weights, which take long to read, and what a server that runs may have: memory for
//! weights, that of CUDA devices, the addresses, and the locks of the folders of state and journal, in which nothing is made.

use std::cell::RefCell;
use std::sync::Arc;

use anyhow::{Context, Result};
use pointsman_component::PolicyEngine;
use pointsman_config::Config;
use pointsman_core::{Machine, Micros, Needs};
use pointsman_driver::clock::SystemClock;
use pointsman_driver::provider::ModelSource;
use pointsman_http::Tls;
use pointsman_lifecycle::ReconcilerSpec;
use pointsman_lifecycle::port::{HostEnded, PolicyPort};
use pointsman_lifecycle::reconciler::Reconciler;
use pointsman_lifecycle::report::{ReconcilerReport, ReloadStep};
use pointsman_local::hub;
use pointsman_policy::{Briefing, Commit, CommitError, Committed, PolicyHost, Snapshot};
use pointsman_state::State;

use crate::advice::advice;
use crate::{embedded, journal, state};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The text to print.
    pub text: String,
    /// True if a server would start and nothing has to be sorted out.
    pub is_good: bool,
}

/// The host of policies that decide nothing.
struct Nowhere {
    machine: Machine,
    policies: RefCell<PolicyHost>,
}

/// Checks a configuration that was read.
///
/// # Errors
/// What would keep a server from starting.
pub fn check(config: &Config) -> Result<Checked> {
    let tls = config.tls.clone().map(Tls::load).transpose();
    tls.context("tls")?;
    state::check(config)?;
    journal::check(config)?;
    let too_few_blocks = pointsman_local::check(&config.local)?;
    let report = policies(config)?;
    crate::serve::check_defaults(&report)?;
    let trouble = trouble(&report);
    let mut advice = advice(config, &report);
    advice.extend(too_few_blocks);
    let mut text = summary(config, &report);
    for (title, lines) in [
        ("to be sorted out", &trouble),
        ("perhaps not meant so", &advice),
    ] {
        if !lines.is_empty() {
            let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
            text.push_str(&format!("\n{title}\n{lines}"));
        }
    }
    Ok(Checked {
        text,
        is_good: trouble.is_empty(),
    })
}

/// The policies as a server would have them after its start.
fn policies(config: &Config) -> Result<ReconcilerReport> {
    let clock = SystemClock::start();
    let (waker, _woken) = pointsman_lifecycle::waker();
    let spec = ReconcilerSpec {
        settings: config.policies.clone(),
        bounds: config.core.bounds(),
        embedded: embedded::policies()?.to_vec(),
        engine: PolicyEngine::with_compiler(config.compiler.clone())?,
        clock: Arc::new(move || clock.now()),
        state: State::default(),
        waker,
    };
    let nowhere = Nowhere {
        machine: Machine::new(config.core.clone())?,
        policies: RefCell::new(PolicyHost::new(config.patience)),
    };
    let mut reconciler = Reconciler::new(spec, nowhere).context("reconciler")?;
    let reports = reconciler.subscribe();
    reconciler.begin()?;
    let report = Arc::clone(&reports.borrow());
    Ok(ReconcilerReport::clone(&report))
}

/// Things about policies that an operator has to sort out.
fn trouble(report: &ReconcilerReport) -> Vec<String> {
    let refused = report.refused.iter().map(|(name, refusal)| {
        let why = refusal.why.lines().next().unwrap_or("");
        format!("policy {name} is refused: {}: {why}", refusal.step)
    });
    let conflicts = report.conflicts.iter().map(ToString::to_string);
    refused.chain(conflicts).collect()
}

fn summary(config: &Config, report: &ReconcilerReport) -> String {
    let mut text = String::from("the configuration can be used\n");
    let mut line = |what: &str, value: &str| {
        text.push_str(&format!("  {what:10} {value}\n"));
    };
    line("listen", &config.listen.to_string());
    let models = config.local.models.iter().map(|model| match &model.source {
        ModelSource::Hub(name) if hub::cached(name, &config.local.hub).is_none() => {
            format!("{} (fetched when the server starts)", model.name)
        }
        ModelSource::Hub(_)
        | ModelSource::Embedded
        | ModelSource::Path(_)
        | ModelSource::Dummy { .. } => model.name.clone(),
    });
    line("models", &or_none(&models.collect::<Vec<_>>()));
    let backends: Vec<String> = config
        .backends
        .iter()
        .map(|backend| backend.server.executor_name())
        .collect();
    line("backends", &or_none(&backends));
    let tenants: Vec<&str> = config.tenants.iter().map(|it| &*it.name).collect();
    line("tenants", &or_none(&tenants));
    line("keys", &config.keys.len().to_string());
    for (hook, holder) in report.holders() {
        line(hook.as_str(), holder);
    }
    text
}

fn or_none(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

// === impl Nowhere ===

impl PolicyPort for Nowhere {
    fn handover(&self, policy: u32) -> Option<Snapshot> {
        self.policies.borrow_mut().handover(Micros(0), policy)
    }

    fn brief(&self, needs: Needs) -> Result<Briefing, HostEnded> {
        Ok(Briefing::new(&self.machine.view(), Micros(0), needs))
    }

    fn commit(&self, commit: Commit) -> Result<Result<Committed, CommitError>, HostEnded> {
        Ok(self.policies.borrow_mut().commit(Micros(0), commit))
    }

    fn count_committed(&self, _: Micros) {}

    fn count_refused(&self, _: ReloadStep) {}
}
