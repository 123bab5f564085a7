//! What policies cost and how far they count: by policy and hook, as operators know them.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pointsman_core::Hook;
use pointsman_metrics::{Builder, Family};
use pointsman_policy::{AnswerCost, Mode, PolicyStatus, ShadowReport};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{PAUSE_SECONDS, raise};

/// Characters of a digest that a label shows.
const DIGEST_PREFIX: usize = 12;

const ANSWER_SECONDS: [f64; 12] = [
    0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005,
    0.01, 0.1,
];

#[derive(Debug)]
pub(super) struct PolicyMetrics {
    transactions: Family<2, Counter>,
    pause: Histogram,
    answer: Family<2, Histogram>,
    fuel: Family<2, Counter>,
    in_force: Family<3, Gauge>,
    mode: Family<2, Gauge>,
    canary_share: Family<1, Gauge<f64, AtomicU64>>,
    on_probation: Family<1, Gauge>,
    quarantined: Family<1, Gauge>,
    shadow_decisions: Family<3, Counter>,
    shadow_dropped: Family<1, Counter>,
}

// === impl PolicyMetrics ===

impl PolicyMetrics {
    pub(super) fn new(to: &mut Builder<'_>) -> Self {
        Self {
            transactions: to.counters(
                "policy_transactions",
                "Changes of the policies in force, made or refused, by the last step taken",
                ["outcome", "step"],
            ),
            pause: to.times(
                "policy_swap_pause",
                "For how long a swap held the driver up",
                PAUSE_SECONDS,
            ),
            answer: to.times_by(
                "policy_answer",
                "From a question to a policy to its answer, of which the count is the number",
                ["hook", "policy"],
                || Histogram::new(ANSWER_SECONDS),
            ),
            fuel: to.counters("policy_fuel", "Fuel that answers took", ["hook", "policy"]),
            in_force: to.gauges(
                "policy_in_force",
                "1 for each hook and the policy that holds it",
                ["hook", "policy", "digest"],
            ),
            mode: to.gauges(
                "policy_mode",
                "1 for each policy in the host and how far its answers count",
                ["policy", "mode"],
            ),
            canary_share: to.family(
                ("policy_canary_share", None),
                "Share of what a canary decides, from 0 to 1",
                Family::new(["policy"], Gauge::default),
            ),
            on_probation: to.gauges(
                "policy_on_probation",
                "Whether the version of a policy that is in force has yet to prove itself",
                ["policy"],
            ),
            quarantined: to.gauges(
                "policy_quarantined",
                "Versions of a policy that are not put in force again",
                ["policy"],
            ),
            shadow_decisions: to.counters(
                "shadow_decisions",
                "Decisions of a shadow compared with those in force",
                ["hook", "policy", "result"],
            ),
            shadow_dropped: to.counters(
                "shadow_questions_dropped",
                "Questions that a shadow was not asked, since it was too slow",
                ["policy"],
            ),
        }
    }

    pub(super) fn answered(&self, policy: &str, hook: Hook, cost: AnswerCost) {
        let labels = [hook.as_str(), policy];
        let took = Duration::from_nanos(cost.nanos).as_secs_f64();
        self.answer.with(labels).observe(took);
        if let Some(fuel) = cost.fuel {
            self.fuel.with(labels).inc_by(fuel);
        }
    }

    pub(super) fn committed(&self, pause: Duration) {
        self.pause.observe(pause.as_secs_f64());
        self.transactions.with(["committed", "commit"]).inc();
    }

    pub(super) fn refused(&self, step: &str) {
        self.transactions.with(["refused", step]).inc();
    }

    /// Sets how far each policy counts.
    pub(super) fn set(&self, policies: &[PolicyStatus]) {
        self.in_force.clear();
        self.mode.clear();
        self.canary_share.clear();
        self.on_probation.clear();
        for policy in policies {
            let name = &*policy.name;
            let digest = policy.digest.to_string();
            let digest = digest.get(..DIGEST_PREFIX).unwrap_or(&digest);
            for hook in policy.in_force.iter() {
                let labels = [hook.as_str(), name, digest];
                self.in_force.with(labels).set(1);
            }
            self.mode.with([name, mode_word(policy.mode)]).set(1);
            if let Mode::Canary(share) = policy.mode {
                let share = f64::from(share.percent.of_hundred()) / 100.0;
                self.canary_share.with([name]).set(share);
            }
            let on_probation = self.on_probation.with([name]);
            let proves_itself = i64::from(policy.probation.is_some());
            on_probation.set(on_probation.get().max(proves_itself));
        }
    }

    /// Sets the number of versions in quarantine: the names of their policies.
    pub(super) fn set_quarantined(&self, names: &[String]) {
        let versions = names.iter().map(|name| ([name.as_str()], 1));
        self.quarantined.replace(versions);
    }

    /// Sets the agreement of each shadow.
    pub(super) fn set_shadows(&self, shadows: &[ShadowReport], policies: &[PolicyStatus]) {
        self.shadow_decisions.clear();
        self.shadow_dropped.clear();
        for shadow in shadows {
            let mut known = policies.iter();
            let Some(policy) = known.find(|policy| policy.number == shadow.policy) else {
                continue;
            };
            let dropped = self.shadow_dropped.with([&policy.name]);
            raise(&dropped, shadow.dropped);
            for (hook, agreement) in &shadow.agreement {
                let of = |result| {
                    let labels = [hook.as_str(), &*policy.name, result];
                    self.shadow_decisions.with(labels)
                };
                raise(&of("agreed"), agreement.agreed);
                raise(&of("differed"), agreement.differed);
            }
        }
    }
}

/// The mode without the share of a canary.
fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Canary(_) => "canary",
    }
}
