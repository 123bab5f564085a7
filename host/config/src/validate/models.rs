//! Models and executors: those of the flags, else those of the file, else the demo model.

use std::ops::RangeInclusive;

use pointsman_core::Micros;
use pointsman_driver::provider::{
    EXECUTOR_QUEUE_MAX, ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource, RUNNING,
    SLOTS_MAX, UNLOAD_DELAY_MAX, WEIGHTS,
};
use pointsman_local::DeviceConfig;
use pointsman_notation::NoHubModel;
use pointsman_notation::Time;
use toml::Spanned;

use super::Check;
use crate::error::{ConfigError, Place, Wrong};
use crate::file;
use crate::flags::{Flags, ModelFlag, source};
use crate::fleet;

/// The description of a model on a hub.
const HUB_MODEL: &str = "a model on the hub, as in org/name, org/name:Q4_K_M or org/name@revision";
/// The demo model's name.
const DEMO: &str = "demo";
const UNLOAD_DELAY: RangeInclusive<Time> =
    Time::from_micros(0)..=Time::from_micros(UNLOAD_DELAY_MAX.0);

/// The servers elsewhere that a configuration has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Elsewhere {
    None,
    Some,
}

/// The models, and the executors that serve them.
#[derive(Default)]
pub(super) struct Served {
    pub(super) models: Vec<ModelConfig>,
    pub(super) executors: Vec<ExecutorConfig>,
}

impl Check<'_> {
    /// The models with their executors. An executor is described by a table of its own, or by the
    /// table of the one model that it serves. Where there is nothing but servers elsewhere, there are
    /// neither.
    pub(super) fn served(
        self,
        models: Vec<Spanned<file::ModelTable>>,
        executors: Vec<Spanned<file::ExecutorTable>>,
        devices: &[DeviceConfig],
        (flags, elsewhere): (&Flags, Elsewhere),
    ) -> Result<Served, ConfigError> {
        if !flags.models.is_empty() {
            return of_flags(&flags.models);
        }
        if flags.fleet.is_some() {
            return Ok(Served {
                models: self.models(&[])?,
                executors: fleet::executors(devices, DEMO),
            });
        }
        if models.is_empty() && executors.is_empty() && elsewhere == Elsewhere::Some {
            return Ok(Served::default());
        }
        let mut served = Served {
            models: self.models(&models)?,
            executors: Vec::new(),
        };
        let has_own_tables = |name: &str| {
            let mut tables = executors
                .iter()
                .flat_map(|table| table.get_ref().models.get_ref());
            tables.any(|model| model.get_ref() == name)
        };
        for (index, table) in models.into_iter().enumerate() {
            let path = |key: &str| format!("models[{index}].{key}");
            let table = table.into_inner();
            if !has_own_tables(table.name.get_ref()) {
                let executor = self.executor_of_model(&path, table, (&served, devices))?;
                served.executors.push(executor);
            } else if let Some((key, offset)) = table.first_term() {
                let model = table.name.into_inner();
                let key = path(key);
                let place = Place::At(self.source.location(offset));
                return Err(ConfigError::new(
                    place,
                    Wrong::TermsElsewhere { key, model },
                ));
            }
        }
        if executors.is_empty() && served.executors.is_empty() {
            served.executors.push(ExecutorConfig::new(DEMO));
        }
        for (index, table) in executors.into_iter().enumerate() {
            let path = |key: &str| format!("executors[{index}].{key}");
            let executor = self.executor(&path, table.into_inner(), (&served, devices))?;
            served.executors.push(executor);
        }
        Ok(served)
    }

    fn models(self, given: &[Spanned<file::ModelTable>]) -> Result<Vec<ModelConfig>, ConfigError> {
        if given.is_empty() {
            let none = || ConfigError::new(Place::Defaults, Wrong::NoDemoModel);
            let source = self.here.demo.clone().ok_or_else(none)?;
            return Ok(vec![ModelConfig::new(DEMO, source)]);
        }
        let mut models: Vec<ModelConfig> = Vec::new();
        for (index, table) in given.iter().enumerate() {
            let path = |key: &str| format!("models[{index}].{key}");
            let file::ModelTable {
                name: given_name,
                running_max,
                ..
            } = table.get_ref();
            let name = self.name(&path("name"), given_name)?;
            if models.iter().any(|known| known.name == name) {
                let key = path("name");
                return Err(self.at(given_name, Wrong::SecondModel { key, model: name }));
            }
            let source = self.place(&path, table)?;
            let key = path("running-max");
            models.push(ModelConfig {
                name,
                source,
                running_max: self.number_if(&key, running_max.as_ref(), RUNNING)?,
            });
        }
        Ok(models)
    }

    /// The place of a model's files.
    fn place(
        self,
        path: &dyn Fn(&str) -> String,
        table: &Spanned<file::ModelTable>,
    ) -> Result<ModelSource, ConfigError> {
        let given = table.get_ref();
        let key = path("dummy-seed");
        let seed = self.number_if(&key, given.dummy_seed.as_ref(), 0..=u32::MAX)?;
        match (&given.path, &given.hub, &given.dummy_seed) {
            (Some(_), Some(hub), _) => {
                let key = path("hub");
                Err(self.at(hub, Wrong::TwoPlaces { key }))
            }
            (Some(given), None, _) => Ok(source(self.source.resolve(given.get_ref()), seed)),
            (None, _, Some(given)) => Err(self.at(given, Wrong::SeedAlone { key })),
            (None, Some(hub), None) => match hub.get_ref().parse() {
                Ok(model) => Ok(ModelSource::Hub(model)),
                Err(NoHubModel) => Err(self.value(&path("hub"), hub, HUB_MODEL)),
            },
            (None, None, None) => {
                let demo = self.here.demo.clone();
                demo.ok_or_else(|| self.at(table, Wrong::NoDemoModel))
            }
        }
    }

    /// The executor that the table of a model describes.
    fn executor_of_model(
        self,
        path: &dyn Fn(&str) -> String,
        table: file::ModelTable,
        (served, devices): (&Served, &[DeviceConfig]),
    ) -> Result<ExecutorConfig, ConfigError> {
        let others = served.executor_names();
        let name = table.executor.clone();
        let name = name.map(|name| self.new_name(&path("executor"), name, &others));
        Ok(ExecutorConfig {
            name: name.transpose()?,
            models: vec![table.name.get_ref().clone()],
            device: self.device(&path("device"), table.device.as_ref(), devices)?,
            terms: self.terms(path, table.into())?,
        })
    }

    /// The executor that a table of its own describes.
    fn executor(
        self,
        path: &dyn Fn(&str) -> String,
        table: file::ExecutorTable,
        (served, devices): (&Served, &[DeviceConfig]),
    ) -> Result<ExecutorConfig, ConfigError> {
        let others = served.executor_names();
        let name = self.new_name(&path("name"), table.name.clone(), &others)?;
        let known: Vec<String> = served.models.iter().map(|it| it.name.clone()).collect();
        let key = path("models");
        let mut models: Vec<String> = Vec::new();
        for model in table.models.get_ref() {
            let name = self.new_name(&key, model.clone(), &models)?;
            if !known.contains(&name) {
                return Err(self.at(model, Wrong::UnknownModel { key, name, known }));
            }
            models.push(name);
        }
        if models.is_empty() {
            let none = Spanned::new(table.models.span(), "[]".to_owned());
            return Err(self.value(&key, &none, "the name of at least one model"));
        }
        Ok(ExecutorConfig {
            name: Some(name),
            models,
            device: self.device(&path("device"), table.device.as_ref(), devices)?,
            terms: self.terms(path, table.into())?,
        })
    }

    fn device(
        self,
        key: &str,
        given: Option<&Spanned<String>>,
        devices: &[DeviceConfig],
    ) -> Result<Option<String>, ConfigError> {
        let Some(given) = given else { return Ok(None) };
        let name = given.get_ref().clone();
        if devices.iter().any(|device| device.name == name) {
            return Ok(Some(name));
        }
        let known = devices.iter().map(|device| device.name.clone()).collect();
        let key = key.to_owned();
        Err(self.at(given, Wrong::UnknownDevice { key, name, known }))
    }

    pub(super) fn terms(
        self,
        path: &dyn Fn(&str) -> String,
        given: file::Terms,
    ) -> Result<ExecutorTerms, ConfigError> {
        let default = ExecutorTerms::default();
        let number = |key: &str, given, range: RangeInclusive<u32>, default| {
            self.number(&path(key), given, range, default)
        };
        let weight = default.share_weight;
        let queue = 0..=EXECUTOR_QUEUE_MAX;
        let models_max = given.models_max.as_ref();
        let models_max = self.number_if(&path("models-max"), models_max, RUNNING)?;
        let delay = self.within(
            &path("model-unload-delay"),
            given.model_unload_delay,
            UNLOAD_DELAY,
        )?;
        let delay = delay.map(|time| Micros(time.as_micros()));
        Ok(ExecutorTerms {
            slots: number("slots", given.slots, 1..=SLOTS_MAX, default.slots)?,
            share_weight: number("share-weight", given.share_weight, WEIGHTS, weight)?,
            group: number("group", given.group, 0..=u32::MAX, default.group)?,
            queue: number("queue", given.queue, queue, default.queue)?,
            preemptible: given
                .preemptible
                .map_or(default.preemptible, Spanned::into_inner),
            models_max,
            model_unload_delay: ExecutorTerms::unload_delay(delay, models_max),
        })
    }
}

// === impl Served ===

impl Served {
    pub(super) fn executor_names(&self) -> Vec<String> {
        let names = self.executors.iter();
        names.filter_map(|executor| executor.name.clone()).collect()
    }
}

// === impl the tables ===

impl file::ModelTable {
    /// The first key that describes an executor, with its place.
    fn first_term(&self) -> Option<(&'static str, usize)> {
        let texts = [("executor", &self.executor), ("device", &self.device)];
        let numbers = [
            ("slots", &self.slots),
            ("share-weight", &self.share_weight),
            ("group", &self.group),
            ("queue", &self.queue),
        ];
        let (delay, preemptible) = (&self.model_unload_delay, &self.preemptible);
        let texts = texts.map(|(key, given)| (key, given.as_ref().map(|it| it.span().start)));
        let numbers = numbers.map(|(key, given)| (key, given.as_ref().map(|it| it.span().start)));
        let rest = [
            (
                "preemptible",
                preemptible.as_ref().map(|it| it.span().start),
            ),
            (
                "model-unload-delay",
                delay.as_ref().map(|it| it.span().start),
            ),
        ];
        let all = texts.into_iter().chain(numbers).chain(rest);
        let given = all.filter_map(|(key, offset)| Some((key, offset?)));
        given.min_by_key(|(_, offset)| *offset)
    }
}

impl From<file::ModelTable> for file::Terms {
    fn from(table: file::ModelTable) -> Self {
        Self {
            slots: table.slots,
            share_weight: table.share_weight,
            group: table.group,
            queue: table.queue,
            preemptible: table.preemptible,
            models_max: None,
            model_unload_delay: table.model_unload_delay,
        }
    }
}

impl From<file::ExecutorTable> for file::Terms {
    fn from(table: file::ExecutorTable) -> Self {
        Self {
            slots: table.slots,
            share_weight: table.share_weight,
            group: table.group,
            queue: table.queue,
            preemptible: table.preemptible,
            models_max: table.models_max,
            model_unload_delay: table.model_unload_delay,
        }
    }
}

// === The flags, and the demo model ===

fn of_flags(flags: &[ModelFlag]) -> Result<Served, ConfigError> {
    let mut served = Served {
        models: Vec::new(),
        executors: Vec::new(),
    };
    for flag in flags {
        if served.models.iter().any(|model| model.name == flag.name) {
            let wrong = Wrong::Twice {
                key: "models".to_owned(),
                name: flag.name.clone(),
            };
            return Err(ConfigError::new(Place::Flag("--model"), wrong));
        }
        let source = flag.source.clone();
        served.models.push(ModelConfig::new(&flag.name, source));
        served.executors.push(ExecutorConfig::new(&flag.name));
    }
    Ok(served)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pointsman_notation::TomlText;

    use super::super::{self as validate, Here};
    use super::*;

    #[test]
    fn without_the_demo_model_a_model_has_to_be_named() {
        let here = Here {
            demo: None,
            ..Here::bare()
        };
        let of = |flags: &Flags, text: &str| {
            let source = TomlText::new(Path::new("pointsman.toml"), text);
            validate::config(&source, source.parse()?, flags, &here)
        };
        let said = "this build has no demo model: name a model's folder or GGUF file, with `path` or --model";
        let error = of(&Flags::default(), "").unwrap_err();
        assert_eq!(error.to_string(), format!("defaults: {said}"));
        let error = of(&Flags::default(), "[[models]]\nname = 'demo'").unwrap_err();
        let place = "pointsman.toml:1:1: ";
        assert_eq!(error.to_string(), format!("{place}{said}"));
        let named = Flags {
            models: vec!["chat=models/chat".parse().unwrap()],
            ..Flags::default()
        };
        assert_eq!(of(&named, "").unwrap().local.models[0].name, "chat");
    }
}
