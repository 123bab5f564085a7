//! Admission, token budgets per tenant and per engine, and who gives way.
//!
//! Three decisions about room that is short: the requests that may wait, by the tokens their tenant
//! has used and by a full queue; the split of a device's tokens over its engines, and the order in
//! which an engine spends them; and the sequences that leave when a more urgent request finds no
//! place.
//!
//! # Not here
//! The bounds themselves (queue, tokens, blocks), which are the host's.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod admit;
mod allot;
mod evict;
mod line;
mod pace;
mod queue;
mod reason;
mod settings;
mod shares;
mod surge;

use pointsman_sdk::tenants::Tenants;
use pointsman_sdk::wire::admission::Verdict;
use pointsman_sdk::wire::budget::{Allotments, Arrangement, DeviceTokens};
use pointsman_sdk::wire::preemption::{Cause, Eviction, Shortage};
use pointsman_sdk::wire::types::{AskedRequest, Change};
use pointsman_sdk::{
    Admission, Description, Feed, LastMinute, Mirror, Moment, Policy, Preemption, Setting, export,
};

use admit::{Books, Door};
use evict::{Rules, YieldToOlder};
use line::Lines;
use queue::Queue;
use reason::Reason;
use settings::micros;
pub use settings::{Overflow, Settings, TakeSlots};

/// A policy that shares out room that is short.
#[derive(Debug)]
pub struct Budget {
    settings: Settings,
    queue: Queue,
    /// Use of the tenants, which outlives the mirror: its rows do not have all of it.
    tenants: Tenants,
    /// Tokens that victims of slots have to compute again.
    recomputed: LastMinute,
}

impl Policy for Budget {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "budget".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "What tenants may use and a full queue does, how engines share a device's \
                      tokens, and who gives way."
                .into(),
            reasons: Reason::texts(),
            state_version: 4,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings,
            queue: Queue::default(),
            tenants: Tenants::default(),
            recomputed: LastMinute::default(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut state = self.queue.lines.snapshot();
        self.recomputed.put(&mut state);
        state.extend(self.tenants.snapshot());
        state
    }

    fn restore(&mut self, mut state: &[u8]) -> Result<(), String> {
        self.queue.lines = Lines::restore(&mut state)?;
        let recomputed = LastMinute::taken(&mut state);
        self.recomputed = recomputed.ok_or("a snapshot ends within the tokens computed anew")?;
        self.tenants = Tenants::restore(state)?;
        Ok(())
    }

    fn cleared(&mut self) {
        self.queue.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.queue.changed(mirror, change);
        if let Change::Tenant(row) = change {
            self.tenants.changed(mirror.now(), row);
        }
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.queue
            .lines
            .told(mirror, micros(self.settings.wait_max));
    }
}

impl Admission for Budget {
    const NEEDS: Feed = Feed::FLEET.union(Feed::WAITING).union(Feed::TENANTS);

    fn admit(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<Verdict> {
        self.queue.lines.told_until(at.now);
        let books = Books {
            mirror,
            queue: &self.queue,
            tenants: &self.tenants,
            now: at.now,
        };
        let mut door = Door::new(books, &self.settings, room);
        let verdicts = arrivals.iter().map(|asked| door.verdict(asked.request));
        verdicts.collect()
    }
}

impl pointsman_sdk::Budget for Budget {
    const NEEDS: Feed = Feed::FLEET;

    fn allot(&mut self, mirror: &Mirror, _at: Moment, tokens: &DeviceTokens) -> Allotments {
        let engines = allot::allotments(
            mirror,
            tokens.device,
            tokens.tokens_total,
            self.settings.max_single_engine,
        );
        Allotments {
            engines,
            again: None,
        }
    }

    /// Names nobody, so that the most urgent come first: to tell the rows of all sequences for the same
    /// answer would cost more than it.
    fn arrange(
        &mut self,
        _mirror: &Mirror,
        _at: Moment,
        _executor: u32,
        _sequences: &[u64],
    ) -> Arrangement {
        Arrangement {
            prefill_max: self.settings.prefill_max,
            first: Vec::new(),
        }
    }
}

impl Preemption for Budget {
    const NEEDS: Feed = Feed::FIT.union(Feed::SEQUENCES).union(Feed::TENANTS);

    fn evict(&mut self, mirror: &Mirror, at: Moment, shortage: &Shortage) -> Option<Eviction> {
        self.queue.lines.told_until(at.now);
        let eviction = evict::eviction(mirror, at.now, shortage, self.rules())?;
        if shortage.cause == Cause::Slots {
            let tokens = evict::recomputed(mirror, &eviction);
            if tokens > self.tokens_left(at.now) {
                return None;
            }
            self.recomputed.add(at.now, tokens);
        }
        Some(eviction)
    }
}

impl Budget {
    fn rules(&self) -> Rules {
        Rules {
            yield_to_older: if self.settings.yield_to_older {
                YieldToOlder::LastResort
            } else {
                YieldToOlder::Never
            },
            swap_from: self.settings.swap_from,
            take_slots: self.settings.take_slots,
        }
    }

    /// The tokens that victims of slots may have to compute again now: a part of those served within the
    /// last minute, less what others have to.
    fn tokens_left(&self, now: u64) -> u64 {
        let served = self.tenants.served_within_minute(now);
        let may_recompute = served.saturating_mul(self.settings.recompute_max.into()) / 1000;
        may_recompute.saturating_sub(self.recomputed.at(now))
    }
}

export!(Budget: admission, budget, preemption);

#[cfg(test)]
mod tests;
