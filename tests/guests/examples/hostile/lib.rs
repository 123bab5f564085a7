//! One guest that misbehaves on demand, for the tests of the host.
//!
//! Its settings name the misbehaviour, the calls in which it occurs, and the number of good calls
//! before it. All other answers are as plain as possible: admit while there is room, order of
//! arrival, the first executor with a slot, no victims, equal budgets.
//!
//! The guest keeps its own counts of placements, which are void only when the host sends the
//! executor's load again. A host that does not send it would leave wrong counts. The reason of each
//! routing verdict is a digest of the guest's mirror, so that a test can check what it knows.

#![forbid(unsafe_code)]

mod settings;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hint::black_box;

use pointsman_sdk::wire::budget::{Allotment, Allotments, Arrangement, DeviceTokens};
use pointsman_sdk::wire::preemption::{Eviction, How, Shortage, Victim};
use pointsman_sdk::wire::types::{
    AskedRequest, Cached, Change, Health, NameKind, Request, Sequence, SequenceState,
};
use pointsman_sdk::wire::{admission, routing};
use pointsman_sdk::{
    Admission, Budget, Description, Executor, Feed, Mirror, Moment, Policy, Preemption, Priority,
    Routing, export,
};

pub use settings::{Answers, Call, Outrage, Settings};

/// The rows that it wants before every question: all but those of requests that have ended.
const EVERYTHING: Feed = Feed::FIT
    .union(Feed::SEQUENCES)
    .union(Feed::TENANTS)
    .union(Feed::NAMES);

/// A policy that misbehaves as its settings say.
#[derive(Debug)]
pub struct Hostile {
    settings: Settings,
    /// Number of calls in which it has behaved.
    good: u32,
    /// Placements by executor since its load was last told.
    placed: BTreeMap<u32, u32>,
}

impl Hostile {
    /// Misbehaves, if it is time for it.
    fn outrage(&mut self, call: Call) {
        if !self.settings.calls.contains(&call) || self.is_still_good() {
            return;
        }
        match self.settings.outrage {
            Some(Outrage::Loop) => loop {
                black_box(());
            },
            Some(Outrage::Trap) => panic!("as it was told"),
            Some(Outrage::Allocate) => {
                let mut hoard = Vec::new();
                loop {
                    hoard.push(black_box(Vec::<u8>::with_capacity(1 << 20)));
                }
            }
            Some(Outrage::Recurse) => {
                black_box(recurse(black_box(0)));
            }
            Some(Outrage::Clock) => {
                #[expect(clippy::disallowed_types, reason = "it misbehaves")]
                black_box(std::time::Instant::now());
            }
            Some(Outrage::MillionRows | Outrage::Gigabyte) | None => {}
        }
    }

    fn starves(&self, mirror: &Mirror, request: &Request) -> bool {
        let name = mirror.name(NameKind::Tenant, request.tenant);
        self.answers() == Answers::StarveTenant && name == Some(self.settings.tenant.as_str())
    }

    fn is_still_good(&mut self) -> bool {
        let good = self.good < self.settings.good_calls;
        self.good = self.good.saturating_add(1);
        good
    }

    fn answers(&self) -> Answers {
        if self.good < self.settings.good_calls {
            Answers::Plain
        } else {
            self.settings.answers
        }
    }

    /// A list of a million rows, if that is the misbehaviour of this call.
    fn million<T: Clone>(&self, call: Call, row: T) -> Option<Vec<T>> {
        let due = self.settings.outrage == Some(Outrage::MillionRows)
            && self.settings.calls.contains(&call);
        due.then(|| vec![row; 1_000_000])
    }

    fn has_room(&self, request: &Request, executor: &Executor<'_>) -> bool {
        let placed = self.placed.get(&executor.info.id).copied().unwrap_or(0);
        let serves = match (&executor.info.serves, request.model) {
            (Some(served), Some(model)) => served.contains(&model),
            _ => true,
        };
        let allowed = request
            .allowed
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&executor.info.id));
        let ignores = self.answers() == Answers::IgnoreAllowed;
        matches!(executor.load.health, Health::Up | Health::Degraded)
            && serves
            && (allowed || ignores)
            && executor.load.slots_used + placed < executor.info.slots_total
    }

    fn place(&mut self, mirror: &Mirror, request: &Request) -> routing::Choice {
        let executor = mirror
            .executors()
            .find(|executor| self.has_room(request, executor))
            .map(|executor| executor.info.id);
        match executor {
            Some(id) => {
                *self.placed.entry(id).or_default() += 1;
                let mut places = vec![id];
                if self.answers() == Answers::WithFallbacks {
                    let others = mirror.executors().map(|executor| executor.info.id);
                    places.extend(others.filter(|other| *other != id));
                }
                routing::Choice::Place(places)
            }
            None => routing::Choice::Hold(None),
        }
    }

    fn route_one(&mut self, mirror: &Mirror, cached: &Cached) -> routing::Choice {
        let answers = self.answers();
        if answers == Answers::HoldForEver {
            routing::Choice::Hold(Some(u64::MAX))
        } else if answers == Answers::GiveUp {
            routing::Choice::GiveUp
        } else if answers == Answers::UnknownExecutors {
            routing::Choice::Place(vec![4_000_000_000, 77_777])
        } else if answers == Answers::NoExecutors {
            routing::Choice::Place(Vec::new())
        } else if let Some(request) = mirror.request(cached.request) {
            if self.starves(mirror, request) {
                return routing::Choice::Hold(Some(u64::MAX));
            }
            self.place(mirror, request)
        } else {
            routing::Choice::Hold(None)
        }
    }
}

/// Spends fuel on nothing.
fn toil(rounds: u32) {
    for round in 0..rounds {
        black_box(round);
    }
}

fn recurse(depth: u64) -> u64 {
    if black_box(false) {
        return depth;
    }
    let pad = black_box([depth; 64]);
    recurse(depth + 1) + pad[(depth % 64) as usize]
}

/// A digest of the mirror in sixteen bits. The host's test computes the same from the machine.
fn digest(mirror: &Mirror) -> u16 {
    let loads = mirror.executors().map(|executor| {
        let load = executor.load;
        u64::from(load.id + 1) * u64::from(load.slots_used + 1)
    });
    let waiting = mirror.requests().map(|request| 3 * (request.id + 1));
    let sequences = mirror.sequences().map(|sequence| {
        let state = match sequence.state {
            SequenceState::Queued => 1,
            SequenceState::Running => 2,
            SequenceState::Leaving => 3,
        };
        state * (sequence.request + 1)
    });
    let sum = loads
        .chain(waiting)
        .chain(sequences)
        .fold(0, u64::wrapping_add);
    u16::try_from(sum & 0xffff).unwrap_or(u16::MAX)
}

impl Policy for Hostile {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "hostile".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Does what its settings say, wrong things above all.".into(),
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        let mut policy = Self {
            settings,
            good: 0,
            placed: BTreeMap::new(),
        };
        policy.outrage(Call::Configure);
        toil(policy.settings.start_toil);
        Ok(policy)
    }

    fn snapshot(&self) -> Vec<u8> {
        let loops = self.settings.calls.contains(&Call::Snapshot);
        match self.settings.outrage {
            Some(Outrage::Loop) if loops => loop {
                black_box(());
            },
            Some(Outrage::Trap) if loops => panic!("as it was told"),
            Some(Outrage::Gigabyte) if loops => vec![1; 1 << 30],
            Some(_) if loops => vec![1; 32 << 20],
            _ => self.good.to_le_bytes().to_vec(),
        }
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.outrage(Call::Restore);
        let Ok(bytes) = state.try_into() else {
            return Err(format!("{} bytes instead of four", state.len()));
        };
        self.good = u32::from_le_bytes(bytes);
        Ok(())
    }

    fn cleared(&mut self) {
        self.placed.clear();
    }

    fn changed(&mut self, _: &Mirror, change: &Change) {
        self.outrage(Call::Observe);
        if let Change::Load(load) = change {
            self.placed.remove(&load.id);
        }
    }
}

impl Admission for Hostile {
    const NEEDS: Feed = EVERYTHING;

    fn admit(
        &mut self,
        _: &Mirror,
        _: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<admission::Verdict> {
        self.outrage(Call::Admit);
        toil(self.settings.toil);
        let answers = self.answers();
        let choice = |idx: usize| {
            if answers == Answers::Shed {
                admission::Choice::Shed(7)
            } else if answers == Answers::DisplaceUnknown {
                admission::Choice::Displace(admission::Displacement {
                    request: u64::MAX,
                    retry_after: 1,
                })
            } else if idx < room as usize {
                admission::Choice::Admit
            } else {
                admission::Choice::Park
            }
        };
        let verdict = |choice| admission::Verdict { choice, reason: 0 };
        if let Some(rows) = self.million(Call::Admit, verdict(admission::Choice::Admit)) {
            return rows;
        }
        (0..arrivals.len())
            .map(|idx| verdict(choice(idx)))
            .collect()
    }
}

impl Priority for Hostile {
    const NEEDS: Feed = EVERYTHING;
    const ORDERS_ONE: bool = true;

    fn order(&mut self, _: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        self.outrage(Call::Order);
        toil(self.settings.toil);
        if let Some(rows) = self.million(Call::Order, 0) {
            return rows;
        }
        let times = if self.answers() == Answers::OrderNothing {
            0
        } else {
            1 + usize::from(self.answers() == Answers::Twice)
        };
        let requests: Vec<u64> = requests.iter().map(|asked| asked.request).collect();
        requests.repeat(times)
    }
}

impl Routing for Hostile {
    const NEEDS: Feed = EVERYTHING;

    fn route(
        &mut self,
        mirror: &Mirror,
        _: &mut pointsman_sdk::BatchPlacements,
        _: Moment,
        requests: &[Cached],
    ) -> Vec<routing::Verdict> {
        self.outrage(Call::Route);
        toil(self.settings.toil);
        let reason = digest(mirror);
        let hold = routing::Verdict {
            choice: routing::Choice::Hold(None),
            reason,
        };
        if let Some(rows) = self.million(Call::Route, hold) {
            return rows;
        }
        let mut verdicts: Vec<routing::Verdict> = requests
            .iter()
            .map(|cached| routing::Verdict {
                choice: self.route_one(mirror, cached),
                reason,
            })
            .collect();
        if self.answers() == Answers::Twice {
            verdicts.extend(verdicts.clone());
        }
        verdicts
    }
}

/// The newest sequences of an executor that free as many blocks as are lacking, all for host memory.
fn swap_newest(mirror: &Mirror, shortage: &Shortage) -> Option<Eviction> {
    let needy = mirror.sequence(shortage.needy);
    let executor = needy.map(|needy| needy.executor).or(shortage.executor);
    let executor = executor.or_else(|| Some(mirror.sequences().next()?.executor))?;
    let is_victim =
        |row: &&Sequence| row.request != shortage.needy && row.state == SequenceState::Running;
    let mut newest: Vec<&Sequence> = mirror.sequences_on(executor).filter(is_victim).collect();
    newest.sort_by_key(|row| Reverse(row.request));
    let mut lacking = shortage.blocks;
    let victims = newest.iter().map_while(|row| {
        let is_enough = lacking == 0;
        lacking = lacking.saturating_sub(row.blocks_exclusive);
        let (request, how) = (row.request, How::Swap);
        (!is_enough).then_some(Victim { request, how })
    });
    Some(Eviction {
        executor,
        victims: victims.collect(),
        reason: 0,
    })
}

impl Preemption for Hostile {
    const NEEDS: Feed = EVERYTHING;

    fn evict(&mut self, mirror: &Mirror, _: Moment, shortage: &Shortage) -> Option<Eviction> {
        self.outrage(Call::Evict);
        toil(self.settings.toil);
        if self.answers() == Answers::SwapNewest {
            return swap_newest(mirror, shortage);
        }
        if self.answers() != Answers::EvictMostUrgent {
            return None;
        }
        let running = mirror.sequences();
        let victim = running
            .filter(|sequence| sequence.request != shortage.needy)
            .max_by_key(|sequence| (sequence.priority, sequence.request))?;
        Some(Eviction {
            executor: victim.executor,
            victims: vec![Victim {
                request: victim.request,
                how: How::Recompute,
            }],
            reason: 0,
        })
    }
}

impl Budget for Hostile {
    const NEEDS: Feed = EVERYTHING;

    fn allot(&mut self, _: &Mirror, _: Moment, tokens: &DeviceTokens) -> Allotments {
        self.outrage(Call::Allot);
        toil(self.settings.toil);
        let n = u32::try_from(tokens.used.len().max(1)).unwrap_or(u32::MAX);
        if self.answers() == Answers::AllotNothing {
            return Allotments {
                engines: Vec::new(),
                again: None,
            };
        }
        let too_much = self.answers() == Answers::AllotTooMuch;
        let tokens_max = if too_much {
            u32::MAX
        } else {
            tokens.tokens_total / n
        };
        let engines = tokens.used.iter().map(|used| Allotment {
            executor: used.executor,
            tokens_max,
        });
        Allotments {
            engines: engines.collect(),
            again: None,
        }
    }

    fn arrange(&mut self, _: &Mirror, _: Moment, _: u32, sequences: &[u64]) -> Arrangement {
        self.outrage(Call::Arrange);
        toil(self.settings.toil);
        let times = 1 + usize::from(self.answers() == Answers::Twice);
        let first = self.million(Call::Arrange, 0);
        Arrangement {
            prefill_max: None,
            first: first.unwrap_or_else(|| sequences.repeat(times)),
        }
    }
}

export!(Hostile: admission, priority, routing, preemption, budget);
