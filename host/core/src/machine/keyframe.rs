//! The whole machine written down, and read again: a keyframe, from which a run can go on.
//!
//! A [`Machine`] is serialisable, private state and all. What policies have not been told yet is
//! left out: who goes on from a keyframe has policies that are told everything anew.
//!
//! # Invariants
//! 1. A machine that was read goes on exactly as the one that was written
//!    (`pointsman-sim`, `tests/invariants.rs`).
//! 2. What is read is checked before anybody has it: its bounds, that every id it names is there,
//!    and [`Machine::check_invariants`].

use std::collections::VecDeque;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::log::ChangeLog;

use super::Machine;
use super::rows::Completions;

impl Serialize for Machine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Machine::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let machine = Machine::deserialize(deserializer)?;
        machine.check_keyframe().map_err(D::Error::custom)?;
        Ok(machine)
    }
}

impl Machine {
    fn check_keyframe(&self) -> Result<(), String> {
        self.config.validate().map_err(|error| error.to_string())?;
        self.check_ids()?;
        self.check_invariants().map_err(|error| error.to_string())
    }

    /// Ids are positions in lists: those that are not there would be looked up in vain.
    fn check_ids(&self) -> Result<(), String> {
        let devices = self.devices.len();
        for (idx, device) in self.devices.iter().enumerate() {
            if device.id.0 as usize != idx {
                return Err(format!("device {} is the {idx}th", device.id));
            }
            if let Some(pool) = device.pool() {
                pool.check_ids()?;
            }
        }
        let lists = [&self.short_devices, &self.allot_due, &self.allot_built_in];
        if lists
            .into_iter()
            .flatten()
            .any(|id| id.0 as usize >= devices)
        {
            return Err("a device is listed that is not there".to_owned());
        }
        self.executors.check_ids(devices)
    }
}

/// Only where it ends is written: nobody has read what is in it.
impl Serialize for ChangeLog {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.end(), self.entries_max).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChangeLog {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (base, entries_max) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            entries: VecDeque::new(),
            entries_max,
            base,
        })
    }
}

/// As with the changes, of which they are a part.
impl Serialize for Completions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.end(), self.kept_max).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Completions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (first, kept_max) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            kept: VecDeque::new(),
            kept_max,
            first,
        })
    }
}
