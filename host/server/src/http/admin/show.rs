//! The driver's words for operators, as JSON.

use pointsman_core::rows::{ExecutorKind, Health};
use pointsman_executor::stats::EngineStats;
use pointsman_policy::{Agreement, DecisionText, PolicyStatus, ShadowReport, ShadowState};
use serde_json::{Map, Value, json};

use crate::driver::message::Load;
use crate::driver::operator::{DeviceRow, ExecutorRow, Fate};
use crate::reload::report::spreads_json;

pub(in crate::http) fn load(load: &Load) -> Value {
    json!({
        "live": load.live,
        "queued": load.queued,
        "parked": load.parked,
        "slots_used": load.slots_used,
        "slots_total": load.slots_total,
        "blocks_used": load.blocks_used,
        "executors_up": load.executors_up,
    })
}

/// `engine`: what it counts, where it runs on this machine.
pub(in crate::http) fn executor(row: &ExecutorRow, engine: Option<&EngineStats>) -> Value {
    json!({
        "name": row.name,
        "kind": kind(row.kind),
        "device": row.device,
        "models": row.models,
        "health": health(row.health),
        "order": fate(row.fate),
        "slots_used": row.slots_used,
        "slots_total": row.slots_total,
        "queued": row.queued,
        "kv_blocks_used": row.blocks_used,
        "prefill_tokens_pending": row.prefill_tokens_pending,
        "tokens_per_step_max": row.tokens_max,
        "placed_total": row.placed_total,
        "ttft_micros": row.ttft_micros,
        "itl_micros": row.itl_micros,
        "engine": engine.map(|engine| json!({
            "steps": engine.steps.get(),
            "prefill_tokens": engine.prefill_tokens.get(),
            "generated_tokens": engine.generated_tokens.get(),
            "losses": engine.losses.get(),
        })),
    })
}

pub(in crate::http) fn device(row: &DeviceRow) -> Value {
    json!({
        "name": row.name,
        "block_bytes": row.block_bytes,
        "blocks_total": row.blocks_total,
        "blocks_free": row.blocks_free,
        "blocks_cached": row.blocks_cached,
    })
}

/// A shadow, under the name that it gives itself.
pub(super) fn shadow(report: &ShadowReport, status: &[PolicyStatus]) -> Value {
    let mut known = status.iter();
    let policy = known.find(|policy| policy.number == report.policy);
    let ended = match &report.state {
        ShadowState::Running => None,
        ShadowState::Ended(why) => Some(why),
    };
    let hooks = report.agreement.iter();
    let hooks = hooks.map(|(hook, agreement)| (hook.as_str().to_owned(), agreed(*agreement)));
    let reasons = report.by_reason.iter().map(|((hook, reason), agreement)| {
        let mut of = agreed(*agreement);
        of["hook"] = json!(hook.as_str());
        of["reason"] = json!(reason);
        of
    });
    let examples = report.examples.iter().rev().map(|example| {
        json!({
            "at_micros": example.at.now.0,
            "round": example.at.round.to_string(),
            "hook": example.hook.as_str(),
            "about": example.about,
            "in_force": said(&example.in_force),
            "shadow": said(&example.shadow),
        })
    });
    json!({
        "policy": policy.map(|policy| policy.description.name.as_str()),
        "number": report.policy,
        "ended": ended,
        "pending": report.pending,
        "dropped": report.dropped,
        "hooks": hooks.collect::<Map<_, _>>(),
        "by_reason": reasons.collect::<Value>(),
        "examples": examples.collect::<Value>(),
        "fuel": spreads_json(&report.fuel),
        "latency_nanos": spreads_json(&report.latency),
        "faults": report.faults.values().sum::<u64>(),
        "fault_last": report.fault_last.as_ref().map(ToString::to_string),
    })
}

fn agreed(agreement: Agreement) -> Value {
    json!({
        "compared": agreement.agreed.saturating_add(agreement.differed),
        "agreed": agreement.agreed,
        "differed": agreement.differed,
    })
}

fn said(said: &DecisionText) -> Value {
    json!({"policy_number": said.policy, "choice": said.choice, "reason": said.reason})
}

fn kind(kind: ExecutorKind) -> &'static str {
    match kind {
        ExecutorKind::Cuda => "cuda",
        ExecutorKind::Cpu => "cpu",
        ExecutorKind::Remote => "remote",
        ExecutorKind::Simulated => "simulated",
    }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}

/// What an operator has ordered; absent: nothing.
fn fate(fate: Fate) -> Option<&'static str> {
    match fate {
        Fate::Stays => None,
        Fate::Drains => Some("drain"),
        Fate::Leaves => Some("remove"),
    }
}
