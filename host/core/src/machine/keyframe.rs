//! The whole machine written down, and read again: a keyframe, from which a run can go on.
//!
//! A [`Machine`] is serialisable, private state and all. Changes that policies have not been told
//! yet are left out: a run that goes on from a keyframe has policies that are told everything anew.
//!
//! The order of the fields is the format: the version of the host that wrote a keyframe reads it (see
//! `pointsman-journal`).
//!
//! # Invariants
//! 1. A machine that was read goes on exactly as the one that was written
//!    (`pointsman-sim`, `tests/invariants.rs`).
//! 2. A machine that is read is checked before anybody has it: its bounds, that every id it names
//!    is there, and [`Machine::check_invariants`].

use std::collections::VecDeque;

use pointsman_events::Config;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Machine;
use super::ledger::Ledger;
use super::names::Names;
use super::outbox::{Completions, Outbox};
use super::requests::Requests;

/// A machine that was read, with the fields of [`Machine`], and that is to be checked.
#[derive(Deserialize)]
pub(super) struct Unchecked {
    config: Config,
    names: Names,
    ledger: Ledger,
    requests: Requests,
    out: Outbox,
}

impl TryFrom<Unchecked> for Machine {
    type Error = String;

    fn try_from(read: Unchecked) -> Result<Self, String> {
        let machine = Machine {
            config: read.config,
            names: read.names,
            ledger: read.ledger,
            requests: read.requests,
            out: read.out,
        };
        let config = machine.config.validate();
        config.map_err(|error| error.to_string())?;
        machine.ledger.check_ids()?;
        let checked = machine.check_invariants();
        checked.map_err(|error| error.to_string())?;
        Ok(machine)
    }
}

/// Writes only their end, as with the changes of which they are a part.
impl Serialize for Completions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct("Completions", &(self.end(), self.kept_max))
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
