//! Journals of whole runs, for the tests of replays and the benchmark `journal`.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use pointsman_component::{Limits, PolicyEngine};
use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Clock, Config, Hook, HookSet, Input, Machine, Micros, NewRequest, Policies,
    Recorder, Reply, Round, Sink, Stamped, Strike, Tap, TenantId,
};
use pointsman_journal::{
    Folder, JournalMonitor, JournalReader, JournalSettings, JournalStats, JournalWriter,
};
use pointsman_policy::{Patience, PolicyHost, PolicyRecorder, PolicySource, Restarts, start};
use pointsman_policy_cli::Verdict;
use pointsman_policy_cli::journal::{self, ReplayArgs};
use pointsman_replay::{ComponentCache, JournalRecorder, Replay};
use pointsman_server::journal::run_info;
use pointsman_sim::measure::RunReport;
use pointsman_sim::workload::Workload;
use pointsman_sim::{Simulation, World};
use pointsman_testkit::Flavour;

use crate::PATIENCE;
use crate::clock::clock;
use crate::fleet::{self, Defaults};

/// A recorder shared by a run's world and the tap before its policies. Counts decisions, also
/// without a recorder.
#[derive(Clone, Debug)]
pub struct SharedRecorder {
    recorder: Option<Rc<RefCell<JournalRecorder>>>,
    decisions: Rc<Cell<u64>>,
}

impl SharedRecorder {
    fn write(&self, write: impl FnOnce(&mut JournalRecorder)) {
        if let Some(recorder) = &self.recorder {
            write(&mut recorder.borrow_mut());
        }
    }
}

impl Recorder for SharedRecorder {
    fn input(&mut self, now: Micros, input: &Input) {
        self.write(|recorder| recorder.input(now, input));
    }

    fn round(&mut self, now: Micros, round: Round) {
        self.write(|recorder| recorder.round(now, round));
    }

    fn fact(&mut self, stamped: &Stamped) {
        self.write(|recorder| recorder.fact(stamped));
    }
}

impl Sink<PolicyHost> for SharedRecorder {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        self.decisions.set(self.decisions.get() + 1);
        match &self.recorder {
            Some(recorder) => recorder.borrow_mut().ask(host, asked),
            None => host.ask(asked),
        }
    }
}

/// The plan of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of decisions. The run ends with the event after the last.
    pub decisions: u64,
    /// Size at which a journal's file is full.
    pub file_bytes: u64,
    /// Policy on `priority`.
    pub orders: Orders,
}

/// The policy on `priority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// The default policy.
    Default,
    /// A policy that traps at every twentieth question, with the default behind it.
    Trapping,
    /// The same, whose fresh instances are made and told everything by other threads.
    TrappingElsewhere,
    /// A policy whose snapshots are too large, so that they soon end, with the default behind it.
    Hoarding,
    /// The default policy; the one on `admission` is struck before every other turn ends.
    Struck,
}

/// The result of a recorded run.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub decisions: u64,
    pub faults: u64,
    pub stats: JournalStats,
}

/// The figures of the benchmark: the cost of a journal to its owner.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The recorded run.
    pub recorded: Recorded,
    /// Entries per decision, with its inputs, rounds and facts.
    pub entries_per_decision: f64,
    /// Bytes per decision.
    pub bytes_per_decision: f64,
    /// Additional time of a run with a journal, per decision: the fastest of several runs with one,
    /// less the fastest of as many without. As under load, a batch is handed over when it is full,
    /// and the time of the disk is not counted.
    pub driver: Duration,
    /// Time of a run without a journal, per decision.
    pub without: Duration,
    /// Time of a replay.
    pub replay: Duration,
}

/// Records a run of `decisions` decisions, replays it, and repeats it `times` times with a journal
/// and without.
///
/// # Errors
/// If the replay differs, or an entry is missing.
pub fn measure(decisions: u64, times: u32) -> Result<Measured> {
    let time = clock();
    let folder = tempfile::tempdir()?;
    let plan = Plan {
        decisions,
        file_bytes: 1 << 30,
        orders: Orders::Default,
    };
    let recorded = record(folder.path(), plan)?;
    let begun = time();
    let entries = replay(folder.path(), &recorded)?;
    let replay = time() - begun;
    let (mut with, mut without) = (Duration::MAX, Duration::MAX);
    for _ in 0..times {
        let folder = tempfile::tempdir()?;
        let loaded = JournalSettings {
            batch_age: Micros(u64::MAX),
            ..settings(plan)?
        };
        let writer = JournalWriter::start(Folder::open(folder.path())?, run_info(), loaded)?;
        let monitor = writer.monitor();
        let recorder = Some(JournalRecorder::new(writer));
        with = with.min(play(plan, recorder)?.took);
        let stats = monitor.stats();
        ensure!(stats.refused == 0, "{stats:?}");
        without = without.min(play(plan, None)?.took);
    }
    let per = u32::try_from(recorded.decisions)?;
    Ok(Measured {
        entries_per_decision: entries as f64 / f64::from(per),
        bytes_per_decision: recorded.stats.bytes as f64 / f64::from(per),
        driver: with.saturating_sub(without) / per,
        without: without / per,
        replay,
        recorded,
    })
}

/// Replays the journal in the folder at `path` without a difference, and returns the number of its
/// entries.
fn replay(path: &Path, recorded: &Recorded) -> Result<u64> {
    let mut replay = Replay::new(ComponentCache::new(PolicyEngine::new()?));
    let mut entries = 0;
    for located in JournalReader::open(path)? {
        entries += 1;
        let difference = replay.take(located?)?;
        ensure!(difference.is_none(), "{difference:?}");
    }
    let replayed = replay.tally().decisions;
    ensure!(replayed == recorded.decisions, "{replayed}: {recorded:?}");
    Ok(entries)
}

/// Makes a host of the default policies as components, with the policy that `orders` asks for
/// before them.
fn host(orders: Orders) -> Result<PolicyHost> {
    let engine = PolicyEngine::new()?;
    let defaults = Defaults::load(&engine)?;
    let patience = Patience {
        faults_max: u32::MAX,
        back_off_micros: 1000,
        back_off_max_micros: 100_000,
        snapshot_every: 16,
        ..Patience::default()
    };
    let restarts = match orders {
        Orders::TrappingElsewhere => Restarts::Elsewhere,
        Orders::Default | Orders::Trapping | Orders::Hoarding | Orders::Struck => {
            Restarts::AtTheQuestion
        }
    };
    let mut host = PolicyHost::new(patience).with_restarts(restarts);
    for (name, hooks) in fleet::DEFAULTS {
        let policy = host.add(start(defaults.source(name, Flavour::Component)?)?)?;
        host.bind(Micros(0), policy, HookSet::from_iter(hooks.iter().copied()))?;
    }
    let before = match orders {
        Orders::Default | Orders::Struck => None,
        Orders::Trapping | Orders::TrappingElsewhere => {
            Some(r#"{"outrage": "trap", "calls": ["order"], "good-calls": 20}"#)
        }
        Orders::Hoarding => Some(r#"{"outrage": "gigabyte", "calls": ["snapshot"]}"#),
    };
    if let Some(json) = before {
        let component = fleet::load(&engine, "test/hostile")?;
        let settings = fleet::settings(json);
        let defaults = Limits::default();
        let observe_rows = match restarts {
            Restarts::AtTheQuestion => defaults.observe_rows,
            // What one call tells would be told at the question.
            Restarts::Elsewhere => 1,
        };
        let limits = Limits {
            observe_rows,
            ..defaults
        };
        let source = PolicySource::component(&component, &settings, limits);
        let policy = host.add(start(source)?)?;
        host.bind(Micros(0), policy, HookSet::from_iter([Hook::Priority]))?;
    }
    Ok(host)
}

/// Records a run into the folder at `path`.
///
/// # Errors
/// If a policy does not start, or the journal cannot be written.
pub fn record(path: &Path, plan: Plan) -> Result<Recorded> {
    let writer = JournalWriter::start(Folder::open(path)?, run_info(), settings(plan)?)?;
    let monitor = writer.monitor();
    let played = play(plan, Some(JournalRecorder::new(writer)))?;
    Ok(Recorded {
        decisions: played.decisions,
        faults: played.faults,
        stats: monitor.stats(),
    })
}

/// Settings with which no entry is lost: the run waits for the disk at each turn and at the end,
/// and a keyframe is requested long before a file is full.
fn settings(plan: Plan) -> Result<JournalSettings> {
    Ok(JournalSettings {
        file_bytes: plan.file_bytes,
        total_bytes: 1 << 40,
        batches_max: 1 << 16,
        batch_bytes: usize::try_from(plan.file_bytes / 8)?.min(64 << 10),
        close_wait: Duration::from_secs(60),
        ..JournalSettings::default()
    })
}

/// The result of a run.
struct Played {
    decisions: u64,
    faults: u64,
    /// Time of the run, without starts of policies and without the disk.
    took: Duration,
}

fn play(plan: Plan, recorder: Option<JournalRecorder>) -> Result<Played> {
    let shared = SharedRecorder {
        recorder: recorder.map(|recorder| Rc::new(RefCell::new(recorder))),
        decisions: Rc::default(),
    };
    let tap = Tap {
        inner: host(plan.orders)?,
        sink: shared.clone(),
    };
    let (mut world, _) = fleet::small_world(Config::default(), tap, (3, 2, 40));
    world.input(Input::NameInterned {
        kind: NameKind::Tenant,
        text: "default".into(),
    });
    world.settle();
    let time = clock();
    turn(&mut world, &shared);
    let begun = time();
    let mut waited = Duration::ZERO;
    if shared.recorder.is_some() {
        world.record_with(Box::new(shared.clone()));
    }
    shared.decisions.set(0);
    let mut n = 0_u32;
    while shared.decisions.get() < plan.decisions {
        let new = NewRequest::new(TenantId(0), 10 + n % 50, 60);
        let request = world.arrive(new, 20 + n % 10);
        if n % 7 == 3 {
            world.input(Input::RequestCancelled(request));
        }
        let until = world.now().after(Micros(u64::from(n % 5) * 150_000));
        world.run_until(until);
        if plan.orders == Orders::Struck && n.is_multiple_of(2) {
            strike(&mut world);
        }
        waited += turn(&mut world, &shared);
        waited += wait_for_instances(&world.policies.inner);
        n += 1;
    }
    let end = world.now().after(Micros(100_000_000));
    while !world.run_out(world.now().after(Micros(150_000)).min(end)) {
        ensure!(world.now() < end, "not all ended");
        waited += turn(&mut world, &shared);
    }
    waited += turn(&mut world, &shared);
    let took = (time() - begun).saturating_sub(waited);
    let faults = world.policies.inner.status();
    let faults = faults.map(|status| status.stats.faults.values().sum::<u64>());
    Ok(Played {
        decisions: shared.decisions.get(),
        faults: faults.sum(),
        took,
    })
}

/// Records a simulation under the default policies into the folder at `path`.
///
/// # Errors
/// If a policy does not start, the simulation cannot begin, or the journal cannot be written.
pub fn record_simulation<W: Workload>(
    path: &Path,
    simulated: pointsman_sim::Plan<W>,
) -> Result<RunReport> {
    let plan = Plan {
        decisions: 0,
        file_bytes: 64 << 20,
        orders: Orders::Default,
    };
    let writer = JournalWriter::start(Folder::open(path)?, run_info(), settings(plan)?)?;
    let shared = SharedRecorder {
        recorder: Some(Rc::new(RefCell::new(JournalRecorder::new(writer)))),
        decisions: Rc::default(),
    };
    let tap = Tap {
        inner: host(plan.orders)?,
        sink: shared.clone(),
    };
    let mut simulation = Simulation::new(simulated, tap)?;
    simulation.record_with(Box::new(shared.clone()));
    loop {
        let (now, machine, policies) = simulation.parts();
        turn_of(now, machine, &mut policies.inner, &shared);
        if simulation.advance().is_none() {
            return Ok(simulation.finish().0);
        }
    }
}

/// Strikes the policy on `admission`.
fn strike(world: &mut World<Tap<PolicyHost, SharedRecorder>>) {
    let strike = Strike {
        at: world.now(),
        hook: Hook::Admission,
        clock: Clock::Overtaken,
        request: None,
    };
    let view = world.machine.view();
    world.policies.inner.struck(&view, &strike);
}

/// Ends a turn, and returns the time for which the disk was waited for.
fn turn(world: &mut World<Tap<PolicyHost, SharedRecorder>>, shared: &SharedRecorder) -> Duration {
    let now = world.now();
    turn_of(now, &world.machine, &mut world.policies.inner, shared)
}

fn turn_of(
    now: Micros,
    machine: &Machine,
    host: &mut PolicyHost,
    shared: &SharedRecorder,
) -> Duration {
    while host.poll_event().is_some() {}
    shared.write(|recorder| {
        recorder.policies_changed(now, host);
        recorder.turn(now, machine, host);
    });
    let monitor = shared
        .recorder
        .as_ref()
        .map(|recorder| recorder.borrow().monitor());
    monitor.map_or(Duration::ZERO, |monitor| wait_for_disk(&monitor))
}

/// Waits until the disk has caught up: a simulated run is faster than a real one.
fn wait_for_disk(monitor: &JournalMonitor) -> Duration {
    wait_while(|| monitor.queued() > 0)
}

/// Waits until the instances that other threads make or tell are there: a simulated back-off is
/// shorter than that takes.
fn wait_for_instances(host: &PolicyHost) -> Duration {
    wait_while(|| host.runners().any(|(_, runner)| runner.is_underway()))
}

/// Waits while `is_so`, for [`PATIENCE`] at most, and returns the time that this took.
fn wait_while(is_so: impl Fn() -> bool) -> Duration {
    let time = clock();
    let began = time();
    while is_so() && time() - began < PATIENCE {
        thread::yield_now();
    }
    time() - began
}

/// The arguments of `pointsman replay` for the journal in `folder`.
#[must_use]
pub fn replay_args(folder: &Path) -> ReplayArgs {
    ReplayArgs {
        journal: folder.to_owned(),
        from: None,
        policy: None,
        settings: None,
        examples: 10,
    }
}

/// Runs `pointsman replay`, and returns its output and its verdict.
///
/// # Errors
/// If the journal cannot be replayed.
pub fn replay_said(args: &ReplayArgs) -> Result<(String, Verdict)> {
    let mut out = Vec::new();
    let verdict = journal::replay(args, &mut out)?;
    Ok((String::from_utf8(out)?, verdict))
}
