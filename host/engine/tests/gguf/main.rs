//! Models in GGUF files: the same as the folders that they were converted from; and the errors for files that
//! are damaged, or of a kind that is not built.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod damage;
mod text;

use std::error::Error;
use std::fs;
use std::sync::Arc;

use half::bf16;
use pointsman_engine::test_util;
use pointsman_model::files::ModelFiles;
use pointsman_model::gguf::Gguf;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::gguf::{GgufFile, Kind, Meta};
use pointsman_model::test_util::models::{self, Tensor, Tensors};
use safetensors::Dtype;
use serde_json::{Value, json};

/// Returns a model whose rows are whole blocks of every type.
fn config(changes: Value) -> Value {
    let mut config = models::config(json!({
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
    }));
    let (Value::Object(keys), Value::Object(changes)) = (&mut config, changes) else {
        panic!("configurations are objects");
    };
    keys.extend(changes);
    config
}

/// Returns tensors that look random, with a bit more than bf16 can hold.
fn tensors(config: &Value) -> Tensors {
    let mut tensors = models::tensors(config, 3);
    for tensor in tensors.values_mut() {
        let places = tensor.values.iter_mut().enumerate();
        places.for_each(|(place, value)| *value += (place % 7) as f32 * 1e-5);
    }
    tensors
}

fn rounded(tensors: &Tensors) -> Tensors {
    let round = |tensor: &Tensor| Tensor {
        shape: tensor.shape.clone(),
        values: {
            let values = tensor.values.iter();
            values
                .map(|value| bf16::from_f32(*value).to_f32())
                .collect()
        },
    };
    let tensors = tensors.iter();
    tensors
        .map(|(name, tensor)| match tensor.shape.len() {
            1 => (name.clone(), tensor.clone()),
            _ => (name.clone(), round(tensor)),
        })
        .collect()
}

/// Loads a model from the bytes of a file.
fn open(bytes: &[u8]) -> Result<HostModel, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let place = format!("{}/", folder.path().display());
    let told = |error: &dyn Error| -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text.replace(&place, "")
    };
    let gguf = Gguf::open(&path).map_err(|error| told(&error))?;
    HostModel::load(&ModelFiles::Gguf(Arc::new(gguf))).map_err(|error| told(&error))
}

fn refusal(file: &GgufFile) -> String {
    open(&file.bytes()).unwrap_err()
}

fn logits(model: HostModel) -> Vec<f32> {
    test_util::logits(Arc::new(model))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Returns the logits of a file, and those of the same numbers in safetensors.
fn both(config: &Value, kind: Kind) -> (Vec<f32>, Vec<f32>, Tensors) {
    let (file, kept) = GgufFile::of_model(config, &tensors(config), kind);
    let found = logits(open(&file.bytes()).unwrap());
    let dtype = if kind == Kind::Bf16 {
        Dtype::BF16
    } else {
        Dtype::F32
    };
    let expected = test_util::logits(models::load(config, &kept, dtype));
    (found, expected, kept)
}

fn families() -> [Value; 4] {
    [
        config(json!({})),
        config(json!({"attention_bias": true, "mlp_bias": true, "rope_theta": 500.0})),
        config(json!({"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": true})),
        config(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 128})),
    ]
}

#[test]
fn a_file_is_the_same_model_as_the_folder_it_was_made_of() {
    for config in families() {
        for kind in [Kind::F32, Kind::F16] {
            let (found, expected, _) = both(&config, kind);
            assert_eq!(bits(&found), bits(&expected), "{kind:?} {config}");
        }
        let (file, kept) = GgufFile::of_model(&config, &models::tensors(&config, 3), Kind::Bf16);
        let found = logits(open(&file.bytes()).unwrap());
        let expected = test_util::logits(models::load(&config, &kept, Dtype::BF16));
        assert_eq!(bits(&found), bits(&expected), "{config}");
    }
}

/// Largest distance of two rows of logits, in parts of their spread.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    let spread = |row: &[f32]| {
        let high = row.iter().fold(f32::MIN, |high, it| high.max(*it));
        high - row.iter().fold(f32::MAX, |low, it| low.min(*it))
    };
    let pairs = found.iter().zip(expected);
    let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    largest / spread(expected)
}

#[test]
fn quantised_weights_are_those_that_the_quantiser_kept_rounded_to_bf16() {
    for config in families() {
        for kind in [Kind::Q8_0, Kind::Q4K] {
            let (found, unrounded, kept) = both(&config, kind);
            // Norms and biases are f32 in the file.
            let same = test_util::logits(models::load(&config, &rounded(&kept), Dtype::F32));
            assert_eq!(bits(&found), bits(&same), "{kind:?} {config}");
            let far = distance(&found, &unrounded);
            assert!(far < 0.02, "{kind:?}: {far} of the spread of {config}");
            let original = test_util::logits(models::load(&config, &tensors(&config), Dtype::F32));
            assert!(
                far < distance(&found, &original),
                "{kind:?} has lost something"
            );
        }
    }
}

#[test]
fn long_wavelengths_are_stretched_by_factors_in_a_tensor_of_their_own() {
    // Those of Llama 3.1, whose files say nothing of it in their metadata.
    let scaling = json!({
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    });
    let stretched = config(json!({"rope_parameters": scaling}));
    let tensors = models::tensors(&stretched, 3);
    let expected = models::load(&stretched, &tensors, Dtype::BF16);
    let plain = models::load(&config(json!({})), &tensors, Dtype::BF16);
    let (mut file, _) = GgufFile::of_model(&config(json!({})), &tensors, Kind::Bf16);
    let pairs = plain
        .rotation()
        .frequencies
        .iter()
        .zip(&expected.rotation().frequencies);
    let factors: Vec<f32> = pairs.map(|(plain, stretched)| plain / stretched).collect();
    assert!(factors.iter().any(|factor| *factor > 7.0));
    let (bytes, _) = Kind::F32.encode(&factors);
    let tensor = (vec![factors.len()], Kind::F32, bytes);
    file.tensors.insert("rope_freqs.weight".into(), tensor);
    let model = open(&file.bytes()).unwrap();
    let found = model.rotation().frequencies.iter();
    for (found, expected) in found.zip(&expected.rotation().frequencies) {
        assert!((found / expected - 1.0).abs() < 1e-6);
    }
    let (bytes, _) = Kind::F32.encode(&vec![0.0; factors.len()]);
    let tensor = (vec![factors.len()], Kind::F32, bytes);
    file.tensors.insert("rope_freqs.weight".into(), tensor);
    let said = "model.gguf is damaged: tensor rope_freqs.weight has numbers that are not positive; fetch it \
                again";
    assert_eq!(refusal(&file), said);
}

#[test]
fn scaling_in_the_metadata_is_that_of_config_json() {
    let (file, _) =
        GgufFile::of_model(&config(json!({})), &tensors(&config(json!({}))), Kind::Bf16);
    let rotated = |file: GgufFile| {
        let model = open(&file.bytes()).unwrap();
        (model.rotation().clone(), model.config().context_tokens)
    };
    let expected = |parameters: Value| {
        let config = config(json!({"rope_parameters": parameters}));
        let model = models::load(&config, &models::tensors(&config, 3), Dtype::BF16);
        (model.rotation().clone(), model.config().context_tokens)
    };
    let text = |text: &str| Meta::Text(text.to_owned());
    let (kind, factor) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let linear = file
        .clone()
        .with(kind, text("linear"))
        .with(factor, Meta::F32(4.0));
    let parameters = json!({"rope_type": "linear", "factor": 4.0});
    assert_eq!(rotated(linear), expected(parameters));
    let original = "llama.rope.scaling.original_context_length";
    let yarn = file
        .clone()
        .with(kind, text("yarn"))
        .with(factor, Meta::F32(4.0));
    let yarn = yarn.with(original, Meta::U32(128));
    let parameters = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128.0,
    });
    assert_eq!(rotated(yarn), expected(parameters));
    let none = file
        .clone()
        .with(kind, text("none"))
        .with(factor, Meta::F32(4.0));
    assert_eq!(rotated(none), expected(json!({})));
    let window = file
        .clone()
        .with("llama.attention.sliding_window", Meta::U32(40));
    assert_eq!(rotated(window).1, 40);
    let long = file.with(kind, text("longrope"));
    let said = "model.gguf: llama.rope.scaling.type `longrope` is not supported; none, linear and yarn are";
    assert_eq!(refusal(&long), said);
}

#[test]
fn what_is_not_built_is_named() {
    let (file, _) = GgufFile::of_model(&config(json!({})), &tensors(&config(json!({}))), Kind::F32);
    let text = |text: &str| Meta::Text(text.to_owned());
    for (key, value, said) in [
        (
            "general.architecture",
            text("gemma3"),
            "general.architecture `gemma3` is not supported; llama, qwen2 and qwen3 are",
        ),
        (
            "general.type",
            text("adapter"),
            "general.type `adapter` is not supported; model is",
        ),
        (
            "llama.expert_count",
            Meta::U32(8),
            "llama.expert_count `8` is not supported; 0 is",
        ),
        (
            "llama.attention.causal",
            Meta::Bool(false),
            "llama.attention.causal `false` is not supported; true is",
        ),
        (
            "llama.rope.dimension_count",
            Meta::U32(32),
            "llama.rope.dimension_count `32` is not supported; the size of a head is",
        ),
        (
            "llama.attention.head_count_kv",
            Meta::I32s(vec![2, 4]),
            "llama.attention.head_count_kv `[2.0, 4.0]` is not supported; the same for all layers is",
        ),
        (
            "split.count",
            Meta::U32(2),
            "split.count `2` is not supported; a model in one file is: join the parts with \
             `llama-gguf-split --merge`",
        ),
    ] {
        let refused = refusal(&file.clone().with(key, value));
        assert_eq!(refused, format!("model.gguf: {said}"));
    }
    let same = file
        .clone()
        .with("llama.attention.head_count_kv", Meta::I32s(vec![2, 2]));
    assert!(open(&same.bytes()).is_ok());
    let none = file.clone().with("llama.embedding_length", Meta::U32(0));
    let said = "model.gguf: its metadata, written as config.json, are refused: config.json: hidden_size is 0; \
                it must be between 1 and 1048576";
    assert_eq!(refusal(&none), said);
    let key = "llama.block_count";
    let said = format!("model.gguf has no count `{key}` in its metadata; convert the model again");
    assert_eq!(refusal(&file.clone().without(key)), said);
    assert_eq!(refusal(&file.with(key, text("two"))), said);
}

#[test]
fn a_type_that_is_not_built_is_named_where_the_model_needs_it() {
    let config = config(json!({}));
    let kind = |name: &str| match name {
        "model.layers.1.mlp.up_proj.weight" => Kind::Unread(23),
        _ => Kind::F32,
    };
    let (mut file, _) = GgufFile::of_tensors(&config, &tensors(&config), kind);
    let said = "model.gguf: the type of tensor blk.1.ffn_up.weight, `IQ4_XS` is not supported; F32, F16, BF16, \
                Q8_0, Q6_K, Q5_K, Q4_K, Q5_0 and Q4_0 are";
    assert_eq!(refusal(&file), said);
    let tensor = file.tensors.remove("blk.1.ffn_up.weight").unwrap();
    let said = "model.gguf has no tensor blk.1.ffn_up.weight; convert the model again";
    assert_eq!(refusal(&file), said);
    let (_, kind, bytes) = tensor;
    let unneeded = (vec![2, 3], kind, bytes);
    file.tensors
        .insert("blk.1.unheard_of.weight".into(), unneeded);
    assert_eq!(refusal(&file), said);
    let wide = (vec![512, 128], Kind::F32, vec![0; 512 * 128 * 4]);
    file.tensors.insert("blk.1.ffn_up.weight".into(), wide);
    let said = "model.gguf: tensor blk.1.ffn_up.weight has shape [512, 128], and the metadata ask for [512, 256]; \
                convert the model again";
    assert_eq!(refusal(&file), said);
}
