//! Journals of whole runs, for the tests of replay and the benchmark `journal`.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Config, Hook, HookSet, Input, Micros, NewRequest, Policies, Recorder, Reply,
    Round, Sink, Stamped, Tap, TenantId,
};
use pointsman_journal::{
    Folder, JournalMonitor, JournalReader, JournalSettings, JournalStats, JournalWriter,
};
use pointsman_policy::{
    Limits, Patience, PolicyEngine, PolicyHost, PolicyRecorder, PolicySource, start,
};
use pointsman_replay::{ComponentCache, JournalRecorder, Replay};
use pointsman_server::journal::about;
use pointsman_server::journal::command::{self, ReplayArgs};
use pointsman_server::policy::Verdict;
use pointsman_sim::World;

use crate::clock::clock;
use crate::fleet::{self, Defaults, Flavour};

/// Holds a recorder for those who record one run: its world, and the tap before its policies. Without
/// one it counts the decisions only.
#[derive(Clone, Debug)]
pub struct Pen {
    recorder: Option<Rc<RefCell<JournalRecorder>>>,
    decisions: Rc<Cell<u64>>,
}

impl Pen {
    fn write(&self, write: impl FnOnce(&mut JournalRecorder)) {
        if let Some(recorder) = &self.recorder {
            write(&mut recorder.borrow_mut());
        }
    }
}

impl Recorder for Pen {
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

impl Sink<PolicyHost> for Pen {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        self.decisions.set(self.decisions.get() + 1);
        match &self.recorder {
            Some(recorder) => recorder.borrow_mut().ask(host, asked),
            None => host.ask(asked),
        }
    }
}

/// A run to record.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// It ends with the event after as many decisions.
    pub decisions: u64,
    /// A journal's file ends at that size.
    pub file_bytes: u64,
    /// Who decides on the order.
    pub orders: Orders,
}

/// Who decides on the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// The default policy.
    Default,
    /// One that traps every twentieth time, before the default.
    Trapping,
    /// One whose snapshots are too much, so that they soon end, before the default.
    Hoarding,
}

/// What came of a recorded run.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Questions asked.
    pub decisions: u64,
    /// Faults of policies.
    pub faults: u64,
    /// What became of the journal.
    pub stats: JournalStats,
}

/// What a journal costs whoever drives the machine.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The run.
    pub recorded: Recorded,
    /// Entries, for each decision: its inputs, rounds and facts as well.
    pub entries_per_decision: f64,
    /// Bytes of them.
    pub bytes_per_decision: f64,
    /// By how much the run takes longer with a journal, for each decision: the fastest of several
    /// runs with one, less the fastest of as many without. As under load: a batch is handed over
    /// when it is full, and there is time for the disk, which is not counted.
    pub driver: Duration,
    /// What it takes without, for each decision.
    pub without: Duration,
    /// Time to replay the run, all of it the same.
    pub replay: Duration,
}

/// Records a run of that many decisions, replays it, and makes it again `times` times with a journal
/// and without.
///
/// # Errors
/// If a decision comes out otherwise, or an entry is missing.
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
        let writer = JournalWriter::start(Folder::open(folder.path())?, about(), loaded)?;
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

/// Replays the journal in the folder at `path`, all of it the same. How many entries it has.
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

/// The default policies as components, with another one before them if that is wanted.
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
    let mut host = PolicyHost::new(patience);
    for (name, hooks) in fleet::DEFAULTS {
        let policy = host.add(start(defaults.source(name, Flavour::Component)?)?)?;
        host.bind(Micros(0), policy, HookSet::from_iter(hooks.iter().copied()))?;
    }
    let before = match orders {
        Orders::Default => None,
        Orders::Trapping => Some(r#"{"outrage": "trap", "calls": ["order"], "good-calls": 20}"#),
        Orders::Hoarding => Some(r#"{"outrage": "gigabyte", "calls": ["snapshot"]}"#),
    };
    if let Some(json) = before {
        let component = fleet::load(&engine, "test/hostile")?;
        let settings = fleet::settings(json);
        let source = PolicySource::component(&component, &settings, Limits::default());
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
    let writer = JournalWriter::start(Folder::open(path)?, about(), settings(plan)?)?;
    let monitor = writer.monitor();
    let played = play(plan, Some(JournalRecorder::new(writer)))?;
    Ok(Recorded {
        decisions: played.decisions,
        faults: played.faults,
        stats: monitor.stats(),
    })
}

/// Nothing may be missing: however slow the disk is, it is waited for at each turn and at the end,
/// and a keyframe is asked for long before there is no room without it.
fn settings(plan: Plan) -> Result<JournalSettings> {
    Ok(JournalSettings {
        file_bytes: plan.file_bytes,
        files_max: 1000,
        batches_max: 1 << 16,
        batch_bytes: usize::try_from(plan.file_bytes / 8)?.min(64 << 10),
        close_wait: Duration::from_secs(60),
        ..JournalSettings::default()
    })
}

/// A run that was made.
struct Played {
    decisions: u64,
    faults: u64,
    /// Without what it takes to start the policies, and the time for the disk.
    took: Duration,
}

fn play(plan: Plan, recorder: Option<JournalRecorder>) -> Result<Played> {
    let pen = Pen {
        recorder: recorder.map(|recorder| Rc::new(RefCell::new(recorder))),
        decisions: Rc::default(),
    };
    let tap = Tap {
        inner: host(plan.orders)?,
        sink: pen.clone(),
    };
    let (mut world, _) = fleet::small_world(Config::default(), tap, (3, 2, 40));
    world.input(Input::NameInterned {
        kind: NameKind::Tenant,
        text: "default".into(),
    });
    world.settle();
    let time = clock();
    turn(&mut world, &pen);
    let begun = time();
    let mut waited = Duration::ZERO;
    if pen.recorder.is_some() {
        world.recorder = Some(Box::new(pen.clone()));
    }
    pen.decisions.set(0);
    let mut n = 0_u32;
    while pen.decisions.get() < plan.decisions {
        let new = NewRequest::new(TenantId(0), 10 + n % 50, 60);
        let request = world.arrive(new, 20 + n % 10);
        if n % 7 == 3 {
            world.input(Input::RequestCancelled(request));
        }
        let until = world.now().after(Micros(u64::from(n % 5) * 150_000));
        world.run_until(until);
        waited += turn(&mut world, &pen);
        n += 1;
    }
    ensure!(
        world.run_out(world.now().after(Micros(100_000_000))),
        "not all ended"
    );
    waited += turn(&mut world, &pen);
    let took = (time() - begun).saturating_sub(waited);
    let faults = world.policies.inner.status();
    let faults = faults.map(|status| status.stats.faults.values().sum::<u64>());
    Ok(Played {
        decisions: pen.decisions.get(),
        faults: faults.sum(),
        took,
    })
}

/// For how long the disk was waited for.
fn turn(world: &mut World<Tap<PolicyHost, Pen>>, pen: &Pen) -> Duration {
    let now = world.now();
    let host = &mut world.policies.inner;
    while host.poll_event().is_some() {}
    pen.write(|recorder| {
        recorder.policies_changed(now, host);
        recorder.turn(now, &world.machine, host);
    });
    let monitor = pen
        .recorder
        .as_ref()
        .map(|recorder| recorder.borrow().monitor());
    monitor.map_or(Duration::ZERO, |monitor| wait_for_disk(&monitor))
}

/// A simulated run is faster than a disk, which in a real one has the time between two requests.
fn wait_for_disk(monitor: &JournalMonitor) -> Duration {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    let time = clock();
    let began = time();
    while monitor.queued() > 0 && time() - began < WAIT_MAX {
        thread::yield_now();
    }
    time() - began
}

/// `pointsman replay` of the journal in `folder`.
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

/// What it says, and whether all is well.
///
/// # Errors
/// If it cannot be replayed.
pub fn replay_said(args: &ReplayArgs) -> Result<(String, Verdict)> {
    let mut out = Vec::new();
    let verdict = command::replay(args, &mut out)?;
    Ok((String::from_utf8(out)?, verdict))
}
