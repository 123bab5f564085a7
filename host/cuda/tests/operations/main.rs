//! The operations of a device, each by itself, against their formulas: at sizes of any kind and at those of real models.
//! The device may be a real one.
//!
//! A whole model hides what one operation loses, and the models of other tests are small: here rows take several warps,
//! activations several blocks, and attention pieces that several blocks share, or more sums than have room at once.
//!
//! # Not here
//! Products with FP8 (`fp8.rs`), the choice of tokens (`choice.rs`), and other orders of threads (`races.rs`). Sums over ranks
//! (`ranks.rs`) and copies to the arena (`backend.rs`) are no kernels.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod formulas;
mod step;

use fastrand::Rng;
use half::bf16;
use pointsman_cuda::emulation;
use pointsman_cuda::module::Kernel;
use pointsman_cuda::ops_case::{OpsDevice, SUMS_BYTES_MAX};
use pointsman_engine::backend::Logits;
use pointsman_model::graph::HeadNorms;
use pointsman_model::ops::Ops as _;
use serde_json::json;

use formulas::near;
use step::{Half, HeadAt, Step, any_heads, config, llamas, matrix, numbers, rounded, rows_of};

fn device() -> OpsDevice {
    emulation::provide();
    OpsDevice::open().unwrap()
}

/// So many rounds, or fewer where a sanitizer takes its time.
fn rounds(count: usize) -> usize {
    match emulation::is_sanitized() {
        true => count / 4,
        false => count,
    }
}

/// Widths of rows: the least, those of Llama 1B and 8B, the most, and some between.
fn widths(rng: &mut Rng) -> Vec<usize> {
    let mut widths = vec![8, 2048, 4096, 8192];
    widths.extend((0..rounds(8)).map(|_| 8 * rng.usize(1..=1024)));
    widths
}

// === Rows ===

#[test]
fn rows_are_taken_as_they_are() {
    let device = device();
    let mut rng = Rng::with_seed(1);
    for width in widths(&mut rng) {
        let config = config(json!({"hidden_size": width}));
        let parts = [(0, 3), (7, 1), (100, 9), (0, 1), (30, 20)];
        let step = Step::new(&mut rng, config, &parts);
        let table = matrix(&mut rng, step.config.vocab_size, width);
        let (mut rows, mut last, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        step.on(&device, |case| {
            case.embed(&table, &mut rows);
            case.last_rows(&rows, &mut last);
            case.hidden_rows(&rows, &mut hidden);
        });
        let table = rows_of(&table);
        let of = |token: &u32| table[*token as usize].iter().map(|number| number.to_f32());
        let tokens = step.sequences.iter().flat_map(|sequence| &sequence.tokens);
        let expected: Vec<f32> = tokens.flat_map(of).collect();
        assert_eq!(rows, expected, "{width} numbers");
        let wanted = |logits: &[Logits]| -> Vec<f32> {
            let of_kind = logits.iter().flat_map(|kind| {
                let sequences = step.sequences.iter();
                sequences.filter(move |sequence| sequence.logits == *kind)
            });
            let tokens = of_kind.map(|sequence| sequence.tokens.last().unwrap());
            tokens.flat_map(of).collect()
        };
        // Those that stay on the device come after those that are copied.
        assert_eq!(last, wanted(&[Logits::Last, Logits::Kept]), "{width}");
        assert_eq!(hidden, wanted(&[Logits::Hidden]), "{width} numbers");
    }
}

#[test]
fn norms_of_rows_are_as_their_formula() {
    let device = device();
    let mut rng = Rng::with_seed(2);
    for width in widths(&mut rng) {
        let count = rng.u32(1..9);
        let config = config(json!({"hidden_size": width}));
        let step = Step::new(&mut rng, config, &[(0, count)]);
        let (len, eps) = (width * count as usize, step.config.rms_norm_eps);
        // What is added to the mean counts where numbers are small.
        let largest = *rng.choice(&[0.001, 1.0, 60.0]).unwrap();
        let [hidden, delta] = [(); 2].map(|()| numbers(&mut rng, len, largest));
        let weight = numbers(&mut rng, width, 2.0);
        let (mut normed, mut sum, mut of_sum) = (Vec::new(), hidden.clone(), Vec::new());
        step.on(&device, |case| {
            case.rmsnorm(&hidden, &weight, &mut normed);
            case.add_rmsnorm(&delta, &mut sum, &weight, &mut of_sum);
        });
        let expected = hidden.iter().zip(&delta).map(|(a, b)| rounded(a + b));
        assert_eq!(sum, expected.collect::<Vec<f32>>(), "{width} numbers");
        for (rows, found) in [(&hidden, &normed), (&sum, &of_sum)] {
            let rows = rows.chunks_exact(width);
            for (row, found) in rows.zip(found.chunks_exact(width)) {
                let expected = formulas::norm(row, &weight, eps);
                near(found, expected, &format!("{width} numbers"));
            }
        }
    }
}

#[test]
fn activations_of_mlps_are_as_their_formula() {
    let device = device();
    let mut rng = Rng::with_seed(3);
    let mut widths = widths(&mut rng);
    // That of Llama 8B.
    widths.push(14_336);
    for width in widths {
        let count = rng.u32(1..9);
        let config = config(json!({"intermediate_size": width}));
        let step = Step::new(&mut rng, config, &[(0, count)]);
        let gate_up = numbers(&mut rng, 2 * width * count as usize, 12.0);
        let mut found = Vec::new();
        step.on(&device, |case| case.silu_mul(&gate_up, &mut found));
        let rows = gate_up.chunks_exact(2 * width);
        for (row, found) in rows.zip(found.chunks_exact(width)) {
            let (gates, ups) = row.split_at(width);
            let expected = formulas::silu_mul(gates, ups);
            near(found, expected, &format!("{width} numbers"));
        }
    }
}

#[test]
fn products_and_their_biases_are_as_their_formula() {
    let device = device();
    let mut rng = Rng::with_seed(4);
    // Queries, keys and values of Llama 1B and 8B, and a part of the way out of the latter's MLP.
    let mut sizes = vec![(2048, 3072), (4096, 6144), (14_336, 512)];
    sizes.extend((0..rounds(8)).map(|_| (8 * rng.usize(1..=128), 8 * rng.usize(1..=64))));
    for (cols, outputs) in sizes {
        let count = rng.u32(1..5);
        let step = Step::new(&mut rng, config(json!({})), &[(0, count)]);
        let x = numbers(&mut rng, cols * count as usize, 1.0);
        let weight = matrix(&mut rng, outputs, cols);
        let bias = numbers(&mut rng, outputs, 4.0);
        let (mut product, mut biased, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        step.on(&device, |case| {
            case.linear(&x, &weight, None, &mut product);
            case.linear(&x, &weight, Some(&bias), &mut biased);
            case.logits(&x, &weight, &mut logits);
        });
        let weight = rows_of(&weight);
        let rows = x.chunks_exact(cols);
        let sums = rows.flat_map(|x| weight.iter().map(move |row| formulas::product(x, row)));
        let sums: Vec<formulas::Sum> = sums.collect();
        let what = format!("{cols} numbers to {outputs}");
        let in_bf16 = sums.iter().map(formulas::Sum::in_bf16);
        near(&product, in_bf16.collect(), &what);
        let in_f32 = sums.iter().map(formulas::Sum::in_f32);
        near(&logits, in_f32.collect(), &what);
        let with_bias = product.iter().zip(bias.iter().cycle());
        let with_bias = with_bias.map(|(number, bias)| rounded(number + bias));
        assert_eq!(biased, with_bias.collect::<Vec<f32>>(), "{what}");
    }
}

// === Heads ===

#[test]
fn norms_of_heads_are_as_their_formula() {
    let device = device();
    let mut rng = Rng::with_seed(5);
    let mut configs: Vec<_> = (0..rounds(12))
        .map(|round| any_heads(&mut rng, round))
        .collect();
    configs.extend(llamas());
    for config in configs {
        let step = Step::new(&mut rng, config, &[(3, 4), (9, 2)]);
        let config = &step.config;
        let (width, eps) = (config.head_dim, config.rms_norm_eps);
        let norms = HeadNorms {
            query: numbers(&mut rng, width, 2.0),
            key: numbers(&mut rng, width, 2.0),
        };
        let qkv = numbers(&mut rng, step.rows().count() * config.qkv_size(), 1.0);
        let mut found = qkv.clone();
        step.on(&device, |case| case.norm_heads(&mut found, &norms));
        let heads = qkv.chunks_exact(width).zip(found.chunks_exact(width));
        for (place, (head, found)) in heads.enumerate() {
            let place = place % (config.heads + 2 * config.kv_heads);
            let what = format!("head {place} of {} and {}", config.heads, config.kv_heads);
            let weight = match place {
                query if query < config.heads => &norms.query,
                key if key < config.heads + config.kv_heads => &norms.key,
                _ => {
                    assert_eq!(found, head, "{what}");
                    continue;
                }
            };
            near(found, formulas::norm(head, weight, eps), &what);
        }
    }
}

/// Compares what a layer's step does to its queries, and to the pool, which gets its keys and values and no more.
fn check_positions(device: &OpsDevice, rng: &mut Rng, step: &Step) {
    let (config, angles) = (&step.config, step.angles());
    let (width, layer) = (config.head_dim, rng.usize(..config.layers));
    let qkv = numbers(rng, step.rows().count() * config.qkv_size(), 4.0);
    let mut found = qkv.clone();
    let mut pool = step.on(device, |case| {
        case.rope_write_kv(layer, &mut found);
        std::mem::take(&mut case.pool)
    });
    let rows = qkv.chunks_exact(config.qkv_size());
    let rows = rows.zip(found.chunks_exact(config.qkv_size()));
    for ((row, found), (sequence, position)) in rows.zip(step.rows()) {
        let what = format!("{} heads of {width} at {position}", config.heads);
        let turned = |head| formulas::turned(head, &angles[position as usize * width..][..width]);
        let (queries, keys_values) = row.split_at(config.q_size());
        let heads = queries.chunks_exact(width).zip(found.chunks_exact(width));
        for (query, found) in heads {
            near(found, turned(query), &what);
        }
        // They go to the pool, and stay here as they are.
        assert_eq!(&found[config.q_size()..], keys_values, "{what}");
        for (head, numbers) in keys_values.chunks_exact(width).enumerate() {
            let half = match head < config.kv_heads {
                true => Half::Keys,
                false => Half::Values,
            };
            let head = head % config.kv_heads;
            let place = step.place(sequence, position, HeadAt { layer, half, head });
            let there = wide(&pool[place.clone()]);
            match half {
                Half::Keys => near(&there, turned(numbers), &what),
                Half::Values => assert_eq!(there, numbers, "{what}"),
            }
            pool[place].fill(u16::MAX);
        }
    }
    assert!(pool.iter().all(|bits| *bits == u16::MAX), "{config:?}");
}

fn wide(bits: &[u16]) -> Vec<f32> {
    let numbers = bits.iter().map(|bits| bf16::from_bits(*bits).to_f32());
    numbers.collect()
}

#[test]
fn positions_turn_queries_and_keys_and_blocks_get_keys_and_values_alone() {
    let device = device();
    let mut rng = Rng::with_seed(6);
    for round in 0..rounds(12) {
        let config = any_heads(&mut rng, round);
        let parts = [(0, 1), (rng.u32(..2000), 3), (rng.u32(..2000), 20)];
        let step = Step::new(&mut rng, config, &parts);
        check_positions(&device, &mut rng, &step);
    }
    for config in llamas() {
        let step = Step::new(&mut rng, config, &[(2047, 1), (1300, 5)]);
        check_positions(&device, &mut rng, &step);
    }
}

// === Attention ===

/// Compares the attention of a layer's step.
fn check_attention(device: &OpsDevice, rng: &mut Rng, step: &Step) {
    let config = &step.config;
    let (width, layer) = (config.head_dim, rng.usize(..config.layers));
    let pool = step.filled_pool(rng, layer);
    // So large that a few positions have most of the weight, others in each row; and what is no query is not read.
    let mut qkv = numbers(rng, step.rows().count() * config.qkv_size(), 6.0);
    let rows = qkv.chunks_exact_mut(config.qkv_size());
    rows.for_each(|row| row[config.q_size()..].fill(f32::NAN));
    let mut found = Vec::new();
    step.on(device, |case| {
        case.pool.clone_from(&pool);
        case.attention(layer, &qkv, &mut found);
    });
    let pool = wide(&pool);
    let pool = pool.as_slice();
    let rows = qkv.chunks_exact(config.qkv_size());
    let rows = rows.zip(found.chunks_exact(config.q_size()));
    for ((row, found), (sequence, position)) in rows.zip(step.rows()) {
        let heads = row.chunks_exact(width).zip(found.chunks_exact(width));
        for (query, (numbers, found)) in heads.enumerate() {
            let head = query / config.group_size();
            let seen = |half| {
                let at = HeadAt { layer, half, head };
                (0..=position).map(move |seen| step.place(sequence, seen, at))
            };
            let of = |half| seen(half).map(move |place| &pool[place]);
            let expected = formulas::attention(numbers, of(Half::Keys), of(Half::Values));
            let what = format!(
                "head {query} of {} with {} of keys at {position}",
                config.heads, config.kv_heads
            );
            near(found, expected, &what);
        }
    }
}

#[test]
fn attention_is_as_its_formula() {
    let device = device();
    let mut rng = Rng::with_seed(7);
    for round in 0..rounds(12) {
        let config = any_heads(&mut rng, round);
        let parts = (0..rng.usize(1..5)).map(|_| {
            let (start, most) = *rng
                .choice(&[(0, 3), (0, 40), (50, 3), (120, 6), (110, 30), (400, 4)])
                .unwrap();
            (start + rng.u32(..16), rng.u32(1..=most))
        });
        let parts: Vec<(u32, u32)> = parts.collect();
        let step = Step::new(&mut rng, config, &parts);
        check_attention(&device, &mut rng, &step);
    }
    // Of a few tokens and of many; the first piece to its last position and one further, and pieces of several blocks.
    let parts = [(1990, 1), (63, 2), (0, 1), (700, 3), (690, 9)];
    for config in llamas() {
        let step = Step::new(&mut rng, config, &parts);
        check_attention(&device, &mut rng, &step);
    }
}

#[test]
fn attention_whose_sums_have_no_room_at_once_is_as_its_formula() {
    let device = device();
    let mut rng = Rng::with_seed(8);
    // Heads as of Llama 70B.
    let config = config(
        json!({"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 1}),
    );
    // One that is long has all others have room for as many pieces.
    let short = (0..90).map(|number| (rng.u32(..20), 1 + number % 2));
    let parts: Vec<(u32, u32)> = [(1999, 1)].into_iter().chain(short).collect();
    let step = Step::new(&mut rng, config, &parts);
    let numbers = step.rows().count() * step.config.q_size() * 2048 / 64;
    assert!(numbers * size_of::<f32>() > SUMS_BYTES_MAX);
    check_attention(&device, &mut rng, &step);
}

// === Memory ===

/// The tests here that compare what a kernel computes.
fn tests_of(kernel: Kernel) -> &'static [&'static str] {
    match kernel {
        Kernel::Embed | Kernel::LastRows => &["rows_are_taken_as_they_are"],
        Kernel::RmsNorm | Kernel::AddRmsNorm => &["norms_of_rows_are_as_their_formula"],
        Kernel::SiluMul => &["activations_of_mlps_are_as_their_formula"],
        Kernel::AddBias => &["products_and_their_biases_are_as_their_formula"],
        Kernel::NormHeads => &["norms_of_heads_are_as_their_formula"],
        Kernel::RopeWriteKv => {
            &["positions_turn_queries_and_keys_and_blocks_get_keys_and_values_alone"]
        }
        Kernel::AttentionWhole32 | Kernel::AttentionWhole64 | Kernel::AttentionWhole128 => {
            &["attention_is_as_its_formula"]
        }
        Kernel::AttentionSplit32
        | Kernel::AttentionSplit64
        | Kernel::AttentionSplit128
        | Kernel::AttentionMerge => &[
            "attention_is_as_its_formula",
            "attention_whose_sums_have_no_room_at_once_is_as_its_formula",
        ],
        // In programs of their own.
        Kernel::Choose | Kernel::ProductFp8Few | Kernel::ProductFp8Many | Kernel::WidenFp8Rows => {
            &[]
        }
    }
}

#[test]
fn no_kernel_leaves_its_memory() {
    let tests = Kernel::ALL.iter().flat_map(|kernel| tests_of(*kernel));
    let mut tests: Vec<&str> = tests.copied().collect();
    tests.sort_unstable();
    tests.dedup();
    emulation::pass_sanitized(&tests);
}
