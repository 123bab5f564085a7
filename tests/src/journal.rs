//! Journals of whole runs, for the tests of replay and the benchmark `journal`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Config, Hook, Input, Micros, NewRequest, Recorder, Reply, Round, Sink, Stamped,
    Tap, TenantId,
};
use pointsman_journal::{
    Entry, Folder, JournalMonitor, JournalReader, JournalSettings, JournalStats, JournalWriter,
};
use pointsman_policy::{HookSet, Limits, Patience, PolicyEngine, PolicyHost, PolicySource, start};
use pointsman_server::journal::{Library, Outcome, Replay, Scribe, about};
use pointsman_sim::World;

use crate::clock::clock;
use crate::fleet::{self, Defaults, Flavour};

/// Holds a scribe for those who record one run: its world, and the tap before its policies.
#[derive(Clone, Debug)]
pub struct Pen {
    scribe: Rc<RefCell<Scribe>>,
    decisions: Rc<RefCell<u64>>,
}

impl Recorder for Pen {
    fn input(&mut self, now: Micros, input: &Input) {
        self.scribe.borrow_mut().input(now, input);
    }

    fn round(&mut self, now: Micros, round: Round) {
        self.scribe.borrow_mut().round(now, round);
    }

    fn fact(&mut self, stamped: &Stamped) {
        self.scribe.borrow_mut().fact(stamped);
    }
}

impl Sink<PolicyHost> for Pen {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        *self.decisions.borrow_mut() += 1;
        self.scribe.borrow_mut().ask(host, asked)
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
    /// The run whose entries were written.
    pub recorded: Recorded,
    /// Entries a second time written, for each decision: its inputs, rounds and facts as well.
    pub entries_per_decision: f64,
    /// Bytes of them.
    pub bytes_per_decision: f64,
    /// Time to write them, for each decision; the fastest of several times.
    pub write: Duration,
    /// Time to replay the run, all of it the same.
    pub replay: Duration,
    /// Time to record and simulate it.
    pub record: Duration,
}

/// Records a run of that many decisions, replays it, and writes its entries again, timed.
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
    let t0 = time();
    let recorded = record(folder.path(), plan)?;
    let t1 = time();
    let mut replay = Replay::new(Library::new(PolicyEngine::new()?));
    let mut entries = Vec::new();
    for located in JournalReader::open(folder.path())? {
        let located = located?;
        entries.push(located.entry.clone());
        let outcome = replay.take(located)?;
        ensure!(matches!(outcome, Outcome::Same), "{outcome:?}");
    }
    let t2 = time();
    ensure!(
        replay.tally().decisions == recorded.decisions,
        "{recorded:?}"
    );
    let is_written = |entry: &Entry<'_>| {
        let is_head = matches!(entry, Entry::Header(_) | Entry::Keyframe(_) | Entry::Gap(_));
        !is_head
    };
    entries.retain(is_written);
    let mut write = Duration::MAX;
    let mut bytes = 0;
    for _ in 0..times {
        let folder = tempfile::tempdir()?;
        let settings = JournalSettings::default();
        let mut writer = JournalWriter::start(Folder::open(folder.path())?, about(), settings)?;
        let start = time();
        for entry in &entries {
            writer.write(entry);
        }
        write = write.min(time() - start);
        let monitor = writer.monitor();
        drop(writer);
        // Without a keyframe nothing gets into a file: the owner's side is what is timed.
        let stats = monitor.stats();
        bytes = recorded.stats.bytes;
        ensure!(stats.refused == 0, "{stats:?}");
    }
    let per = u32::try_from(recorded.decisions)?;
    Ok(Measured {
        entries_per_decision: entries.len() as f64 / f64::from(per),
        bytes_per_decision: bytes as f64 / f64::from(per),
        write: write / per,
        replay: t2 - t1,
        record: t1 - t0,
        recorded,
    })
}

/// The default policies as components, with a trapping one before them if that is wanted.
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
    if orders == Orders::Trapping {
        let component = fleet::load(&engine, "test/hostile")?;
        let json = r#"{"outrage": "trap", "calls": ["order"], "good-calls": 20}"#;
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
    let settings = JournalSettings {
        file_bytes: plan.file_bytes,
        files_max: 1000,
        // Nothing may be missing: however slow the disk is, it is waited for, at each turn and at
        // the end, and a keyframe is asked for long before there is no room without it.
        batches_max: 1 << 16,
        batch_bytes: usize::try_from(plan.file_bytes / 8)?.min(64 << 10),
        close_wait: Duration::from_secs(60),
        ..JournalSettings::default()
    };
    let writer = JournalWriter::start(Folder::open(path)?, about(), settings)?;
    let monitor = writer.monitor();
    let pen = Pen {
        scribe: Rc::new(RefCell::new(Scribe::new(writer))),
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
    turn(&mut world, &pen);
    world.recorder = Some(Box::new(pen.clone()));
    *pen.decisions.borrow_mut() = 0;
    let mut n = 0_u32;
    while *pen.decisions.borrow() < plan.decisions {
        let new = NewRequest::new(TenantId(0), 10 + n % 50, 60);
        let request = world.arrive(new, 20 + n % 10);
        if n % 7 == 3 {
            world.input(Input::RequestCancelled(request));
        }
        let until = world.now().after(Micros(u64::from(n % 5) * 150_000));
        world.run_until(until);
        turn(&mut world, &pen);
        n += 1;
    }
    ensure!(
        world.run_out(world.now().after(Micros(100_000_000))),
        "not all ended"
    );
    turn(&mut world, &pen);
    let faults = world.policies.inner.status();
    let faults = faults.map(|status| status.stats.faults.values().sum::<u64>());
    let (decisions, faults) = (*pen.decisions.borrow(), faults.sum());
    drop((world, pen));
    Ok(Recorded {
        decisions,
        faults,
        stats: monitor.stats(),
    })
}

fn turn(world: &mut World<Tap<PolicyHost, Pen>>, pen: &Pen) {
    let now = world.now();
    let host = &mut world.policies.inner;
    while host.poll_event().is_some() {}
    let mut scribe = pen.scribe.borrow_mut();
    scribe.policies_changed(now, host);
    scribe.turn(now, &world.machine, host);
    wait_for_disk(&scribe.monitor());
}

/// A simulated run is faster than a disk, which in a real one has the time between two requests.
fn wait_for_disk(monitor: &JournalMonitor) {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    let time = clock();
    let began = time();
    while monitor.queued() > 0 && time() - began < WAIT_MAX {
        thread::yield_now();
    }
}
