//! The ledger, by hand-computed use.

use crate::fixture::{self, SECOND};

use super::*;

fn row(id: u32, total: u64, rate: Option<u64>) -> Tenant {
    Tenant {
        tokens_per_minute: rate,
        prompt_tokens_total: total / 2,
        output_tokens_total: total - total / 2,
        running: 1,
        ..fixture::tenant(id)
    }
}

/// A ledger and a mirror that were told of one tenant's total again and again, (second, tokens).
fn told(rate: Option<u64>, totals: &[(u64, u64)]) -> (Tenants, Tenant) {
    let mut tenants = Tenants::default();
    let mut last = row(1, 0, rate);
    for &(second, total) in totals {
        last = row(1, total, rate);
        tenants.changed(second * SECOND, &last);
    }
    (tenants, last)
}

/// A ledger in which each of these tenants, (id, weight, tokens), was served its tokens within the first
/// second, and their rows.
fn served(tenants: &[(u32, u32, u64)]) -> (Tenants, Vec<Tenant>) {
    let mut ledger = Tenants::default();
    let rows = tenants.iter().map(|&(id, weight, total)| {
        let last = Tenant {
            weight,
            ..row(id, total, None)
        };
        ledger.changed(0, &row(id, 0, None));
        ledger.changed(SECOND, &last);
        last
    });
    let rows = rows.collect();
    (ledger, rows)
}

/// Seconds that a tenant of 600 tokens a minute, ten a second, is overdrawn at `second`. A whole
/// number of seconds beyond its bucket it is within it a microsecond later: a second more.
fn check_overdrawn(totals: &[(u64, u64)], second: u64, expected: Option<u32>) {
    let (tenants, last) = told(Some(600), totals);
    let found = tenants.overdrawn_secs(&last, second * SECOND);
    assert_eq!(found, expected, "{totals:?} at {second}");
}

#[test]
fn a_bucket_holds_a_minute_and_flows_back_by_the_second() {
    check_overdrawn(&[(0, 0)], 0, None);
    // All at once: 600 of 600 are spent, and a second later ten are there again.
    check_overdrawn(&[(100, 0), (100, 599)], 100, None);
    check_overdrawn(&[(100, 0), (100, 600)], 100, Some(1));
    check_overdrawn(&[(100, 0), (100, 600)], 101, None);
    // 900 are 300 too many: 30 s. 20 s later 10.
    check_overdrawn(&[(100, 0), (100, 900)], 100, Some(31));
    check_overdrawn(&[(100, 0), (100, 900)], 120, Some(11));
    check_overdrawn(&[(100, 0), (100, 900)], 131, None);
    // A minute's at once leave nothing, minute after minute.
    let by_minute = [(60, 0), (60, 600), (120, 600), (120, 1200)];
    check_overdrawn(&by_minute, 120, Some(1));
}

#[test]
fn no_more_than_a_minute_is_owed_and_no_more_than_a_minute_saved() {
    check_overdrawn(&[(100, 0), (100, 1_000_000)], 100, Some(61));
    check_overdrawn(&[(100, 0), (100, 1_000_000)], 161, None);
    check_overdrawn(&[(36_000, 0), (36_000, 900)], 36_000, Some(31));
}

#[test]
fn between_two_totals_tokens_count_as_served_evenly() {
    // Ten a second for ever are just what it may have, however seldom it is told.
    check_overdrawn(&[(0, 0), (30, 300), (60, 600), (90, 900)], 90, None);
    check_overdrawn(&[(0, 0), (6000, 60_000)], 6000, None);
    check_overdrawn(&[(0, 0), (6000, 60_900)], 6000, Some(31));
    // Without a history since the start: of 1500 in a minute 600 have flowed back, and 900 are left.
    check_overdrawn(&[(60, 1500)], 60, Some(31));
    check_overdrawn(&[(600, 6000)], 600, None);
    // 1000 in ten minutes are 100 in the last one.
    let (tenants, _) = told(None, &[(600, 1000)]);
    assert_eq!(tenants.accounts[&1].served.here, 100);
}

#[test]
fn a_tenant_without_a_limit_that_gets_one_has_a_full_bucket() {
    let (mut tenants, _) = told(None, &[(0, 0), (10, 1_000_000)]);
    tenants.changed(20 * SECOND, &row(1, 1_000_000, Some(600)));
    assert_eq!(tenants.accounts[&1].spent, 0);
}

#[test]
fn what_was_served_within_a_minute_counts_and_fades() {
    let (tenants, last) = told(None, &[(80, 0), (90, 600)]);
    let used = |second: u64| tenants.used(&last, second * SECOND) / u128::from(MINUTE);
    // Served in the second minute; of the third, which begins at 120, half has passed at 150.
    let found = [90, 119, 120, 150, 165, 180].map(used);
    assert_eq!(found, [600, 600, 600, 300, 150, 0]);
}

#[test]
fn shares_are_by_weight() {
    let (tenants, rows) = served(&[(1, 1, 300), (2, 3, 500), (3, 1, 0)]);
    let check = |at_work: &[usize], permille, expected: &[bool]| {
        let contest = tenants.contest(at_work.iter().map(|&at| &rows[at]), SECOND);
        let beyond = at_work.iter().map(|&at| {
            let beyond = tenants.beyond_share(&rows[at], contest, permille);
            beyond.is_some()
        });
        assert_eq!(beyond.collect::<Vec<_>>(), expected, "{at_work:?}");
    };
    // 800 tokens over weights 1 and 3: 200 and 600 are due, and 300 is one and a half times 200.
    check(&[0, 1], 1000, &[true, false]);
    check(&[0, 1], 1499, &[true, false]);
    check(&[0, 1], 1500, &[false, false]);
    // With the third one's weight 160, 480 and 160 are due.
    check(&[0, 1, 2], 1000, &[true, true, false]);
    check(&[0, 1, 2], 1050, &[true, false, false]);
    // Whoever is alone has all.
    check(&[0], 1000, &[false]);
}

#[test]
fn a_tenant_that_was_served_within_the_minute_counts_without_work_in_hand() {
    let (tenants, mut rows) = served(&[(1, 1, 900), (2, 1, 100), (3, 1, 0)]);
    for row in &mut rows {
        (row.running, row.waiting) = (0, 0);
    }
    let beyond = |contest| tenants.beyond_share(&rows[0], contest, 1000).is_some();
    assert!(!beyond(tenants.contest(rows.iter(), SECOND)));
    let recent = tenants.contest_of_minute(rows.iter(), SECOND);
    assert!(beyond(recent));
    // The third has neither tokens nor work: 1000 tokens over two weights, not over three.
    assert_eq!(recent.weight, 2);
    let later = tenants.contest_of_minute(rows.iter(), 3 * MINUTE);
    assert_eq!((later.weight, later.used), (0, 0));
}

#[test]
fn an_excess_is_the_part_of_the_way_from_the_share_to_everything() {
    let (tenants, rows) = served(&[(1, 1, 300), (2, 3, 500), (3, 4, 0)]);
    let check = |at_work: &[usize], expected: &[u32]| {
        let contest = tenants.contest(at_work.iter().map(|&at| &rows[at]), SECOND);
        let excess = at_work.iter();
        let excess = excess.map(|&at| tenants.excess_permille(&rows[at], contest));
        assert_eq!(excess.collect::<Vec<_>>(), expected, "{at_work:?}");
    };
    // 3/8 of the tokens for 1/4 of the weight: 1/8 of the 3/4 between its share and everything.
    check(&[0, 1], &[166, 0]);
    // 3/8 for 1/8, which is 2/8 of 7/8; and 5/8 for 3/8, which is 2/8 of 5/8.
    check(&[0, 1, 2], &[285, 400, 0]);
    check(&[1, 2], &[1000, 0]);
    // Whoever is alone is within its share, and where nothing was served all are.
    check(&[0], &[0]);
    check(&[2], &[0]);
}

#[test]
fn who_has_no_work_in_hand_does_not_share() {
    let (mut tenants, rows) = served(&[(1, 1, 300)]);
    let idle = Tenant {
        running: 0,
        ..row(2, 0, None)
    };
    tenants.changed(SECOND, &idle);
    let beyond = |other: &Tenant| {
        let contest = tenants.contest([&rows[0], other].into_iter(), SECOND);
        tenants.beyond_share(&rows[0], contest, 1000).is_some()
    };
    assert!(!beyond(&idle));
    let waiting = Tenant { waiting: 1, ..idle };
    assert!(beyond(&waiting));
}

#[test]
fn a_restored_ledger_stands_where_the_old_one_did() {
    let (mut old, _) = told(Some(600), &[(0, 0), (50, 100), (70, 900)]);
    old.changed(70 * SECOND, &row(2, 7, None));
    let mut fresh = Tenants::restore(&old.snapshot()).expect("its own snapshot");
    assert_eq!(fresh, old);
    // What was served in between is in the next total, whoever is told it.
    for tenants in [&mut old, &mut fresh] {
        tenants.changed(80 * SECOND, &row(1, 1200, Some(600)));
    }
    assert_eq!(fresh, old);
    // The first 100 have flowed back; 800 less 200 of twenty seconds; 300 less 100 of ten.
    assert_eq!(fresh.accounts[&1].spent, full(800));
    assert!(Tenants::restore(&[1, 2, 3]).is_err());
    assert_eq!(Tenants::restore(&[]), Ok(Tenants::default()));
}

#[test]
fn a_snapshot_of_an_earlier_life_is_worth_nothing() {
    let (old, _) = told(Some(600), &[(0, 0), (1000, 5000)]);
    let mut fresh = Tenants::restore(&old.snapshot()).expect("its own snapshot");
    fresh.changed(SECOND, &row(1, 10, Some(600)));
    // Ten tokens, ten flowed back.
    assert_eq!(fresh.overdrawn_secs(&row(1, 10, Some(600)), SECOND), None);
    assert_eq!(fresh.accounts[&1].spent, 0);
}
