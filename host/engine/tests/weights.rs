//! Weights in every layout and type that is supported, and the errors for all others.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::error::Error;
use std::sync::Arc;

use pointsman_engine::test_util::logits;
use pointsman_model::files::ModelFiles;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use pointsman_model::test_util::models::{Tensor, Tensors};
use safetensors::Dtype;
use serde_json::{Value, json};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

fn config() -> Value {
    models::config(json!({"attention_bias": true, "mlp_bias": true}))
}

fn tensors() -> Tensors {
    models::tensors(&config(), 1)
}

/// Returns the files of a model of [`config`].
fn with(files: &[(&str, Vec<u8>)]) -> ModelFiles {
    let config = ("config.json".to_owned(), config().to_string().into_bytes());
    let files = files
        .iter()
        .map(|(name, content)| ((*name).to_owned(), content.clone()));
    models::embedded([config].into_iter().chain(files).collect())
}

fn single(weights: Vec<u8>) -> ModelFiles {
    with(&[(FILE, weights)])
}

/// Returns the bits of the logits after a few tokens.
fn answer(files: &ModelFiles) -> Vec<u32> {
    let logits = logits(Arc::new(HostModel::load(files).unwrap()));
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn refusal(files: &ModelFiles) -> String {
    HostModel::load(files).unwrap_err().to_string()
}

fn bf16(tensors: &Tensors) -> Vec<u8> {
    models::safetensors(tensors, Dtype::BF16)
}

/// Divides tensors over two shards: neighbours part.
fn halves(tensors: &Tensors) -> [Tensors; 2] {
    let mut halves = [Tensors::new(), Tensors::new()];
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        halves[index % 2].insert(name.clone(), tensor.clone());
    }
    halves
}

fn index(halves: &[Tensors; 2]) -> Vec<u8> {
    let shards = halves.iter().zip(SHARDS);
    let map = shards.flat_map(|(half, shard)| half.keys().map(move |name| (name.clone(), shard)));
    let map: serde_json::Map<String, Value> =
        map.map(|(name, shard)| (name, shard.into())).collect();
    json!({"metadata": {"total_size": 1}, "weight_map": map})
        .to_string()
        .into_bytes()
}

#[test]
fn shards_are_the_same_model_as_one_file() {
    let halves = halves(&tensors());
    let [first, second] = [bf16(&halves[0]), bf16(&halves[1])];
    let sharded = with(&[
        (INDEX, index(&halves)),
        (SHARDS[0], first),
        (SHARDS[1], second),
    ]);
    assert_eq!(answer(&sharded), answer(&single(bf16(&tensors()))));
}

#[test]
fn the_same_numbers_in_another_type_are_the_same_model() {
    let expected = answer(&single(bf16(&tensors())));
    for dtype in [Dtype::F16, Dtype::F32] {
        let weights = models::safetensors(&tensors(), dtype);
        assert_eq!(answer(&single(weights)), expected, "{dtype}");
    }
    let mixed = models::mixed_safetensors(&tensors(), |name| {
        if name.contains("k_proj") || name.contains("up_proj.bias") {
            Dtype::F32
        } else if name.contains("layernorm") {
            Dtype::F16
        } else {
            Dtype::BF16
        }
    });
    assert_eq!(answer(&single(mixed)), expected);
}

#[test]
fn precision_beyond_bf16_is_kept() {
    let mut precise = tensors();
    let tensor = precise
        .get_mut("model.layers.0.mlp.up_proj.weight")
        .unwrap();
    tensor.values.iter_mut().for_each(|value| *value += 1e-4);
    let precise = models::safetensors(&precise, Dtype::F32);
    assert_ne!(answer(&single(precise)), answer(&single(bf16(&tensors()))));
}

#[test]
fn tensors_that_the_model_does_not_need_are_ignored() {
    let mut more = tensors();
    let values = vec![1.0; 6];
    let shape = vec![6];
    more.insert(
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        Tensor { shape, values },
    );
    let weights = models::mixed_safetensors(&more, |name| {
        if name.contains("inv_freq") {
            Dtype::I64
        } else {
            Dtype::BF16
        }
    });
    assert_eq!(answer(&single(weights)), answer(&single(bf16(&tensors()))));
}

/// Tensors with names as in Qwen 3's checkpoints of models that only embed.
fn without_prefix(tensors: &Tensors) -> Tensors {
    let tensors = tensors.iter().map(|(name, tensor)| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        (name.to_owned(), tensor.clone())
    });
    tensors.collect()
}

#[test]
fn names_without_their_prefix_are_the_same_model() {
    let mut bare = without_prefix(&tensors());
    assert_eq!(
        answer(&single(bf16(&bare))),
        answer(&single(bf16(&tensors())))
    );
    // What is missing is named as the others are.
    bare.remove("layers.1.mlp.up_proj.weight").unwrap();
    let said = refusal(&single(bf16(&bare)));
    let end = "has no tensor layers.1.mlp.up_proj.weight;";
    assert!(said.contains(end), "{said}");
    let tied = models::config(json!({"tie_word_embeddings": true}));
    let tensors = models::tensors(&tied, 1);
    let answer = |tensors: &Tensors| answer(&models::files(&tied, bf16(tensors)));
    assert_eq!(answer(&without_prefix(&tensors)), answer(&tensors));
}

#[test]
fn a_model_that_only_embeds_and_is_to_have_a_head_is_told_what_to_do() {
    let mut headless = without_prefix(&tensors());
    headless.remove("lm_head.weight").unwrap();
    let expected = "embedded model.safetensors has no tensor lm_head.weight, and config.json asks for one: the model \
                    only embeds; set tie_word_embeddings to true there to embed with it, and generate nothing with it";
    assert_eq!(refusal(&single(bf16(&headless))), expected);
}

#[test]
fn a_model_without_weights_is_told_what_would_be_read() {
    let expected = "neither embedded model.safetensors nor embedded model.safetensors.index.json exists; \
                    weights in other formats must be converted to safetensors or GGUF";
    assert_eq!(refusal(&with(&[])), expected);
}

#[test]
fn a_missing_tensor_is_named_with_the_file_that_should_have_it() {
    let mut fewer = tensors();
    fewer.remove("model.layers.1.mlp.up_proj.weight").unwrap();
    let end = "has no tensor model.layers.1.mlp.up_proj.weight; it belongs to another model than config.json";
    let said = refusal(&single(bf16(&fewer)));
    assert_eq!(said, format!("embedded model.safetensors {end}"));
    let halves = halves(&fewer);
    let [first, second] = [bf16(&halves[0]), bf16(&halves[1])];
    let sharded = with(&[
        (INDEX, index(&halves)),
        (SHARDS[0], first),
        (SHARDS[1], second),
    ]);
    let said = refusal(&sharded);
    assert_eq!(said, format!("embedded model.safetensors.index.json {end}"));
}

#[test]
fn every_tensor_of_a_model_is_needed() {
    for name in tensors().keys() {
        let mut fewer = tensors();
        fewer.remove(name).unwrap();
        let said = refusal(&single(bf16(&fewer)));
        assert!(said.contains(&format!("no tensor {name};")), "{said}");
    }
}

#[test]
fn a_wrong_shape_is_told_with_the_right_one() {
    let mut other = tensors();
    let tensor = other
        .get_mut("model.layers.0.self_attn.q_proj.weight")
        .unwrap();
    assert_eq!(tensor.shape, [48, 48]);
    tensor.shape = vec![24, 96];
    let expected = "embedded model.safetensors: tensor model.layers.0.self_attn.q_proj.weight has shape \
                    [24, 96], and config.json asks for [48, 48]; they belong to different models";
    assert_eq!(refusal(&single(bf16(&other))), expected);
}

#[test]
fn a_type_that_is_not_built_is_named() {
    let weights = models::mixed_safetensors(&tensors(), |name| {
        if name == "lm_head.weight" {
            Dtype::I8
        } else {
            Dtype::BF16
        }
    });
    let expected = "embedded model.safetensors: tensor lm_head.weight has type I8; BF16, F16 and F32 are \
                    supported, for projections within layers F8_E4M3, and other quantised weights are not";
    assert_eq!(refusal(&single(weights)), expected);
}

#[test]
fn a_file_that_was_cut_short_is_told_so_wherever_the_cut_is() {
    let whole = bf16(&tensors());
    for length in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
        let error = HostModel::load(&single(whole[..length].to_vec())).unwrap_err();
        let expected = "embedded model.safetensors is damaged or was cut short; fetch it again";
        assert_eq!(error.to_string(), expected, "{length}");
        assert!(error.source().is_some(), "{length}");
    }
}

#[test]
fn a_shard_that_is_missing_is_named() {
    let halves = halves(&tensors());
    let files = with(&[(INDEX, index(&halves)), (SHARDS[0], bf16(&halves[0]))]);
    let expected = "embedded model-00002-of-00002.safetensors does not exist, but embedded \
                    model.safetensors.index.json names it; the download may be incomplete";
    assert_eq!(refusal(&files), expected);
}

#[test]
fn an_index_that_is_none_is_told_so() {
    let files = with(&[(INDEX, b"[]".to_vec())]);
    let error = HostModel::load(&files).unwrap_err();
    let expected = "embedded model.safetensors.index.json is not an index of weights";
    assert_eq!(error.to_string(), expected);
    assert!(error.source().is_some());
}

#[test]
fn a_file_that_cannot_be_read_is_told_so() {
    let no_folder = models::demo_folder().join("golden.json");
    let error = HostModel::load(&ModelFiles::Folder(no_folder)).unwrap_err();
    assert!(
        error.to_string().ends_with("config.json cannot be read"),
        "{error}"
    );
    assert!(error.source().is_some());
}
