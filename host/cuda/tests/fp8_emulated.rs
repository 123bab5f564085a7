//! Models whose weights are in FP8, on an emulated device that is another one, or runs its threads in another order: what
//! no real device can be told to.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod fp8_models;

use fastrand::Rng;
use pointsman_cuda::CudaBackend;
use pointsman_cuda::emulation::{self, ThreadOrder};
use pointsman_cuda::fp8_case::Fp8Case;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use pointsman_model::weights::fp8::Scales;
use serde_json::json;

use fp8_models::{SHAPE, backend, codes, config, numbers, open, small};

#[test]
fn the_order_of_threads_changes_no_product() {
    let emulated = emulation::alone();
    let mut rng = Rng::with_seed(4);
    let (rows, cols) = (70, 304);
    let scales = Scales {
        rows_each: 1,
        cols_each: 128,
        numbers: (0..rows * 3).map(|_| rng.f32()).collect(),
    };
    for count in [3, 40, 70] {
        let case = Fp8Case {
            codes: &codes(&mut rng, rows * cols),
            scales: &scales,
            cols,
            x: &numbers(&mut rng, count * cols),
        };
        emulated.set_order(ThreadOrder::Forward);
        let forward = case.product().unwrap();
        for order in ThreadOrder::OTHERS {
            emulated.set_order(order);
            assert_eq!(case.product().unwrap(), forward, "{order:?}");
        }
    }
}

#[test]
fn a_device_that_has_no_fp8_is_named_with_its_capability() {
    let emulated = emulation::alone();
    let model = open(&small(Scaled::Whole)).unwrap();
    for (major, minor) in [(8, 0), (8, 6)] {
        emulated.set_capability(major, minor);
        let refused = CudaBackend::alone(&model, SHAPE);
        let expected = format!(
            "CUDA device 0 (Emulated device 0) has compute capability {major}.{minor}, and FP8 weights, of which \
             model.layers.0.self_attn.q_proj.weight is one, want 8.9 or newer; serve the model's weights in \
             bf16 there"
        );
        assert_eq!(refused.unwrap_err().0, expected);
    }
    for (major, minor) in [(8, 9), (9, 0), (10, 0)] {
        emulated.set_capability(major, minor);
        drop(backend(&model));
    }
}

#[test]
fn rows_that_the_kernels_cannot_take_are_told_with_their_size() {
    let _emulated = emulation::alone();
    let config = config(json!({"intermediate_size": 72}));
    let model = Fp8Model::of(&config, &models::tensors(&config, 2), |_| Scaled::Rows);
    let model = open(&model).unwrap();
    let refused = CudaBackend::alone(&model, SHAPE).unwrap_err();
    let expected = "a model with FP8 weights in rows of 72 numbers is not for CUDA devices, whose kernels take \
                    multiples of 16 of them; serve its weights in bf16";
    assert_eq!(refused.0, expected);
}

#[test]
fn a_code_of_no_number_is_told_with_its_tensor_and_nothing_is_left() {
    let emulated = emulation::alone();
    for code in [0x7f, 0xff] {
        let mut model = small(Scaled::Blocks);
        let name = "model.layers.1.mlp.up_proj.weight";
        *model.stored_mut(name).3.last_mut().unwrap() = code;
        let model = open(&model).unwrap();
        let refused = CudaBackend::alone(&model, SHAPE).unwrap_err();
        let end = format!("tensor {name} has weights that are not a number; fetch it again");
        assert!(refused.0.ends_with(&end), "{refused}");
        assert_eq!(emulated.allocated(), 0);
    }
}
