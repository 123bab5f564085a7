//! Models whose files are open: their tensors are read in pieces, and how far that is is told.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use half::bf16;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::gguf::Gguf;
use pointsman_model::host::HostModel;
use pointsman_model::open::{LoadProgress, OpenModel};
use pointsman_model::test_util::gguf::{GgufFile, Kind};
use pointsman_model::test_util::models;
use pointsman_model::weights::{Matrix, StoredMatrix, Values};
use safetensors::Dtype;
use serde_json::{Value, json};

fn config() -> Value {
    models::config(
        json!({"hidden_size": 256, "intermediate_size": 512, "head_dim": 64,
        "attention_bias": true, "vocab_size": 96}),
    )
}

fn in_gguf(folder: &Path, kind: Kind) -> ModelFiles {
    let (file, _) = GgufFile::of_model(&config(), &models::tensors(&config(), 3), kind);
    let path = folder.join("model.gguf");
    fs::write(&path, file.bytes()).unwrap();
    ModelFiles::Gguf(Arc::new(Gguf::open(&path).unwrap()))
}

fn in_safetensors(dtype: Dtype) -> ModelFiles {
    let mut tensors = models::tensors(&config(), 3);
    for tensor in tensors.values_mut() {
        // Beyond bf16, so that rounding shows.
        tensor.values.iter_mut().for_each(|value| *value += 1e-3);
    }
    models::files(&config(), models::safetensors(&tensors, dtype))
}

/// The bits of a matrix in bf16.
fn narrowed(matrix: &Matrix) -> Vec<u16> {
    match &matrix.values {
        Values::Bf16(values) => values.iter().map(|it| it.to_bits()).collect(),
        Values::F32(values) => values
            .iter()
            .map(|value| bf16::from_f32(*value).to_bits())
            .collect(),
    }
}

/// A matrix in bf16, read in pieces of some rows each.
fn in_pieces(stored: &StoredMatrix, rng: &mut Rng) -> Vec<u16> {
    let StoredMatrix::Numbers(stacked) = stored else {
        panic!("none is in FP8");
    };
    let (mut bits, mut scratch) = (Vec::new(), Vec::new());
    for tensor in &stacked.tensors {
        let mut first = 0;
        while first < tensor.rows() {
            let end = tensor.rows().min(first + rng.usize(1..90));
            let mut piece = vec![0; (end - first) * stacked.cols * 2];
            tensor
                .read_bf16(first..end, &mut scratch, &mut piece)
                .unwrap();
            let (pairs, _) = piece.as_chunks::<2>();
            bits.extend(pairs.iter().map(|pair| u16::from_le_bytes(*pair)));
            first = end;
        }
    }
    bits
}

#[test]
fn pieces_are_the_same_numbers_as_the_whole_however_they_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config().to_string()).unwrap();
    let mut all = vec![ModelFiles::Dummy(Dummy::new(&path, 7))];
    all.extend([Dtype::BF16, Dtype::F16, Dtype::F32].map(in_safetensors));
    let mut rng = Rng::with_seed(1);
    let mut compare = |files: &ModelFiles| {
        let model = Arc::new(OpenModel::open(files).unwrap());
        let host = HostModel::read(&model, &mut |_| ()).unwrap();
        let stored = model.weights().matrices();
        let mut count = 0;
        for (stored, whole) in stored.zip(host.weights().matrices()) {
            assert_eq!(in_pieces(stored, &mut rng), narrowed(whole), "{files:?}");
            count += 1;
        }
        assert_eq!(count, 2 * 4 + 2);
    };
    all.iter().for_each(&mut compare);
    for kind in [Kind::F32, Kind::F16, Kind::Bf16, Kind::Q8_0, Kind::Q4K] {
        compare(&in_gguf(folder.path(), kind));
    }
}

#[test]
fn the_memory_that_weights_take_is_known_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let dtypes = [Dtype::BF16, Dtype::F16, Dtype::F32];
    let mut all = dtypes.map(in_safetensors).to_vec();
    all.push(in_gguf(folder.path(), Kind::Q4K));
    for files in all {
        let model = HostModel::load(&files).unwrap();
        let matrices = model.weights().matrices();
        let matrices = matrices.map(|matrix| match &matrix.values {
            Values::Bf16(values) => values.len() * 2,
            Values::F32(values) => values.len() * 4,
        });
        let vectors = model.weights().vectors().map(|values| values.len() * 4);
        let taken = matrices.sum::<usize>() + vectors.sum::<usize>();
        assert_eq!(model.open().bytes_in_memory(), taken as u64, "{files:?}");
    }
}

#[test]
fn what_is_loaded_is_told_tensor_by_tensor_up_to_all_of_it() {
    let files = in_safetensors(Dtype::F32);
    let model = Arc::new(OpenModel::open(&files).unwrap());
    let mut told: Vec<LoadProgress> = Vec::new();
    HostModel::read(&model, &mut |progress| told.push(progress)).unwrap();
    assert_eq!(told[0], model.to_load());
    let tensors = models::tensors(&config(), 3);
    let numbers: usize = tensors.values().map(|tensor| tensor.values.len()).sum();
    let last = told.last().unwrap();
    assert_eq!(last.bytes, numbers as u64 * 4);
    assert_eq!(last.bytes, last.bytes_total);
    assert_eq!(
        (last.tensors, last.tensors_total),
        (tensors.len(), tensors.len())
    );
    let grows =
        |pair: &[LoadProgress]| pair[0].bytes < pair[1].bytes && pair[0].tensors < pair[1].tensors;
    assert!(told.windows(2).all(grows), "{told:?}");
}

#[test]
fn opening_reads_no_weights_and_a_file_that_is_cut_afterwards_is_told_with_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let weights = models::safetensors(&models::tensors(&config(), 3), Dtype::BF16);
    let file = folder.path().join("model.safetensors");
    fs::write(&file, &weights).unwrap();
    fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    let files = ModelFiles::Folder(folder.path().to_owned());
    let model = Arc::new(OpenModel::open(&files).unwrap());
    fs::write(&file, &weights[..weights.len() / 2]).unwrap();
    let error = HostModel::read(&model, &mut |_| ()).unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("tensor model.layers."), "{said}");
    let end = format!("of {} cannot be read", file.display());
    assert!(said.ends_with(&end), "{said}");
    assert!(error.source().is_some());
}
