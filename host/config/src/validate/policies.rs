//! The policy folder, bindings and settings, and what policies may use.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use pointsman_component::{CompileLimits, Compiler, Limits};
use pointsman_core::Hook;
use pointsman_lifecycle::settings::LifecycleSettings;
use pointsman_notation::{NamedLimits, Time, TomlProblem};
use pointsman_policy::{Patience, Probation};
use pointsman_sidecar::tables::{self, LimitsTable};
use toml::Spanned;

use super::Check;
use crate::Settings;
use crate::error::{ConfigError, Place, Wrong};
use crate::file::{self, Given};
use crate::flags::Flags;
use crate::former;

const SETTLE: RangeInclusive<Time> = Time::from_millis(0)..=Time::from_secs(60);
const POLL: RangeInclusive<Time> = Time::from_millis(50)..=Time::from_secs(3600);
const BACK_OFF: RangeInclusive<Time> = Time::from_millis(0)..=Time::from_secs(3600);
const PROBATION: RangeInclusive<Time> = Time::from_millis(0)..=Time::from_secs(24 * 3600);
const WINDOW: RangeInclusive<Time> = Time::from_secs(1)..=Time::from_secs(24 * 3600);

impl Check<'_> {
    pub(super) fn policies(
        self,
        given: file::Policies,
        flags: &Flags,
    ) -> Result<LifecycleSettings, ConfigError> {
        let default = LifecycleSettings::default();
        Ok(LifecycleSettings {
            folder: self.folder(given.folder, flags)?,
            settle: self.time("policies.settle", given.settle, SETTLE, default.settle)?,
            poll: self.time("policies.poll", given.poll, POLL, default.poll)?,
            bind: self.bind(given.bind)?,
            settings: self.settings(given.settings)?,
            limits: tables::limits(
                self.source,
                "policies.limits",
                given.limits,
                Limits::default(),
                &NamedLimits::CEILING,
            )?,
            probation: self.probation(given.probation)?,
        })
    }

    pub(super) fn compiler(self, given: LimitsTable) -> Result<Compiler, ConfigError> {
        let (key, rest) = ("policies.compile", CompileLimits::default());
        let limits = tables::limits(self.source, key, given, rest, &NamedLimits::CEILING);
        let limits = limits.map_err(|error| former::told(self.source, error))?;
        Ok(Compiler {
            limits,
            program: None,
        })
    }

    fn folder(self, given: Given<String>, flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
        let (path, place) = match (&flags.policies, &given) {
            (Some(path), _) => (path.clone(), Place::Flag("--policies")),
            (None, Some(given)) => {
                let path = self.source.resolve(given.get_ref());
                (path, Place::At(self.source.location(given.span().start)))
            }
            (None, None) => return Ok(self.here.policies_folder.clone()),
        };
        if !path.is_dir() {
            let key = "policies.folder".to_owned();
            return Err(ConfigError::new(place, Wrong::NoFolder { key, path }));
        }
        Ok(Some(path))
    }

    /// The policies that hooks are bound to, in the order of a round.
    fn bind(
        self,
        given: BTreeMap<Spanned<String>, Spanned<String>>,
    ) -> Result<Vec<(Hook, String)>, ConfigError> {
        let mut bound = BTreeMap::new();
        for (hook, policy) in given {
            let name = hook.get_ref();
            let key = format!("policies.bind.{name}");
            let Some(hook) = Hook::named(name) else {
                let known = Hook::ALL.map(|hook| hook.as_str().to_owned()).into();
                let name = name.clone();
                return Err(self.at(&hook, TomlProblem::UnknownKey { key, name, known }));
            };
            bound.insert(hook, self.name(&key, &policy)?);
        }
        Ok(bound.into_iter().collect())
    }

    /// The settings by policy. A table may be for several policies, with commas between their
    /// names, so that what they must agree on is written once.
    fn settings(
        self,
        given: impl IntoIterator<Item = (String, Spanned<toml::Table>)>,
    ) -> Result<Vec<(String, Settings)>, ConfigError> {
        let mut by_policy: BTreeMap<String, Settings> = BTreeMap::new();
        for (policies, table) in given {
            let key = format!("policies.settings.{policies}");
            let at = Spanned::new(table.span(), ());
            let shared = tables::settings(self.source, &key, table)?;
            for policy in policies.split(',').map(str::trim) {
                let settings = by_policy.entry(policy.to_owned()).or_default();
                for (name, value) in &shared {
                    if settings.insert(name.clone(), value.clone()).is_some() {
                        let key = format!("policies.settings, for {policy}");
                        let name = name.clone();
                        return Err(self.at(&at, Wrong::Twice { key, name }));
                    }
                }
            }
        }
        Ok(by_policy.into_iter().collect())
    }

    fn probation(self, given: file::Probation) -> Result<Probation, ConfigError> {
        let key = |name: &str| format!("policies.probation.{name}");
        let default = Probation::default();
        let time = self.within(&key("time"), given.time, PROBATION)?;
        let mut probation = Probation {
            micros: time.map_or(default.micros, Time::as_micros),
            ..default
        };
        let (share, count) = (1..=1_000_000, 1..=1 << 40);
        let Probation {
            questions,
            faults_max,
            refusals_permille,
            fuel_percent,
            fuel_floor,
            fuel_ceiling,
            ..
        } = &mut probation;
        *questions = self.number(
            &key("questions"),
            given.questions,
            share.clone(),
            *questions,
        )?;
        let faults = given.faults_max;
        *faults_max = self.number(&key("faults-max"), faults, 0..=10_000, *faults_max)?;
        let permille = given.refusals_permille;
        let range = 0..=1000;
        *refusals_permille = self.number(
            &key("refusals-permille"),
            permille,
            range,
            *refusals_permille,
        )?;
        let percent = given.fuel_percent;
        *fuel_percent = self.number(&key("fuel-percent"), percent, share, *fuel_percent)?;
        let floor = given.fuel_floor;
        *fuel_floor = self.number(&key("fuel-floor"), floor, count.clone(), *fuel_floor)?;
        let ceiling = given.fuel_ceiling;
        *fuel_ceiling = self.number(&key("fuel-ceiling"), ceiling, count, *fuel_ceiling)?;
        Ok(probation)
    }

    pub(super) fn patience(self, given: file::Patience) -> Result<Patience, ConfigError> {
        let default = Patience::default();
        let times = |key, time: Given<Time>, range, micros| {
            let time = self.within(key, time, range);
            time.map(|time| time.map_or(micros, Time::as_micros))
        };
        let first = "policies.patience.back-off";
        let back_off_micros = times(first, given.back_off, BACK_OFF, default.back_off_micros)?;
        let no_less = Time::from_micros(back_off_micros)..=*BACK_OFF.end();
        Ok(Patience {
            back_off_micros,
            back_off_max_micros: times(
                "policies.patience.back-off-max",
                given.back_off_max,
                no_less,
                default.back_off_max_micros.max(back_off_micros),
            )?,
            faults_max: self.number(
                "policies.patience.faults-max",
                given.faults_max,
                1..=10_000,
                default.faults_max,
            )?,
            window_micros: times(
                "policies.patience.window",
                given.window,
                WINDOW,
                default.window_micros,
            )?,
            snapshot_every: self.number(
                "policies.patience.snapshot-every",
                given.snapshot_every,
                1..=1_000_000,
                default.snapshot_every,
            )?,
            events_max: self.number(
                "policies.patience.events-max",
                given.events_max,
                16..=1 << 16,
                default.events_max,
            )?,
            quarantine_max: self.number(
                "policies.patience.quarantine-max",
                given.quarantine_max,
                1..=1 << 12,
                default.quarantine_max,
            )?,
        })
    }
}
