//! Names of models on a Hugging Face hub.

use std::fmt;
use std::str::FromStr;

/// The revision of a model that names none.
const MAIN: &str = "main";
/// The most characters of a part of a name.
const PART_CHARS_MAX: usize = 96;

/// A model on a Hugging Face hub: `ORG/NAME`, `ORG/NAME:FILE` or `ORG/NAME@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The maker and the model's name there, as in `org/name`.
    pub repo: String,
    /// A part of the name of the one GGUF file that is meant, such as `Q4_K_M`; absent: safetensors, or the only
    /// GGUF file.
    pub file: Option<String>,
    /// A branch, a tag or a commit.
    pub revision: String,
}

/// A text that names no model on a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a model on the hub, as in org/name, org/name:Q4_K_M or org/name@revision")]
pub struct NoHubModel;

impl HubModel {
    /// The model's name without its maker's.
    #[must_use]
    pub fn name(&self) -> &str {
        self.repo.split_once('/').map_or("", |(_, name)| name)
    }

    /// The maker's name.
    #[must_use]
    pub fn maker(&self) -> &str {
        self.repo.split_once('/').map_or("", |(maker, _)| maker)
    }
}

impl FromStr for HubModel {
    type Err = NoHubModel;

    fn from_str(text: &str) -> Result<Self, NoHubModel> {
        let (text, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let (repo, file) = match text.split_once(':') {
            Some((repo, file)) => (repo, Some(file.to_owned())),
            None => (text, None),
        };
        let (maker, name) = repo.split_once('/').ok_or(NoHubModel)?;
        let is_revision = revision.split('/').all(is_part);
        let all = [maker, name].into_iter().chain(file.as_deref());
        if !is_revision || !all.into_iter().all(is_part) {
            return Err(NoHubModel);
        }
        Ok(Self {
            repo: repo.to_owned(),
            file,
            revision: revision.to_owned(),
        })
    }
}

/// Returns true for what the hub lets a name be made of, which no path climbs out by.
fn is_part(part: &str) -> bool {
    let is_known = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    let is_short = (1..=PART_CHARS_MAX).contains(&part.len());
    is_short && part.chars().all(is_known) && !part.starts_with(['.', '-']) && !part.contains("..")
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(file) = &self.file {
            write!(f, ":{file}")?;
        }
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_with_its_maker_and_perhaps_a_file_and_a_revision() {
        for (text, file, revision) in [
            ("org/name", None, "main"),
            ("org/name-1.5B_x:Q4_K_M", Some("Q4_K_M"), "main"),
            ("org/name@refs/pr/7", None, "refs/pr/7"),
            ("org/name:a.gguf@v1.0", Some("a.gguf"), "v1.0"),
        ] {
            let model: HubModel = text.parse().unwrap();
            assert_eq!(model.maker(), "org");
            assert_eq!((model.file.as_deref(), &*model.revision), (file, revision));
            assert_eq!(model.to_string(), text);
        }
        for text in [
            "name",
            "a/b/c",
            "/name",
            "org/",
            "../name",
            "org/..",
            "./name",
            "org/na me",
            "org/n:a/b",
            "org/name@",
            "org/name@../x",
            "~/name",
            "-org/name",
        ] {
            assert_eq!(text.parse::<HubModel>(), Err(NoHubModel), "{text}");
        }
    }
}
