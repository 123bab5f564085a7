//! The bounds of the machine, each of which the machine knows the range of.

use std::ops::RangeInclusive;

use pointsman_core as core;
use pointsman_notation::{Number, Time};
use toml::Spanned;

use super::Check;
use crate::error::{ConfigError, Wrong};
use crate::file::{self, Given};

impl Check<'_> {
    pub(super) fn core(self, given: file::Core) -> Result<core::Config, ConfigError> {
        let mut core = core::Config::default();
        let c = &mut core;
        self.count(c, given.queue_max, |c, value| c.queue_max = value)?;
        self.count(c, given.parking_max, |c, value| c.parking_max = value)?;
        self.count(c, given.executors_max, |c, value| c.executors_max = value)?;
        self.count(c, given.batch_max, |c, value| c.batch_max = value)?;
        self.count(c, given.overlaps_max, |c, value| c.overlaps_max = value)?;
        self.count(c, given.tier_blocks_max, |c, value| {
            c.tier_blocks_max = value
        })?;
        self.count(c, given.attempts_max, |c, value| c.attempts_max = value)?;
        self.count(c, given.degraded_after, |c, value| c.degraded_after = value)?;
        self.count(c, given.down_after, |c, value| c.down_after = value)?;
        self.pause(c, &given.down_for, |c, value| c.down_for = value)?;
        self.pause(c, &given.unserved_max, |c, value| c.unserved_max = value)?;
        self.count(c, given.overtaken_max, |c, value| c.overtaken_max = value)?;
        self.count(c, given.tokenless_steps_max, |c, value| {
            c.tokenless_steps_max = value
        })?;
        self.pause(c, &given.evict_retry, |c, value| c.evict_retry = value)?;
        self.count(c, given.change_log_max, |c, value| c.change_log_max = value)?;
        self.count(c, given.completions_max, |c, value| {
            c.completions_max = value
        })?;
        self.seconds(c, given.retry_after, |c, value| c.retry_after_secs = value)?;
        // These depend on each other, and the defaults of the others on the first.
        self.pause(c, &given.wait_max, core::Config::wait)?;
        self.pause(c, &given.unplaced_max, |c, value| c.unplaced_max = value)?;
        self.pause(c, &given.held_max, |c, value| c.held_max = value)?;
        let mut waits = [given.held_max, given.unplaced_max, given.wait_max].into_iter();
        match (core.validate(), waits.find_map(|given| given)) {
            (Err(_), Some(given)) => Err(self.at(&given, no_time_to_place(&core))),
            (Ok(()), _) | (Err(_), None) => Ok(core),
        }
    }

    /// A bound of the core, which knows its range.
    fn count(
        self,
        core: &mut core::Config,
        given: Given<Number>,
        set: impl FnOnce(&mut core::Config, u32),
    ) -> Result<(), ConfigError> {
        let Some(given) = given else {
            return Ok(());
        };
        // No bound may be as large as what stands for all that does not fit.
        set(core, u32::try_from(given.get_ref().0).unwrap_or(u32::MAX));
        out_of_range(core).map_or(
            Ok(()),
            |(key, range)| Err(self.out_of(&key, &given, &range)),
        )
    }

    /// A time of the core in whole seconds, of which it knows the range.
    fn seconds(
        self,
        core: &mut core::Config,
        given: Given<Time>,
        set: impl FnOnce(&mut core::Config, u32),
    ) -> Result<(), ConfigError> {
        let Some(given) = given else {
            return Ok(());
        };
        let key = "core.retry-after";
        let Some(secs) = given.get_ref().whole_secs() else {
            let written = Spanned::new(given.span(), given.get_ref().to_string());
            return Err(self.value(key, &written, "whole seconds"));
        };
        set(core, u32::try_from(secs).unwrap_or(u32::MAX));
        out_of_range(core).map_or(Ok(()), |(key, range)| {
            let range = Time::from_secs(*range.start())..=Time::from_secs(*range.end());
            Err(self.out_of(&key, &given, &range))
        })
    }

    /// A time of the core, which knows its range.
    fn pause(
        self,
        core: &mut core::Config,
        given: &Given<Time>,
        set: impl FnOnce(&mut core::Config, core::Micros),
    ) -> Result<(), ConfigError> {
        let Some(given) = given else {
            return Ok(());
        };
        set(core, core::Micros(given.get_ref().as_micros()));
        out_of_range(core).map_or(Ok(()), |(key, range)| {
            let range = Time::from_micros(*range.start())..=Time::from_micros(*range.end());
            Err(self.out_of(&key, given, &range))
        })
    }
}

/// The bound of the core that is out of its range, with the range.
fn out_of_range(core: &core::Config) -> Option<(String, RangeInclusive<u64>)> {
    match core.validate() {
        Err(core::InvalidConfig::Range { name, min, max, .. }) => {
            Some((format!("core.{name}"), min..=max))
        }
        Err(core::InvalidConfig::NoTimeToPlace { .. }) | Ok(()) => None,
    }
}

/// The words for times that contradict each other.
fn no_time_to_place(core: &core::Config) -> Wrong {
    let time = |micros: core::Micros| Time::from_micros(micros.0);
    Wrong::NoTimeToPlace {
        held_max: time(core.held_max),
        unplaced_max: time(core.unplaced_max),
        wait_max: time(core.wait_max),
    }
}
