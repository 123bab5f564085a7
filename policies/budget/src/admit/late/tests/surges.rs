//! Surges: far more come to the line than leave it.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, tenant};
use pointsman_sdk::wire::admission::Choice;
use pointsman_sdk::wire::types::{Change, Extent, Request, RequestClass, Tenant};

use super::{
    BUSY, CALM, LEFT, NOW, arrival, configured, hurried, hurried_at, moved, policy,
    tell_of_engines, verdict_at, waiting,
};
use crate::reason::Reason;

/// The fate of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Refused,
    /// They have a place at once.
    Placed,
}

/// Has arrivals come at a time, and asks about them.
fn come(policy: &mut dyn Instance, now: u64, (ids, fate): (&[u64], Fate)) {
    let may_wait = match fate {
        Fate::Refused => 0,
        Fate::Placed => 1000,
    };
    let came = |id: &u64| Request {
        id: *id,
        ..arrival(BUSY, may_wait)
    };
    let arrive = ids.iter().map(|id| Change::Waiting(came(id)));
    policy.observe(now, Extent::SinceLast, arrive.collect());
    for verdict in policy.admit(at(now), asked(ids), 9) {
        let is_refused = matches!(verdict.choice, Choice::Shed(_));
        assert_eq!(is_refused, fate == Fate::Refused, "{verdict:?}");
    }
    let decided = ids.iter().map(|id| Change::WaitingGone(*id));
    policy.observe(now, Extent::SinceLast, decided.collect());
}

/// A policy behind the line of 24 in a hurry, to which six others come each second for nine seconds, while so many leave it.
fn crowded(settings: &str, fate: Fate, leaving: u64) -> Box<dyn Instance> {
    let mut policy = policy(settings);
    let line = (LEFT + 1..=LEFT + 24).map(|id| Change::Waiting(hurried(waiting(BUSY, id))));
    policy.observe(NOW, Extent::SinceLast, line.collect());
    for sec in 0..9 {
        let now = NOW + sec * SECOND;
        let first = LEFT + 1 + leaving * sec;
        let gone = (first..first + leaving).map(Change::WaitingGone);
        policy.observe(now, Extent::SinceLast, gone.collect());
        let ids: Vec<u64> = (0..6).map(|idx| 200 + 6 * sec + idx).collect();
        come(&mut *policy, now, (&ids, fate));
    }
    policy
}

#[test]
fn a_hurried_arrival_waits_no_more_than_half_a_second_in_a_surge() {
    let surging = |settings: &str| crowded(settings, Fate::Refused, 1);
    let verdict = |settings: &str, class, deadline: Option<u64>| {
        let now = NOW + 9 * SECOND;
        let new = Request {
            arrived: now,
            class,
            deadline: deadline.map(|secs| now + secs * SECOND),
            ..arrival(BUSY, 0)
        };
        verdict_at(now, &mut *surging(settings), new)
    };
    const HURRIED: RequestClass = RequestClass::LatencyCritical;
    let refused = verdict("{}", HURRIED, None);
    assert_eq!(refused.choice, Choice::Shed(15));
    assert_eq!(refused.reason, Reason::Surge.index());
    // Those who said that they can wait do, and so do all where the operator says so.
    let admitted = [
        verdict("{}", RequestClass::Throughput, None),
        verdict("{}", HURRIED, Some(20)),
        verdict(r#"{"surge-wait-max": 16000}"#, HURRIED, None),
    ];
    for verdict in admitted {
        assert_eq!(verdict.choice, Choice::Admit);
    }
    // It has ended once few come.
    let mut policy = surging("{}");
    let now = NOW + 17 * SECOND;
    let gone = (LEFT + 10..LEFT + 20).map(Change::WaitingGone);
    policy.observe(now - SECOND, Extent::SinceLast, gone.collect());
    let verdict = verdict_at(now, &mut *policy, hurried_at(now));
    assert_eq!(verdict.choice, Choice::Admit);
}

/// Of thirty seconds that a request may be held.
#[test]
fn a_line_half_as_long_as_holds_may_last_is_a_surge_once_they_run_out() {
    let verdict = |behind: u64, hold_end: Option<u64>| {
        let mut policy = moved("{}", 1..=LEFT + 1 + behind, LEFT);
        let line = (LEFT + 1..=LEFT + 1 + behind).map(|id| {
            Change::Waiting(Request {
                hold_end: hold_end.filter(|_| id == LEFT + 1),
                ..hurried(waiting(BUSY, id))
            })
        });
        policy.observe(NOW, Extent::SinceLast, line.collect());
        let leaves = vec![Change::WaitingGone(LEFT + 1)];
        policy.observe(NOW + SECOND, Extent::SinceLast, leaves);
        verdict_at(NOW + SECOND, &mut *policy, hurried_at(NOW + SECOND))
    };
    let refused = verdict(15, Some(NOW + SECOND));
    assert_eq!(refused.choice, Choice::Shed(15));
    assert_eq!(refused.reason, Reason::Surge.index());
    assert_eq!(verdict(14, Some(NOW + SECOND)).choice, Choice::Admit);
    // Held for less, and not at all.
    assert_eq!(verdict(15, Some(NOW + 2 * SECOND)).choice, Choice::Admit);
    assert_eq!(verdict(15, None).choice, Choice::Admit);
}

/// Knowledge of those who were let in survives a fault, before they are told to wait.
/// Half of those who come are asked about elsewhere, as beside a canary, and are told when they have come and when they wait, or
/// only then.
/// The surge is one tenant's, to which so many of a thousand tokens were served, and the others to one that has nobody waiting.
#[test]
fn a_tenant_within_its_share_is_not_refused_for_the_line_of_one_beyond_its_own() {
    let now = NOW + 9 * SECOND;
    let verdict = |tokens: u64| {
        let mut policy = crowded("{}", Fate::Refused, 1);
        let served = [(BUSY, tokens), (CALM, 1000 - tokens)].map(|(id, tokens)| {
            Change::Tenant(Tenant {
                output_tokens_total: tokens,
                ..tenant(id)
            })
        });
        policy.observe(now, Extent::SinceLast, served.into());
        let new = Request {
            tenant: CALM,
            ..hurried_at(now)
        };
        verdict_at(now, &mut *policy, new)
    };
    // A quarter more than its half is tolerated: its turn comes first.
    let refused = verdict(625);
    assert_eq!(refused.choice, Choice::Shed(1));
    assert_eq!(refused.reason, Reason::Surge.index());
    assert_eq!(verdict(626).choice, Choice::Admit);
}

/// The line is empty most of the time, and most of those who come have a place at once.
#[test]
fn who_finds_nobody_waiting_makes_no_surge() {
    let mut policy = policy("{}");
    let line = (LEFT + 1..=LEFT + 24).map(Change::WaitingGone);
    policy.observe(NOW, Extent::SinceLast, line.collect());
    for sec in 1..=12 {
        let now = NOW + sec * SECOND;
        let ids: Vec<u64> = (0..6).map(|idx| 200 + 7 * sec + idx).collect();
        come(&mut *policy, now, (&ids, Fate::Placed));
        let waits = 206 + 7 * sec;
        let joins = vec![Change::Waiting(hurried(waiting(BUSY, waits)))];
        policy.observe(now, Extent::SinceLast, joins);
        let leaves = vec![Change::WaitingGone(waits)];
        policy.observe(now + SECOND / 10, Extent::SinceLast, leaves);
    }
    let now = NOW + 13 * SECOND;
    let line = (400..412).map(|id| Change::Waiting(hurried(waiting(BUSY, id))));
    policy.observe(now, Extent::SinceLast, line.collect());
    let verdict = verdict_at(now, &mut *policy, hurried_at(now));
    assert_eq!(verdict.choice, Choice::Admit);
}

/// A surge of an hour ago, whose last requests left while nothing but engines was asked about.
#[test]
fn a_surge_ends_with_its_line_though_nothing_is_asked_meanwhile() {
    let mut policy = configured("{}");
    let tenants = vec![Change::Tenant(tenant(BUSY))];
    policy.observe(10 * SECOND, Extent::Everything, tenants);
    // At one a second, 76 are more than a minute's.
    for sec in 0..20 {
        let came = (0..5).map(|idx| Change::Waiting(hurried(waiting(BUSY, 100 + 5 * sec + idx))));
        let met = Request {
            id: 1000 + sec,
            ..hurried(arrival(BUSY, 0))
        };
        let left = [
            Change::WaitingGone(100 + sec),
            Change::WaitingGone(999 + sec),
        ];
        let rows = came.chain([Change::Waiting(met)]).chain(left).collect();
        policy.observe((11 + sec) * SECOND, Extent::SinceLast, rows);
    }
    let surging = verdict_at(31 * SECOND, &mut *policy, hurried_at(31 * SECOND));
    assert_eq!(surging.reason, Reason::Surge.index());
    let now = 3631 * SECOND;
    tell_of_engines(now - SECOND, &mut *policy);
    let gone = (120..200).map(Change::WaitingGone);
    let came = (300..340).map(|id| Change::Waiting(hurried(waiting(BUSY, id))));
    policy.observe(now, Extent::SinceLast, gone.chain(came).collect());
    let verdict = verdict_at(now, &mut *policy, hurried_at(now));
    assert_eq!(verdict.choice, Choice::Admit);
}
