//! Components that come and go, drawn from a seed.

use fastrand::Rng;
use pointsman_core::Hook;
use pointsman_policy::Mode;

use crate::case::{Component, Policy};

/// The components that ship, each with the settings in which it is tried, as JSON.
const SHIPPED: [(&str, &[&str]); 14] = [
    ("aging", &["{}", r#"{"share-lag":"0s","affinity-bonus":0}"#]),
    (
        "memory-aware",
        &[
            "{}",
            r#"{"balance":"slots","rendezvous":"always"}"#,
            r#"{"cold-models":"drain","candidates":1}"#,
            r#"{"looks-max":3,"session-preference":false}"#,
        ],
    ),
    (
        "budget",
        &[
            "{}",
            r#"{"overflow":"drop-newest","take-slots":"never"}"#,
            r#"{"overflow":"drop-oldest","take-slots":"urgent","yield-to-older":true}"#,
            r#"{"take-slots":"critical","wait-max":"2s","prefill-max":20}"#,
            r#"{"max-single-engine":300,"share-tolerance":0,"swap-from":1}"#,
        ],
    ),
    (
        "deadline",
        &["{}", r#"{"late":"run-last","patience":"1s"}"#],
    ),
    ("fair-share", &["{}", r#"{"aging":0}"#]),
    ("first-policy", &["{}"]),
    (
        "kv-cost",
        &["{}", r#"{"temperature":700,"ties":"seeded","seed":5}"#],
    ),
    ("least-loaded", &["{}"]),
    (
        "prefix-bound",
        &["{}", r#"{"against":"mean","cache-threshold":1}"#],
    ),
    ("queue-order", &["{}", r#"{"discipline":"lcfs"}"#]),
    ("queue-order", &[r#"{"discipline":"wspt"}"#]),
    ("round-robin", &["{}"]),
    ("shortest-first", &["{}", r#"{"learn":false}"#]),
    ("sticky", &["{}", r#"{"when-full":"wait"}"#]),
];

/// Deeds of the guest that misbehaves, in a call that it does not answer.
const OUTRAGES: [&str; 6] = [
    "loop",
    "trap",
    "allocate",
    "recurse",
    "million-rows",
    "gigabyte",
];

const CALLS: [&str; 9] = [
    "observe", "snapshot", "restore", "admit", "order", "route", "evict", "allot", "arrange",
];

/// Its answers, most of them wrong or useless.
const ANSWERS: [&str; 16] = [
    "plain",
    "with-fallbacks",
    "ignore-allowed",
    "twice",
    "shed",
    "displace-unknown",
    "order-nothing",
    "unknown-executors",
    "no-executors",
    "hold-for-ever",
    "starve-tenant",
    "give-up",
    "evict-most-urgent",
    "swap-newest",
    "allot-nothing",
    "allot-too-much",
];

/// Habits of the router that is nearly in order.
const HABITS: [&str; 9] = [
    "none",
    "nowhere",
    "panics",
    "counts",
    "first-row",
    "holds",
    "untimed",
    "pairs",
    "greedy",
];

/// The policies of a case: most often a server's defaults first, and others in their place.
pub(super) fn policies(rng: &mut Rng) -> Vec<(u64, Policy)> {
    let defaults = (rng.u32(0..4) > 0).then_some((0, Policy::Defaults));
    let others = super::policies(rng, 2..11, policy);
    defaults.into_iter().chain(others).collect()
}

fn policy(rng: &mut Rng) -> Policy {
    match rng.u32(0..20) {
        0..9 => Policy::Component(shipped(rng)),
        9..15 => Policy::Component(guest(rng)),
        15 => Policy::Removed(hook(rng)),
        16 => Policy::Ejected(hook(rng)),
        17 => Policy::FailsClosed,
        _ => super::policy(rng),
    }
}

fn hook(rng: &mut Rng) -> Hook {
    Hook::ALL[rng.usize(0..Hook::ALL.len())]
}

fn one_of<'a, T: ?Sized>(rng: &mut Rng, list: &[&'a T]) -> &'a T {
    list[rng.usize(0..list.len())]
}

fn shipped(rng: &mut Rng) -> Component {
    let (name, settings) = SHIPPED[rng.usize(0..SHIPPED.len())];
    let settings = one_of(rng, settings);
    component(rng, name, settings)
}

fn guest(rng: &mut Rng) -> Component {
    if rng.u32(0..6) == 0 {
        let habit = one_of(rng, &HABITS);
        return component(rng, "test/fickle", &format!(r#"{{"habit":{habit:?}}}"#));
    }
    let good = [0, 0, 5, 50][rng.usize(0..4)];
    let settings = if rng.bool() {
        let (outrage, call) = (one_of(rng, &OUTRAGES), one_of(rng, &CALLS));
        let answers = one_of(rng, &ANSWERS);
        format!(
            r#"{{"outrage":{outrage:?},"calls":[{call:?}],"answers":{answers:?},"good-calls":{good}}}"#
        )
    } else {
        let answers = one_of(rng, &ANSWERS);
        format!(r#"{{"answers":{answers:?},"good-calls":{good},"tenant":"first"}}"#)
    };
    component(rng, "test/hostile", &settings)
}

fn component(rng: &mut Rng, name: &str, settings: &str) -> Component {
    let mode = match rng.u32(0..16) {
        0..12 => "enforce",
        12 => "canary 50%",
        13 => "canary 30% of requests",
        14 => "canary 100%",
        _ => "shadow",
    };
    Component {
        name: name.to_owned(),
        settings: serde_json::from_str(settings).expect("settings are a JSON object"),
        mode: mode.parse::<Mode>().expect("it is one of the modes"),
        probation: (rng.u32(0..3) == 0).then(|| rng.u32(1..200)),
    }
}
