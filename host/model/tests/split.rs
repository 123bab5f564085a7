//! Models split over ranks: their parts are the whole, however it is stored.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fs;
use std::sync::Arc;

use half::bf16;
use pointsman_model::dummy::Dummy;
use pointsman_model::files::ModelFiles;
use pointsman_model::gguf::Gguf;
use pointsman_model::graph::{Layer, Linear};
use pointsman_model::open::OpenModel;
use pointsman_model::split::{Rank, SplitError};
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::gguf::{GgufFile, Kind};
use pointsman_model::test_util::models;
use pointsman_model::weights::fp8::number;
use pointsman_model::weights::{Stacked, StoredMatrix};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The rows of a tensor.
type Numbers = Vec<Vec<f32>>;
type StoredLayer = Layer<StoredMatrix, Stacked>;
type StoredLinear = Linear<StoredMatrix, Stacked>;

/// A model that can be split over four: heads of 64, and of a row of 512 numbers each has 128.
fn config() -> Value {
    models::config(json!({
        "num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 8,
        "num_key_value_heads": 4, "attention_bias": true, "mlp_bias": true, "vocab_size": 96,
    }))
}

fn in_safetensors(dtype: Dtype) -> ModelFiles {
    let tensors = models::tensors(&config(), 3);
    models::files(&config(), models::safetensors(&tensors, dtype))
}

fn in_gguf(folder: &TempDir, kind: Kind) -> ModelFiles {
    // Its models have no such bias.
    let mut config = config();
    config["mlp_bias"] = json!(false);
    let (file, _) = GgufFile::of_model(&config, &models::tensors(&config, 3), kind);
    let path = folder.path().join("model.gguf");
    fs::write(&path, file.bytes()).unwrap();
    ModelFiles::Gguf(Arc::new(Gguf::open(&path).unwrap()))
}

fn in_fp8(scaled: Scaled) -> ModelFiles {
    let model = Fp8Model::of(&config(), &models::tensors(&config(), 3), |_| scaled);
    models::files(&model.config, model.safetensors())
}

/// The numbers of each tensor of a matrix.
fn numbers(stored: &StoredMatrix) -> Vec<Numbers> {
    match stored {
        StoredMatrix::Numbers(stacked) => {
            let tensors = stacked.tensors.iter().map(|tensor| {
                let mut bytes = vec![0; tensor.rows() * stacked.cols * 2];
                let rows = 0..tensor.rows();
                tensor.read_bf16(rows, &mut Vec::new(), &mut bytes).unwrap();
                let (pairs, _) = bytes.as_chunks::<2>();
                let wide = pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32());
                in_rows(wide.collect(), stacked.cols)
            });
            tensors.collect()
        }
        StoredMatrix::Fp8(stacked) => {
            let (scales, mut first) = (stacked.scales(), 0);
            let tensors = stacked.tensors.iter().map(|tensor| {
                let mut codes = vec![0; tensor.rows() * stacked.cols];
                tensor.read_codes(0..tensor.rows(), &mut codes).unwrap();
                let scaled = codes.iter().enumerate().map(|(place, code)| {
                    let (row, col) = (first + place / stacked.cols, place % stacked.cols);
                    number(*code) * scales.at(stacked.cols, row, col)
                });
                let rows = in_rows(scaled.collect(), stacked.cols);
                first += tensor.rows();
                rows
            });
            tensors.collect()
        }
    }
}

fn in_rows(numbers: Vec<f32>, cols: usize) -> Numbers {
    numbers.chunks(cols).map(<[f32]>::to_vec).collect()
}

/// The tensors of parts that have rows of them.
fn rows_joined(parts: Vec<Vec<Numbers>>) -> Vec<Numbers> {
    let count = parts[0].len();
    let tensor = |place: usize| parts.iter().flat_map(move |part| part[place].clone());
    (0..count).map(|place| tensor(place).collect()).collect()
}

/// The tensor of parts that have columns of it.
fn cols_joined(parts: Vec<Vec<Numbers>>) -> Vec<Numbers> {
    let rows = parts[0][0].len();
    let row = |row: usize| parts.iter().flat_map(move |part| part[0][row].clone());
    vec![(0..rows).map(|place| row(place).collect()).collect()]
}

/// Compares a layer's projections with those of its parts.
fn compare_layer(whole: &StoredLayer, parts: &[&StoredLayer]) {
    let of_parts = |pick: fn(&StoredLayer) -> &StoredLinear| -> Vec<Vec<Numbers>> {
        let parts = parts.iter().map(|part| numbers(&pick(part).weight));
        parts.collect()
    };
    assert_eq!(
        rows_joined(of_parts(|it| &it.qkv)),
        numbers(&whole.qkv.weight)
    );
    assert_eq!(
        cols_joined(of_parts(|it| &it.output)),
        numbers(&whole.output.weight)
    );
    assert_eq!(
        rows_joined(of_parts(|it| &it.gate_up)),
        numbers(&whole.gate_up.weight)
    );
    assert_eq!(
        cols_joined(of_parts(|it| &it.down)),
        numbers(&whole.down.weight)
    );
    let by_rows: [fn(&StoredLayer) -> &StoredLinear; 2] = [|it| &it.qkv, |it| &it.gate_up];
    for pick in by_rows {
        compare_bias(
            pick(whole),
            &parts.iter().map(|part| pick(part)).collect::<Vec<_>>(),
        );
    }
    let by_cols: [fn(&StoredLayer) -> &StoredLinear; 2] = [|it| &it.output, |it| &it.down];
    for pick in by_cols {
        let bias = |linear: &StoredLinear| linear.bias.as_ref().map(|bias| bias.vector().unwrap());
        let mut biases = parts.iter().map(|part| bias(pick(part)));
        assert_eq!(biases.next().unwrap(), bias(pick(whole)));
        assert!(biases.all(|bias| bias.is_none()));
    }
}

/// Compares a bias with that of parts that have rows.
fn compare_bias(whole: &StoredLinear, parts: &[&StoredLinear]) {
    let Some(bias) = &whole.bias else {
        return assert!(parts.iter().all(|part| part.bias.is_none()));
    };
    let mut rest = bias.vector().unwrap();
    let mut parts: Vec<Vec<f32>> = parts
        .iter()
        .map(|part| part.bias.as_ref().unwrap().vector().unwrap())
        .collect();
    // Each tensor's numbers are in as many parts.
    for tensor in numbers(&whole.weight) {
        let each = tensor.len() / parts.len();
        for part in &mut parts {
            let (expected, found) = (rest.drain(..each), part.drain(..each));
            assert!(expected.eq(found));
        }
    }
    assert!(rest.is_empty() && parts.iter().all(Vec::is_empty));
}

/// Compares a model with its parts.
fn compare(files: &ModelFiles, count: usize) {
    let whole = OpenModel::open(files).unwrap();
    let parts: Vec<OpenModel> = Rank::all(count)
        .map(|rank| whole.part(rank).unwrap())
        .collect();
    for (place, layer) in whole.weights().layers.iter().enumerate() {
        let of_parts = parts.iter().map(|part| &part.weights().layers[place]);
        compare_layer(layer, &of_parts.collect::<Vec<_>>());
    }
    let sizes = |model: &OpenModel| {
        let config = model.config();
        (config.heads, config.kv_heads, config.intermediate_size)
    };
    for (place, part) in parts.iter().enumerate() {
        let (heads, kv_heads, inner) = sizes(part);
        assert_eq!(
            (heads * count, kv_heads * count, inner * count),
            sizes(&whole)
        );
        let tables = [part, &whole].map(|model| numbers(&model.weights().embedding));
        assert_eq!(tables[0], tables[1]);
        assert_eq!(part.weights().head.is_some(), place == 0);
    }
}

#[test]
fn parts_are_the_whole_however_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config().to_string()).unwrap();
    compare(&in_safetensors(Dtype::BF16), 1);
    for count in [2, 4] {
        compare(&ModelFiles::Dummy(Dummy::new(&path, 7)), count);
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            compare(&in_safetensors(dtype), count);
        }
        for kind in [Kind::F32, Kind::Bf16, Kind::Q8_0] {
            compare(&in_gguf(&folder, kind), count);
        }
        for scaled in [Scaled::Whole, Scaled::Rows, Scaled::Blocks] {
            compare(&in_fp8(scaled), count);
        }
    }
    compare(&in_gguf(&folder, Kind::Q4K), 2);
}

#[test]
fn a_model_whose_blocks_would_be_in_two_parts_is_refused_with_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let model = OpenModel::open(&in_gguf(&folder, Kind::Q4K)).unwrap();
    let refused = model.part(Rank { index: 3, count: 4 }).unwrap_err();
    let expected = SplitError::Block {
        tensor: "blk.0.attn_output.weight".to_owned(),
        cols: 512,
        block: 256,
        ranks: 4,
    };
    assert_eq!(refused, expected);
}
