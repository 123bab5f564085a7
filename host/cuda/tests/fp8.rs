//! Models whose weights are in FP8, on a device that may be a real one.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod fp8_models;

use std::sync::{Arc, OnceLock};

use fastrand::Rng;
use half::bf16;
use pointsman_cuda::emulation;
use pointsman_cuda::fp8_case::Fp8Case;
use pointsman_cuda::{CudaBackend, CudaDevice, kv_bytes_per_token, weight_bytes};
use pointsman_engine::backend::Backend;
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_engine::test_util::subjects::{KV_SHAPE, Stepped, with_arena};
use pointsman_engine::test_util::{largest, last_row};
use pointsman_executor::contract_suite;
use pointsman_model::host::HostModel;
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use pointsman_model::weights::fp8::{Scales, number};
use safetensors::Dtype;
use serde_json::{Value, json};

use fp8_models::{SHAPE, backend, codes, config, numbers, open, small};

// === Kernels ===

fn wide(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

#[test]
fn kernels_decode_every_code_exactly_whatever_the_scale() {
    emulation::provide();
    // A row for each code, which a row of `x` takes out of its 16th number, and its neighbours are others.
    let every: Vec<u8> = (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f).collect();
    let cols = 32;
    let mut rng = Rng::with_seed(1);
    for scale in [1.0, 0.25, 4096.0] {
        let scales = Scales {
            rows_each: 1,
            cols_each: cols,
            numbers: vec![scale; every.len()],
        };
        for col in [0, 15, 16, 31] {
            let mut weights = codes(&mut rng, every.len() * cols);
            for (row, code) in weights.chunks_exact_mut(cols).zip(&every) {
                row[col] = *code;
            }
            // One row is multiplied with codes, and 65 with what they are widened to.
            for count in [1, 65] {
                let mut x = vec![0; count * cols];
                x.chunks_exact_mut(cols)
                    .for_each(|row| row[col] = bf16::ONE.to_bits());
                let case = Fp8Case {
                    codes: &weights,
                    scales: &scales,
                    cols,
                    x: &x,
                };
                for row in case.product().unwrap().chunks_exact(every.len()) {
                    for (found, code) in row.iter().zip(&every) {
                        assert_eq!(wide(*found), number(*code) * scale, "{code} {count}");
                    }
                }
            }
        }
    }
}

/// A product by the processor's numbers, with the sum of its terms' sizes: how far roundings may take it.
fn expected(case: &Fp8Case<'_>, row: &[u16], weight: usize) -> (f32, f32) {
    let terms = row.iter().enumerate().map(|(col, x)| {
        let code = case.codes[weight * case.cols + col];
        wide(*x) * number(code) * case.scales.at(case.cols, weight, col)
    });
    terms.fold((0.0, 0.0), |(sum, sizes), term| {
        (sum + term, sizes + term.abs())
    })
}

#[test]
fn products_of_any_shape_are_those_of_the_processors() {
    emulation::provide();
    let mut rng = Rng::with_seed(2);
    let rounds = if emulation::is_sanitized() { 12 } else { 40 };
    for round in 0..rounds {
        let (rows, cols) = (rng.usize(1..90) * 2, rng.usize(1..25) * 16);
        let count = [rng.usize(1..9), rng.usize(9..65), rng.usize(65..80)][round % 3];
        let (rows_each, cols_each) = [(1, cols), (128, cols), (1, 128), (128, 128)][round % 4];
        let scales = rows.div_ceil(rows_each) * cols.div_ceil(cols_each);
        let scales = Scales {
            rows_each,
            cols_each,
            numbers: (0..scales).map(|_| 0.001 + rng.f32()).collect(),
        };
        let case = Fp8Case {
            codes: &codes(&mut rng, rows * cols),
            scales: &scales,
            cols,
            x: &numbers(&mut rng, count * cols),
        };
        let found = case.product().unwrap();
        assert_eq!(found.len(), count * rows);
        let rows_of_x = case.x.chunks_exact(cols);
        for (x, found) in rows_of_x.zip(found.chunks_exact(rows)) {
            for (weight, found) in found.iter().enumerate() {
                let (sum, sizes) = expected(&case, x, weight);
                // A product is rounded to 8 bits, and weights to as many where they are widened.
                let bound = sum.abs() / 256.0 + sizes / 500.0;
                let difference = (wide(*found) - sum).abs();
                assert!(
                    difference <= bound,
                    "{rows} {cols} {count}: {difference} of {bound}"
                );
            }
        }
        if count <= 64 {
            let alone = Fp8Case {
                x: &case.x[..cols],
                ..case
            };
            assert_eq!(alone.product().unwrap(), found[..rows], "{count} rows");
        }
    }
}

#[test]
fn the_kernels_leave_no_memory() {
    emulation::pass_sanitized(&["products_of_any_shape_are_those_of_the_processors"]);
}

// === Models ===

/// Compares logits with those of the processors for the same numbers in f32.
fn close(model: &Fp8Model) {
    let opened = open(model).unwrap();
    let wide = models::safetensors(&model.numbers, Dtype::F32);
    let mut config = model.config.clone();
    config["quantization_config"] = Value::Null;
    let host = Arc::new(HostModel::load(&models::files(&config, wide)).unwrap());
    let mut rng = Rng::with_seed(3);
    let vocab_size = u32::try_from(host.config().vocab_size).unwrap();
    for length in [1, 7, 30, 100] {
        let tokens: Vec<u32> = (0..length).map(|_| rng.u32(..vocab_size)).collect();
        let mut cpu = CpuBackend::new(Arc::clone(&host), SHAPE, Processors::of_caller());
        let expected = last_row(&mut cpu, &tokens);
        let found = last_row(&mut backend(&opened), &tokens);
        let differences = expected.iter().zip(&found).map(|(a, b)| a - b);
        let part = largest(differences) / largest(expected.iter().copied());
        assert!(part < 0.05, "{length} tokens: {part}");
    }
}

#[test]
fn logits_are_those_of_the_processors_for_the_same_numbers_with_scales_of_every_kind() {
    emulation::provide();
    for scaled in [Scaled::Whole, Scaled::Rows, Scaled::Blocks] {
        close(&small(scaled));
    }
    // Matrices of several tensors: their scales are of several kinds, and blocks begin amid others.
    let wide = config(
        json!({"num_attention_heads": 8, "head_dim": 24, "hidden_size": 192,
        "attention_bias": true, "intermediate_size": 320}),
    );
    let tensors = models::tensors(&wide, 5);
    close(&Fp8Model::of(&wide, &tensors, |_| Scaled::Blocks));
    close(&Fp8Model::of(&wide, &tensors, |name| match name {
        name if name.contains("k_proj") || name.contains("up_proj") => Scaled::Blocks,
        name if name.contains("v_proj") => Scaled::Rows,
        _ => Scaled::Whole,
    }));
    // Blocks that begin with blocks.
    let whole = config(
        json!({"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": 1}),
    );
    let tensors = models::tensors(&whole, 6);
    close(&Fp8Model::of(&whole, &tensors, |_| Scaled::Blocks));
}

#[test]
fn codes_stay_as_they_are_on_the_device() {
    emulation::provide();
    let mut model = small(Scaled::Rows);
    let opened = open(&model).unwrap();
    let there = backend(&opened).weights().unwrap();
    let name = "model.layers.1.mlp.down_proj.weight";
    let codes = model.stored_mut(name).3.iter().map(|code| u16::from(*code));
    assert!(codes.eq(there.layers[1].down.weight.iter().copied()));
    let plain = models::safetensors(&model.numbers, Dtype::BF16);
    let mut config = model.config.clone();
    config["quantization_config"] = Value::Null;
    let plain = OpenModel::open(&models::files(&config, plain)).unwrap();
    assert!(weight_bytes(&opened) < weight_bytes(&plain));
}

/// The demo model with its first and its last layer in FP8, which take an emulated device several times as long as others.
fn demo() -> Box<dyn Backend> {
    static MODEL: OnceLock<Arc<OpenModel>> = OnceLock::new();
    emulation::provide();
    let model = MODEL.get_or_init(|| {
        let (config, tensors) = (models::demo_json("config.json"), models::demo_tensors());
        let scaled = |name: &str| match name.contains(".0.") || name.contains(".5.") {
            true => Scaled::Blocks,
            false => Scaled::Not,
        };
        open(&Fp8Model::of(&config, &tensors, scaled)).unwrap()
    });
    let blocks = with_arena(kv_bytes_per_token(model.config()));
    let device = CudaDevice::new(0, blocks).unwrap();
    Box::new(CudaBackend::new(&device, Arc::clone(model), KV_SHAPE).unwrap())
}

contract_suite!(fp8, Stepped::new(&[demo]), 1);
