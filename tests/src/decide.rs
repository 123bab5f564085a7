//! The benchmark `decide`: the cost of one decision.
//!
//! A fleet has N executors, each on a device that reports its KV blocks. Between two rounds some of their
//! rows change, and one request, or 64, arrive. The round that decides them is timed, with the three default
//! policies in three stores. All decisions are hashed, to show that native and component runs
//! decide the same.

use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_core::{Answer, Asked, Author, Hook, HookMap, Policies, Refusal, Reply};
use pointsman_policy::{PolicyHost, start};
use pointsman_testkit::Flavour;
use pointsman_testkit::standing::StandingFleet;
use sha2::{Digest, Sha256};

use crate::clock::{ReadingTime, clock};
use crate::fleet::Defaults;

/// The hooks that a round with arrivals and room for them asks. Budget is asked in what order executors with several
/// sequences serve them.
pub const TIMED: [Hook; 4] = [Hook::Admission, Hook::Priority, Hook::Routing, Hook::Budget];

/// A case of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Number of executors, each on a device of its own.
    pub executors: u32,
    /// Number of requests that arrive for one round.
    pub arrivals: u32,
    /// Number of executors whose load and device rows change before it.
    pub changed: u32,
    /// Number of rounds timed.
    pub rounds: u32,
}

/// The figures of one case.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Time of each round, sorted.
    pub rounds: Vec<Duration>,
    /// Time in the hooks of [`TIMED`], with their `observe`, each sorted.
    pub hooks: [Vec<Duration>; TIMED.len()],
    /// Questions to the routing policy, with what it was told before: their median, at most a quarter
    /// too high, and the most fuel of one.
    pub route: (Duration, u64),
    /// First digits of a SHA-256 over every placement, in hex.
    pub decided: String,
}

/// Policies whose answers are timed, by hook.
struct Timed<P> {
    inner: P,
    clock: Box<dyn Fn() -> Duration>,
    /// Time spent in this round, by hook, and the times that the hook was asked.
    spent: HookMap<(Duration, u32)>,
}

impl<P: Policies> Policies for Timed<P> {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let start = (self.clock)();
        let answer = self.inner.ask(asked);
        let (time, times) = &mut self.spent[asked.question.hook()];
        *time += (self.clock)() - start;
        *times += 1;
        answer
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.inner.refused(author, hook, refusal);
    }
}

/// Measures one case. The times are without those of the readings of the clock that they are measured by.
///
/// # Errors
/// If the policies cannot be started, or a round leaves a request undecided.
pub fn measure(defaults: &Defaults, flavour: Flavour, case: Case) -> Result<Measured> {
    let mut fleet = StandingFleet::new(case.executors);
    let time = clock();
    let reading = ReadingTime::of(&time);
    let mut policies = Timed {
        inner: defaults.host(flavour)?,
        clock: Box::new(clock()),
        spent: HookMap::default(),
    };
    let mut hash = Sha256::new();
    let mut rounds = Vec::new();
    let mut hooks = TIMED.map(|_| Vec::new());
    let warm_up = case.rounds / 10 + 1;
    for round in 0..case.rounds + warm_up {
        fleet.pass();
        fleet.change(case.changed);
        for _ in 0..case.arrivals {
            fleet.arrive(fleet.request(512, 64));
        }
        policies.spent = HookMap::default();
        let start = time();
        fleet.decide(&mut policies);
        let took = time() - start;
        let placed = fleet.finish();
        for (request, executor) in &placed {
            hash.update(request.0.to_le_bytes());
            hash.update(executor.0.to_le_bytes());
        }
        let placed = placed.len();
        anyhow::ensure!(
            placed == case.arrivals as usize,
            "{placed} placed of {case:?}"
        );
        if round >= warm_up {
            // One reading is between the first and the last of a span, and two of each question are in the round.
            let asked: u32 = policies.spent.iter().map(|(_, (_, times))| times).sum();
            rounds.push(reading.taken_off(took, 1 + 2 * asked));
            for (all, hook) in hooks.iter_mut().zip(TIMED) {
                let (time, times) = policies.spent[hook];
                all.push(reading.taken_off(time, times));
            }
        }
    }
    ensure_faultless(&policies.inner)?;
    let route = questions(&policies.inner, Hook::Routing)?;
    rounds.sort_unstable();
    hooks.iter_mut().for_each(|all| all.sort_unstable());
    Ok(Measured {
        rounds,
        hooks,
        route,
        decided: format!("{:x}", hash.finalize())[..12].to_owned(),
    })
}

/// The median time and the most fuel of a hook's questions, as the host counted them.
fn questions(host: &PolicyHost, hook: Hook) -> Result<(Duration, u64)> {
    let holder = host.holder(hook);
    let mut policies = host.status();
    let holder = policies.find(|policy| Some(policy.number) == holder);
    let stats = holder.context("nobody was asked")?.stats;
    let median = stats.latency[hook].quantile(500).unwrap_or(0);
    Ok((Duration::from_nanos(median), stats.fuel[hook].max()))
}

/// Fails if a policy faulted: it was not asked then, and its figures mean nothing.
fn ensure_faultless(host: &PolicyHost) -> Result<()> {
    for policy in host.status() {
        let faults = &policy.stats.faults;
        let name = &policy.description.name;
        anyhow::ensure!(faults.is_empty(), "{name} faulted: {faults:?}");
    }
    let quarantined = host.quarantined().next();
    anyhow::ensure!(quarantined.is_none(), "in quarantine: {quarantined:?}");
    Ok(())
}

/// The times of one swap of the routing policy for a fresh instance of itself, by part.
#[derive(Clone, Debug, Default)]
pub struct Swapped {
    /// Instantiation, `describe` and `configure`, sorted.
    pub start: Vec<Duration>,
    /// The swap itself, for which the driver waits.
    pub swap: Vec<Duration>,
    /// The next round, with the new instance's first `observe`.
    pub first_round: Vec<Duration>,
}

/// Measures swaps of the routing policy over a fleet of `executors`.
///
/// # Errors
/// If the policies cannot be started.
pub fn measure_swap(defaults: &Defaults, executors: u32, times: u32) -> Result<Swapped> {
    let mut fleet = StandingFleet::new(executors);
    let time = clock();
    let mut host: PolicyHost = defaults.host(Flavour::Component)?;
    let source = defaults.source("memory-aware", Flavour::Component)?;
    let mut measured = Swapped::default();
    for _ in 0..times {
        fleet.pass();
        let t0 = time();
        let started = start(source.clone())?;
        let t1 = time();
        let old = host.holder(Hook::Routing).context("nobody routes")?;
        let new = host.add(started)?;
        host.swap(fleet.now(), old, new)?;
        let t2 = time();
        fleet.arrive(fleet.request(512, 64));
        let t3 = time();
        fleet.decide(&mut host);
        let t4 = time();
        fleet.finish();
        measured.start.push(t1 - t0);
        measured.swap.push(t2 - t1);
        measured.first_round.push(t4 - t3);
        while host.poll_event().is_some() {}
    }
    ensure_faultless(&host)?;
    measured.start.sort_unstable();
    measured.swap.sort_unstable();
    measured.first_round.sort_unstable();
    Ok(measured)
}

/// The value that `permille` per thousand of the sorted values do not exceed (nearest rank), in
/// microseconds.
#[must_use]
pub fn quantile(sorted: &[Duration], permille: usize) -> f64 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted
        .get(rank - 1)
        .map_or(0.0, |value| value.as_secs_f64() * 1e6)
}
