//! Lengths as they are learnt, by hand-computed means.

use super::{Account, BUCKETS, Features, GROUPS_MAX, Lengths, MIDDLES, bucket};

fn features(tenant: u32, prompt_tokens: u32, labels: &[u32]) -> Features<'_> {
    Features {
        account: Account {
            tenant,
            model: Some(0),
        },
        prompt_tokens,
        labels,
    }
}

fn learnt(answers: &[(Features<'_>, u32, usize)]) -> Lengths {
    let mut lengths = Lengths::default();
    for &(features, tokens, count) in answers {
        (0..count).for_each(|_| lengths.learn(features, tokens));
    }
    lengths
}

#[test]
fn buckets_are_two_for_each_doubling() {
    let buckets = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 1 << 17, u32::MAX].map(bucket);
    assert_eq!(buckets, [0, 0, 2, 3, 4, 4, 5, 5, 6, 6, 7, 34, 35]);
    for tokens in (2..18).flat_map(|bits| [1_u32 << bits, (1 << bits) + 1, 3 << (bits - 1)]) {
        let told = MIDDLES[bucket(tokens)];
        assert!(told.abs_diff(tokens) * 4 <= tokens, "{tokens} as {told}");
    }
    assert!(MIDDLES[BUCKETS - 1] > 1 << 17);
}

#[test]
fn what_is_particular_outweighs_what_is_general_once_it_was_seen_often() {
    let (calm, other) = (features(1, 100, &[]), features(2, 100, &[]));
    let lengths = learnt(&[(other, 2, 100)]);
    assert_eq!(lengths.expected(other, 0, 4096), Some(2));
    assert_eq!(lengths.expected(calm, 0, 4096), Some(2), "as everybody");
    let often = learnt(&[(other, 2, 100), (calm, 1024, 100)]);
    let expected = often.expected(calm, 0, 4096).expect("many were seen");
    assert!((1000..1300).contains(&expected), "{expected}");
    let once = learnt(&[(other, 2, 100), (calm, 1024, 1)]);
    let expected = once.expected(calm, 0, 4096).expect("many were seen");
    assert!((100..600).contains(&expected), "{expected}");
}

#[test]
fn prompts_of_a_size_and_labels_are_told_apart() {
    let [short, long] = [100, 5000].map(|prompt| features(1, prompt, &[]));
    let lengths = learnt(&[(short, 16, 50), (long, 512, 50)]);
    let [short, long] = [short, long].map(|of| lengths.expected(of, 0, 4096).expect("known"));
    assert!(short < 100 && long > 400, "{short} {long}");
    let [chat, essay] = [&[7][..], &[8]].map(|labels| features(1, 100, labels));
    let lengths = learnt(&[(chat, 16, 50), (essay, 512, 50)]);
    let [chat, essay] = [chat, essay].map(|of| lengths.expected(of, 0, 4096).expect("known"));
    assert!(chat < 100 && essay > 400, "{chat} {essay}");
}

#[test]
fn what_was_generated_and_the_bound_leave_the_rest_of_the_distribution() {
    let of = features(1, 100, &[]);
    // Half have two tokens, half about 1,024.
    let lengths = learnt(&[(of, 2, 500), (of, 1024, 500)]);
    let whole = lengths.expected(of, 0, 4096).expect("known");
    assert!((500..700).contains(&whole), "{whole}");
    // One that has ten already is one of the long ones.
    let rest = lengths.expected(of, 10, 4096).expect("known");
    assert!((1000..1300).contains(&rest), "{rest}");
    let bounded = lengths.expected(of, 10, 50).expect("known");
    assert_eq!(bounded, 50);
    assert_eq!(lengths.expected(of, 5000, 50), None, "nobody was as long");
}

#[test]
fn few_answers_say_nothing_and_the_newest_say_most() {
    let of = features(1, 100, &[]);
    assert_eq!(learnt(&[(of, 2, 7)]).expected(of, 0, 4096), None);
    assert_eq!(learnt(&[(of, 2, 8)]).expected(of, 0, 4096), Some(2));
    let changed = learnt(&[(of, 2, 5000), (of, 1024, 5000)]);
    let expected = changed.expected(of, 0, 4096).expect("known");
    assert!(expected > 900, "{expected}");
}

#[test]
fn past_the_bound_what_is_new_counts_as_what_is_general() {
    let mut lengths = Lengths::default();
    for tenant in 0..10_000 {
        lengths.learn(features(tenant, 100, &[tenant]), 16);
    }
    assert_eq!(lengths.groups().count(), GROUPS_MAX);
    let expected = lengths.expected(features(9999, 100, &[]), 0, 4096);
    assert!(expected.is_some());
}

#[test]
fn what_is_expected_of_requests_that_are_alike_is_found_once() {
    let (calm, other) = (features(1, 100, &[7]), features(2, 100, &[]));
    let lengths = learnt(&[(calm, 512, 50), (other, 2, 50)]);
    let mut expectations = lengths.expectations();
    for (features, left_max, found) in [
        (calm, 4096, 1),
        // Of the same size.
        (features(1, 101, &[7]), 4096, 1),
        (other, 4096, 2),
        (calm, 4096, 2),
        (calm, 100, 3),
    ] {
        let expected = lengths.expected(features, 0, left_max);
        assert_eq!(expectations.of(features, 0, left_max), expected);
        assert_eq!(expectations.known.len(), found, "{features:?}");
    }
}
