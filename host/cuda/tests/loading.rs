//! Models on their way to an emulated device.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use half::bf16;
use pointsman_cuda::emulation::{self, Alone};
use pointsman_cuda::{CudaBackend, CudaDevice, kv_bytes_per_token};
use pointsman_engine::backend::{Backend as _, Chunk, DeviceError, KvBlocks, KvShape, Logits};
use pointsman_events::BlockId;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::gguf::Gguf;
use pointsman_model::host::HostModel;
use pointsman_model::open::{LoadProgress, OpenModel};
use pointsman_model::test_util::gguf::{GgufFile, Kind};
use pointsman_model::test_util::models;
use pointsman_model::weights::Values as Numbers;
use safetensors::Dtype;
use serde_json::{Value, json};

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 2,
};
/// Bytes of the two buffers through which weights go.
const STAGED: usize = 2 * (16 << 20);

/// A device with blocks for a model.
fn device(model: &OpenModel) -> CudaDevice {
    CudaDevice::new(0, SHAPE.blocks(kv_bytes_per_token(model.config()))).unwrap()
}

fn opened(files: &ModelFiles) -> Arc<OpenModel> {
    Arc::new(OpenModel::open(files).unwrap())
}

fn small() -> Value {
    models::config(json!({"head_dim": 16, "attention_bias": true, "tie_word_embeddings": true}))
}

/// A model of 67 MB in bf16, which goes to the device in many pieces.
fn large(folder: &Path) -> ModelFiles {
    let config = models::config(
        json!({"head_dim": 32, "hidden_size": 512, "vocab_size": 32_000,
        "intermediate_size": 72, "num_hidden_layers": 1, "max_position_embeddings": 300_000}),
    );
    let path = folder.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    ModelFiles::Dummy(Dummy::new(&path, 5))
}

/// Loads a model, and returns what was told.
fn load(model: &Arc<OpenModel>) -> Result<(CudaBackend, Vec<LoadProgress>), DeviceError> {
    let mut told = Vec::new();
    let tell = &mut |progress| told.push(progress);
    let backend = CudaBackend::load(&device(model), Arc::clone(model), SHAPE, tell)?;
    Ok((backend, told))
}

/// Compares the weights on the device with those of the processors.
fn compare(files: &ModelFiles) {
    let model = opened(files);
    let host = HostModel::read(&model, &mut |_| ()).unwrap();
    let (backend, _) = load(&model).unwrap();
    let there = backend.weights().unwrap();
    let here = host
        .weights()
        .matrices()
        .map(|matrix| match &matrix.values {
            Numbers::Bf16(values) => values.iter().map(|it| it.to_bits()).collect(),
            Numbers::F32(values) => {
                let bits = values.iter().map(|it| bf16::from_f32(*it).to_bits());
                bits.collect::<Vec<u16>>()
            }
        });
    assert!(here.eq(there.matrices().cloned()), "{files:?}");
    assert!(host.weights().vectors().eq(there.vectors()), "{files:?}");
}

fn failure(model: &Arc<OpenModel>) -> String {
    load(model).unwrap_err().0
}

#[test]
fn weights_on_the_device_are_bit_by_bit_those_of_the_processors() {
    let emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = models::tensors(&small(), 4);
    for tensor in tensors.values_mut() {
        tensor.values.iter_mut().for_each(|value| *value += 1e-3);
    }
    for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
        compare(&models::files(
            &small(),
            models::safetensors(&tensors, dtype),
        ));
    }
    let mixed = models::mixed_safetensors(&tensors, |name| match name.contains("k_proj") {
        true => Dtype::F32,
        false => Dtype::BF16,
    });
    compare(&models::files(&small(), mixed));
    let config =
        models::config(json!({"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}));
    for kind in [Kind::F32, Kind::Q8_0, Kind::Q4K] {
        let (file, _) = GgufFile::of_model(&config, &models::tensors(&config, 1), kind);
        let path = folder.path().join("model.gguf");
        fs::write(&path, file.bytes()).unwrap();
        compare(&ModelFiles::Gguf(Arc::new(Gguf::open(&path).unwrap())));
    }
    compare(&large(folder.path()));
    assert_eq!(emulated.allocated(), 0);
}

#[test]
fn a_model_of_any_size_takes_two_buffers_of_pinned_memory_until_it_is_there() {
    let emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&large(folder.path()));
    assert!(model.to_load().bytes_total > 60_000_000);
    let taken = |emulated: &Alone, host: u32| {
        emulated.set_pinned_max(usize::MAX);
        let blocks = KvBlocks {
            host,
            ..SHAPE.blocks(kv_bytes_per_token(model.config()))
        };
        let device = CudaDevice::new(0, blocks).unwrap();
        let backend = CudaBackend::new(&device, Arc::clone(&model), SHAPE).unwrap();
        let peak = emulated.pinned_peak();
        emulated.set_pinned_max(usize::MAX);
        let block = usize::try_from(blocks.bytes).unwrap();
        drop(backend);
        (peak, emulated.pinned_peak(), block)
    };
    let (peak, after, _) = taken(&emulated, 0);
    assert_eq!((peak, after), (STAGED, 0));
    let (peak, after, block) = taken(&emulated, 3);
    assert_eq!((peak, after), (STAGED + 3 * block, 3 * block));
}

#[test]
fn what_is_loaded_is_told_piece_by_piece_up_to_all_of_it_and_once_for_a_device() {
    let _emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&large(folder.path()));
    let device = device(&model);
    let mut told = Vec::new();
    let tell = &mut |progress| told.push(progress);
    let one = CudaBackend::load(&device, Arc::clone(&model), SHAPE, tell).unwrap();
    assert_eq!(told[0], model.to_load());
    let grows =
        |pair: &[LoadProgress]| pair[0].bytes < pair[1].bytes && pair[0].tensors <= pair[1].tensors;
    assert!(told.windows(2).all(grows), "{told:?}");
    // The two tables are two pieces each.
    let tensors = model.to_load().tensors_total;
    assert_eq!(told.len(), 1 + tensors + 2);
    let all = LoadProgress {
        bytes: model.to_load().bytes_total,
        tensors,
        ..model.to_load()
    };
    assert_eq!(told.last(), Some(&all));
    let tell = &mut |_| panic!("it is there");
    let other = CudaBackend::load(&device, model, SHAPE, tell).unwrap();
    assert_eq!(one.vocab_size(), other.vocab_size());
}

#[test]
fn a_copy_that_fails_is_told_and_leaves_nothing() {
    let emulated = emulation::alone();
    let model = opened(&models::files(
        &small(),
        models::safetensors(&models::tensors(&small(), 1), Dtype::F32),
    ));
    for copies in [0, 1, 2, 9] {
        emulated.fail_copies_after(Some(copies));
        let said = failure(&model);
        let expected = "are not loaded: CUDA: CUDA_ERROR_UNKNOWN (CUDA_ERROR_UNKNOWN)";
        assert!(said.ends_with(expected), "{said}");
        assert!(said.starts_with("weights of "), "{said}");
        assert_eq!(emulated.allocated(), 0, "{copies}");
        emulated.fail_copies_after(None);
    }
    assert!(load(&model).is_ok());
}

#[test]
fn memory_that_is_not_there_is_told_and_nothing_is_left() {
    let emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&large(folder.path()));
    for bytes in [0, STAGED / 2, STAGED - 1] {
        emulated.set_pinned_max(bytes);
        let said = failure(&model);
        assert!(
            said.contains("bytes of pinned memory cannot be had"),
            "{said}"
        );
        assert!(said.contains("OUT_OF_MEMORY"), "{said}");
        assert_eq!(emulated.allocated(), 0, "{bytes}");
    }
    emulated.set_pinned_max(STAGED);
    for bytes in [40 << 20, 60 << 20] {
        emulated.set_memory(bytes);
        let said = failure(&model);
        assert!(
            said.contains("are not loaded: CUDA: ") && said.contains("OUT_OF_MEMORY"),
            "{said}"
        );
        assert_eq!(emulated.allocated(), 0, "{bytes}");
    }
    emulated.set_memory(1 << 30);
    assert!(load(&model).is_ok());
}

#[test]
fn a_file_that_was_cut_since_is_told_with_the_tensor_and_nothing_is_left() {
    let emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let weights = models::safetensors(&models::tensors(&small(), 1), Dtype::BF16);
    let file = folder.path().join("model.safetensors");
    fs::write(&file, &weights).unwrap();
    fs::write(folder.path().join("config.json"), small().to_string()).unwrap();
    let model = opened(&ModelFiles::Folder(folder.path().to_owned()));
    fs::write(&file, &weights[..weights.len() / 2]).unwrap();
    let said = failure(&model);
    assert!(
        said.contains("are not loaded: tensor model.layers."),
        "{said}"
    );
    assert!(
        said.contains("model.safetensors cannot be read: "),
        "{said}"
    );
    assert_eq!(emulated.allocated(), 0);
    // Whole again, the file is that of the same model.
    fs::write(&file, &weights).unwrap();
    assert!(load(&model).is_ok());
}

#[test]
fn steps_of_other_models_are_recorded_while_one_is_loaded() {
    let _emulated = emulation::alone();
    let folder = tempfile::tempdir().unwrap();
    let model = opened(&large(folder.path()));
    let device = device(&model);
    let other = opened(&models::files(
        &small(),
        models::safetensors(&models::tensors(&small(), 1), Dtype::BF16),
    ));
    let mut other = CudaBackend::new(&device, other, SHAPE).unwrap();
    let step = |backend: &mut CudaBackend| {
        let mut logits = Vec::new();
        let chunk = Chunk {
            tokens: &[5],
            start: 0,
            blocks: &[BlockId(1)],
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        logits
    };
    let alone = step(&mut other);
    let mut steps = 0;
    // The first of a shape launches each operation, the second is recorded, the third is one launch.
    let tell = &mut |_| {
        assert_eq!(step(&mut other), alone);
        steps += 1;
    };
    let loaded = CudaBackend::load(&device, Arc::clone(&model), SHAPE, tell).unwrap();
    assert!(steps > 3);
    let again = CudaBackend::new(&device, model, SHAPE).unwrap();
    let weights = [loaded, again].map(|backend| backend.weights().unwrap().embedding);
    assert_eq!(weights[0], weights[1]);
}
