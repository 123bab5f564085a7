//! Models for tests: the demo model, and small ones with random weights.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::config::{Extra, Head, LlamaConfig};
use crate::files::ModelFiles;
use crate::host::HostModel;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// The folder of the demo model.
pub fn demo_folder() -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "..",
        "..",
        "examples",
        "demo-model",
    ]
    .iter()
    .collect()
}

/// The tensors of the demo model.
pub fn demo_tensors() -> Tensors {
    let weights = std::fs::read(demo_folder().join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let tensors = weights.iter().map(|(name, view)| {
        let (pairs, _) = view.data().as_chunks::<2>();
        let values = pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32());
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            values: values.collect(),
        };
        (name.to_owned(), tensor)
    });
    tensors.collect()
}

/// A file of the demo model that is JSON.
pub fn demo_json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(demo_folder().join(name)).unwrap()).unwrap()
}

/// The files of the demo model.
pub fn demo_files() -> ModelFiles {
    ModelFiles::Folder(demo_folder())
}

pub fn demo() -> Arc<HostModel> {
    static MODEL: OnceLock<Arc<HostModel>> = OnceLock::new();
    let load = || Arc::new(HostModel::load(&demo_files()).unwrap());
    Arc::clone(MODEL.get_or_init(load))
}

/// Returns the `config.json` of a small model, with `changes`.
pub fn config(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 99, "hidden_size": 48,
        "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256,
    });
    let (Value::Object(keys), Value::Object(changes)) = (&mut config, changes) else {
        panic!("configurations are objects");
    };
    keys.extend(changes);
    config
}

/// Returns configurations that together have everything a model may have.
pub fn shapes() -> Vec<Value> {
    let llama3 = json!({
        "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    });
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    vec![
        config(json!({})),
        config(json!({"num_key_value_heads": 4, "head_dim": null, "tie_word_embeddings": true})),
        config(json!({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64})),
        config(json!({"attention_bias": true, "mlp_bias": true, "rope_parameters": llama3})),
        config(json!({
            "architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "attention_bias": true,
            "rope_parameters": yarn,
        })),
        config(json!({"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": true})),
        config(json!({
            "hidden_size": 40, "num_attention_heads": 10, "head_dim": 6, "vocab_size": 33,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        })),
    ]
}

/// A tensor that every supported type holds exactly.
#[derive(Clone)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The tensors of a model, by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Makes weights for a configuration that look random: those of seed 0 are those of
/// `tests/families/make.py`.
pub fn tensors(config: &Value, seed: u64) -> Tensors {
    let config = LlamaConfig::parse(config.to_string().as_bytes()).unwrap();
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: Vec<usize>| {
        let values = weights(&name, shape.iter().product(), seed);
        tensors.insert(name, Tensor { shape, values });
    };
    add("model.embed_tokens.weight".into(), vec![vocab, hidden]);
    add("model.norm.weight".into(), vec![hidden]);
    if config.head == Head::Own {
        add("lm_head.weight".into(), vec![vocab, hidden]);
    }
    for layer in 0..config.layers {
        for (name, shape) in layer_tensors(&config) {
            add(format!("model.layers.{layer}.{name}"), shape);
        }
    }
    tensors
}

/// The tensors of a layer, with their shapes.
fn layer_tensors(config: &LlamaConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.q_size(), config.kv_size());
    let linears = [
        ("self_attn.q", q, hidden, config.qkv_bias),
        ("self_attn.k", kv, hidden, config.qkv_bias),
        ("self_attn.v", kv, hidden, config.qkv_bias),
        ("self_attn.o", hidden, q, config.output_bias),
        ("mlp.gate", inner, hidden, config.mlp_bias),
        ("mlp.up", inner, hidden, config.mlp_bias),
        ("mlp.down", hidden, inner, config.mlp_bias),
    ];
    let mut tensors = Vec::new();
    for (name, rows, cols, bias) in linears {
        tensors.push((format!("{name}_proj.weight"), vec![rows, cols]));
        if bias == Extra::Present {
            tensors.push((format!("{name}_proj.bias"), vec![rows]));
        }
    }
    for norm in ["input", "post_attention"] {
        tensors.push((format!("{norm}_layernorm.weight"), vec![hidden]));
    }
    if config.head_norms == Extra::Present {
        for norm in ["q", "k"] {
            let name = format!("self_attn.{norm}_norm.weight");
            tensors.push((name, vec![config.head_dim]));
        }
    }
    tensors
}

/// Numbers of a tensor, which follow from its name: around 1 for norms, and else around 0.
fn weights(name: &str, count: usize, seed: u64) -> Vec<f32> {
    let fnv = |digest: u32, byte: u8| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let seed = u32::try_from(seed).unwrap();
    let digest = name.bytes().fold(0x811c_9dc5 ^ seed, fnv);
    let number = |place: u32| {
        let byte = mixed(place.wrapping_mul(0x9e37_79b1) ^ digest) >> 24;
        let number = byte as f32 - 128.0;
        if name.contains("norm") {
            1.0 + (number / 4.0).floor() / 128.0
        } else {
            number / 512.0
        }
    };
    (0..u32::try_from(count).unwrap()).map(number).collect()
}

/// The last step of `MurmurHash3`.
fn mixed(mut number: u32) -> u32 {
    number ^= number >> 16;
    number = number.wrapping_mul(0x85eb_ca6b);
    number ^= number >> 13;
    number = number.wrapping_mul(0xc2b2_ae35);
    number ^ number >> 16
}

/// Writes a safetensors file of tensors, all of one type.
pub fn safetensors(tensors: &Tensors, dtype: Dtype) -> Vec<u8> {
    mixed_safetensors(tensors, |_| dtype)
}

/// Writes a safetensors file of tensors, each of the type that `dtype` gives to its name.
pub fn mixed_safetensors(tensors: &Tensors, dtype: impl Fn(&str) -> Dtype) -> Vec<u8> {
    let encoded: Vec<(&String, Dtype, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| (name, dtype(name), encode(&tensor.values, dtype(name))))
        .collect();
    let views = encoded.iter().map(|(name, dtype, bytes)| {
        let shape = tensors[*name].shape.clone();
        (name, TensorView::new(*dtype, shape, bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// Writes a tensor's numbers; zeros where no model may have the type.
pub(super) fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let encode = |value: &f32| {
        if dtype == Dtype::BF16 {
            bf16::from_f32(*value).to_le_bytes().to_vec()
        } else if dtype == Dtype::F16 {
            f16::from_f32(*value).to_le_bytes().to_vec()
        } else if dtype == Dtype::F32 {
            value.to_le_bytes().to_vec()
        } else {
            vec![0; dtype.bitsize() / 8]
        }
    };
    values.iter().flat_map(encode).collect()
}

/// Returns files as if they were in the binary.
pub fn embedded(files: Vec<(String, Vec<u8>)>) -> ModelFiles {
    let files = files
        .into_iter()
        .map(|(name, content)| -> (&'static str, &'static [u8]) { (name.leak(), content.leak()) });
    ModelFiles::Embedded(files.collect::<Vec<_>>().leak())
}

/// Returns the files of a model whose weights are in one safetensors file.
pub fn files(config: &Value, weights: Vec<u8>) -> ModelFiles {
    embedded(vec![
        ("config.json".into(), config.to_string().into()),
        ("model.safetensors".into(), weights),
    ])
}

pub fn load(config: &Value, tensors: &Tensors, dtype: Dtype) -> Arc<HostModel> {
    let files = files(config, safetensors(tensors, dtype));
    Arc::new(HostModel::load(&files).unwrap())
}
