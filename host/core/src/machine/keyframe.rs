//! The whole machine written down, and read again: a keyframe, from which a run can go on.
//!
//! A [`Machine`] is serialisable, private state and all. Changes that policies have not been told
//! yet are left out: a run that goes on from a keyframe has policies that are told everything anew.
//!
//! The order in which the parts are written is a format (the journal's, see `pointsman-journal`)
//! and not the order of today's fields.
//!
//! # Invariants
//! 1. A machine that was read goes on exactly as the one that was written
//!    (`pointsman-sim`, `tests/invariants.rs`).
//! 2. A machine that is read is checked before anybody has it: its bounds, that every id it names
//!    is there, and [`Machine::check_invariants`].

use std::collections::VecDeque;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use pointsman_events::rows::Moment;

use super::Machine;
use super::ledger::{Ledger, Sets};
use super::outbox::{Completions, Outbox};
use super::requests::Requests;

impl Serialize for Machine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (sets, out) = (self.ledger.sets(), &self.out);
        (
            (&self.config, &self.names, &self.ledger, &self.requests),
            (
                &sets.open,
                self.requests.watched(),
                &sets.preemptible,
                &sets.short,
            ),
            (out.at.round, out.due, &sets.allot_due, &sets.allot_built_in),
            (&sets.queue_due, &sets.arrange_due, &sets.arrange_built_in),
            (&out.timers, &out.log, &out.completions),
            (&out.effects, &out.facts, out.at.now, out.fleet_news),
        )
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (
            (config, names, mut ledger, mut requests),
            (open, watched, preemptible, short),
            (round, due, allot_due, allot_built_in),
            (queue_due, arrange_due, arrange_built_in),
            (timers, log, completions),
            (effects, facts, now, fleet_news),
        ): (
            (_, _, Ledger, Requests),
            (_, _, _, _),
            (_, _, _, _),
            (_, _, _),
            (_, _, _),
            (_, _, _, _),
        ) = Deserialize::deserialize(deserializer)?;
        ledger.restore(Sets {
            open,
            preemptible,
            short,
            allot_due,
            allot_built_in,
            queue_due,
            arrange_due,
            arrange_built_in,
        });
        requests.restore(watched);
        let machine = Machine {
            config,
            names,
            ledger,
            requests,
            out: Outbox {
                at: Moment { now, round },
                due,
                fleet_news,
                timers,
                log,
                completions,
                effects,
                facts,
            },
        };
        machine.check_keyframe().map_err(D::Error::custom)?;
        Ok(machine)
    }
}

impl Machine {
    fn check_keyframe(&self) -> Result<(), String> {
        self.config.validate().map_err(|error| error.to_string())?;
        self.ledger.check_ids()?;
        self.check_invariants().map_err(|error| error.to_string())
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
