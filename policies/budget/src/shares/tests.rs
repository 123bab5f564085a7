//! Shares, by hand and by property.

use super::split;

fn check(total: u32, weights: &[u32], permille: u32, expected: &[u32]) {
    assert_eq!(split(total, weights, permille), expected);
}

#[test]
fn shares_follow_the_weights() {
    check(1000, &[1, 1, 2], 900, &[250, 250, 500]);
    check(0, &[1, 2], 900, &[0, 0]);
    check(100, &[], 900, &[]);
}

#[test]
fn a_weight_of_zero_counts_as_one() {
    check(100, &[0, 1], 900, &[50, 50]);
}

#[test]
fn rounding_goes_to_the_largest_remainder_then_to_the_first_attached() {
    // 10/3 each: one is left, all remainders are equal.
    check(10, &[1, 1, 1], 900, &[4, 3, 3]);
    // 1.43, 2.86, 5.71: two are left, for .86 and .71.
    check(10, &[1, 2, 4], 900, &[1, 3, 6]);
}

#[test]
fn nobody_gets_more_than_the_cap() {
    // Alone: 100 stay unallotted.
    check(1000, &[7], 900, &[900]);
    check(1000, &[7], 1000, &[1000]);
    // 10 and 990: what is above 900 goes to the other.
    check(1000, &[1, 99], 900, &[100, 900]);
    // The cap is rounded down: 900 permille of 15 are 13.
    check(15, &[1, 99], 900, &[2, 13]);
}

#[test]
fn what_one_cannot_take_may_bring_another_to_the_cap() {
    // Cap 400. 100, 300, 600: 200 of the last go on as 50 and 150, which is 50 too many.
    check(1000, &[1, 3, 6], 400, &[200, 400, 400]);
    // Cap 300: all are at it, and 100 stay unallotted.
    check(1000, &[1, 3, 6], 300, &[300, 300, 300]);
}

#[test]
fn shares_are_capped_exhaustive_and_fair() {
    let mut state = 1_u32;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for _ in 0..20_000 {
        let total = random(5000);
        let permille = 100 + random(901);
        let weights: Vec<u32> = (0..=random(8)).map(|_| random(50)).collect();
        let shares = split(total, &weights, permille);
        let cap = u32::try_from(u64::from(total) * u64::from(permille) / 1000).expect("below");
        let case = format!("{total} by {weights:?} at {permille}: {shares:?}");
        let sum: u32 = shares.iter().sum();
        assert!(shares.iter().all(|&share| share <= cap), "{case}");
        let all_capped = shares.iter().all(|&share| share == cap);
        assert!(sum == total || sum < total && all_capped, "{case}");
        for (share, weight) in shares.iter().zip(&weights) {
            for (other, other_weight) in shares.iter().zip(&weights) {
                assert!(weight > other_weight || share <= &(other + 1), "{case}");
            }
        }
    }
}

#[test]
fn the_greatest_numbers_do_not_overflow() {
    let weights = [u32::MAX; 3];
    let shares = split(u32::MAX, &weights, 1000);
    assert_eq!(shares, [1_431_655_765; 3]);
}
