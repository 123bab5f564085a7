//! Emulated devices that compute a model together, of which one is lost, has too little memory, or does not fit the
//! others; and models that cannot be split.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::sync::Arc;

use pointsman_cuda::emulation::{self, Alone};
use pointsman_cuda::probe::NoDevice;
use pointsman_cuda::{
    ComputedModel, CudaDevices, CudaRanks, RanksBackend, StepSize, kv_bytes_per_token, weight_bytes,
};
use pointsman_engine::backend::{
    Backend, Chunk, DeviceError, KvBlocks, KvShape, Logits, SwapDirection, SwapTicket, SwapWait,
};
use pointsman_events::{BlockCopy, BlockId, HostBlockId};
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::{Value, json};

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 8,
};

fn blocks() -> KvBlocks {
    KvBlocks {
        host: 2,
        ..SHAPE.blocks(kv_bytes_per_token(models::demo().config()))
    }
}

/// Bytes of the pool, all devices together.
fn pool_bytes() -> usize {
    usize::try_from(blocks().bytes * u64::from(blocks().total)).unwrap()
}

/// The emulation, with four devices.
fn four() -> Alone {
    let emulated = emulation::alone();
    emulated.set_devices(4);
    emulated
}

fn two() -> CudaRanks {
    CudaRanks::new(&[0, 1], blocks()).unwrap()
}

fn backend(ranks: &CudaRanks) -> Result<RanksBackend, DeviceError> {
    RanksBackend::load(ranks, Arc::clone(models::demo().open()), SHAPE, &mut |_| ())
}

/// The bits of the logits after some tokens, and after each of two more: a step that is launched one operation after the
/// other, one that is recorded, and one that was.
fn steps(backend: &mut RanksBackend) -> Result<Vec<Vec<u32>>, DeviceError> {
    let tokens: Vec<u32> = (5..13).collect();
    let parts = [0..4, 4..5, 5..6, 6..7, 7..8];
    let rows = parts.map(|part| {
        let chunk = Chunk {
            tokens: &tokens[part.clone()],
            start: u32::try_from(part.start).unwrap(),
            blocks: &[BlockId(2)],
            logits: Logits::Last,
        };
        let mut logits = Vec::new();
        backend.forward(&[chunk], &mut logits)?;
        Ok(logits.iter().map(|logit| logit.to_bits()).collect())
    });
    rows.into_iter().collect()
}

/// Has ranks fail while steps are made, after as many launches or sums as `fail` is told; all of the places at which it
/// happens have to end in an error that names it. `see` is given another backend each time.
fn failing_anywhere(
    emulated: &Alone,
    fail: impl Fn(Option<u32>),
    cause: &str,
    see: impl Fn(&CudaRanks, RanksBackend, &[Vec<u32>]),
) {
    let ranks = two();
    let before = steps(&mut backend(&ranks).unwrap()).unwrap();
    let (mut after, mut places) = (0, 0);
    loop {
        let other = backend(&ranks).unwrap();
        let mut failing = backend(&ranks).unwrap();
        fail(Some(after));
        let lost = steps(&mut failing);
        fail(None);
        let Err(error) = lost else {
            assert_eq!(lost.unwrap(), before);
            break;
        };
        assert!(error.0.contains(cause), "after {after}: {error}");
        assert!(error.0.starts_with("rank "), "after {after}: {error}");
        // It has failed for good.
        assert_eq!(steps(&mut failing).unwrap_err(), error);
        drop(failing);
        see(&ranks, other, &before);
        assert_eq!(
            (emulated.allocated(), emulated.communicators()),
            (0, 0),
            "after {after}"
        );
        after += 1 + after / 4;
        places += 1;
    }
    assert!(places > 10, "{places}");
    assert_eq!(steps(&mut backend(&ranks).unwrap()).unwrap(), before);
}

#[test]
fn a_rank_that_is_lost_at_any_launch_ends_the_step_of_all_and_they_begin_anew() {
    let emulated = four();
    for device in [0, 1] {
        let lose = |after| emulated.lose_device_after(device, after);
        let cause = format!("rank {device} (CUDA device {device}): ");
        failing_anywhere(&emulated, lose, &cause, |ranks, mut other, _| {
            let early = backend(ranks).unwrap_err();
            assert!(early.0.starts_with(&cause), "{early}");
            assert!(early.0.contains("has not let go of it yet"), "{early}");
            let heard = steps(&mut other).unwrap_err();
            assert_eq!(heard, early);
        });
    }
}

#[test]
fn a_link_that_fails_ends_the_step_of_all_and_no_other_backend_hears_of_it() {
    let emulated = four();
    let fail = |after| emulated.fail_sums_after(after);
    let cause = "NCCL: remote process exited";
    failing_anywhere(&emulated, fail, cause, |ranks, mut other, before| {
        let mut again = backend(ranks).unwrap();
        assert_eq!(steps(&mut other).unwrap(), before);
        assert_eq!(steps(&mut again).unwrap(), before);
    });
}

#[test]
fn a_backend_hears_at_its_next_step_that_another_has_lost_a_rank() {
    let emulated = four();
    let ranks = two();
    let (mut one, mut other) = (backend(&ranks).unwrap(), backend(&ranks).unwrap());
    assert_eq!(steps(&mut one), steps(&mut other));
    emulated.lose_device_after(1, Some(7));
    let lost = steps(&mut one).unwrap_err();
    assert!(lost.0.contains("ILLEGAL_ADDRESS"), "{lost}");
    let heard = steps(&mut other).unwrap_err();
    assert!(heard.0.starts_with("rank "), "{heard}");
    drop((one, other));
    assert_eq!((emulated.allocated(), emulated.communicators()), (0, 0));
}

#[test]
fn the_last_backend_to_go_takes_the_memory_once_its_ranks_have_come_to_their_ends() {
    let emulated = four();
    let ranks = two();
    let (mut after, mut places) = (0, 0);
    loop {
        let mut only = backend(&ranks).unwrap();
        emulated.lose_device_after(1, Some(after));
        // The other rank has launched what comes after the sum for which it waits.
        let lost = steps(&mut only);
        emulated.lose_device_after(1, None);
        drop(only);
        assert_eq!(emulated.allocated(), 0, "after {after}");
        if lost.is_ok() {
            break;
        }
        after += 1 + after / 4;
        places += 1;
    }
    assert!(places > 10, "{places}");
}

#[test]
fn no_rank_writes_to_memory_that_was_given_back() {
    emulation::pass_sanitized(&[
        "the_last_backend_to_go_takes_the_memory_once_its_ranks_have_come_to_their_ends",
    ]);
}

#[test]
fn a_copy_that_fails_on_one_rank_is_the_failure_of_all() {
    let emulated = four();
    let ranks = two();
    let mut failing = backend(&ranks).unwrap();
    let before = steps(&mut failing).unwrap();
    let copies = [BlockCopy {
        host: HostBlockId(0),
        block: BlockId(2),
    }];
    let ticket = failing.swap(SwapDirection::Out, &copies).unwrap();
    // One rank makes its copy.
    emulated.fail_copies_after(Some(1));
    let refused = failing.swapped(SwapWait::ForNext).unwrap_err();
    emulated.fail_copies_after(None);
    assert!(
        refused.0.starts_with("rank ") && ticket > SwapTicket::default(),
        "{refused}"
    );
    assert_eq!(steps(&mut failing).unwrap_err(), refused);
    drop(failing);
    assert_eq!((emulated.allocated(), emulated.communicators()), (0, 0));
    assert_eq!(steps(&mut backend(&ranks).unwrap()).unwrap(), before);
}

#[test]
fn all_memory_is_given_back_and_weights_are_there_once_for_each_rank() {
    let emulated = four();
    let ranks = two();
    let mut one = backend(&ranks).unwrap();
    let first = emulated.allocated();
    let mut other = backend(&ranks).unwrap();
    let second = emulated.allocated() - first;
    // Not once more what is shared.
    let weights = usize::try_from(weight_bytes(models::demo().open())).unwrap();
    assert!(
        second + pool_bytes() + weights < first,
        "{second} after {first}"
    );
    assert_eq!(steps(&mut one), steps(&mut other));
    assert_eq!(emulated.communicators(), 4);
    drop((one, other));
    assert_eq!((emulated.allocated(), emulated.communicators()), (0, 0));
}

#[test]
fn a_rank_without_enough_memory_is_named_and_nothing_is_left() {
    let emulated = four();
    emulated.set_memory(pool_bytes() / 4);
    let refused = backend(&two()).unwrap_err();
    assert!(
        refused.0.starts_with("rank 0 (CUDA device 0): "),
        "{refused}"
    );
    assert!(refused.0.contains("give it less"), "{refused}");
    assert_eq!((emulated.allocated(), emulated.communicators()), (0, 0));
}

// === Refusals ===

fn open(config: &Value) -> OpenModel {
    let tensors = models::tensors(config, 1);
    let files = models::files(config, models::safetensors(&tensors, Dtype::BF16));
    OpenModel::open(&files).unwrap()
}

#[test]
fn models_that_cannot_be_split_are_refused_by_the_size_that_does_not_fit() {
    let _emulated = four();
    let three = CudaRanks::new(&[0, 1, 2], blocks()).unwrap();
    let config = |changes: Value| {
        let mut config = models::config(json!({"head_dim": 16, "num_attention_heads": 6,
            "num_key_value_heads": 6, "intermediate_size": 96}));
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    RanksBackend::check(&three, &open(&config(json!({})))).unwrap();
    let ranks = two();
    RanksBackend::check(&ranks, &open(&config(json!({})))).unwrap();
    for (changes, said) in [
        (
            json!({"num_attention_heads": 8, "num_key_value_heads": 8}),
            "a model whose num_attention_heads is 8 cannot be split over 3 devices, each of which would need as many",
        ),
        (
            json!({"num_key_value_heads": 2}),
            "a model whose num_key_value_heads is 2 cannot be split over 3 devices, each of which would need as many",
        ),
        (
            json!({"intermediate_size": 64}),
            "a model whose intermediate_size is 64 cannot be split over 3 devices, each of which would need as many",
        ),
        (
            json!({"intermediate_size": 72}),
            "of a model that is split over 3 devices, a part is: a model whose intermediate_size is 24 is not",
        ),
    ] {
        let refused = RanksBackend::check(&three, &open(&config(changes)));
        match said.starts_with("of a model") {
            true => refused.unwrap(),
            false => assert_eq!(refused.unwrap_err().0, said),
        }
    }
    let narrow = open(&config(json!({"intermediate_size": 72})));
    let said = RanksBackend::check(&ranks, &narrow).unwrap_err().0;
    let expected = "of a model that is split over 2 devices, a part is: a model whose intermediate_size is 36 is not \
                    for CUDA devices";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn fp8_whose_blocks_would_be_split_is_refused_by_its_tensor() {
    let _emulated = four();
    let (config, tensors) = (models::demo_json("config.json"), models::demo_tensors());
    let open = |scaled| {
        let model = Fp8Model::of(&config, &tensors, |_| scaled);
        OpenModel::open(&models::files(&model.config, model.safetensors())).unwrap()
    };
    let refused = RanksBackend::check(&two(), &open(Scaled::Blocks)).unwrap_err();
    let expected = "tensor model.layers.0.self_attn.o_proj.weight has rows of 192 numbers in blocks of 128, and \
                    cannot be split over 2 devices without splitting blocks; use fewer devices";
    assert_eq!(refused.0, expected);
    RanksBackend::check(&two(), &open(Scaled::Rows)).unwrap();
}

#[test]
fn devices_that_are_not_there_or_of_another_kind_are_named() {
    let emulated = four();
    let missing = NoDevice::NotThere {
        ordinal: 4,
        devices: 4,
    };
    assert_eq!(CudaDevices::probe(&[0, 4]), Err(missing));
    emulated.set_capability_minor_of(2, 9);
    let refused = CudaRanks::new(&[0, 1, 2], blocks()).unwrap_err();
    let expected = "CUDA device 1 has compute capability 9.0, and device 2 9.9; devices that compute a model together \
                    are to be of one kind";
    assert_eq!(refused.to_string(), expected);
    CudaDevices::probe(&[2]).unwrap();
    CudaDevices::probe(&[1, 3]).unwrap();
}

#[test]
fn the_fullest_device_says_how_much_room_there_is() {
    let _emulated = four();
    let model = models::demo();
    let largest = StepSize {
        tokens: 64,
        sequences: 4,
    };
    let models = [ComputedModel {
        model: model.open(),
        executors: vec![largest],
    }];
    let room = CudaDevices::room(&[0, 1], &models).unwrap();
    let alone = CudaDevices::room(&[1], &models).unwrap();
    assert_eq!(room.free, alone.free);
    assert!(room.models < alone.models && room.steps < alone.steps);
    assert!(room.left() > alone.left());
}
