//! The files of a model that a server needs, of all that the hub has.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_notation::HubModel;
use serde::Deserialize;

use super::{HubError, is_plain};

/// The weights in one file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The names of the files of weights, by tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// The other files that a server reads, where a model has them.
const SMALL: [&str; 4] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// The files to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelParts {
    /// A folder with one file of weights.
    Single { small: Vec<String> },
    /// A folder with an index of weights.
    Shards { small: Vec<String> },
    /// One GGUF file.
    Gguf(String),
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl ModelParts {
    /// The files that are fetched first.
    pub(super) fn small(&self) -> &[String] {
        match self {
            Self::Single { small } | Self::Shards { small } => small,
            Self::Gguf(_) => &[],
        }
    }

    /// All files that are needed; `index` reads that of the weights.
    pub(super) fn needed(
        &self,
        index: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<BTreeSet<String>, HubError> {
        let mut needed: BTreeSet<String> = self.small().iter().cloned().collect();
        match self {
            Self::Single { .. } => drop(needed.insert(WEIGHTS.to_owned())),
            Self::Gguf(file) => drop(needed.insert(file.clone())),
            Self::Shards { .. } => {
                let index = index().and_then(|json| serde_json::from_slice::<Index>(&json).ok());
                let shards = index
                    .into_iter()
                    .flat_map(|index| index.weight_map.into_values());
                needed.extend(shards.filter(|name| is_plain(name)));
            }
        }
        Ok(needed)
    }
}

/// Chooses among all files of a model.
pub(super) fn of_files(files: &BTreeSet<String>, model: &HubModel) -> Result<ModelParts, HubError> {
    let has = |name: &str| files.contains(name);
    let is_folder = model.file.is_none() && has(CONFIG) && (has(WEIGHTS) || has(INDEX));
    if !is_folder {
        return gguf(files, model);
    }
    let small = [CONFIG].into_iter().chain(SMALL).filter(|name| has(name));
    let mut small: Vec<String> = small.map(str::to_owned).collect();
    if has(WEIGHTS) {
        return Ok(ModelParts::Single { small });
    }
    small.push(INDEX.to_owned());
    Ok(ModelParts::Shards { small })
}

/// The only GGUF file, or the only one of which a part of the name was given.
fn gguf(files: &BTreeSet<String>, model: &HubModel) -> Result<ModelParts, HubError> {
    let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase();
    // Beside the language model there may be one for images.
    let is_model = |name: &&String| {
        let base = base(name);
        is_plain(name) && base.ends_with(".gguf") && !base.contains("mmproj")
    };
    let all: Vec<&String> = files.iter().filter(is_model).collect();
    let part = model.file.as_deref().unwrap_or("").to_lowercase();
    let fitting = all.iter().filter(|name| base(name).contains(&part));
    let fitting: Vec<&&String> = fitting.collect();
    let exact = fitting.iter().find(|name| base(name) == part);
    match (exact, fitting.as_slice()) {
        (Some(file), _) | (None, [file]) => Ok(ModelParts::Gguf((**file).to_string())),
        (None, _) if all.is_empty() => Err(HubError::NoWeights {
            model: model.to_string(),
        }),
        (None, _) => Err(HubError::WhichFile {
            model: model.to_string(),
            repo: model.repo.clone(),
            files: all
                .iter()
                .map(|name| name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(model: &str, files: &[&str]) -> Result<ModelParts, String> {
        let files = files.iter().map(|name| (*name).to_owned()).collect();
        of_files(&files, &model.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn safetensors_come_before_gguf_unless_a_file_is_named() {
        let files = [
            CONFIG,
            WEIGHTS,
            "tokenizer.json",
            "README.md",
            "x-Q8_0.gguf",
            "pytorch_model.bin",
        ];
        let small = vec![CONFIG.to_owned(), "tokenizer.json".to_owned()];
        assert_eq!(chosen("a/b", &files), Ok(ModelParts::Single { small }));
        assert_eq!(
            chosen("a/b:q8_0", &files),
            Ok(ModelParts::Gguf("x-Q8_0.gguf".to_owned()))
        );
    }

    #[test]
    fn shards_are_those_of_the_index() {
        let choice = chosen("a/b", &[CONFIG, INDEX, "1.safetensors", "2.safetensors"]).unwrap();
        let index = br#"{"weight_map": {"x": "1.safetensors", "y": "../2.safetensors"}}"#;
        let needed = choice.needed(|| Some(index.to_vec())).unwrap();
        let needed: Vec<String> = needed.into_iter().collect();
        assert_eq!(needed, ["1.safetensors", CONFIG, INDEX]);
    }

    #[test]
    fn of_several_gguf_files_one_has_to_be_named() {
        let files = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "mmproj-f16.gguf",
            "../Q4_K_M.gguf",
        ];
        let gguf = |name: &str| Ok(ModelParts::Gguf(name.to_owned()));
        assert_eq!(chosen("a/b:Q4_K_M", &files), gguf("m-Q4_K_M.gguf"));
        assert_eq!(chosen("a/b:m-q4_k_s.gguf", &files), gguf("m-Q4_K_S.gguf"));
        assert_eq!(chosen("a/b", &["sub/x.gguf"]), gguf("sub/x.gguf"));
        let said = "a/b: name one of its GGUF files, or a part of its name, as in a/b:Q4_K_M; there are: \
                    m-Q4_K_M.gguf, m-Q4_K_S.gguf";
        assert_eq!(chosen("a/b", &files).unwrap_err(), said);
        let said = "a/b has no weights that can be served: neither safetensors with a config.json, nor GGUF";
        assert_eq!(
            chosen("a/b", &["pytorch_model.bin", CONFIG]).unwrap_err(),
            said
        );
    }
}
