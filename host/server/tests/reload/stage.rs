//! A reconciler with everything real but the clock: a folder, components, a driver with its
//! policies.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, SystemTime};

use pointsman_component::{CompileLimits, Compiler, Digest, EmbeddedPolicy, Limits, PolicyEngine};
use pointsman_core::Needs;
use pointsman_core::{
    Config, DeviceSpec, ExecutorSpec, Hook, Input, Machine, Micros, PromptBlocks, fixture,
};
use pointsman_driver::message::{Hints, Submission, Submitted, TicketId};
use pointsman_driver::metrics::Metrics;
use pointsman_driver::{Driver, Memory};
use pointsman_executor::delivery::{Deliveries, channel};
use pointsman_executor::job::{Job, Sampling};
use pointsman_lifecycle::order::{Order, OrderError};
use pointsman_lifecycle::port::{HostEnded, PolicyPort};
use pointsman_lifecycle::reconciler::Reconciler;
use pointsman_lifecycle::report::{
    PolicyReport, ReconcilerReport, ReloadStep, Transaction, VersionRefusal,
};
use pointsman_lifecycle::settings::LifecycleSettings;
use pointsman_lifecycle::{ReconcilerSpec, waker};
use pointsman_policy::{
    Briefing, Commit, CommitError, Committed, OnFailure, Patience, PolicyHost, PolicyStatus,
    Probation, ShadowReport, Snapshot,
};
use pointsman_server::embedded;
use pointsman_state::State;
use pointsman_testkit::component::component_path;
use tempfile::TempDir;
use tokio::sync::watch;

pub(crate) const SETTLE: Duration = Duration::from_millis(200);
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// Settings for a fault after 300 good calls, so that the self-test does not meet the fault.
pub(crate) const TRAPS: &str =
    "[settings]\noutrage = 'trap'\ncalls = ['admit']\ngood-calls = 300\n";

/// Longest wait for a thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The policies that a server embeds.
pub(crate) const DEFAULTS: [&str; 3] = ["aging", "memory-aware", "budget"];

/// The hooks that they hold.
const HELD_HOOKS: [Hook; 5] = [
    Hook::Admission,
    Hook::Priority,
    Hook::Routing,
    Hook::Preemption,
    Hook::Budget,
];

/// The driver without its thread.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) driver: Rc<RefCell<Driver>>,
    pub(crate) metrics: Arc<Metrics>,
    clock: Arc<AtomicU64>,
}

/// The parts of the configuration that a stage goes by.
#[derive(Clone)]
pub(crate) struct StageConfig {
    pub(crate) policies: LifecycleSettings,
    pub(crate) patience: Patience,
    pub(crate) compiler: Compiler,
    /// The longest that the first pass waits for files.
    pub(crate) start_wait: Micros,
}

/// A compiler in a process of its own that takes its time: it does nothing while it is held.
pub(crate) struct HeldCompiler {
    home: TempDir,
}

impl HeldCompiler {
    /// A compiler that is not held yet.
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        // Written by another process: a program that this one still writes cannot be started.
        let write = r#"printf '#!/bin/sh
while [ -e "${0%%/*}/held" ]; do sleep 0.02; done
[ ! -e "${0%%/*}/killed" ] || kill -KILL $$
exec "%s" "$@"
' "$1" > "$0" && chmod +x "$0""#;
        let written = Command::new("sh")
            .args(["-c", write])
            .arg(home.path().join("compiler"))
            .arg(env!("CARGO_BIN_EXE_pointsman"))
            .status();
        assert!(written.unwrap().success());
        Self { home }
    }

    pub(crate) fn compiler(&self) -> Compiler {
        Compiler {
            // So that a test that fails ends.
            limits: CompileLimits {
                wall_seconds: PATIENCE.as_secs(),
                ..CompileLimits::default()
            },
            program: Some(self.home.path().join("compiler")),
        }
    }

    pub(crate) fn hold(&self) {
        fs::write(self.home.path().join("held"), "").unwrap();
    }

    pub(crate) fn let_go(&self) {
        fs::remove_file(self.home.path().join("held")).unwrap();
    }

    /// Has every compilation killed, until the compiler is spared.
    pub(crate) fn kill(&self) {
        fs::write(self.home.path().join("killed"), "").unwrap();
    }

    pub(crate) fn spare(&self) {
        fs::remove_file(self.home.path().join("killed")).unwrap();
    }
}

/// The number of compilations of which the folder `state` has a note: they have begun, and have not
/// ended well.
pub(crate) fn compilations_noted(state: &Path) -> usize {
    let entries = fs::read_dir(state.join("code")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let is_note = |name: &OsString| name.to_string_lossy().ends_with(".tried");
    names.filter(is_note).count()
}

impl Port {
    fn now(&self) -> Micros {
        Micros(self.clock.load(Ordering::Relaxed))
    }
}

impl PolicyPort for Port {
    fn handover(&self, policy: u32) -> Option<Snapshot> {
        self.driver.borrow_mut().handover(self.now(), policy)
    }

    fn brief(&self, needs: Needs) -> Result<Briefing, HostEnded> {
        let now = self.now();
        Ok(self.driver.borrow_mut().brief(now, needs))
    }

    fn commit(&self, commit: Commit) -> Result<Result<Committed, CommitError>, HostEnded> {
        Ok(self.driver.borrow_mut().commit(self.now(), commit))
    }

    fn count_committed(&self, pause: Micros) {
        self.metrics
            .policy_committed(Duration::from_micros(pause.0));
    }

    fn count_refused(&self, step: ReloadStep) {
        self.metrics.policy_refused(step.as_str());
    }
}

/// A reconciler, its folder, and its driver.
pub(crate) struct Stage {
    pub(crate) port: Port,
    reconciler: Reconciler<Port>,
    report: watch::Receiver<Arc<ReconcilerReport>>,
    /// Hears of orders, and of policies that were made ready.
    woken: Receiver<()>,
    clock: Arc<AtomicU64>,
    embedded: Vec<EmbeddedPolicy>,
    config: StageConfig,
    home: TempDir,
    /// Files written so far, each a second after the one before.
    written: u64,
    /// Kept so that the clients do not leave.
    asked: Vec<Deliveries>,
}

impl Stage {
    /// A stage whose first pass is over: an empty folder, the defaults in force.
    pub(crate) fn new() -> Self {
        Self::with(&DEFAULTS, |_, _| {})
    }

    /// A stage with one default only, which holds `priority`: less to compile.
    pub(crate) fn small() -> Self {
        Self::with(&["aging"], |_, _| {})
    }

    /// A stage with these defaults, whose folder and configuration are `prepare`d before the
    /// first pass.
    pub(crate) fn with(defaults: &[&str], prepare: impl FnOnce(&Path, &mut StageConfig)) -> Self {
        let embedded = embedded::policies().unwrap().iter().copied();
        let embedded = embedded.filter(|policy| defaults.contains(&policy.name));
        Self::embedding(embedded.collect(), prepare)
    }

    pub(crate) fn embedding(
        embedded: Vec<EmbeddedPolicy>,
        prepare: impl FnOnce(&Path, &mut StageConfig),
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("policies.d");
        fs::create_dir(&folder).unwrap();
        let policies = LifecycleSettings {
            folder: Some(folder.clone()),
            settle: SETTLE,
            poll: POLL,
            // The self-test has that many rows where it has many.
            limits: Limits {
                observe_rows: 64,
                ..Limits::default()
            },
            // None comes to an end by itself.
            probation: Probation {
                faults_max: u32::MAX,
                ..Probation::default()
            },
            ..LifecycleSettings::default()
        };
        // One fault is enough to see what quarantine does.
        let patience = Patience {
            faults_max: 1,
            ..Patience::default()
        };
        let mut config = StageConfig {
            policies,
            patience,
            compiler: Compiler::default(),
            start_wait: Micros(u64::MAX),
        };
        prepare(&folder, &mut config);
        Self::begin((home, 0), embedded, config)
    }

    /// The next life of the server, after `meanwhile`.
    pub(crate) fn restart(self, meanwhile: impl FnOnce(&mut Self)) -> Self {
        let mut ended = self;
        meanwhile(&mut ended);
        let Self {
            reconciler,
            embedded,
            config,
            home,
            written,
            ..
        } = ended;
        // It has the state folder.
        drop(reconciler);
        Self::begin((home, written), embedded, config)
    }

    fn begin(
        (home, written): (TempDir, u64),
        embedded: Vec<EmbeddedPolicy>,
        config: StageConfig,
    ) -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let metrics = Arc::new(Metrics::default());
        let host = PolicyHost::new(config.patience);
        let driver = Driver::new(machine(), host, Arc::clone(&metrics), Memory::default());
        let port = Port {
            driver: Rc::new(RefCell::new(driver)),
            metrics,
            clock: Arc::clone(&clock),
        };
        let reading = Arc::clone(&clock);
        let (waker, woken) = waker();
        let spec = ReconcilerSpec {
            settings: config.policies.clone(),
            bounds: Config::default().bounds(),
            embedded: embedded.clone(),
            engine: PolicyEngine::with_compiler(config.compiler.clone()).unwrap(),
            clock: Arc::new(move || Micros(reading.load(Ordering::Relaxed))),
            state: State::open(&home.path().join("state")),
            waker,
        };
        let mut reconciler = Reconciler::new(spec, port.clone()).unwrap();
        let report = reconciler.subscribe();
        reconciler.begin_within(config.start_wait).unwrap();
        Self {
            port,
            reconciler,
            report,
            woken,
            clock,
            embedded,
            config,
            home,
            written,
            asked: Vec::new(),
        }
    }

    // === The folder ===

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Has the next life watch another folder.
    pub(crate) fn give_folder(&mut self, folder: PathBuf) {
        self.config.policies.folder = Some(folder);
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.home.path().join("policies.d").join(file)
    }

    /// Writes a file of the folder in place.
    pub(crate) fn write(&mut self, file: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(file);
        self.write_at(&path, bytes);
    }

    pub(crate) fn write_at(&mut self, path: &Path, bytes: impl AsRef<[u8]>) {
        fs::write(path, bytes).unwrap();
        self.touch(path);
    }

    /// Gives a file a time of its own, however fast the test writes.
    pub(crate) fn touch(&mut self, path: &Path) {
        self.written += 1;
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(self.written);
        let file = File::options().append(true).open(path).unwrap();
        file.set_modified(modified).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    // === Time ===

    /// Makes passes until no policy is being prepared.
    pub(crate) fn look(&mut self) {
        self.look_until(|stage| !stage.is_preparing());
    }

    /// Makes passes until what is `wanted` is so.
    pub(crate) fn look_until(&mut self, wanted: impl Fn(&Self) -> bool) {
        self.glance();
        while !wanted(self) {
            self.glance_woken();
        }
    }

    /// Makes a pass once a policy was made ready.
    pub(crate) fn glance_woken(&mut self) {
        self.woken.recv_timeout(PATIENCE).unwrap();
        self.glance();
    }

    /// Makes a pass, advances the clock by the settle time, and makes another, which waits for nothing
    /// that it begins.
    pub(crate) fn glance_settled(&mut self) {
        self.glance();
        self.advance(SETTLE);
        self.glance();
    }

    /// Makes one pass of the reconciler.
    pub(crate) fn glance(&mut self) {
        self.reconciler.tick().unwrap();
    }

    pub(crate) fn is_preparing(&self) -> bool {
        self.reconciler.is_preparing()
    }

    pub(crate) fn advance(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap();
        self.clock.fetch_add(micros, Ordering::Relaxed);
    }

    /// Looks, advances the clock by the settle time, and looks again.
    pub(crate) fn settle(&mut self) {
        self.look();
        self.advance(SETTLE);
        self.look();
    }

    /// Advances the clock to the next poll, and looks.
    pub(crate) fn poll(&mut self) {
        self.advance(POLL);
        self.look();
    }

    // === Orders ===

    /// An operator gives an order, and waits for its result and for everything that has begun.
    pub(crate) fn order(&mut self, order: Order) -> Result<(), OrderError> {
        let answer = self.order_now(order);
        self.look();
        answer
    }

    /// An operator gives an order, and waits for its result.
    pub(crate) fn order_now(&mut self, order: Order) -> Result<(), OrderError> {
        let orders = self.reconciler.orders();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let given = runtime.spawn(async move { orders.order(order).await });
        // It places the order, and then waits.
        runtime.block_on(tokio::task::yield_now());
        self.glance();
        runtime.block_on(given).unwrap()
    }

    // === Requests ===

    pub(crate) fn ask_often(&mut self, times: u32) {
        for _ in 0..times {
            self.ask();
        }
    }

    /// Two requests arrive, and the policies are asked about them: of one no order is asked.
    pub(crate) fn ask(&mut self) {
        for _ in 0..2 {
            self.submit();
        }
        self.port.driver.borrow_mut().settle(self.port.now());
    }

    fn submit(&mut self) {
        let job = Job {
            sampling: Sampling::GREEDY,
            ..Job::new(vec![1, 2, 3], 4)
        };
        let (sink, closing, deliveries) = channel(job.output_tokens_max);
        self.asked.push(deliveries);
        let submission = Submission {
            model: Some("model".to_owned()),
            tenant: "tenant".to_owned(),
            job: Arc::new(job),
            prompt_blocks: PromptBlocks::default(),
            hints: Hints::default(),
            trace: None,
        };
        let submitted = Submitted {
            quota: None,
            ticket: TicketId(u64::try_from(self.asked.len()).unwrap()),
            submission,
            sink,
            closing,
        };
        let mut driver = self.port.driver.borrow_mut();
        driver.submit(self.port.now(), submitted);
    }

    // === Reports ===

    pub(crate) fn report(&self) -> Arc<ReconcilerReport> {
        Arc::clone(&self.report.borrow())
    }

    /// Components made ready so far, compiled or from code that was made before.
    pub(crate) fn made(&self) -> u64 {
        let report = self.report();
        report.compiled + report.cached
    }

    pub(crate) fn policy(&self, name: &str) -> Option<PolicyReport> {
        let report = self.report();
        let mut policies = report.policies.iter();
        policies.find(|policy| policy.name == name).cloned()
    }

    pub(crate) fn refusal(&self, name: &str) -> Option<VersionRefusal> {
        let report = self.report();
        let mut refused = report.refused.iter();
        let (_, refusal) = refused.find(|(refused, _)| refused == name)?;
        Some(refusal.clone())
    }

    pub(crate) fn last(&self) -> Transaction {
        self.report().transactions.back().unwrap().clone()
    }

    /// The report of the shadow `number`.
    pub(crate) fn shadow(&self, number: u32) -> ShadowReport {
        let driver = self.port.driver.borrow();
        driver.policies().shadow_report(number).unwrap()
    }

    pub(crate) fn statuses(&self) -> Vec<PolicyStatus> {
        self.port.driver.borrow().policies().status().collect()
    }

    /// The fate of arrivals that no policy answers for.
    pub(crate) fn on_failure(&self) -> OnFailure {
        let driver = self.port.driver.borrow();
        driver.policies().on_failure(Hook::Admission)
    }

    /// The policy in force for `hook`, by the name the reconciler knows it, and its code; absent:
    /// the built-in rule.
    pub(crate) fn holder(&self, hook: Hook) -> Option<(String, Digest)> {
        let statuses = self.statuses();
        let status = statuses.iter().find(|it| it.in_force.contains(hook))?;
        let report = self.report();
        let mut policies = report.policies.iter();
        let number = status.number;
        let known = policies
            .find(|policy| policy.number == Some(number) || policy.earlier.contains(&number));
        let known = known.unwrap_or_else(|| panic!("{hook:?} is held by {status:?}"));
        assert!(known.held.contains(hook), "the report says who holds what");
        if known.number == Some(number) {
            assert_eq!(known.digest, status.digest);
            assert_eq!(known.fingerprint, status.fingerprint);
        }
        Some((known.name.clone(), status.digest))
    }

    pub(crate) fn holder_name(&self, hook: Hook) -> Option<String> {
        self.holder(hook).map(|(name, _)| name)
    }

    /// The holders of [`HELD_HOOKS`], `-` for the built-in rule.
    pub(crate) fn holders(&self) -> Vec<String> {
        let names = HELD_HOOKS.into_iter().map(|hook| self.holder_name(hook));
        names
            .map(|name| name.unwrap_or_else(|| "-".into()))
            .collect()
    }
}

/// A machine with something to tell policies of: an executor.
pub(crate) fn machine() -> Machine {
    let mut machine = Machine::new(Config::default()).unwrap();
    let device = DeviceSpec {
        tokens_per_step: Some(64),
        ..fixture::device_spec("device")
    };
    let device = machine
        .handle(Micros(0), Input::DeviceAttached(device))
        .device()
        .unwrap();
    let executor = ExecutorSpec {
        slots_total: 2,
        tokens_per_block: Some(4),
        ..fixture::executor_spec("executor", device)
    };
    machine
        .handle(Micros(0), Input::ExecutorAttached(executor))
        .executor()
        .unwrap();
    machine
}

// === Components ===

/// A component that `cargo xtask policies` has built.
pub(crate) fn component(name: &str) -> Vec<u8> {
    let wasm = fs::read(component_path(name));
    wasm.unwrap_or_else(|error| panic!("{name}: {error}: run `cargo xtask policies`"))
}

/// The same policy with another digest: a custom section more.
pub(crate) fn version(bytes: &[u8], number: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // Section 0 of three bytes: a name of one byte, and a byte.
    bytes.extend([0, 3, 1, b'v', number]);
    bytes
}
