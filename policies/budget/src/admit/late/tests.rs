//! Arrivals behind a line that moves by one request a second.

mod surges;

use std::ops::RangeInclusive;

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{SECOND, asked, at, bounds, load, request, tenant};
use pointsman_sdk::wire::admission::{Choice, Verdict};
use pointsman_sdk::wire::preemption::{Cause, Shortage};
use pointsman_sdk::wire::types::{Change, Extent, Request, RequestClass, Stage, Tenant};

use crate::admit::CHECKS_MAX;
use crate::instance;

const BUSY: u32 = 1;
const CALM: u32 = 2;
/// The arrival that is asked about.
const NEW: u64 = 10_000;
/// The time of the question: [`LEFT`] have left.
const NOW: u64 = 26 * SECOND;
const LEFT: u64 = 16;

fn waiting(tenant: u32, id: u64) -> Request {
    Request {
        tenant,
        ..request(id)
    }
}

/// An arrival that may wait so many seconds.
fn arrival(tenant: u32, secs: u64) -> Request {
    Request {
        stage: Stage::Arrived,
        arrived: NOW,
        deadline: Some(NOW + secs * SECOND),
        ..waiting(tenant, NEW)
    }
}

/// A policy behind a line of 24 requests of a tenant, one of which has left each second since ten.
fn policy(settings: &str) -> Box<dyn Instance> {
    moved(settings, 1..=LEFT + 24, LEFT)
}

/// A policy that was told nothing yet.
fn configured(settings: &str) -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    policy
}

/// A policy behind a line to which these came and which the first so many have left.
fn moved(settings: &str, came: RangeInclusive<u64>, left: u64) -> Box<dyn Instance> {
    moved_of(RequestClass::Throughput, settings, came, left)
}

/// The same with requests of a class.
fn moved_of(
    class: RequestClass,
    settings: &str,
    came: RangeInclusive<u64>,
    left: u64,
) -> Box<dyn Instance> {
    let mut policy = configured(settings);
    let tenants = [BUSY, CALM].map(|id| Change::Tenant(tenant(id)));
    let of_class = |id| Request {
        class,
        ..waiting(BUSY, id)
    };
    let came = came.map(|id| Change::Waiting(of_class(id)));
    let rows = tenants.into_iter().chain(came).collect();
    policy.observe(10 * SECOND, Extent::Everything, rows);
    for id in 1..=left {
        let gone = vec![Change::WaitingGone(id)];
        policy.observe((10 + id) * SECOND, Extent::SinceLast, gone);
    }
    policy
}

fn choice(policy: &mut dyn Instance, new: Request) -> Choice {
    verdict_at(NOW, policy, new).choice
}

/// The verdict about an arrival at a time.
fn verdict_at(now: u64, policy: &mut dyn Instance, new: Request) -> Verdict {
    policy.observe(now, Extent::SinceLast, vec![Change::Waiting(new)]);
    policy.admit(at(now), asked(&[NEW]), 9)[0]
}

#[test]
fn an_arrival_is_refused_that_would_not_get_a_place_in_time() {
    // Twenty-four seconds, and a quarter more than what it may wait is tolerated.
    let in_time = choice(&mut *policy("{}"), arrival(BUSY, 20));
    assert_eq!(in_time, Choice::Admit);
    let late = choice(&mut *policy("{}"), arrival(BUSY, 19));
    assert_eq!(late, Choice::Shed(5));
    let strictly = r#"{"late-tolerance": 0, "retry-after": 7}"#;
    let late = choice(&mut *policy(strictly), arrival(BUSY, 20));
    assert_eq!(late, Choice::Shed(7));
    let in_time = choice(&mut *policy(strictly), arrival(BUSY, 24));
    assert_eq!(in_time, Choice::Admit);
}

#[test]
fn the_bound_on_waiting_is_the_operators_for_who_is_in_a_hurry_and_the_hosts() {
    let undated = |class| Request {
        class,
        deadline: None,
        ..arrival(BUSY, 0)
    };
    let hurried = || undated(RequestClass::LatencyCritical);
    let behind = |settings: &str, waiting: u64, new: Request| {
        let mut policy = moved_of(new.class, settings, 1..=LEFT + waiting, LEFT);
        choice(&mut *policy, new)
    };
    let ten_seconds = r#"{"wait-max": 10000}"#;
    assert_eq!(behind("{}", 24, hurried()), Choice::Admit);
    assert_eq!(behind(ten_seconds, 24, hurried()), Choice::Shed(14));
    // A minute: at one a second, 76 have left by then, a quarter more included.
    let calm = r#"{"surge-wait-max": 86400000}"#;
    assert_eq!(behind(calm, 75, hurried()), Choice::Admit);
    assert_eq!(behind(calm, 76, hurried()), Choice::Shed(16));
    // Without that setting, a line of a minute is a surge.
    assert_eq!(behind("{}", 59, hurried()), Choice::Admit);
    assert_eq!(behind("{}", 60, hurried()), Choice::Shed(60));
    // The host's is ten minutes, for others than these.
    let unhurried = || undated(RequestClass::Throughput);
    let by_then = || Request {
        deadline: Some(NOW + 1000 * SECOND),
        ..hurried()
    };
    for settings in ["{}", ten_seconds] {
        assert_eq!(behind(settings, 750, unhurried()), Choice::Admit);
        assert_eq!(behind(settings, 751, unhurried()), Choice::Shed(151));
        assert_eq!(behind(settings, 751, by_then()), Choice::Shed(151));
    }
}

#[test]
fn a_tenant_beyond_its_share_may_wait_for_half_of_what_holds_may_last() {
    let refused = |settings: &str, tokens: [u64; 2], waiting: u64| {
        let mut policy = moved(settings, 1..=LEFT + waiting, LEFT);
        let served = [BUSY, CALM].into_iter().zip(tokens).map(|(id, tokens)| {
            Change::Tenant(Tenant {
                output_tokens_total: tokens,
                ..tenant(id)
            })
        });
        policy.observe(NOW, Extent::SinceLast, served.collect());
        let undated = Request {
            deadline: None,
            ..arrival(BUSY, 0)
        };
        match choice(&mut *policy, undated) {
            Choice::Admit => None,
            Choice::Shed(secs) => Some(secs),
            other @ (Choice::Park | Choice::Displace(_)) => panic!("{other:?}"),
        }
    };
    let [within, beyond] = [[625, 375], [626, 374]];
    // Of thirty seconds, and a quarter more is tolerated: 18 are before it, or 19.
    assert_eq!(refused("{}", within, 19), None);
    assert_eq!(refused("{}", beyond, 18), None);
    assert_eq!(refused("{}", beyond, 19), Some(4));
    let longer = r#"{"share-wait-max": 20000}"#;
    assert_eq!(refused(longer, beyond, 25), None);
    assert_eq!(refused(longer, beyond, 26), Some(6));
    // With tokens of its own alone it is not beyond them.
    assert_eq!(refused("{}", [900, 0], 19), None);
}

#[test]
fn what_goes_before_others_is_not_behind_them() {
    let more_urgent = Request {
        priority: 1,
        ..arrival(BUSY, 1)
    };
    assert_eq!(choice(&mut *policy("{}"), more_urgent), Choice::Admit);
    let less_urgent = Request {
        priority: -1,
        ..arrival(BUSY, 1)
    };
    assert_eq!(choice(&mut *policy("{}"), less_urgent), Choice::Shed(23));
    // Another tenant has its turn after one of theirs, or after three where they weigh three times as much.
    assert_eq!(choice(&mut *policy("{}"), arrival(CALM, 1)), Choice::Admit);
    let mut heavy = policy("{}");
    let row = Tenant {
        weight: 3,
        ..tenant(BUSY)
    };
    heavy.observe(NOW, Extent::SinceLast, vec![Change::Tenant(row)]);
    assert_eq!(choice(&mut *heavy, arrival(CALM, 2)), Choice::Shed(1));
    // One for another model waits in a line of its own.
    let other_model = Request {
        model: Some(7),
        ..arrival(BUSY, 1)
    };
    assert_eq!(choice(&mut *policy("{}"), other_model), Choice::Admit);
}

#[test]
fn a_request_that_was_parked_is_not_behind_those_that_came_later() {
    let parked = Request {
        stage: Stage::Parked,
        ..arrival(BUSY, 1)
    };
    assert_eq!(choice(&mut *policy("{}"), parked), Choice::Admit);
    // But those that come later are behind it.
    let came = 1..=LEFT;
    let mut only_parked = moved("{}", came, LEFT - 1);
    let parked = (100..124).map(|id| {
        Change::Waiting(Request {
            stage: Stage::Parked,
            ..waiting(BUSY, id)
        })
    });
    only_parked.observe(25 * SECOND, Extent::SinceLast, parked.collect());
    let gone = vec![Change::WaitingGone(LEFT)];
    only_parked.observe(26 * SECOND, Extent::SinceLast, gone);
    let late = choice(&mut *only_parked, arrival(BUSY, 19));
    assert_eq!(late, Choice::Shed(5));
}

#[test]
fn the_lines_follow_the_mirror() {
    // Seven that left are no pace.
    let few = choice(&mut *moved("{}", 1..=99, 7), arrival(BUSY, 1));
    assert_eq!(few, Choice::Admit);
    // An empty line goes on for five seconds, and of one that ended nothing is known.
    for (since, expected) in [(4, Choice::Shed(23)), (5, Choice::Admit)] {
        let mut anew = moved("{}", 1..=LEFT, LEFT);
        let later = NOW + since * SECOND;
        let again = (100..124).map(|id| Change::Waiting(waiting(BUSY, id)));
        anew.observe(later, Extent::SinceLast, again.collect());
        let arrival = Request {
            arrived: later,
            deadline: Some(later + SECOND),
            ..arrival(BUSY, 1)
        };
        let verdict = verdict_at(later, &mut *anew, arrival);
        assert_eq!(verdict.choice, expected);
    }
    // Nobody leaves by a change of urgency; the others are behind then.
    let mut lowered = policy("{}");
    let less_urgent = (LEFT + 1..=LEFT + 24).map(|id| {
        Change::Waiting(Request {
            priority: -1,
            ..waiting(BUSY, id)
        })
    });
    lowered.observe(NOW, Extent::SinceLast, less_urgent.collect());
    assert_eq!(choice(&mut *lowered, arrival(BUSY, 1)), Choice::Admit);
    let as_low = Request {
        priority: -1,
        ..arrival(BUSY, 19)
    };
    assert_eq!(choice(&mut *lowered, as_low), Choice::Shed(5));
}

#[test]
fn how_fast_a_line_moves_survives_a_reload() {
    let rows = || {
        let tenants = [BUSY, CALM].map(|id| Change::Tenant(tenant(id)));
        let line = (LEFT + 1..=LEFT + 24).map(|id| Change::Waiting(waiting(BUSY, id)));
        tenants.into_iter().chain(line).collect()
    };
    let whole = policy("{}").snapshot();
    let fresh = || configured("{}");
    let mut successor = fresh();
    assert_eq!(successor.restore(whole.clone()), Ok(()));
    successor.observe(NOW, Extent::Everything, rows());
    let late = choice(&mut *successor, arrival(BUSY, 19));
    assert_eq!(late, Choice::Shed(5));
    // So it does where the host tells everything again.
    successor.observe(NOW, Extent::Everything, rows());
    let late = choice(&mut *successor, arrival(BUSY, 19));
    assert_eq!(late, Choice::Shed(5));
    let mut stranger = fresh();
    stranger.observe(NOW, Extent::Everything, rows());
    let admitted = choice(&mut *stranger, arrival(BUSY, 19));
    assert_eq!(admitted, Choice::Admit);
    // The one line takes the first 130 bytes, and the tokens computed anew 24.
    for length in 0..154 {
        assert!(fresh().restore(whole[..length].to_vec()).is_err());
    }
}

/// Everything is told again after a fault, when some have left of whom nothing was told.
#[test]
fn a_time_of_which_nothing_was_told_does_not_count() {
    let verdict = |secs: u64, unseen: u64| {
        let now = NOW + secs * SECOND;
        let mut successor = configured(r#"{"late-tolerance": 0}"#);
        assert_eq!(successor.restore(policy("{}").snapshot()), Ok(()));
        let line = (LEFT + unseen + 1..=LEFT + 24).map(|id| Change::Waiting(waiting(BUSY, id)));
        let tenants = [BUSY, CALM].map(|id| Change::Tenant(tenant(id)));
        let rows = tenants.into_iter().chain(line).collect();
        successor.observe(now, Extent::Everything, rows);
        let new = Request {
            arrived: now,
            deadline: Some(now + 20 * SECOND),
            ..arrival(BUSY, 0)
        };
        verdict_at(now, &mut *successor, new).choice
    };
    // One a second still, and 20 or 21 are before it.
    assert_eq!(verdict(4, 4), Choice::Admit);
    assert_eq!(verdict(4, 3), Choice::Shed(1));
    // After a while nothing is known any more.
    assert_eq!(verdict(5, 0), Choice::Admit);
    assert_eq!(verdict(3600, 0), Choice::Admit);
}

#[test]
fn who_is_pinned_is_only_before_those_that_are_pinned_alike() {
    let mut policy = configured("{}");
    let pinned = |request| Request {
        allowed: Some(vec![3, 7]),
        ..request
    };
    let came = (1..=LEFT + 24).map(|id| Change::Waiting(pinned(waiting(BUSY, id))));
    let tenants = [BUSY, CALM].map(|id| Change::Tenant(tenant(id)));
    let rows = tenants.into_iter().chain(came).collect();
    policy.observe(10 * SECOND, Extent::Everything, rows);
    for id in 1..=LEFT {
        let gone = vec![Change::WaitingGone(id)];
        policy.observe((10 + id) * SECOND, Extent::SinceLast, gone);
    }
    let late = choice(&mut *policy, pinned(arrival(BUSY, 1)));
    assert_eq!(late, Choice::Shed(23));
    let elsewhere = Request {
        allowed: Some(vec![3]),
        ..arrival(BUSY, 1)
    };
    for other in [elsewhere, arrival(BUSY, 1)] {
        assert_eq!(choice(&mut *policy, other), Choice::Admit);
    }
}

#[test]
fn who_is_pinned_is_behind_those_of_its_model_that_are_not() {
    let verdict = |model: Option<u32>| {
        let class = RequestClass::LatencyCritical;
        let ten_seconds = r#"{"wait-max": 10000}"#;
        let mut policy = moved_of(class, ten_seconds, 1..=LEFT + 24, LEFT);
        let pinned = Request {
            model,
            allowed: Some(vec![3]),
            ..hurried_at(NOW)
        };
        choice(&mut *policy, pinned)
    };
    assert_eq!(verdict(None), Choice::Shed(14));
    assert_eq!(verdict(Some(7)), Choice::Admit);
}

#[test]
fn past_the_bound_on_tenants_looked_at_nobody_is_refused() {
    const TENANTS: u32 = 1000;
    let arrivals = u64::from(CHECKS_MAX / TENANTS) + 1;
    let mut policy = policy("{}");
    let others = (10..9 + TENANTS).map(|id| Change::Waiting(waiting(id, 1000 + u64::from(id))));
    policy.observe(NOW, Extent::SinceLast, others.collect());
    let rows = (0..arrivals).map(|idx| {
        Change::Waiting(Request {
            id: NEW + idx,
            ..arrival(BUSY, 1)
        })
    });
    policy.observe(NOW, Extent::SinceLast, rows.collect());
    let ids: Vec<u64> = (NEW..NEW + arrivals).collect();
    let verdicts = policy.admit(at(NOW), asked(&ids), 99);
    let (last, before) = verdicts.split_last().expect("they were asked about");
    assert!(
        before
            .iter()
            .all(|row| matches!(row.choice, Choice::Shed(_)))
    );
    assert_eq!(last.choice, Choice::Admit);
}

fn hurried(request: Request) -> Request {
    Request {
        class: RequestClass::LatencyCritical,
        ..request
    }
}

/// An arrival in a hurry, without a deadline.
fn hurried_at(now: u64) -> Request {
    Request {
        arrived: now,
        deadline: None,
        ..hurried(arrival(BUSY, 0))
    }
}

/// Tells the policy what it is told before a question about engines.
fn tell_of_engines(now: u64, policy: &mut dyn Instance) {
    policy.observe(now, Extent::SinceLast, vec![Change::Load(load(0))]);
}

/// The line of 24 leaves, one each second, while nothing but engines is asked about. Then forty are there, and one that may wait
/// for twenty seconds.
#[test]
fn a_line_that_left_while_nothing_was_asked_has_ended_after_a_while() {
    let verdict = |secs: u64, is_turned: bool| {
        let mut policy = policy("{}");
        let now = NOW + secs * SECOND;
        tell_of_engines(now - SECOND, &mut *policy);
        let gone = (LEFT + 1..=LEFT + 24).map(Change::WaitingGone);
        let came = (200..240).map(|id| Change::Waiting(waiting(BUSY, id)));
        let mut rows: Vec<Change> = gone.chain(came).collect();
        if is_turned {
            rows.reverse();
        }
        policy.observe(now, Extent::SinceLast, rows);
        let new = Request {
            arrived: now,
            deadline: Some(now + 20 * SECOND),
            ..arrival(BUSY, 0)
        };
        verdict_at(now, &mut *policy, new).choice
    };
    for is_turned in [false, true] {
        // It has been empty for two seconds, and moves as fast as before.
        assert_eq!(verdict(26, is_turned), Choice::Shed(20));
        assert_eq!(verdict(30, is_turned), Choice::Admit);
        assert_eq!(verdict(3600, is_turned), Choice::Admit);
    }
}

/// The same line, of which all were there when a sequence lacked a block, five seconds before.
#[test]
fn who_waited_when_victims_were_asked_for_has_not_left_before() {
    let mut policy = policy("{}");
    let lacks = Shortage {
        cause: Cause::Blocks,
        needy: 1,
        executor: None,
        blocks: 1,
    };
    let victims = policy.evict(at(NOW + 25 * SECOND), lacks);
    assert!(victims.is_none());
    let now = NOW + 30 * SECOND;
    let gone = (LEFT + 1..=LEFT + 24).map(Change::WaitingGone);
    let came = (200..240).map(|id| Change::Waiting(waiting(BUSY, id)));
    policy.observe(now, Extent::SinceLast, gone.chain(came).collect());
    let new = Request {
        arrived: now,
        deadline: Some(now + 20 * SECOND),
        ..arrival(BUSY, 0)
    };
    // It goes on, and 24 have left within thirty seconds: forty would take fifty.
    assert_eq!(verdict_at(now, &mut *policy, new).choice, Choice::Shed(30));
}
