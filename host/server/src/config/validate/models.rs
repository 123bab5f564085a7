//! Models: those of the flags, else those of the file, else the demo model.

use std::ops::RangeInclusive;

use pointsman_driver::provider::{
    EXECUTOR_QUEUE_MAX, ExecutorTerms, ModelConfig, ModelSource, SLOTS_MAX, WEIGHTS,
};
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
        let mut models: Vec<ModelConfig> = Vec::new();
        for (index, model) in given.into_iter().enumerate() {
            let path = |key: &str| format!("models[{index}].{key}");
            let name = self.name(&path("name"), &model.get_ref().name)?;
            let same = models.iter().find(|known| known.name == name);
            let source = self.source_of(&path, &model, same)?;
            let executor = model.get_ref().executor.clone();
            let others: Vec<String> = models.iter().filter_map(|it| it.executor.clone()).collect();
            let executor = executor.map(|name| self.new_name(&path("executor"), name, &others));
            models.push(ModelConfig {
                name,
                source,
                executor: executor.transpose()?,
                terms: self.terms(&path, model.into_inner())?,
            });
        }
        Ok(models)
    }

    /// The files of a model. The same model in another table, `same`, is another executor for it.
    fn source_of(
        self,
        path: &dyn Fn(&str) -> String,
        model: &Spanned<file::Model>,
        same: Option<&ModelConfig>,
    ) -> Result<ModelSource, ConfigError> {
        let file::Model {
            name,
            path: folder,
            executor,
            ..
        } = model.get_ref();
        let named = folder
            .as_ref()
            .map(|folder| ModelSource::Folder(self.source.resolve(folder.get_ref())));
        match (same, folder, named) {
            (Some(_), ..) if executor.is_none() => {
                let key = path("name");
                let model = name.get_ref().clone();
                Err(self.at(name, Wrong::SecondExecutor { key, model }))
            }
            (Some(same), Some(folder), Some(named)) if same.source != named => {
                let expected = "the path that the model's first table has, or none";
                Err(self.value(&path("path"), folder, expected))
            }
            (Some(same), ..) => Ok(same.source.clone()),
            (None, _, Some(named)) => Ok(named),
            (None, _, None) => demo().map_err(|wrong| self.at(model, wrong)),
        }
    }

    fn terms(
        self,
        path: &dyn Fn(&str) -> String,
        given: file::Model,
    ) -> Result<ExecutorTerms, ConfigError> {
        let default = ExecutorTerms::default();
        let number = |key: &str, given, range: RangeInclusive<u32>, default| {
            self.number(&path(key), given, range, default)
        };
        let queue = 0..=EXECUTOR_QUEUE_MAX;
        Ok(ExecutorTerms {
            slots: number("slots", given.slots, 1..=SLOTS_MAX, default.slots)?,
            share_weight: number(
                "share-weight",
                given.share_weight,
                WEIGHTS,
                default.share_weight,
            )?,
            group: number("group", given.group, 0..=u32::MAX, default.group)?,
            queue: number("queue", given.queue, queue, default.queue)?,
            preemptible: given.preemptible.unwrap_or(default.preemptible),
        })
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
