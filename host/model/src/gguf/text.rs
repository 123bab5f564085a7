//! The text side of a model, from the metadata of its GGUF file: the files of Hugging Face's layout, as
//! they would be.
//!
//! What GGUF says of a tokenizer is the name of its kind: how texts are cut into words before they are
//! made of tokens is known for the kinds in [`WORDS`]. For another kind the model's own `tokenizer.json`
//! can be put beside the file.

use std::collections::BTreeMap;

use pointsman_text::TokensAround;
use serde_json::{Map, Value, json};

use super::{GgufError, Metadata, sentencepiece};

/// The files that there is something for.
pub(super) const FILES: [&str; 3] = [TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG];

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const TYPES: &str = "tokenizer.ggml.token_type";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Values of `tokenizer.ggml.token_type`.
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;

/// Names of tokens that end an answer, whether the metadata say so or not: llama.cpp's, but for those of families that are
/// not built.
const ENDS: [&str; 10] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
];
/// Tokens of the metadata that end an answer, by the beginnings of their keys: as for llama.cpp, which counts those around
/// code that is filled in.
const END_KEYS: [&str; 6] = ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"];

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The ways to cut texts into words, by the names in `tokenizer.ggml.pre`.
const WORDS: [(&[&str], Words); 5] = [
    (&["gpt-2", "gpt2"], Words::Gpt2),
    (&["smollm"], Words::DigitsAndGpt2),
    (&["llama-bpe", "llama3", "llama-v3"], Words::Llama3),
    (&["qwen2", "deepseek-r1-qwen"], Words::Qwen2),
    (&["tekken"], Words::Tekken),
];

/// A way to cut texts into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Gpt2,
    DigitsAndGpt2,
    Llama3,
    Qwen2,
    Tekken,
}

/// The tokens of a vocabulary.
pub(super) struct Vocabulary<'a> {
    /// Ids by tokens.
    pub(super) ids: BTreeMap<&'a str, usize>,
    /// Tokens that texts are searched for before they are cut, with their ids, and true if they are shown to
    /// nobody.
    pub(super) added: Vec<(usize, &'a str, bool)>,
}

impl<'a> Metadata<'a> {
    pub(super) fn json(self, name: &str) -> Result<Option<Vec<u8>>, GgufError> {
        let value = match name {
            TOKENIZER => self.tokenizer()?,
            TOKENIZER_CONFIG => self.tokenizer_config()?,
            GENERATION_CONFIG => self.generation_config()?,
            _ => return Ok(None),
        };
        Ok(Some(value.to_string().into_bytes()))
    }

    fn tokenizer(self) -> Result<Value, GgufError> {
        let kind = self.text(MODEL)?.ok_or_else(|| self.wrong(MODEL, "text"))?;
        let vocabulary = self.vocabulary()?;
        let mut tokenizer = match kind {
            "gpt2" => self.byte_level(&vocabulary)?,
            "llama" => sentencepiece::tokenizer(self, &vocabulary)?,
            other => {
                let supported =
                    "gpt2 and llama are: put the model's tokenizer.json beside the file";
                return self.unsupported(MODEL, other.to_owned(), supported);
            }
        };
        let added = vocabulary.added.iter().map(|(id, token, is_special)| {
            json!({
                "id": id, "content": token, "special": is_special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        });
        tokenizer["version"] = json!("1.0");
        tokenizer["added_tokens"] = added.collect();
        tokenizer["post_processor"] = self.around_texts(kind)?;
        Ok(tokenizer)
    }

    fn vocabulary(self) -> Result<Vocabulary<'a>, GgufError> {
        let tokens = self.texts(TOKENS)?;
        let tokens = tokens.ok_or_else(|| self.wrong(TOKENS, "list of texts"))?;
        let types = self.numbers(TYPES)?.unwrap_or_default();
        let mut vocabulary = Vocabulary {
            ids: BTreeMap::new(),
            added: Vec::new(),
        };
        for (id, token) in tokens.iter().enumerate() {
            let kind = types.get(id).copied();
            // An unused one fills the embedding table up; a second one of a name could never be told.
            if kind == Some(UNUSED) || vocabulary.ids.contains_key(&**token) {
                continue;
            }
            vocabulary.ids.insert(token, id);
            if [CONTROL, UNKNOWN].map(Some).contains(&kind) {
                vocabulary.added.push((id, token, true));
            } else if kind == Some(USER_DEFINED) {
                vocabulary.added.push((id, token, false));
            }
        }
        Ok(vocabulary)
    }

    fn byte_level(self, vocabulary: &Vocabulary<'_>) -> Result<Value, GgufError> {
        let pre = self.text(PRE)?.unwrap_or("default");
        let words = WORDS.iter().find(|(names, _)| names.contains(&pre));
        let Some((_, words)) = words else {
            let supported = "gpt-2, smollm, llama-bpe, qwen2 and tekken are: put the model's \
                             tokenizer.json beside the file";
            return self.unsupported(PRE, pre.to_owned(), supported);
        };
        let merges = self.texts(MERGES)?;
        let merges = merges.ok_or_else(|| self.wrong(MERGES, "list of texts"))?;
        let merges = merges.iter().map(|merge| pair(merge));
        let merges: Option<Vec<(&str, &str)>> = merges.collect();
        let merges = merges.ok_or_else(|| GgufError::Damaged {
            file: self.file.to_owned(),
            why: format!("an entry of {MERGES} is no pair"),
        })?;
        Ok(json!({
            "normalizer": words.normalizer(),
            "pre_tokenizer": words.pre_tokenizer(),
            "decoder": byte_level(),
            "model": {
                "type": "BPE", "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": words.ignore_merges(),
                "vocab": vocabulary.ids, "merges": merges,
            },
        }))
    }

    /// The tokens that the tokenizer adds around a text.
    fn around_texts(self, kind: &str) -> Result<Value, GgufError> {
        // As llama.cpp does where the metadata say nothing.
        let begins = kind == "llama"
            || matches!(
                self.text(PRE)?,
                Some("llama-bpe" | "llama3" | "llama-v3" | "tekken")
            );
        let begins = self.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
        let ends = self.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let around = TokensAround {
            begin: self.special("bos")?.filter(|_| begins),
            end: self.special("eos")?.filter(|_| ends),
        };
        Ok(around.post_processor())
    }

    fn tokenizer_config(self) -> Result<Value, GgufError> {
        let mut config = Map::new();
        if let Some(template) = self.text(TEMPLATE)? {
            let for_tools = self.text(&format!("{TEMPLATE}.tool_use"))?;
            let templates = match for_tools {
                None => json!(template),
                Some(for_tools) => json!([
                    {"name": "default", "template": template},
                    {"name": "tool_use", "template": for_tools},
                ]),
            };
            config.insert("chat_template".to_owned(), templates);
        }
        let names = [
            ("bos", "bos"),
            ("eos", "eos"),
            ("pad", "padding"),
            ("unk", "unknown"),
        ];
        for (name, in_file) in names {
            if let Some((_, token)) = self.special(in_file)? {
                config.insert(format!("{name}_token"), json!(token));
            }
        }
        Ok(Value::Object(config))
    }

    fn generation_config(self) -> Result<Value, GgufError> {
        let mut ends: Vec<u64> = Vec::new();
        for name in END_KEYS {
            ends.extend(self.special(name)?.map(|(id, _)| id));
        }
        let tokens = self.texts(TOKENS)?.unwrap_or_default();
        let types = self.numbers(TYPES)?.unwrap_or_default();
        let controls = (0..).zip(tokens.iter().zip(types));
        let named = controls
            .filter(|(_, (token, kind))| **kind == CONTROL && ENDS.contains(&token.as_str()));
        ends.extend(named.map(|(id, _)| id));
        let mut config = json!({"eos_token_id": ends});
        for (name, in_file) in [
            ("temperature", "temp"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
        ] {
            if let Some(number) = self.float(&format!("general.sampling.{in_file}"))? {
                config[name] = json!(number);
            }
        }
        if let Some(count) = self.count("general.sampling.top_k")? {
            config["top_k"] = json!(count);
        }
        Ok(config)
    }

    /// A special token, by the beginning of its key.
    fn special(self, name: &str) -> Result<Option<(u64, &'a str)>, GgufError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.count(&key)? else {
            return Ok(None);
        };
        let tokens = self.texts(TOKENS)?.unwrap_or_default();
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        Ok(token.map(|token| (id, &**token)))
    }
}

// === impl Words ===

impl Words {
    fn normalizer(self) -> Value {
        match self {
            Self::Qwen2 => json!({"type": "NFC"}),
            Self::Gpt2 | Self::DigitsAndGpt2 | Self::Llama3 | Self::Tekken => Value::Null,
        }
    }

    fn pre_tokenizer(self) -> Value {
        let split = |regex: &str| {
            let split = json!({
                "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                "invert": false,
            });
            json!({"type": "Sequence", "pretokenizers": [split, byte_level()]})
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        match self {
            Self::Gpt2 => byte_level_words(),
            Self::DigitsAndGpt2 => {
                json!({"type": "Sequence", "pretokenizers": [digits, byte_level_words()]})
            }
            Self::Llama3 => split(LLAMA_3),
            Self::Qwen2 => split(QWEN_2),
            Self::Tekken => split(TEKKEN),
        }
    }

    /// True if a word that is a token is that token, whatever the merges would make of it.
    fn ignore_merges(self) -> bool {
        match self {
            Self::Llama3 | Self::Tekken => true,
            Self::Gpt2 | Self::DigitsAndGpt2 | Self::Qwen2 => false,
        }
    }
}

/// Bytes as characters, of words that are cut already.
fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
}

/// Bytes as characters, of words as GPT-2 cuts them.
fn byte_level_words() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// The two tokens of a merge. The first may begin with a space.
fn pair(merge: &str) -> Option<(&str, &str)> {
    let mut spaces = merge.match_indices(' ').filter(|(place, _)| *place > 0);
    let (place, _) = spaces.next()?;
    Some((&merge[..place], &merge[place + 1..]))
}

/// The score of each token, by its id; a token without one has the lowest of all.
pub(super) fn scores(metadata: Metadata<'_>) -> Result<&[f64], GgufError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = metadata.numbers(SCORES)?;
    scores.ok_or_else(|| metadata.wrong(SCORES, "list of numbers"))
}

/// The token for what the vocabulary has not.
pub(super) fn unknown(metadata: Metadata<'_>) -> Result<Option<&str>, GgufError> {
    let types = metadata.numbers(TYPES)?.unwrap_or_default();
    let tokens = metadata.texts(TOKENS)?.unwrap_or_default();
    let by_type = types.iter().position(|kind| *kind == UNKNOWN);
    let by_type = by_type.and_then(|id| tokens.get(id));
    let by_id = metadata.special("unknown")?.map(|(_, token)| token);
    Ok(by_id.or(by_type.map(|token| &**token)))
}
