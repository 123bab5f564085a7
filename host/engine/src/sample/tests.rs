//! The sampler against distributions computed by hand.

use pointsman_executor::test_util::random_sampling;

use super::*;

const BASE: Sampling = Sampling::NEUTRAL;

fn choose(logits: &[f32], sampling: &Sampling, generated: usize) -> Option<u32> {
    Sampler::default().choose(logits, sampling, after(&vec![u32::MAX; generated]))
}

/// A sequence without a prompt, after these tokens.
fn after(generated: &[u32]) -> Tokens<'_> {
    Tokens {
        prompt: &[],
        generated,
    }
}

/// Returns the logits of probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

/// Draws often, and compares each token's share with the one expected.
fn check_distribution(probabilities: &[f32], sampling: &Sampling, expected: &[f64]) {
    const DRAWS: usize = 20_000;
    let logits = logits(probabilities);
    let mut sampler = Sampler::default();
    let mut counts = vec![0_u32; logits.len()];
    // Tokens that the row has not: no penalty concerns them.
    let generated = vec![u32::MAX; DRAWS];
    for index in 0..DRAWS {
        let tokens = after(&generated[..index]);
        let id = sampler.choose(&logits, sampling, tokens).unwrap();
        counts[id as usize] += 1;
    }
    for (id, expected) in expected.iter().enumerate() {
        let share = f64::from(counts[id]) / DRAWS as f64;
        let deviation = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
        assert!(
            (share - expected).abs() <= 4.0 * deviation,
            "token {id} came up with share {share}, expected {expected}: {sampling:?}"
        );
    }
}

#[test]
fn temperature_zero_takes_the_likeliest_and_the_lowest_id_among_equals() {
    let greedy = Sampling {
        temperature: 0.0,
        ..BASE
    };
    assert_eq!(choose(&[0.5, 2.0, -1.0, 2.0], &greedy, 0), Some(1));
    assert_eq!(choose(&[-3.0, -3.0], &greedy, 5), Some(0));
}

#[test]
fn draws_follow_the_distribution_computed_by_hand() {
    let p = [0.5, 0.3, 0.15, 0.05];
    check_distribution(&p, &BASE, &[0.5, 0.3, 0.15, 0.05]);
    let top_k = Sampling { top_k: 2, ..BASE };
    check_distribution(&p, &top_k, &[0.625, 0.375, 0.0, 0.0]);
    // 0.5 + 0.3 reaches 0.75; the token that reaches it is kept.
    let top_p = Sampling {
        top_p: 0.75,
        ..BASE
    };
    check_distribution(&p, &top_p, &[0.625, 0.375, 0.0, 0.0]);
    // Temperature 1/2 squares: 0.25, 0.09, 0.0225, 0.0025 of 0.365.
    let cold = Sampling {
        temperature: 0.5,
        ..BASE
    };
    let squares = [0.25, 0.09, 0.0225, 0.0025].map(|p| p / 0.365);
    check_distribution(&p, &cold, &squares);
    // Temperature comes first: squared, the first two have 0.93 of all.
    let both = Sampling {
        temperature: 0.5,
        top_p: 0.9,
        ..BASE
    };
    check_distribution(&p, &both, &[0.25 / 0.34, 0.09 / 0.34, 0.0, 0.0]);
    // top-k comes before top-p: of the first two, the first alone has 0.625.
    let both = Sampling {
        top_k: 2,
        top_p: 0.6,
        ..BASE
    };
    check_distribution(&p, &both, &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn min_p_keeps_what_is_likely_beside_the_likeliest() {
    let p = [0.5, 0.3, 0.15, 0.05];
    let sampling = Sampling {
        min_p: 0.59,
        ..BASE
    };
    check_distribution(&p, &sampling, &[0.625, 0.375, 0.0, 0.0]);
    // After temperature: squared, the second has 0.36 of the first's.
    let cold = Sampling {
        temperature: 0.5,
        ..sampling
    };
    check_distribution(&p, &cold, &[1.0, 0.0, 0.0, 0.0]);
    let all = Sampling { min_p: 1.0, ..BASE };
    check_distribution(&[0.4, 0.4, 0.2], &all, &[0.5, 0.5, 0.0]);
}

#[test]
fn bias_is_added_to_logits_even_to_those_that_forbid() {
    let greedy = |logit_bias: &[(u32, f32)], logits: &[f32]| {
        let sampling = Sampling {
            logit_bias: logit_bias.to_vec(),
            temperature: 0.0,
            ..BASE
        };
        choose(logits, &sampling, 0)
    };
    assert_eq!(greedy(&[(2, 1.5)], &[1.0, 2.0, 1.0]), Some(2));
    assert_eq!(greedy(&[(1, -1.5)], &[1.0, 2.0, 0.0]), Some(0));
    assert_eq!(greedy(&[(9, 100.0)], &[1.0, 2.0]), Some(1));
    // A probability grows by the exponential of the bias.
    let doubled = Sampling {
        logit_bias: vec![(1, 2.0_f32.ln())],
        ..BASE
    };
    check_distribution(&[0.5, 0.5], &doubled, &[1.0 / 3.0, 2.0 / 3.0]);
}

/// Returns the logits that a sampler chooses by, after a prompt and an answer.
fn penalised(
    logits: &[f32],
    penalties: Penalties,
    (prompt, generated): (&[u32], &[u32]),
) -> Vec<f32> {
    let sampling = Sampling { penalties, ..BASE };
    let mut sampler = Sampler::default();
    for _ in 0..2 {
        // The second time nothing is left of the first.
        let tokens = Tokens { prompt, generated };
        sampler.choose(logits, &sampling, tokens).unwrap();
    }
    sampler.adjusted
}

#[test]
fn tokens_that_came_up_are_penalised_as_openai_and_keskar_define_it() {
    let row = [2.0, -2.0, 2.0, 1.0];
    let of_answer = Penalties {
        frequency: 0.5,
        presence: 0.25,
        ..Penalties::NONE
    };
    // Token 0 is in the answer twice, token 1 once; token 2 is in the prompt only.
    let tokens: (&[u32], &[u32]) = (&[2, 2, 7], &[0, 1, 0, 9]);
    assert_eq!(penalised(&row, of_answer, tokens), [0.75, -2.75, 2.0, 1.0]);
    let of_all = Penalties {
        repetition: 2.0,
        ..Penalties::NONE
    };
    assert_eq!(penalised(&row, of_all, tokens), [1.0, -4.0, 1.0, 1.0]);
    let both = Penalties {
        repetition: 2.0,
        ..of_answer
    };
    assert_eq!(penalised(&row, both, tokens), [-0.25, -4.75, 1.0, 1.0]);
}

#[test]
fn logprobs_are_those_of_the_row_as_it_is() {
    let row = logits(&[0.1, 0.6, 0.3, 0.0]);
    let logprobs = Logprobs::new(&row);
    for (token, p) in [(0, 0.1_f64), (1, 0.6), (2, 0.3)] {
        assert!((logprobs.of(token) - p.ln()).abs() < 1e-6, "{token}");
    }
    assert_eq!(logprobs.of(3), f64::NEG_INFINITY);
    assert_eq!(logprobs.of(9), f64::NEG_INFINITY);
    assert_eq!(logprobs.top(2), [1, 2]);
    assert_eq!(logprobs.top(20), [1, 2, 0]);
    assert!(logprobs.top(0).is_empty());
    // Large logits do not overflow.
    let shifted: Vec<f32> = row.iter().map(|logit| logit + 1e4).collect();
    assert!((Logprobs::new(&shifted).of(1) - 0.6_f64.ln()).abs() < 1e-2);
}

#[test]
fn a_nucleus_larger_than_the_first_guess_is_found_whole() {
    let sampling = Sampling { top_p: 0.5, ..BASE };
    let equals = [1.0 / 256.0; 256];
    let expected = (0..256).map(|id| if id < 128 { 1.0 / 128.0 } else { 0.0 });
    let expected: Vec<f64> = expected.collect();
    check_distribution(&equals, &sampling, &expected);
}

#[test]
fn the_order_of_tokens_in_the_row_does_not_matter() {
    let sampling = Sampling {
        top_k: 3,
        top_p: 0.8,
        ..BASE
    };
    check_distribution(
        &[0.05, 0.15, 0.3, 0.5],
        &sampling,
        &[0.0, 0.0, 0.375, 0.625],
    );
}

#[test]
fn equal_arguments_give_equal_tokens() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut reused = Sampler::default();
    for _ in 0..500 {
        let row: Vec<f32> = (0..300).map(|_| rng.f32() * 20.0 - 10.0).collect();
        let sampling = Sampling {
            temperature: rng.f32() * 2.0,
            ..random_sampling(&mut rng)
        };
        let mut ids = |count| -> Vec<u32> { (0..count).map(|_| rng.u32(0..400)).collect() };
        let (prompt, generated) = (ids(50), ids(100));
        let tokens = Tokens {
            prompt: &prompt,
            generated: &generated,
        };
        let first = reused.choose(&row, &sampling, tokens);
        assert!(first.is_some());
        let second = Sampler::default().choose(&row, &sampling, tokens);
        assert_eq!(first, second);
    }
}

#[test]
fn another_seed_or_another_index_draws_anew() {
    let row = vec![0.0; 1 << 16];
    let other_seed = Sampling { seed: 8, ..BASE };
    let drawn = choose(&row, &BASE, 0);
    assert_ne!(drawn, choose(&row, &BASE, 1));
    assert_ne!(drawn, choose(&row, &other_seed, 0));
}

#[test]
fn never_chooses_what_is_forbidden() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let greedy = Sampling {
        temperature: 0.0,
        ..BASE
    };
    for index in 0..100 {
        for sampling in [&BASE, &greedy] {
            assert_eq!(choose(&[nan, -inf, -50.0, nan], sampling, index), Some(2));
            assert_eq!(choose(&[1.0, inf, nan, inf], sampling, index), Some(1));
            assert_eq!(choose(&[nan, -inf], sampling, index), None);
            assert_eq!(choose(&[], sampling, index), None);
        }
    }
}

#[test]
fn settings_out_of_range_still_give_a_token() {
    let row = logits(&[0.1, 0.6, 0.3]);
    let with = |temperature, top_k, top_p| {
        let sampling = Sampling {
            temperature,
            top_k,
            top_p,
            seed: 3,
            ..Sampling::NEUTRAL
        };
        choose(&row, &sampling, 0)
    };
    assert_eq!(with(-1.0, 0, 1.0), Some(1));
    assert_eq!(with(f32::NAN, 0, 1.0), Some(1));
    assert_eq!(with(f32::MIN_POSITIVE, 0, 1.0), Some(1));
    assert_eq!(with(1.0, 0, 0.0), Some(1));
    assert_eq!(with(1.0, 0, -1.0), Some(1));
    assert!(with(f32::INFINITY, u32::MAX, f32::NAN).is_some());
}

/// The first outputs of the generator's reference implementation for this seed.
#[test]
fn the_generator_is_splitmix64() {
    let outputs: Vec<u64> = (0..3).map(|index| splitmix64(1_234_567, index)).collect();
    let reference = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    assert_eq!(outputs, reference);
}
