//! Choices by prefix and load, computed by hand.

use pointsman_sdk::fixture::{SECOND, at, bounds, cached, executor, load, request};
use pointsman_sdk::wire::routing::Choice;
use pointsman_sdk::wire::types::{
    Cached, Change, ExecutorInfo, ExecutorLoad, Extent, Health, Overlap,
};

use super::{Reason, instance};

/// Runs so many requests, and holds so many tokens of the prompt.
#[derive(Clone, Copy)]
struct Holder {
    depth: u32,
    tokens: u32,
}

fn holder(depth: u32, tokens: u32) -> Holder {
    Holder { depth, tokens }
}

fn row(id: u32, slots_used: u32) -> ExecutorLoad {
    ExecutorLoad {
        slots_used,
        ..load(id)
    }
}

/// Checks where a prompt of 100 tokens goes.
fn check(settings: &str, holders: &[Holder], executor: u32, reason: Reason) {
    let loads = holders.iter().zip(0..).map(|(at, id)| row(id, at.depth));
    check_loads(settings, loads.collect(), holders, (executor, reason));
}

fn check_loads(
    settings: &str,
    loads: Vec<ExecutorLoad>,
    holders: &[Holder],
    (chosen, reason): (u32, Reason),
) {
    let mut policy = instance();
    policy.configure(settings, bounds()).unwrap();
    let mut rows = vec![Change::Waiting(request(1))];
    for load in loads {
        rows.push(Change::Executor(ExecutorInfo {
            slots_total: 1000,
            ..executor(load.id)
        }));
        rows.push(Change::Load(load));
    }
    policy.observe(SECOND, Extent::Everything, rows);
    let overlaps = holders.iter().zip(0..).map(|(at, executor)| Overlap {
        executor,
        device_tokens: at.tokens,
        host_tokens: 0,
        disk_tokens: 0,
    });
    let asked = Cached {
        overlaps: Some(overlaps.filter(|row| row.device_tokens > 0).collect()),
        ..cached(1)
    };
    let verdict = policy.route(at(SECOND), vec![asked]).remove(0);
    assert_eq!(verdict.choice, Choice::Place(vec![chosen]));
    assert_eq!(verdict.reason, reason.index());
}

#[test]
fn the_longest_prefix_wins_then_the_lesser_load() {
    let holders = [holder(0, 0), holder(9, 64), holder(5, 80)];
    check("{}", &holders, 2, Reason::Longest);
    let holders = [holder(0, 0), holder(9, 80), holder(5, 80)];
    check("{}", &holders, 2, Reason::Longest);
}

#[test]
fn a_prefix_counts_when_more_than_the_threshold_is_cached() {
    let at = |tokens| [holder(0, 0), holder(1, tokens)];
    check("{}", &at(30), 0, Reason::NotCached);
    check("{}", &at(31), 1, Reason::Longest);
    let settings = r#"{"cache-threshold": 0}"#;
    check(settings, &at(1), 1, Reason::Longest);
    check(settings, &at(0), 0, Reason::NotCached);
}

#[test]
fn beyond_the_bound_the_next_longest_prefix_and_then_the_least_load() {
    let settings = r#"{"balance-abs": 8}"#;
    check(settings, &[holder(0, 0), holder(8, 80)], 1, Reason::Longest);
    check(
        settings,
        &[holder(0, 0), holder(9, 80)],
        0,
        Reason::Overloaded,
    );
    let holders = [holder(0, 0), holder(9, 80), holder(3, 48)];
    check(settings, &holders, 2, Reason::Longest);
}

#[test]
fn the_bound_may_be_set_against_the_mean() {
    // The mean of 0, 4 and 8 is 4: 1.5 times that is 6, four more are 8.
    let holders = [holder(0, 0), holder(4, 0), holder(8, 80)];
    let mean = |abs| format!(r#"{{"against": "mean", "balance-abs": {abs}}}"#);
    check(&mean(4), &holders, 2, Reason::Longest);
    check(&mean(3), &holders, 0, Reason::Overloaded);
}

#[test]
fn an_executor_without_room_counts_in_the_measure() {
    // Against 0 the load of 3 would be over the bound.
    let settings = r#"{"balance-abs": 0, "against": "mean"}"#;
    let holders = [holder(2, 0), holder(1000, 90), holder(3, 80)];
    check(settings, &holders, 2, Reason::Longest);
}

#[test]
fn up_goes_before_degraded_whatever_is_cached() {
    let holders = [holder(1, 0), holder(0, 100)];
    let degraded = ExecutorLoad {
        health: Health::Degraded,
        ..row(1, 0)
    };
    let loads = vec![row(0, 1), degraded];
    check_loads("{}", loads, &holders, (0, Reason::NotCached));
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |settings| instance().configure(settings, bounds());
    assert_eq!(
        refused(r#"{"balance-rel": 999}"#),
        Err("`balance-rel`: 999 is not between 1000 and 1000000".to_owned())
    );
    assert!(refused(r#"{"cache-threshold": 1001}"#).is_err());
    assert!(refused(r#"{"against": "most"}"#).is_err());
}

#[test]
fn settings_are_described_as_they_are() {
    pointsman_sdk::fixture::check_settings::<crate::PrefixBound>();
}
