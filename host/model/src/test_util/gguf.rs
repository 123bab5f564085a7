//! GGUF files for tests, written by other code than that which reads them.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers of tests"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use half::{bf16, f16};
use serde_json::Value;

use super::models::{self, Tensor, Tensors};

/// Writes a block, and returns its bytes with the numbers that are in them.
type Write = fn(&[f32]) -> (Vec<u8>, Vec<f32>);

/// A type of tensors that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4K,
    /// A type that nobody reads, by its number: its bytes are zeros.
    Unread(u32),
}

/// A value of the metadata.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// A file that is put together.
#[derive(Clone, Debug)]
pub struct GgufFile {
    pub version: u32,
    pub metadata: BTreeMap<String, Meta>,
    /// Tensors by their names in the file: shape, rows first, type and bytes.
    pub tensors: BTreeMap<String, (Vec<usize>, Kind, Vec<u8>)>,
}

impl Kind {
    pub fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Unread(number) => number,
        }
    }

    /// Writes numbers, and returns the bytes with the numbers that are in them.
    pub fn encode(self, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let each = |write: &dyn Fn(f32) -> (Vec<u8>, f32)| {
            let written: Vec<(Vec<u8>, f32)> = values.iter().map(|value| write(*value)).collect();
            let (bytes, kept): (Vec<_>, Vec<_>) = written.into_iter().unzip();
            (bytes.concat(), kept)
        };
        let blocks = |size: usize, write: Write| {
            assert!(values.len().is_multiple_of(size), "whole blocks");
            let written: Vec<_> = values.chunks(size).map(write).collect();
            let (bytes, kept): (Vec<_>, Vec<_>) = written.into_iter().unzip();
            (bytes.concat(), kept.concat())
        };
        match self {
            Self::F32 => each(&|value| (value.to_le_bytes().to_vec(), value)),
            Self::F16 => each(&|value| {
                let value = f16::from_f32(value);
                (value.to_le_bytes().to_vec(), value.to_f32())
            }),
            Self::Bf16 => each(&|value| {
                let value = bf16::from_f32(value);
                (value.to_le_bytes().to_vec(), value.to_f32())
            }),
            Self::Q8_0 => blocks(32, q8_0),
            Self::Q4K => blocks(256, q4_k),
            Self::Unread(_) => (vec![0; values.len()], values.to_vec()),
        }
    }
}

/// The demo model, its rows in one type.
pub fn demo(kind: Kind) -> GgufFile {
    let json = models::demo_json;
    let (file, _) = GgufFile::of_model(&json("config.json"), &models::demo_tensors(), kind);
    let config = json("tokenizer_config.json");
    file.with_tokenizer(&json("tokenizer.json"), &config, "smollm")
}

/// Rounds to a scale of 16 bits by which `steps` steps reach `largest`.
fn scale(largest: f32, steps: f32) -> f16 {
    f16::from_f32(largest / steps)
}

fn q8_0(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let largest = values
        .iter()
        .fold(0.0_f32, |most, value| most.max(value.abs()));
    let scale = scale(largest, 127.0);
    let steps = values.iter().map(|value| match scale.to_f32() {
        0.0 => 0,
        scale => (value / scale).round().clamp(-127.0, 127.0) as i8,
    });
    let steps: Vec<i8> = steps.collect();
    let bytes = steps.iter().map(|step| step.cast_unsigned());
    let kept = steps.iter().map(|step| f32::from(*step) * scale.to_f32());
    (
        scale.to_le_bytes().into_iter().chain(bytes).collect(),
        kept.collect(),
    )
}

/// Eight parts of 32 numbers, each with a scale and an offset of six bits.
fn q4_k(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let parts: Vec<&[f32]> = values.chunks(32).collect();
    let lowest = |part: &&[f32]| part.iter().fold(0.0_f32, |low, value| low.min(*value));
    let highest = |part: &&[f32]| part.iter().fold(0.0_f32, |high, value| high.max(*value));
    let offsets: Vec<f32> = parts.iter().map(|part| -lowest(part)).collect();
    let scales: Vec<f32> = parts
        .iter()
        .map(|part| (highest(part) - lowest(part)) / 15.0)
        .collect();
    let most = |list: &[f32]| list.iter().fold(0.0_f32, |most, value| most.max(*value));
    let (scale_all, offset_all) = (scale(most(&scales), 63.0), scale(most(&offsets), 63.0));
    let six_bits = |value: f32, all: f16| (value / all.to_f32()).round().clamp(0.0, 63.0) as u8;
    let scales: Vec<u8> = scales.iter().map(|it| six_bits(*it, scale_all)).collect();
    let offsets: Vec<u8> = offsets.iter().map(|it| six_bits(*it, offset_all)).collect();
    let mut packed = [0_u8; 12];
    for part in 0..4 {
        packed[part] = scales[part] + ((scales[part + 4] >> 4) << 6);
        packed[part + 4] = offsets[part] + ((offsets[part + 4] >> 4) << 6);
        packed[part + 8] = (scales[part + 4] % 16) + ((offsets[part + 4] % 16) << 4);
    }
    let mut steps = Vec::new();
    let mut kept = Vec::new();
    for (part, values) in parts.iter().enumerate() {
        let scale = scale_all.to_f32() * f32::from(scales[part]);
        let offset = offset_all.to_f32() * f32::from(offsets[part]);
        for value in *values {
            let step = ((value + offset) / scale).round().clamp(0.0, 15.0) as u8;
            steps.push(step);
            kept.push(scale * f32::from(step) - offset);
        }
    }
    let mut bytes = [scale_all.to_le_bytes(), offset_all.to_le_bytes()].concat();
    bytes.extend(packed);
    for pair in steps.chunks(64) {
        bytes.extend((0..32).map(|place| pair[place] + (pair[place + 32] << 4)));
    }
    (bytes, kept)
}

// === Files ===

impl GgufFile {
    /// A file of a model in Hugging Face's layout, whose matrices are of one type; and the model's tensors
    /// as the file has them.
    pub fn of_model(config: &Value, tensors: &Tensors, kind: Kind) -> (Self, Tensors) {
        let of_matrices = |name: &str| match tensors[name].shape.len() {
            1 => Kind::F32,
            _ => kind,
        };
        Self::of_tensors(config, tensors, of_matrices)
    }

    /// As [`Self::of_model`], with the type of each tensor.
    pub fn of_tensors(
        config: &Value,
        tensors: &Tensors,
        kind: impl Fn(&str) -> Kind,
    ) -> (Self, Tensors) {
        let mut file = Self {
            version: 3,
            metadata: architecture(config),
            tensors: BTreeMap::new(),
        };
        let mut kept = Tensors::new();
        for (name, tensor) in tensors {
            let kind = kind(name);
            let heads = match (&config["architectures"][0], name) {
                (Value::String(family), name) if family == "LlamaForCausalLM" => {
                    let key = match (name.contains(".q_proj."), name.contains(".k_proj.")) {
                        (true, _) => Some("num_attention_heads"),
                        (_, true) => Some("num_key_value_heads"),
                        _ => None,
                    };
                    key.map(|key| usize::try_from(config[key].as_u64().unwrap()).unwrap())
                }
                _ => None,
            };
            // Rows are moved as a whole, so that what is kept of each is known by its place.
            let written = reordered(tensor, heads, Order::ToGguf);
            let (bytes, values) = kind.encode(&written.values);
            let shape = tensor.shape.clone();
            let of_file = Tensor {
                shape: shape.clone(),
                values,
            };
            kept.insert(name.clone(), reordered(&of_file, heads, Order::FromGguf));
            file.tensors.insert(named(name), (shape, kind, bytes));
        }
        (file, kept)
    }

    pub fn with(mut self, key: &str, value: Meta) -> Self {
        self.metadata.insert(key.to_owned(), value);
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.metadata.remove(key).unwrap();
        self
    }

    /// Takes over the tokenizer and its settings of a folder with a byte-level BPE.
    pub fn with_tokenizer(self, tokenizer: &Value, config: &Value, pre: &str) -> Self {
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let id = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let mut tokens: BTreeMap<usize, (String, i32)> = BTreeMap::new();
        tokens.extend(
            vocabulary
                .iter()
                .map(|(token, it)| (id(it), (token.clone(), 1))),
        );
        tokens.extend(added.iter().map(|token| {
            let kind = if token["special"] == true { 3 } else { 4 };
            (
                id(&token["id"]),
                (token["content"].as_str().unwrap().to_owned(), kind),
            )
        }));
        let of = |text: &str| {
            let mut found = tokens.iter().filter(|(_, (token, _))| token == text);
            Meta::U32(u32::try_from(*found.next().unwrap().0).unwrap())
        };
        let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
        let merges = merges.map(|pair| {
            let part = |idx: usize| pair[idx].as_str().unwrap();
            format!("{} {}", part(0), part(1))
        });
        let special = |name: &str| config[name].as_str();
        let mut file = self
            .with("tokenizer.ggml.model", Meta::Text("gpt2".into()))
            .with("tokenizer.ggml.pre", Meta::Text(pre.into()))
            .with("tokenizer.ggml.merges", Meta::Texts(merges.collect()));
        for name in ["bos", "eos"] {
            if let Some(token) = special(&format!("{name}_token")) {
                file = file.with(&format!("tokenizer.ggml.{name}_token_id"), of(token));
            }
        }
        if let Some(template) = special("chat_template") {
            file = file.with("tokenizer.chat_template", Meta::Text(template.into()));
        }
        let (tokens, types) = tokens.into_values().unzip();
        file.with("tokenizer.ggml.tokens", Meta::Texts(tokens))
            .with("tokenizer.ggml.token_type", Meta::I32s(types))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            value.put(&mut out);
        }
        let mut data = Vec::new();
        for (name, (shape, kind, bytes)) in &self.tensors {
            put_text(&mut out, name);
            out.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
            for size in shape.iter().rev() {
                out.extend((*size as u64).to_le_bytes());
            }
            out.extend(kind.number().to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }

    /// Writes the file into a folder.
    pub fn write(&self, folder: &std::path::Path) -> PathBuf {
        let path = folder.join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }
}

impl Meta {
    fn put(&self, out: &mut Vec<u8>) {
        let mut number = |kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U32(value) => number(4, &value.to_le_bytes()),
            Self::I32(value) => number(5, &value.to_le_bytes()),
            Self::F32(value) => number(6, &value.to_le_bytes()),
            Self::Bool(value) => number(7, &[u8::from(*value)]),
            Self::U64(value) => number(10, &value.to_le_bytes()),
            Self::Text(text) => {
                number(8, &[]);
                put_text(out, text);
            }
            Self::Texts(texts) => {
                number(9, &8_u32.to_le_bytes());
                out.extend((texts.len() as u64).to_le_bytes());
                texts.iter().for_each(|text| put_text(out, text));
            }
            Self::I32s(numbers) => {
                number(9, &5_u32.to_le_bytes());
                out.extend((numbers.len() as u64).to_le_bytes());
                numbers.iter().for_each(|it| out.extend(it.to_le_bytes()));
            }
            Self::F32s(numbers) => {
                number(9, &6_u32.to_le_bytes());
                out.extend((numbers.len() as u64).to_le_bytes());
                numbers.iter().for_each(|it| out.extend(it.to_le_bytes()));
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The metadata for a `config.json` without scaling of positions.
fn architecture(config: &Value) -> BTreeMap<String, Meta> {
    let family = config["architectures"][0].as_str().unwrap();
    let name = match family {
        "Qwen2ForCausalLM" => "qwen2",
        "Qwen3ForCausalLM" => "qwen3",
        _ => "llama",
    };
    let mut metadata = BTreeMap::new();
    metadata.insert("general.architecture".to_owned(), Meta::Text(name.into()));
    let mut put = |key: &str, value| metadata.insert(format!("{name}.{key}"), value);
    for (key, from) in [
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("rope.dimension_count", "head_dim"),
        ("context_length", "max_position_embeddings"),
    ] {
        if let Some(number) = config[from].as_u64() {
            put(key, Meta::U32(u32::try_from(number).unwrap()));
        }
    }
    let theta = config["rope_theta"].as_f64();
    let epsilon = config["rms_norm_eps"].as_f64().unwrap_or(1e-6);
    put(
        "rope.freq_base",
        Meta::F32(theta.unwrap_or(10_000.0) as f32),
    );
    put(
        "attention.layer_norm_rms_epsilon",
        Meta::F32(epsilon as f32),
    );
    metadata
}

/// The name in GGUF of a tensor in Hugging Face's layout.
fn named(name: &str) -> String {
    let replaced = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let mut name = name.to_owned();
    for (from, to) in replaced {
        // Whole parts of the name only: one begins as another ends.
        let dotted = format!(".{name}").replace(&format!(".{from}."), &format!(".{to}."));
        dotted[1..].clone_into(&mut name);
    }
    name
}

/// The direction in which rows of heads are put into another order.
#[derive(Clone, Copy)]
enum Order {
    ToGguf,
    FromGguf,
}

/// Rows of each head in llama.cpp's order, in which row `i` of the first half is followed by row `i` of the
/// second; or back.
fn reordered(tensor: &Tensor, heads: Option<usize>, order: Order) -> Tensor {
    let Some(heads) = heads else {
        return tensor.clone();
    };
    let rows = tensor.shape[0];
    let cols = tensor.values.len() / rows;
    let (head_rows, half) = (rows / heads, rows / heads / 2);
    let mut values = vec![0.0; tensor.values.len()];
    for row in 0..rows {
        let (head, within) = (row / head_rows, row % head_rows);
        let alternating = head * head_rows + 2 * (within % half) + within / half;
        let (from, to) = match order {
            Order::ToGguf => (row, alternating),
            Order::FromGguf => (alternating, row),
        };
        values[to * cols..(to + 1) * cols].copy_from_slice(&tensor.values[from * cols..][..cols]);
    }
    Tensor {
        shape: tensor.shape.clone(),
        values,
    }
}
