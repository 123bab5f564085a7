//! The architecture of a model, from the metadata of its GGUF file.
//!
//! The metadata are written as `config.json` would have them, and read as that is, so that sizes have one
//! place where they are checked.

use serde_json::{Map, Value, json};

use super::super::config::{Extra, LlamaConfig};
use super::{GgufConfigError, GgufError, Metadata};

/// The architectures that are built: by llama.cpp's names, and by those of `config.json`.
const ARCHITECTURES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];
/// The architecture whose rows of queries and keys are in llama.cpp's order.
const INTERLEAVED: &str = "llama";
const ARCHITECTURE: &str = "general.architecture";

/// The metadata of an architecture, whose keys begin with its name.
#[derive(Clone, Copy)]
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'a str,
}

impl<'a> Metadata<'a> {
    pub(super) fn config(self) -> Result<LlamaConfig, GgufConfigError> {
        let keys = self.keys()?;
        let json = keys.config_json()?.to_string();
        let parsed = LlamaConfig::parse(json.as_bytes());
        let mut config = parsed.map_err(|source| GgufConfigError::Refused {
            file: self.file.to_owned(),
            source: Box::new(source),
        })?;
        keys.check_heads(&config)?;
        let has = |part: &str| match self.has(&format!("blk.0.{part}.bias")) {
            true => Extra::Present,
            false => Extra::Absent,
        };
        config.qkv_bias = has("attn_q");
        config.output_bias = has("attn_output");
        config.mlp_bias = has("ffn_up");
        if let Some(window) = keys.count("attention.sliding_window")? {
            let window = u32::try_from(window).unwrap_or(u32::MAX);
            config.context_tokens = config.context_tokens.min(window.max(1));
        }
        Ok(config)
    }

    /// Returns true if the rows of queries and keys are in llama.cpp's order.
    pub(super) fn interleaves(self) -> bool {
        matches!(self.text(ARCHITECTURE), Ok(Some(INTERLEAVED)))
    }

    fn has(self, tensor: &str) -> bool {
        self.header.tensors.contains_key(tensor)
    }

    fn keys(self) -> Result<Keys<'a>, GgufError> {
        if let Some(kind) = self.text("general.type")?.filter(|kind| *kind != "model") {
            return self.unsupported("general.type", kind.to_owned(), "model is");
        }
        let architecture = self.text(ARCHITECTURE)?;
        let architecture = architecture.ok_or_else(|| self.wrong(ARCHITECTURE, "text"))?;
        if ARCHITECTURES
            .iter()
            .any(|(known, _)| *known == architecture)
        {
            return Ok(Keys {
                metadata: self,
                architecture,
            });
        }
        let supported = "llama, qwen2 and qwen3 are";
        self.unsupported(ARCHITECTURE, architecture.to_owned(), supported)
    }
}

impl Keys<'_> {
    fn config_json(self) -> Result<Value, GgufError> {
        self.check_choices()?;
        let required = |key: &str| {
            let count = self.count(key)?;
            count.ok_or_else(|| self.metadata.wrong(&self.key(key), "count"))
        };
        let epsilon = self.float("attention.layer_norm_rms_epsilon")?;
        let name = ARCHITECTURES
            .iter()
            .find(|(known, _)| *known == self.architecture);
        let head = match self.metadata.has("output.weight") {
            true => "own",
            false => "tied",
        };
        Ok(json!({
            "architectures": [name.map(|(_, name)| name)],
            "vocab_size": self.rows("token_embd.weight")?,
            "hidden_size": required("embedding_length")?,
            "intermediate_size": required("feed_forward_length")?,
            "num_hidden_layers": required("block_count")?,
            "num_attention_heads": required("attention.head_count")?,
            "num_key_value_heads": self.count("attention.head_count_kv")?,
            "head_dim": self.count("attention.key_length")?,
            "max_position_embeddings": required("context_length")?,
            "rms_norm_eps": epsilon,
            "tie_word_embeddings": head == "tied",
            "rope_parameters": self.rope()?,
        }))
    }

    /// Refuses what would change the results and is not built.
    fn check_choices(self) -> Result<(), GgufError> {
        let unsupported = |key: &str, value: String, supported| {
            self.metadata.unsupported(&self.key(key), value, supported)
        };
        if let Some(experts) = self.count("expert_count")?.filter(|count| *count > 0) {
            return unsupported("expert_count", experts.to_string(), "0 is");
        }
        if self.metadata.flag(&self.key("attention.causal"))? == Some(false) {
            return unsupported("attention.causal", "false".to_owned(), "true is");
        }
        Ok(())
    }

    /// Refuses heads of which parts do not turn, or whose values are of another size.
    fn check_heads(self, config: &LlamaConfig) -> Result<(), GgufError> {
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(size) = self.count(key)?
                && size != config.head_dim as u64
            {
                let supported = "the size of a head is";
                return self
                    .metadata
                    .unsupported(&self.key(key), size.to_string(), supported);
            }
        }
        Ok(())
    }

    /// The rotation, as `rope_parameters` have it.
    fn rope(self) -> Result<Value, GgufError> {
        let mut rope = Map::new();
        let mut put = |key: &str, value: Value| rope.insert(key.to_owned(), value);
        put(
            "rope_theta",
            json!(self.float("rope.freq_base")?.unwrap_or(10_000.0)),
        );
        let factor = self.float("rope.scaling.factor")?;
        let factor = factor.or(self.float("rope.scale_linear")?);
        let factor = factor.filter(|factor| *factor != 0.0 && *factor != 1.0);
        let kind = self.metadata.text(&self.key("rope.scaling.type"))?;
        match (kind, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => {}
            (None | Some("linear"), Some(factor)) => {
                put("rope_type", json!("linear"));
                put("factor", json!(factor));
            }
            (Some("yarn"), factor) => {
                let factor = factor.unwrap_or(1.0);
                put("rope_type", json!("yarn"));
                put("factor", json!(factor));
                let original = self.count("rope.scaling.original_context_length")?;
                put("original_max_position_embeddings", json!(original));
                put(
                    "beta_fast",
                    json!(self.float("rope.scaling.yarn_beta_fast")?),
                );
                put(
                    "beta_slow",
                    json!(self.float("rope.scaling.yarn_beta_slow")?),
                );
                if let Some(part) = self.float("rope.scaling.attn_factor")? {
                    let length = part * (0.1 * factor.max(1.0).ln() + 1.0);
                    put("attention_factor", json!(length));
                }
            }
            (Some(other), _) => {
                let supported = "none, linear and yarn are";
                let key = self.key("rope.scaling.type");
                return self.metadata.unsupported(&key, other.to_owned(), supported);
            }
        }
        Ok(Value::Object(rope))
    }

    /// Rows of a tensor.
    fn rows(self, tensor: &str) -> Result<usize, GgufError> {
        let found = self.metadata.header.tensors.get(tensor);
        let rows = found.and_then(|tensor| tensor.shape.first().copied());
        rows.ok_or_else(|| GgufError::TensorMissing {
            file: self.metadata.file.to_owned(),
            tensor: tensor.to_owned(),
        })
    }

    fn count(self, key: &str) -> Result<Option<u64>, GgufError> {
        self.metadata.count(&self.key(key))
    }

    fn float(self, key: &str) -> Result<Option<f64>, GgufError> {
        self.metadata.float(&self.key(key))
    }

    fn key(self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }
}
