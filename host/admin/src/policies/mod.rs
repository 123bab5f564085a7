//! `GET /admin/policies`: the report of the reconciler beside the driver's status of each policy.

mod shape;

use std::collections::BTreeMap;

use pointsman_component::{Fault, SettingSchema};
use pointsman_core::{Hook, HookMap, HookSet, Micros};
use pointsman_driver::operator::Operator;
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use pointsman_http::{App, Call};
use pointsman_lifecycle::report::{
    Conflict, FolderReport, FolderState, Origin, PolicyReport, ReconcilerReport, Transaction,
    TransactionOutcome, VersionRefusal,
};
use pointsman_policy::{
    Agreement, Cause, DecisionText, Disagreement, PolicyStatus, ProbationProgress, Quarantined,
    Restored, ShadowReport, ShadowState, Spread,
};
use pointsman_state::BoundTo;

use super::in_time;
use shape::{
    CanarySeen, Compared, ComparedReason, DescribedSetting, Example, FaultShape, HookConflict,
    HookHolder, HookName, LeftOutFile, ListedPolicy, ListedRefusal, ListedTransaction,
    PolicyCounters, PolicyFile, PolicyFolder, ProbationShape, Quantiles, QuarantinedVersion,
    RestoredState, ShadowListing, StateFolder, Verdict,
};

pub use shape::PolicyListing;

pub(crate) async fn list(call: Call<'_>) -> Result<Json<PolicyListing>, ApiError> {
    in_time(listing(call.app)).await.map(Json)
}

/// Everything about policies; absent once the driver has ended.
pub(crate) async fn listing(app: &App) -> Option<PolicyListing> {
    let status = app.driver.policies().await?;
    let shadows = app.driver.operate(Operator::Shadows).await?;
    let now = app.watched.clock.now();
    let report = app.watched.reconciler.borrow();
    Some(PolicyListing::new(now, &status, &report, &shadows))
}

impl PolicyListing {
    /// The reconciler's `report` beside the driver's `status` of each policy and its `shadows`, at the
    /// time `now`.
    #[must_use]
    pub fn new(
        now: Micros,
        status: &[PolicyStatus],
        report: &ReconcilerReport,
        shadows: &[ShadowReport],
    ) -> Self {
        let refused = report.refused.iter();
        let policies = report.policies.iter();
        Self {
            at_micros: now.0,
            hooks: hooks_by_holder(status, report),
            policies: policies.map(|policy| listed(policy, status)).collect(),
            refused: refused
                .map(|(name, refusal)| refusal_of(name, refusal))
                .collect(),
            conflicts: report.conflicts.iter().map(HookConflict::from).collect(),
            folder: PolicyFolder::from(&report.folder),
            transactions: report
                .transactions
                .iter()
                .map(ListedTransaction::from)
                .collect(),
            components_compiled: report.compiled,
            components_cached: report.cached,
            quarantine: report
                .quarantine
                .iter()
                .map(QuarantinedVersion::from)
                .collect(),
            ordered: ordered(report),
            state: StateFolder {
                path: report
                    .state
                    .path
                    .as_ref()
                    .map(|path| path.display().to_string()),
                problem: report.state.problem.clone(),
                set_aside: report.state.set_aside.clone(),
            },
            shadows: shadows
                .iter()
                .map(|shadow| shadow_of(shadow, status))
                .collect(),
        }
    }
}

fn hooks_by_holder(
    status: &[PolicyStatus],
    report: &ReconcilerReport,
) -> BTreeMap<HookName, Option<HookHolder>> {
    let holder = |hook: Hook| {
        let mut policies = status.iter();
        let in_force = policies.find(|policy| policy.in_force.contains(hook))?;
        Some(HookHolder {
            policy: in_force.name.clone(),
            number: in_force.number,
            digest: in_force.digest.to_string(),
            by: report.bound_by.get(&hook).map(|by| by.as_str()),
        })
    };
    let hooks = Hook::ALL.into_iter();
    hooks.map(|hook| (HookName(hook), holder(hook))).collect()
}

fn listed(policy: &PolicyReport, status: &[PolicyStatus]) -> ListedPolicy {
    let status_of = |number: u32| status.iter().find(|status| status.number == number);
    let running = policy.number.and_then(status_of);
    let described = running.map(|status| &status.description.settings);
    let earlier = policy.earlier.iter().copied();
    ListedPolicy {
        name: policy.name.clone(),
        source: PolicyFile::from(&policy.origin),
        digest: policy.digest.to_string(),
        fingerprint: policy.fingerprint.to_string(),
        settings: policy.settings.clone(),
        takes: described
            .into_iter()
            .flatten()
            .map(DescribedSetting::from)
            .collect(),
        exports: names(policy.hooks),
        mode: policy.mode.to_string(),
        waits_for: policy.waits_for.map(|digest| digest.to_string()),
        holds: names(policy.held),
        denied: policy
            .denied
            .iter()
            .map(|(hook, why)| (hook.as_str(), why.clone()))
            .collect(),
        running: running.map(PolicyCounters::from),
        earlier: earlier
            .filter_map(status_of)
            .map(PolicyCounters::from)
            .collect(),
    }
}

impl From<&Origin> for PolicyFile {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Embedded => PolicyFile::Embedded,
            Origin::File(path) => PolicyFile::File {
                path: path.display().to_string(),
            },
            Origin::LastGood(path) => PolicyFile::LastGood {
                path: path.display().to_string(),
            },
        }
    }
}

impl From<&SettingSchema> for DescribedSetting {
    fn from(setting: &SettingSchema) -> Self {
        // The host has checked that a default is JSON.
        let default = setting.default_written();
        Self {
            key: setting.key.clone(),
            about: setting.about.clone(),
            values: setting.values.to_string(),
            default: default.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }
}

impl From<&PolicyStatus> for PolicyCounters {
    fn from(status: &PolicyStatus) -> Self {
        let stats = &status.stats;
        let faults = stats.faults.iter();
        let refusal = stats.refusal_last.as_ref();
        Self {
            number: status.number,
            calls_itself: status.description.name.clone(),
            version: status.description.version.clone(),
            digest: status.digest.to_string(),
            in_force: names(status.in_force),
            behind: names(status.behind),
            generation: status.counters.generation,
            down_until_micros: status.down_until.map(|until| until.0),
            answers: counts(&stats.answers),
            refusals: counts(&stats.refusals),
            refusal_last: refusal.map(|refusal| refusal.cause.to_string()),
            faults: faults
                .map(|(kind, count)| (kind.as_str().to_owned(), *count))
                .collect(),
            fault_last: stats.fault_last.as_ref().map(FaultShape::from),
            fuel_last: status.counters.fuel,
            fuel_max: status.counters.fuel_max,
            fuel: quantiles(&stats.fuel),
            latency_nanos: quantiles(&stats.latency),
            on_trial: names(status.on_trial),
            canary: (!stats.canary.is_none()).then_some(CanarySeen {
                tried: stats.canary.tried,
                others: stats.canary.others,
            }),
            probation: status.probation.map(ProbationShape::from),
            observes: status.counters.observes,
            snapshots: status.counters.snapshots_kept,
        }
    }
}

impl From<&Fault> for FaultShape {
    fn from(fault: &Fault) -> Self {
        let detail = fault.detail();
        let (line, functions) = detail.split_once('\n').unwrap_or((&detail, ""));
        let parts = [functions, fault.trace()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let trace = parts.collect::<Vec<_>>().join("\n");
        Self {
            line: line.to_owned(),
            trace: Some(trace).filter(|trace| !trace.is_empty()),
        }
    }
}

impl From<ProbationProgress> for ProbationShape {
    fn from(progress: ProbationProgress) -> Self {
        Self {
            questions: progress.questions,
            questions_wanted: progress.questions_wanted,
            until_micros: progress.until.0,
            faults: progress.faults,
            rows: progress.rows,
            refused: progress.refused,
        }
    }
}

/// Quantiles by hook, for the hooks that were asked at all.
fn quantiles(spreads: &HookMap<Spread>) -> BTreeMap<&'static str, Quantiles> {
    let asked = spreads.iter().filter(|(_, spread)| spread.total() > 0);
    let shown = asked.map(|(hook, spread)| (hook.as_str(), Quantiles::from(spread)));
    shown.collect()
}

fn names(hooks: HookSet) -> Vec<&'static str> {
    hooks.iter().map(Hook::as_str).collect()
}

/// Counts by hook, for the hooks that were counted at all.
fn counts(counts: &HookMap<u64>) -> BTreeMap<&'static str, u64> {
    let counted = counts.iter().filter(|(_, count)| **count > 0);
    counted
        .map(|(hook, count)| (hook.as_str(), *count))
        .collect()
}

fn refusal_of(name: &str, refusal: &VersionRefusal) -> ListedRefusal {
    ListedRefusal {
        name: name.to_owned(),
        step: refusal.step.as_str(),
        why: refusal.why.clone(),
        digest: refusal.digest.map(|digest| digest.to_string()),
        at_micros: refusal.at.0,
    }
}

impl From<&Spread> for Quantiles {
    fn from(spread: &Spread) -> Self {
        Self {
            questions: spread.total(),
            p50: spread.quantile(500),
            p90: spread.quantile(900),
            p99: spread.quantile(990),
            max: spread.max(),
        }
    }
}

impl From<&Conflict> for HookConflict {
    fn from(conflict: &Conflict) -> Self {
        let (kind, hook, policies) = match conflict {
            Conflict::Contested { hook, claimants } => ("contested", hook, claimants.as_slice()),
            Conflict::Absent { hook, policy } => ("absent", hook, std::slice::from_ref(policy)),
            Conflict::NotExported { hook, policy } => {
                ("not-exported", hook, std::slice::from_ref(policy))
            }
            Conflict::NotEnforced { hook, policy } => {
                ("not-enforced", hook, std::slice::from_ref(policy))
            }
            Conflict::Closed { hook, policy } => ("closed", hook, std::slice::from_ref(policy)),
            Conflict::ContestedCanary { hook, claimants } => {
                ("contested-canary", hook, claimants.as_slice())
            }
        };
        Self {
            kind,
            hook: hook.as_str(),
            policies: policies.to_vec(),
        }
    }
}

impl From<&FolderReport> for PolicyFolder {
    fn from(folder: &FolderReport) -> Self {
        let why = match &folder.state {
            FolderState::Unreadable(why) => Some(why.clone()),
            FolderState::None
            | FolderState::Watched
            | FolderState::Missing
            | FolderState::Emptied => None,
        };
        let left_out = folder.left_out.iter().map(|out| LeftOutFile {
            file: out.file.clone(),
            why: out.why,
        });
        Self {
            path: folder.path.as_ref().map(|path| path.display().to_string()),
            state: folder.state.as_str(),
            why,
            left_out: left_out.collect(),
        }
    }
}

impl From<&Quarantined> for QuarantinedVersion {
    fn from(entry: &Quarantined) -> Self {
        Self {
            fingerprint: entry.fingerprint.to_string(),
            digest: entry.digest.to_string(),
            name: entry.name.clone(),
            cause: match entry.cause {
                Cause::Faulted => "faulted",
                Cause::RolledBack => "rolled-back",
            },
            why: entry.detail.clone(),
            at_micros: entry.at.0,
        }
    }
}

fn ordered(report: &ReconcilerReport) -> BTreeMap<&'static str, Option<String>> {
    let ordered = report.ordered.iter();
    let ordered = ordered.map(|(hook, bound)| {
        let policy = match bound {
            BoundTo::Policy(name) => Some(name.clone()),
            BoundTo::Embedded => None,
        };
        (hook.as_str(), policy)
    });
    ordered.collect()
}

impl From<&Transaction> for ListedTransaction {
    fn from(transaction: &Transaction) -> Self {
        let (outcome, hooks, step, why) = match &transaction.outcome {
            TransactionOutcome::InForce(hooks) => ("in-force", Some(*hooks), None, None),
            TransactionOutcome::Canary(hooks, _) => ("canary", Some(*hooks), None, None),
            TransactionOutcome::Shadow(hooks) => ("shadow", Some(*hooks), None, None),
            TransactionOutcome::Idle { why } => ("idle", None, None, Some(why.clone())),
            TransactionOutcome::Proven => ("proven", None, None, None),
            TransactionOutcome::Waits { pinned } => {
                ("waits", None, None, Some(format!("for {pinned}")))
            }
            TransactionOutcome::Refused { step, why } => {
                ("refused", None, Some(step.as_str()), Some(why.clone()))
            }
            TransactionOutcome::Removed => ("removed", None, None, None),
            TransactionOutcome::Dropped { why } => ("dropped", None, None, Some(why.clone())),
            TransactionOutcome::RolledBack { why } => {
                ("rolled-back", None, None, Some(why.clone()))
            }
        };
        let steps = transaction.steps.iter();
        Self {
            number: transaction.number,
            at_micros: transaction.at.0,
            policy: transaction.policy.clone(),
            digest: transaction.digest.map(|digest| digest.to_string()),
            cause: transaction.cause.as_str(),
            outcome,
            hooks: hooks.map(names),
            step,
            why,
            phases_micros: steps.map(|it| (it.step.as_str(), it.took.0)).collect(),
            state: transaction.restored.as_ref().map(RestoredState::from),
            pause_micros: transaction.pause.map(|pause| pause.0),
        }
    }
}

impl From<&Restored> for RestoredState {
    fn from(restored: &Restored) -> Self {
        match restored {
            Restored::Cold => RestoredState::Cold,
            Restored::Warm => RestoredState::Warm,
            Restored::Refused(why) => RestoredState::Refused(why.clone()),
            Restored::Faulted(fault) => RestoredState::Faulted(fault.to_string()),
        }
    }
}

/// A shadow, with its counts.
fn shadow_of(report: &ShadowReport, status: &[PolicyStatus]) -> ShadowListing {
    let mut known = status.iter();
    let policy = known.find(|policy| policy.number == report.policy);
    let hooks = report.agreement.iter();
    let reasons = report.by_reason.iter();
    ShadowListing {
        policy: policy.map(|policy| policy.name.clone()),
        number: report.policy,
        ended: match &report.state {
            ShadowState::Running => None,
            ShadowState::Ended(why) => Some(why.clone()),
        },
        pending: report.pending,
        dropped: report.dropped,
        hooks: hooks
            .map(|(hook, agreement)| (hook.as_str(), Compared::from(agreement)))
            .collect(),
        by_reason: reasons
            .map(|((hook, reason), agreement)| ComparedReason {
                compared: agreement.into(),
                hook: hook.as_str(),
                reason: reason.clone(),
            })
            .collect(),
        examples: report.examples.iter().rev().map(Example::from).collect(),
        fuel: quantiles(&report.fuel),
        latency_nanos: quantiles(&report.latency),
        faults: report.faults.values().sum(),
        fault_last: report.fault_last.as_ref().map(FaultShape::from),
    }
}

impl From<&Agreement> for Compared {
    fn from(agreement: &Agreement) -> Self {
        Self {
            compared: agreement.agreed.saturating_add(agreement.differed),
            agreed: agreement.agreed,
            fallbacks: agreement.fallbacks,
            differed: agreement.differed,
        }
    }
}

impl From<&Disagreement> for Example {
    fn from(example: &Disagreement) -> Self {
        Self {
            at_micros: example.at.now.0,
            round: example.at.round.to_string(),
            hook: example.hook.as_str(),
            about: example.about.clone(),
            in_force: Verdict::from(&example.in_force),
            shadow: Verdict::from(&example.shadow),
        }
    }
}

impl From<&DecisionText> for Verdict {
    fn from(said: &DecisionText) -> Self {
        Self {
            policy_number: said.policy,
            choice: said.choice.clone(),
            reason: said.reason.clone(),
        }
    }
}
