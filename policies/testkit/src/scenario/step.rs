//! Steps: at most one action each, and the expectations after it.

use pointsman_core::RetryClass;
use pointsman_core::rows::RequestClass;
use pointsman_notation::{Time, TomlError, TomlText};
use serde::Deserialize;
use toml::Spanned;

use super::Name;
use super::expect::Expect;
use super::fleet::{CountsTable, ExecutorTable, ModelTable, TenantTable};
use super::prompt::Prompt;
use super::units::{Many, Names};

/// A `[[step]]`, checked.
#[derive(Debug)]
pub(crate) struct Step {
    /// The first byte of the step in the file.
    pub(crate) at: usize,
    pub(crate) action: Option<Action>,
    pub(crate) expect: Option<Expect>,
}

/// An event of a step. Arrivals and changes are decided together, by the next step that
/// settles: `settle`, `advance`, `engine-step`, `run-out`, `fail` or an `expect`.
#[derive(Debug)]
pub(crate) enum Action {
    Arrive(Vec<Arrival>),
    Advance(Time),
    EngineStep(Vec<Name>),
    Settle,
    RunOut(Time),
    Cancel(Vec<Name>),
    Fail(Failure),
    Lose(Vec<Name>),
    Recover(Vec<Name>),
    Degrade(Vec<Name>),
    Drain(Vec<Name>),
    Attach(Vec<ExecutorTable>),
    Detach(Vec<Name>),
    Update(Vec<UpdateTable>),
    SetTenant(Vec<TenantTable>),
    SetModel(Vec<ModelTable>),
    Report(Vec<ReportTable>),
    Cache(Vec<CacheTable>),
}

/// A `[[step]]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct StepTable {
    arrive: Option<Many<Arrival>>,
    advance: Option<Time>,
    engine_step: Option<Names>,
    settle: Option<bool>,
    run_out: Option<Time>,
    cancel: Option<Names>,
    fail: Option<Failure>,
    lose: Option<Names>,
    recover: Option<Names>,
    degrade: Option<Names>,
    drain: Option<Names>,
    attach: Option<Many<ExecutorTable>>,
    detach: Option<Names>,
    update: Option<Many<UpdateTable>>,
    set_tenant: Option<Many<TenantTable>>,
    set_model: Option<Many<ModelTable>>,
    report: Option<Many<ReportTable>>,
    cache: Option<Many<CacheTable>>,
    expect: Option<Expect>,
}

/// A request, or several equal ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Arrival {
    pub(crate) name: Name,
    /// Number of requests, called `NAME-1` and so on.
    pub(crate) count: Option<u32>,
    /// Model that is asked for; absent: any executor will do.
    pub(crate) model: Option<Name>,
    pub(crate) adapter: Option<String>,
    /// Tenant of the request; absent: `default`.
    pub(crate) tenant: Option<Name>,
    pub(crate) session: Option<String>,
    #[serde(default)]
    pub(crate) class: Class,
    #[serde(default)]
    pub(crate) priority: i32,
    #[serde(default)]
    pub(crate) head_start: Time,
    #[serde(default)]
    pub(crate) labels: Vec<String>,
    /// Deadline, counted from the arrival.
    pub(crate) deadline: Option<Time>,
    #[serde(default = "yes")]
    pub(crate) may_wait: bool,
    #[serde(default)]
    pub(crate) prompt: Prompt,
    /// Tokens that the request will generate.
    #[serde(default = "sixteen")]
    pub(crate) output: u32,
    /// Bound that the client sets; absent: `output`.
    pub(crate) output_max: Option<u32>,
    /// Number of tokens that the client expects.
    pub(crate) output_expected: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) allowed: Option<Vec<Name>>,
    /// Executor that served the session last.
    pub(crate) preferred: Option<Name>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    #[default]
    LatencyCritical,
    Throughput,
}

/// The action `fail`: the executor of a running request fails it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Failure {
    pub(crate) request: Name,
    #[serde(default)]
    pub(crate) retry: Retry,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Retry {
    #[default]
    Elsewhere,
    Never,
}

/// The action `update`: an executor's limits change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct UpdateTable {
    pub(crate) executor: Name,
    pub(crate) share_weight: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) serves: Option<Vec<Name>>,
    pub(crate) loaded: Option<Vec<Name>>,
}

/// The action `report`: a device reports its KV counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ReportTable {
    pub(crate) device: Name,
    pub(crate) counts: CountsTable,
}

/// The action `cache`: an engine or a shared cache reports parts of prompts that it holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CacheTable {
    pub(crate) tier: TierName,
    /// Device of the cache; absent for a shared cache.
    pub(crate) device: Option<Name>,
    /// Model of the blocks; absent where requests name none.
    pub(crate) model: Option<Name>,
    pub(crate) stored: Option<Prompt>,
    pub(crate) removed: Option<Prompt>,
    #[serde(default)]
    pub(crate) cleared: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TierName {
    Device,
    Host,
    Disk,
    Shared,
}

fn yes() -> bool {
    true
}

fn sixteen() -> u32 {
    16
}

// === impl Step ===

impl Step {
    pub(crate) fn of(source: &TomlText, table: Spanned<StepTable>) -> Result<Self, TomlError> {
        let at = table.span().start;
        let mut table = table.into_inner();
        let expect = table.expect.take();
        if expect.as_ref().is_some_and(Expect::is_empty) {
            return Err(source.error(at, "the `expect` of this step expects nothing"));
        }
        if table.settle == Some(false) {
            return Err(source.error(at, "`settle` can only be true"));
        }
        let mut actions = table.actions().into_iter().flatten();
        let action = actions.next();
        if let (Some((first, _)), Some((second, _))) = (&action, actions.next()) {
            let text = format!("a step does one thing, this one does `{first}` and `{second}`");
            return Err(source.error(at, text));
        }
        if action.is_none() && expect.is_none() {
            return Err(source.error(at, "the step neither does nor expects anything"));
        }
        Ok(Self {
            at,
            action: action.map(|(_, action)| action),
            expect,
        })
    }
}

// === impl StepTable ===

impl StepTable {
    /// The action under each key.
    fn actions(self) -> [Option<(&'static str, Action)>; 18] {
        fn many<T>(
            key: &'static str,
            items: Option<Many<T>>,
            action: impl FnOnce(Vec<T>) -> Action,
        ) -> Option<(&'static str, Action)> {
            Some((key, action(items?.0)))
        }
        let names = |key: &'static str, names: Option<Names>, action: fn(Vec<Name>) -> Action| {
            Some((key, action(names?.0)))
        };
        [
            many("arrive", self.arrive, Action::Arrive),
            self.advance.map(|time| ("advance", Action::Advance(time))),
            names("engine-step", self.engine_step, Action::EngineStep),
            self.settle.map(|_| ("settle", Action::Settle)),
            self.run_out.map(|time| ("run-out", Action::RunOut(time))),
            names("cancel", self.cancel, Action::Cancel),
            self.fail.map(|failure| ("fail", Action::Fail(failure))),
            names("lose", self.lose, Action::Lose),
            names("recover", self.recover, Action::Recover),
            names("degrade", self.degrade, Action::Degrade),
            names("drain", self.drain, Action::Drain),
            many("attach", self.attach, Action::Attach),
            names("detach", self.detach, Action::Detach),
            many("update", self.update, Action::Update),
            many("set-tenant", self.set_tenant, Action::SetTenant),
            many("set-model", self.set_model, Action::SetModel),
            many("report", self.report, Action::Report),
            many("cache", self.cache, Action::Cache),
        ]
    }
}

// === impl Arrival ===

impl Arrival {
    /// The names of the requests.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = self.name.get_ref();
        match self.count {
            None => vec![name.clone()],
            Some(count) => (1..=count).map(|n| format!("{name}-{n}")).collect(),
        }
    }
}

// === to the core's types ===

impl From<Class> for RequestClass {
    fn from(class: Class) -> Self {
        match class {
            Class::LatencyCritical => Self::LatencyCritical,
            Class::Throughput => Self::Throughput,
        }
    }
}

impl From<Retry> for RetryClass {
    fn from(retry: Retry) -> Self {
        match retry {
            Retry::Elsewhere => Self::Elsewhere,
            Retry::Never => Self::Never,
        }
    }
}
