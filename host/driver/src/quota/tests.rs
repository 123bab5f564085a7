//! The limits of a tenant, at times that the tests set.

use pointsman_core::{ExecutorId, RequestId, TenantId};

use super::*;

const TENANT: &str = "alice";

fn quotas(limits: TenantLimits) -> Arc<Quotas> {
    let quotas = Arc::new(Quotas::default());
    quotas.set([(TENANT.to_owned(), limits)]);
    quotas
}

fn requests(max: u64) -> TenantLimits {
    TenantLimits {
        requests_per_minute: Some(max),
        ..TenantLimits::default()
    }
}

fn tokens(max: u64) -> TenantLimits {
    TenantLimits {
        tokens_per_minute_max: Some(max),
        ..TenantLimits::default()
    }
}

fn need(prompt: u64, output_max: u64) -> QuotaNeed {
    QuotaNeed::of_one(prompt, output_max)
}

fn millis(millis: u64) -> Micros {
    Micros(millis * 1000)
}

/// Ends a request that used so many tokens.
fn end(mut hold: QuotaHold, now: Micros, prompt_tokens: u32, output_tokens: u32) {
    let stay = Stay {
        request: RequestId(1),
        executor: ExecutorId(1),
        tenant: TenantId(1),
        model: None,
        started: None,
        prompt_tokens,
        cached_tokens: 0,
        output_tokens,
    };
    hold.stayed(now, &stay);
}

fn later(limit: LimitKind, max: u64, retry_after: u32) -> OverLimit {
    OverLimit::Later {
        limit,
        max,
        retry_after,
    }
}

#[test]
fn no_minute_has_more_than_the_limit() {
    let quotas = quotas(requests(3));
    let mut taken: Vec<u64> = Vec::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut now = 0;
    for _ in 0..2000 {
        now += random.u64(0..3000);
        match quotas.take(TENANT, millis(now), &need(1, 1)) {
            Ok(_) => taken.push(now),
            Err(OverLimit::Later { retry_after, .. }) if random.bool() => {
                now += u64::from(retry_after) * 1000;
                // What was told is true, and no later than it has to be by more than two seconds.
                assert!(now <= taken[taken.len() - 3] + 62_000, "{now}");
                assert!(
                    quotas.take(TENANT, millis(now), &need(1, 1)).is_ok(),
                    "{now}"
                );
                taken.push(now);
            }
            Err(OverLimit::Later { .. }) => {}
            Err(OverLimit::Never { .. }) => unreachable!("the limit is on requests"),
        }
    }
    assert!(taken.len() > 100);
    for four in taken.windows(4) {
        assert!(four[3] - four[0] > 60_000, "{four:?}");
    }
}

#[test]
fn tokens_are_held_until_the_end_tells_how_many_were_used() {
    let quotas = quotas(tokens(100));
    let now = millis(0);
    let first = quotas.take(TENANT, now, &need(10, 50)).unwrap().unwrap();
    // The first may use 60; its end may be any time.
    let refused = quotas.take(TENANT, now, &need(10, 50)).unwrap_err();
    assert_eq!(refused, later(LimitKind::Tokens, 100, RETRY_AFTER_END));
    end(first, millis(5000), 10, 20);
    let second = quotas.take(TENANT, millis(5000), &need(10, 50));
    let used = quotas.of(TENANT, millis(5000)).unwrap().tokens.unwrap();
    assert_eq!((used.max, used.used), (100, 90));
    end(second.unwrap().unwrap(), millis(6000), 10, 50);
    // 30 of the fifth second have to be forgotten.
    let refused = quotas.take(TENANT, millis(7000), &need(1, 10)).unwrap_err();
    assert_eq!(refused, later(LimitKind::Tokens, 100, 59));
    assert!(quotas.take(TENANT, millis(66_000), &need(1, 10)).is_ok());
}

#[test]
fn a_request_that_may_use_more_than_the_limit_runs_alone_and_is_paid_for_later() {
    let quotas = quotas(tokens(100));
    let large = quotas.take(TENANT, millis(0), &need(10, 500)).unwrap();
    assert!(quotas.check(TENANT, millis(0)).is_err());
    end(large.unwrap(), millis(1000), 10, 400);
    let refused = quotas.check(TENANT, millis(2000)).unwrap_err();
    assert_eq!(refused, later(LimitKind::Tokens, 100, 60));
    assert!(quotas.check(TENANT, millis(62_000)).is_ok());
    let never = OverLimit::Never {
        limit: LimitKind::Tokens,
        needed: 101,
        max: 100,
    };
    let refused = quotas.take(TENANT, millis(62_000), &need(101, 1));
    assert_eq!(refused.unwrap_err(), never);
}

#[test]
fn a_request_that_may_use_more_than_the_limit_waits_for_others_and_not_for_an_empty_minute() {
    let quotas = quotas(tokens(100));
    let take = |at| quotas.take(TENANT, millis(at), &need(10, 500));
    let used = |at| quotas.of(TENANT, millis(at)).unwrap().tokens.unwrap().used;
    let first = take(0).unwrap().unwrap();
    let refused = take(0).unwrap_err();
    assert_eq!(refused, later(LimitKind::Tokens, 100, RETRY_AFTER_END));
    end(first, millis(1000), 10, 5);
    assert_eq!(used(1000), 15);
    // It holds what is left of the minute.
    let second = take(1000).unwrap().unwrap();
    assert_eq!(used(1000), 100);
    assert!(quotas.take(TENANT, millis(1000), &need(1, 1)).is_err());
    end(second, millis(2000), 10, 66);
    assert_eq!(used(2000), 91);
    // There is no room for its prompt before the first is forgotten.
    let refused = take(2000).unwrap_err();
    assert_eq!(refused, later(LimitKind::Tokens, 100, 60));
    assert!(quotas.take(TENANT, millis(2000), &need(1, 1)).is_ok());
    assert!(take(62_000).is_ok());
}

#[test]
fn a_hold_that_is_dropped_gives_back_its_place() {
    let limits = TenantLimits {
        concurrent_max: Some(2),
        ..tokens(100)
    };
    let quotas = quotas(limits);
    let mut holds: Vec<_> = (0..2)
        .map(|_| quotas.take(TENANT, millis(0), &need(1, 1)).unwrap())
        .collect();
    let refused = quotas.check(TENANT, millis(0)).unwrap_err();
    assert_eq!(refused, later(LimitKind::Concurrent, 2, RETRY_AFTER_END));
    holds.pop();
    assert!(quotas.check(TENANT, millis(0)).is_ok());
    drop(holds);
    let used = quotas.of(TENANT, millis(0)).unwrap();
    assert_eq!(used.concurrent.unwrap().used, 0);
    assert_eq!(used.tokens.unwrap().used, 0);
}

#[test]
fn a_prompt_that_is_computed_again_is_charged_once() {
    let quotas = quotas(tokens(1000));
    let mut hold = quotas.take(TENANT, millis(0), &need(50, 100)).unwrap();
    let stay = |prompt_tokens, output_tokens| Stay {
        request: RequestId(1),
        executor: ExecutorId(1),
        tenant: TenantId(1),
        model: None,
        started: None,
        prompt_tokens,
        cached_tokens: 0,
        output_tokens,
    };
    let told = hold.as_mut().unwrap();
    told.stayed(millis(1), &stay(50, 20));
    told.stayed(millis(2), &stay(70, 30));
    drop(hold);
    let used = quotas.of(TENANT, millis(2)).unwrap();
    assert_eq!(used.tokens.unwrap().used, 100);
}

#[test]
fn requests_that_come_as_one_are_taken_whole_or_not_at_all() {
    let limits = TenantLimits {
        requests_per_minute: Some(5),
        concurrent_max: Some(3),
        ..tokens(100)
    };
    let quotas = quotas(limits);
    let several = |requests, at_once| QuotaNeed {
        requests,
        at_once,
        ..need(20, 500)
    };
    let refused = |need: &QuotaNeed| quotas.take(TENANT, millis(0), need).unwrap_err();
    let never = |limit, needed, max| OverLimit::Never { limit, needed, max };
    let many = refused(&several(4, 4..=4));
    assert_eq!(many, never(LimitKind::Concurrent, 4, 3));
    let many = refused(&several(6, 1..=6));
    assert_eq!(many, never(LimitKind::Requests, 6, 5));
    // One place is taken: there are two for those that need not be there all at once.
    let one = quotas.take(TENANT, millis(0), &need(1, 1)).unwrap();
    let together = refused(&several(3, 3..=3));
    assert_eq!(together, later(LimitKind::Concurrent, 3, RETRY_AFTER_END));
    end(one.unwrap(), millis(0), 1, 1);
    let one = quotas.take(TENANT, millis(61_000), &need(1, 0)).unwrap();
    let several = several(4, 1..=4);
    let held = QuotaNeed {
        output_max: 50,
        ..several
    };
    let first = quotas.take(TENANT, millis(61_000), &held).unwrap().unwrap();
    assert_eq!(first.at_once(), 2);
    let used = |at| quotas.of(TENANT, millis(at)).unwrap();
    assert_eq!(used(61_000).tokens.unwrap().used, 1 + 70);
    assert_eq!(used(61_000).requests.unwrap().used, 5);
    // They are paid for when the last of them ends.
    let second = first.share();
    end(first, millis(62_000), 5, 10);
    assert_eq!(used(62_000).concurrent.unwrap().used, 3);
    end(second, millis(62_000), 5, 20);
    assert_eq!(used(62_000).concurrent.unwrap().used, 1);
    assert_eq!(used(62_000).tokens.unwrap().used, 1 + 40);
    drop(one);
}

#[test]
fn new_limits_count_what_was_used_under_the_old_ones() {
    let quotas = quotas(requests(5));
    let holds: Vec<_> = (0..3)
        .map(|_| quotas.take(TENANT, millis(0), &need(1, 1)).unwrap())
        .collect();
    quotas.set([(TENANT.to_owned(), requests(3))]);
    assert!(quotas.check(TENANT, millis(0)).is_err());
    quotas.set([]);
    assert!(quotas.check(TENANT, millis(0)).is_ok());
    assert_eq!(quotas.of(TENANT, millis(0)), None);
    drop(holds);
    assert!(matches!(
        quotas.take(TENANT, millis(0), &need(1, 1)),
        Ok(Some(_) | None)
    ));
}
