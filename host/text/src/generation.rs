//! A model's generation settings: the tokens that end an answer, and its makers' suggestions.

use pointsman_executor::prompt::GenerationDefaults;
use serde::Deserialize;

/// `generation_config.json`, or the parts of `config.json` that mean the same.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerationFile {
    eos_token_id: Option<TokenIds>,
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// A number of tokens; some write -1 for all.
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

/// The tokens that end an answer, and the suggestions.
#[derive(Debug)]
pub(super) struct EndsAndDefaults {
    /// Token ids in ascending order.
    pub(super) eos: Vec<u32>,
    pub(super) defaults: GenerationDefaults,
}

impl GenerationFile {
    /// Merges this file, `config.json` and the tokenizer's end-of-sequence token. An answer ends at
    /// any token that one of them names: models that chat often name the end of a turn in one place
    /// only.
    pub(super) fn merge(self, model: Self, eos_token: Option<u32>) -> EndsAndDefaults {
        let named = [self.eos_token_id, model.eos_token_id];
        let mut eos: Vec<u32> = named
            .into_iter()
            .flatten()
            .flat_map(|ids| match ids {
                TokenIds::One(id) => vec![id],
                TokenIds::Many(ids) => ids,
            })
            .chain(eos_token)
            .collect();
        eos.sort_unstable();
        eos.dedup();
        let temperature = match self.do_sample {
            Some(false) => 0.0,
            Some(true) | None => self.temperature.unwrap_or(1.0),
        };
        let top_k = self.top_k.map(|k| u32::try_from(k).unwrap_or(0));
        let defaults = GenerationDefaults {
            temperature,
            top_p: self.top_p.unwrap_or(1.0),
            top_k: top_k.unwrap_or(0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
        };
        EndsAndDefaults { eos, defaults }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(generation: &str, model: &str, eos_token: Option<u32>) -> EndsAndDefaults {
        let parse = |text| serde_json::from_str::<GenerationFile>(text).unwrap();
        parse(generation).merge(parse(model), eos_token)
    }

    #[test]
    fn every_file_may_name_ends() {
        let merged = merge(
            r#"{"eos_token_id": [9, 4]}"#,
            r#"{"eos_token_id": 4}"#,
            Some(2),
        );
        assert_eq!(merged.eos, [2, 4, 9]);
        let none = merge("{}", r#"{"eos_token_id": null}"#, None);
        assert!(none.eos.is_empty());
    }

    #[test]
    fn what_is_not_suggested_leaves_the_distribution_as_it_is() {
        let expected = GenerationDefaults::NEUTRAL;
        assert_eq!(merge("{}", "{}", None).defaults, expected);
        assert_eq!(merge(r#"{"top_k": -1}"#, "{}", None).defaults, expected);
    }

    #[test]
    fn not_sampling_is_temperature_zero() {
        let text = r#"{"do_sample": false, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
            "min_p": 0.1, "repetition_penalty": 1.05}"#;
        let expected = GenerationDefaults {
            temperature: 0.0,
            top_p: 0.9,
            top_k: 20,
            min_p: 0.1,
            repetition_penalty: 1.05,
        };
        assert_eq!(merge(text, "{}", None).defaults, expected);
    }
}
