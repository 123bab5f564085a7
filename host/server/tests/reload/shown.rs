//! The report to operators and programs, and the reconciler as it runs in a server.

use std::fs;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use pointsman_admin::PolicyListing;
use pointsman_component::PolicyEngine;
use pointsman_core::{Hook, Micros};
use pointsman_driver::clock::SystemClock;
use pointsman_driver::message::channels;
use pointsman_driver::metrics::Metrics;
use pointsman_driver::port::DriverPort;
use pointsman_driver::{Driver, Memory, thread};
use pointsman_lifecycle::report::ReconcilerReport;
use pointsman_lifecycle::settings::LifecycleSettings;
use pointsman_lifecycle::{ReconcilerSpec, spawn, waker};
use pointsman_policy::{Patience, PolicyHost};
use pointsman_server::embedded;
use pointsman_state::State;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::stage::{DEFAULTS, HeldCompiler, Stage, TRAPS, compilations_noted, component, machine};

/// The answer of `GET /admin/policies`.
fn shown(stage: &Stage) -> Value {
    let listing = PolicyListing::new(Micros(0), &stage.statuses(), &stage.report(), &[]);
    serde_json::to_value(listing).unwrap()
}

#[test]
fn everything_about_policies_is_shown_in_one_place() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("aging"));
    stage.write("mine.toml", "[settings]\naffinity-bonus = 7");
    stage.write("other.wasm", component("aging"));
    stage.write("bad.wasm", "no");
    stage.write("lonely.toml", "");
    stage.settle();
    stage.remove("other.wasm");
    stage.settle();
    stage.ask();
    let shown = shown(&stage);
    assert_eq!(shown["hooks"]["priority"]["policy"], "mine");
    assert_eq!(shown["hooks"]["routing"]["policy"], "memory-aware");
    let policies = shown["policies"].as_array().unwrap();
    let named = |name: &str| policies.iter().find(|it| it["name"] == name).unwrap();
    let mine = named("mine");
    assert_eq!(mine["source"]["kind"], "file");
    assert_eq!(mine["settings"], json!({"affinity-bonus": 7}));
    assert_eq!(mine["exports"], json!(["priority"]));
    assert_eq!(mine["holds"], json!(["priority"]));
    assert_eq!(mine["running"]["calls_itself"], "aging");
    assert_eq!(mine["running"]["generation"], 1);
    assert_eq!(mine["running"]["answers"], json!({"priority": 1}));
    assert_eq!(mine["running"]["faults"], json!({}));
    assert!(mine["running"]["fuel_last"].as_u64().unwrap() > 0);
    assert_eq!(mine["earlier"], json!([]));
    let aging = named("aging");
    assert_eq!(aging["source"], json!({"kind": "embedded"}));
    assert_eq!(aging["holds"], json!([]));
    assert_eq!(aging["running"]["behind"], json!(["priority"]));
    assert_eq!(shown["refused"][0]["name"], "bad");
    assert_eq!(shown["refused"][0]["step"], "validate");
    assert_eq!(shown["conflicts"], json!([]));
    assert_eq!(shown["folder"]["state"], "watched");
    assert_eq!(shown["folder"]["left_out"][0]["file"], "lonely.toml");
    let transactions = shown["transactions"].as_array().unwrap();
    let outcomes: Vec<&str> = transactions
        .iter()
        .map(|made| made["outcome"].as_str().unwrap())
        .collect();
    let start = ["in-force"; 3];
    assert_eq!(outcomes[..3], start);
    assert_eq!(
        outcomes[3..],
        ["refused", "idle", "idle", "removed", "in-force"]
    );
}

#[test]
fn what_two_files_contest_is_shown() {
    let mut stage = Stage::new();
    for file in ["one.wasm", "two.wasm"] {
        stage.write(file, component("aging"));
    }
    stage.settle();
    let shown = shown(&stage);
    let contested = json!([{
        "kind": "contested",
        "hook": "priority",
        "policies": ["one", "two"],
    }]);
    assert_eq!(shown["conflicts"], contested);
    assert_eq!(shown["hooks"]["priority"]["policy"], "aging");
}

#[test]
fn a_hook_that_is_closed_is_shown_in_the_word_of_the_sidecar() {
    let mut stage = Stage::with(&DEFAULTS, |_, _| {});
    stage.write("mine.wasm", component("test/hostile"));
    let closed = format!("on-failure = {{ admission = 'closed' }}\n{TRAPS}");
    stage.write("mine.toml", closed);
    stage.settle();
    stage.ask_often(301);
    stage.poll();
    let closed = json!([{"kind": "closed", "hook": "admission", "policies": ["mine"]}]);
    assert_eq!(shown(&stage)["conflicts"], closed);
}

fn spec(settings: LifecycleSettings, clock: SystemClock, waker: Waker) -> ReconcilerSpec {
    ReconcilerSpec {
        settings,
        bounds: pointsman_core::Config::default().bounds(),
        embedded: embedded::policies().unwrap().to_vec(),
        engine: PolicyEngine::new().unwrap(),
        clock: Arc::new(move || clock.now()),
        state: State::default(),
        waker,
    }
}

/// The whole: a reconciler on its thread, a driver on its own, the operating system's events.
#[tokio::test]
async fn a_reconciler_at_work_notices_files_and_ends_when_it_is_told() {
    let home = tempfile::tempdir().unwrap();
    let clock = SystemClock::start();
    let metrics = Arc::new(Metrics::default());
    let host = PolicyHost::new(Patience::default());
    let driver = Driver::new(machine(), host, Arc::clone(&metrics), Memory::default());
    let (handle, inbox) = channels(8);
    let (_events, events_inbox) = mpsc::channel(1);
    let thread = thread::spawn(driver, clock, inbox, events_inbox).unwrap();
    let settings = LifecycleSettings {
        folder: Some(home.path().to_owned()),
        settle: Duration::from_millis(1),
        poll: Duration::from_millis(20),
        ..LifecycleSettings::default()
    };
    let (waker, woken) = waker();
    let driver = handle.clone();
    let port = DriverPort { driver, metrics };
    let mut reconciler = spawn(spec(settings, clock, waker), woken, port).unwrap();
    assert!(reconciler.ready().await);
    assert_eq!(reconciler.report.borrow().policies.len(), 3);
    fs::write(home.path().join("mine.wasm"), component("aging")).unwrap();
    let mut report = reconciler.report.clone();
    let is_held = |report: &Arc<ReconcilerReport>| {
        let mut policies = report.policies.iter();
        policies.any(|policy| policy.name == "mine" && policy.held.contains(Hook::Priority))
    };
    report.wait_for(is_held).await.unwrap();
    let status = handle.policies().await.unwrap();
    assert_eq!(status.len(), 4);
    spawn_blocking(|| reconciler.join().unwrap()).await.unwrap();
    handle.stop().await;
    spawn_blocking(|| thread.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_reconciler_that_is_to_end_waits_for_no_compiler() {
    let home = tempfile::tempdir().unwrap();
    let (folder, state) = (home.path().join("policies.d"), home.path().join("state"));
    fs::create_dir(&folder).unwrap();
    let held = HeldCompiler::new();
    let clock = SystemClock::start();
    let metrics = Arc::new(Metrics::default());
    let host = PolicyHost::new(Patience::default());
    let driver = Driver::new(machine(), host, Arc::clone(&metrics), Memory::default());
    let (handle, inbox) = channels(8);
    let (_events, events_inbox) = mpsc::channel(1);
    let thread = thread::spawn(driver, clock, inbox, events_inbox).unwrap();
    let settings = LifecycleSettings {
        folder: Some(folder.clone()),
        settle: Duration::from_millis(1),
        poll: Duration::from_millis(20),
        ..LifecycleSettings::default()
    };
    let (waker, woken) = waker();
    let spec = ReconcilerSpec {
        engine: PolicyEngine::with_compiler(held.compiler()).unwrap(),
        state: State::open(&state),
        ..spec(settings, clock, waker)
    };
    let driver = handle.clone();
    let port = DriverPort { driver, metrics };
    let mut reconciler = spawn(spec, woken, port).unwrap();
    assert!(reconciler.ready().await);
    held.hold();
    fs::write(folder.join("slow.wasm"), component("test/hostile")).unwrap();
    while compilations_noted(&state) == 0 {
        std::thread::yield_now();
    }
    spawn_blocking(|| reconciler.join().unwrap()).await.unwrap();
    assert_eq!(compilations_noted(&state), 0, "the file is not given up");
    handle.stop().await;
    spawn_blocking(|| thread.join().unwrap()).await.unwrap();
}

/// A reconciler whose host has ended ends too.
#[tokio::test]
async fn a_reconciler_without_a_host_ends() {
    let (driver, inbox) = channels(8);
    drop(inbox);
    let settings = LifecycleSettings {
        settle: Duration::ZERO,
        poll: Duration::from_secs(3600),
        ..LifecycleSettings::default()
    };
    let (waker, woken) = waker();
    let metrics = Arc::new(Metrics::default());
    let port = DriverPort { driver, metrics };
    let mut reconciler = spawn(spec(settings, SystemClock::start(), waker), woken, port).unwrap();
    assert!(reconciler.ready().await);
    while reconciler.report.changed().await.is_ok() {}
    spawn_blocking(|| reconciler.join().unwrap()).await.unwrap();
}
