//! The workloads of a search, each in two parts: one that is searched, and one that is held out.
//!
//! | workload | searched | held out |
//! |---|---|---|
//! | a trace, a journal | the first two thirds of its requests | the rest |
//! | a generator, ServeGen clients | the first seeds | as many seeds after them |
//! | of `--held-out` | nothing | all of it |
//!
//! With `--held-out` the others are searched whole.

use anyhow::{Result, ensure};
use pointsman_component::EmbeddedPolicy;
use pointsman_sim::measure::RunReport;

use crate::simulate::{Contender, PastRun, SceneArgs, Setting, Stable};

/// A run that settings are tried in.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) label: String,
    pub(super) setting: Setting,
    /// The policies but for the one that is tuned.
    pub(super) base: Contender,
    pub(super) seed: u64,
}

/// The runs of a search.
#[derive(Debug, Default)]
pub(super) struct Scenes {
    pub(super) searched: Vec<Scene>,
    pub(super) held_out: Vec<Scene>,
    /// Remarks on what simulations of a journal do not repeat.
    pub(super) notes: Vec<String>,
}

/// The workloads that are named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub(super) searched: &'a [String],
    pub(super) held_out: &'a [String],
    pub(super) seeds: u32,
}

/// The share of a list of requests that is searched.
const SEARCHED: (u64, u64) = (2, 3);

impl Scenes {
    /// Finds the workloads, and parts them.
    ///
    /// # Errors
    /// If one is none, or too small to be parted.
    pub(super) fn find(
        named: Named<'_>,
        args: &SceneArgs,
        (stable, defaults): (&Stable, &[EmbeddedPolicy]),
    ) -> Result<Self> {
        let mut scenes = Self::default();
        for text in named.searched {
            let found = Found::of(text, args, stable, defaults)?;
            scenes.notes.extend(found.notes());
            if named.held_out.is_empty() {
                found.part(named.seeds, &mut scenes)?;
            } else {
                scenes.searched.extend(found.seeded(0, named.seeds));
            }
        }
        for text in named.held_out {
            let found = Found::of(text, args, stable, defaults)?;
            scenes.notes.extend(found.notes());
            scenes.held_out.extend(found.seeded(0, named.seeds));
        }
        Ok(scenes)
    }
}

/// A workload that was found.
struct Found {
    label: String,
    setting: Setting,
    base: Contender,
    seed: u64,
    /// Remarks on its journal; none: it has none.
    remarks: Vec<String>,
}

impl Found {
    fn of(
        text: &str,
        args: &SceneArgs,
        stable: &Stable,
        defaults: &[EmbeddedPolicy],
    ) -> Result<Self> {
        let past = PastRun::find(text, args.host.goodput())?;
        args.check(defaults, past.as_ref())?;
        let recorded = past.as_ref();
        let recorded = recorded.map(|past| stable.recorded(&past.policies, &past.chains));
        let recorded = recorded.transpose()?;
        Ok(Self {
            label: text.to_owned(),
            setting: args.setting(text, past.as_ref())?,
            base: args.base(stable, recorded.as_ref())?,
            seed: args.seed,
            remarks: past.map(|past| past.notes).unwrap_or_default(),
        })
    }

    /// The remarks, each with the workload that it is about.
    fn notes(&self) -> impl Iterator<Item = String> {
        let remarks = self.remarks.iter();
        remarks.map(|remark| format!("{}: {remark}", self.label))
    }

    /// Parts it into what is searched and what is held out.
    fn part(&self, seeds: u32, scenes: &mut Scenes) -> Result<()> {
        let Some((first, rest)) = self.setting.workload.split(SEARCHED) else {
            scenes.searched.extend(self.seeded(0, seeds));
            scenes.held_out.extend(self.seeded(seeds, seeds));
            return Ok(());
        };
        ensure!(
            !first.is_empty() && !rest.is_empty(),
            "{}: there are too few requests to hold a part of them out; name other workloads with \
             --held-out",
            self.label
        );
        for (workload, part, into) in [
            (first, "first two thirds", &mut scenes.searched),
            (rest, "last third", &mut scenes.held_out),
        ] {
            let part = Self {
                label: format!("{}, {part}", self.label),
                setting: Setting {
                    workload,
                    ..self.setting.clone()
                },
                base: self.base.clone(),
                seed: self.seed,
                remarks: Vec::new(),
            };
            into.extend(part.seeded(0, seeds));
        }
        Ok(())
    }

    /// A run with each of so many seeds after the first ones; one alone, if nothing is random.
    fn seeded(&self, skipped: u32, seeds: u32) -> Vec<Scene> {
        let is_random = self.setting.is_random();
        let seeds = if is_random { seeds } else { 1 };
        let each = (0..u64::from(seeds)).map(|nth| {
            let seed = self.seed + u64::from(skipped) + nth;
            Scene {
                label: if is_random {
                    format!("{}, seed {seed}", self.label)
                } else {
                    self.label.clone()
                },
                setting: self.setting.clone(),
                base: self.base.clone(),
                seed,
            }
        });
        each.collect()
    }
}

impl Scene {
    /// The setting of a run that sees one over `share` of the requests, where the whole has so many.
    pub(super) fn first(&self, share: u64, requests: u64) -> Setting {
        let mut setting = self.setting.clone();
        if share > 1 {
            setting.workload = setting.workload.first(requests.div_ceil(share));
        }
        setting
    }
}

/// The requests of the smallest run.
pub(super) fn fewest(reports: &[RunReport]) -> u64 {
    let requests = reports.iter().map(|report| report.requests);
    requests.min().unwrap_or(0)
}
