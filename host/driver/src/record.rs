//! The driver's log lines.
//!
//! Level info has the lives of policies and executors, debug each request, warn the cases in which
//! something stepped in.

use pointsman_component::LogLevel;
use pointsman_core::rows::NameKind;
use pointsman_core::{Author, ExecutorId, Fact, Machine, SequenceRef, Stamped};
use pointsman_executor::delivery::BUILT_IN;
use pointsman_policy::{PolicyEvent, PolicyEventKind, PolicyHost};
use tracing::{debug, error, info, warn};

use crate::metrics::ending;

/// The name of the author of a decision.
pub(super) fn author(policies: &PolicyHost, author: Author) -> &str {
    match author {
        Author::BuiltIn => BUILT_IN,
        Author::Policy(number) => name(policies, number),
    }
}

/// The name of a policy, or a word in its place once the policy is gone.
pub(super) fn name(policies: &PolicyHost, number: u32) -> &str {
    policies.name(number).unwrap_or("(retired)")
}

/// The names of policies, one after the other.
fn names(policies: &PolicyHost, numbers: &[u32]) -> String {
    let names: Vec<&str> = numbers.iter().map(|it| name(policies, *it)).collect();
    names.join(", ")
}

/// Logs a fact of the machine.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the journal has them all; the log has what an operator reads"
)]
pub(super) fn fact(machine: &Machine, policies: &PolicyHost, stamped: &Stamped) {
    let name_of = |executor: &ExecutorId| {
        let name = machine.name(NameKind::Executor, executor.0);
        name.unwrap_or_default()
    };
    match &stamped.fact {
        Fact::Fault(hook, fault) => warn!(
            hook = hook.as_str(),
            policy = name(policies, fault.policy),
            fault = fault.headline(),
            "policy faulted, the next in line answered"
        ),
        Fact::Refused(by, hook, refusal) => debug!(
            hook = hook.as_str(),
            policy = author(policies, *by),
            %refusal,
            "interlock refused an action"
        ),
        Fact::Strike(clock, hook, request) => warn!(
            clock = clock.as_str(),
            hook = hook.as_str(),
            request = request.0,
            "liveness clock ran out, the built-in rule stepped in"
        ),
        Fact::ExecutorAttached(executor, _) => {
            info!(executor = name_of(executor), "executor attached");
        }
        Fact::HealthChanged(executor, health) => info!(
            executor = name_of(executor),
            health = health.as_str(),
            "executor health changed"
        ),
        Fact::Saturated(executor) => {
            info!(executor = name_of(executor), "executor saturated");
        }
        Fact::Relieved(executor) => {
            info!(executor = name_of(executor), "executor no longer saturated");
        }
        Fact::Placed {
            request,
            executor,
            by,
            ..
        } => debug!(
            request = request.0,
            executor = name_of(executor),
            policy = author(policies, by.author),
            "request placed"
        ),
        Fact::Ended(request, outcome) => {
            let ending = ending(*outcome);
            debug!(
                request = request.0,
                outcome = ending.outcome,
                why = ending.why,
                "request ended"
            );
        }
        _ => {}
    }
}

/// Logs an event of a policy.
pub(super) fn policy_event(policies: &PolicyHost, event: &PolicyEvent) {
    let policy = name(policies, event.policy);
    match &event.kind {
        PolicyEventKind::Faulted(fault) => warn!(
            policy,
            %fault,
            "policy faulted at a snapshot"
        ),
        PolicyEventKind::Restarted {
            generation,
            restored,
        } => info!(
            policy,
            generation,
            %restored,
            "policy restarted"
        ),
        PolicyEventKind::SnapshotsEnded { why } => {
            warn!(policy, why, "no more snapshots of policy");
        }
        PolicyEventKind::Quarantined { faults } => error!(
            policy,
            faults, "policy quarantined, its hooks went to the next in line"
        ),
        PolicyEventKind::RolledBack { to, why } => error!(
            policy,
            to = names(policies, to),
            %why,
            "policy rolled back, whom it displaced is in force again"
        ),
        PolicyEventKind::OnProbation => info!(policy, "policy on probation"),
        PolicyEventKind::Proven { questions } => info!(policy, questions, "policy proven"),
        PolicyEventKind::Struck { hook, clock } => warn!(
            policy,
            hook = hook.as_str(),
            clock = clock.as_str(),
            "policy let a liveness bound run out, which counts as a fault"
        ),
        PolicyEventKind::Closed(hook) => error!(
            policy,
            hook = hook.as_str(),
            "hook closed: its policy is quarantined, bind another or eject the hook"
        ),
        PolicyEventKind::Ejected(hook) => warn!(
            policy,
            hook = hook.as_str(),
            "hook ejected, its embedded default is in force"
        ),
        PolicyEventKind::ShadowEnded { why } => warn!(policy, why, "shadow ended"),
        PolicyEventKind::Retired => debug!(number = event.policy, "policy retired"),
        PolicyEventKind::Logged(line) => policy_line(policy, line.level, &line.message),
        PolicyEventKind::LogDropped(lines) => warn!(policy, lines, "policy logged too much"),
        other => debug!(policy, event = %other, "policy event"),
    }
}

/// True if the reconciler wants to know of `event` at once.
pub(super) fn concerns_reconciler(event: &PolicyEventKind) -> bool {
    matches!(
        event,
        PolicyEventKind::Quarantined { .. }
            | PolicyEventKind::RolledBack { .. }
            | PolicyEventKind::Proven { .. }
            | PolicyEventKind::Retired
    )
}

fn policy_line(policy: &str, level: LogLevel, text: &str) {
    match level {
        LogLevel::Debug => debug!(policy, text, "policy says"),
        LogLevel::Info => info!(policy, text, "policy says"),
        LogLevel::Warn => warn!(policy, text, "policy says"),
    }
}

/// Logs that an executor failed a sequence.
pub(super) fn failed(sequence: SequenceRef, why: &str) {
    warn!(
        request = sequence.request.0,
        executor = sequence.executor.0,
        why,
        "executor failed a sequence"
    );
}

/// Logs that an executor has lost all its sequences.
pub(super) fn lost(executor: ExecutorId, why: &str) {
    error!(executor = executor.0, why, "executor lost its sequences");
}

/// Logs that an executor has ended.
pub(super) fn closed(executor: ExecutorId) {
    error!(
        executor = executor.0,
        "executor has ended; remove it and add it again, at /admin/executors, to bring it back"
    );
}
