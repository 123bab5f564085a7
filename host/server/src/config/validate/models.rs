//! Models: those of the flags, else those of the file, else the demo model.

use pointsman_driver::provider::{ModelConfig, ModelSource, SLOTS_MAX, WEIGHTS};
use toml::Spanned;

use super::super::error::{ConfigError, Place, Wrong};
use super::super::file;
use super::super::flags::{Flags, ModelFlag};
use super::Check;
use crate::embedded;

/// The demo model's name.
const DEMO: &str = "demo";

impl Check<'_> {
    pub(super) fn models(
        self,
        given: Vec<Spanned<file::Model>>,
        flags: &Flags,
    ) -> Result<Vec<ModelConfig>, ConfigError> {
        if !flags.models.is_empty() {
            return of_flags(&flags.models);
        }
        if given.is_empty() {
            let source = demo().map_err(|wrong| ConfigError::new(Place::Defaults, wrong))?;
            return Ok(vec![ModelConfig::new(DEMO, source)]);
        }
        let mut names: Vec<String> = Vec::new();
        let mut models = Vec::new();
        for (index, model) in given.into_iter().enumerate() {
            let path = |key: &str| format!("models[{index}].{key}");
            let at = model.span().start;
            let model = model.into_inner();
            let name = self.new_name(&path("name"), model.name, &names)?;
            names.push(name.clone());
            let source = match model.path {
                Some(folder) => ModelSource::Folder(self.source.resolve(folder.get_ref())),
                None => demo().map_err(|wrong| {
                    ConfigError::new(Place::At(self.source.location(at)), wrong)
                })?,
            };
            let default = ModelConfig::new(&name, source);
            models.push(ModelConfig {
                slots: self.number(&path("slots"), model.slots, 1..=SLOTS_MAX, default.slots)?,
                share_weight: self.number(
                    &path("share-weight"),
                    model.share_weight,
                    WEIGHTS,
                    default.share_weight,
                )?,
                ..default
            });
        }
        Ok(models)
    }
}

fn of_flags(flags: &[ModelFlag]) -> Result<Vec<ModelConfig>, ConfigError> {
    let mut models: Vec<ModelConfig> = Vec::new();
    for flag in flags {
        if models.iter().any(|model| model.name == flag.name) {
            let wrong = Wrong::Twice {
                key: "models".to_owned(),
                name: flag.name.clone(),
            };
            return Err(ConfigError::new(Place::Flag("--model"), wrong));
        }
        let source = ModelSource::Folder(flag.folder.clone());
        models.push(ModelConfig::new(&flag.name, source));
    }
    Ok(models)
}

fn demo() -> Result<ModelSource, Wrong> {
    match embedded::demo_model() {
        Some(_) => Ok(ModelSource::Embedded),
        None => Err(Wrong::NoDemoModel),
    }
}

#[cfg(all(test, not(feature = "demo-model")))]
mod tests {
    use super::super::super::Config;
    use super::*;

    #[test]
    fn without_the_demo_model_a_model_has_to_be_named() {
        let error = Config::load(&Flags::default()).unwrap_err();
        let said = "defaults: this build has no demo model: name a model's folder, with `path` \
                    or --model";
        assert_eq!(error.to_string(), said);
        let named = Flags {
            models: vec!["chat=models/chat".parse().unwrap()],
            ..Flags::default()
        };
        let models = Config::load(&named).unwrap().models;
        assert_eq!(models[0].name, "chat");
    }
}
