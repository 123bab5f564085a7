//! Every hostile guest in the folder of a server under load: no request fails, the right version is
//! in force in the end, and the history says why.
//!
//! # Not here
//! Guests that shed requests or give them up: a policy may, and its requests fail (`hostile.rs`).

use anyhow::{Context, Result, ensure};
use pointsman_config::{ApiKey, Config, Rights, TenantConfig};
use pointsman_core::Micros;
use pointsman_lifecycle::report::{ReconcilerReport, ReloadStep, Transaction, TransactionOutcome};
use pointsman_policy::Restored;
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::load::LoadGenerator;
use pointsman_tests::serving::{Serving, component, sidecar};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Number of clients of each tenant.
const CLIENTS: usize = 4;
/// Number of requests about which a guest that stays must have decided, and the most that are sent
/// for it.
const ANSWERS: usize = 20;
const ASKED_MAX: usize = 200;
/// The tenants, which are also their keys.
const TENANTS: [&str; 2] = ["rich", "poor"];
/// The policies that hold the hooks without a guest.
const DEFAULTS: [&str; 3] = ["aging", "budget", "memory-aware"];

/// Words of the sentences in which faults are told.
const TRAPPED: &str = "as it was told";
const LOOPED: &str = "ran out of fuel";
const HOARDED: &str = "ran out of memory";
const RECURSED: &str = "trapped at priority";

/// The fate of one version of a guest.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// It never gets in force: this step says why, in these words.
    Refused(ReloadStep, &'static str),
    /// It gets in force, and out again for what these words say.
    Out(&'static str),
    /// It stays in force.
    Stays,
    /// It stays in force, without the state of its predecessor, whose hand-over faulted.
    StaysCold,
}

/// Guests under one name, one after the other.
struct Case {
    name: &'static str,
    versions: Vec<(Value, Ends)>,
}

fn case(name: &'static str, settings: Value, ends: Ends) -> Case {
    Case {
        name,
        versions: vec![(settings, ends)],
    }
}

fn faulting() -> Vec<Case> {
    let all = json!(["admit", "order", "route", "evict", "allot"]);
    let many = json!(["route", "order", "allot"]);
    let at_once = [
        ("traps", "trap", all.clone(), 0, TRAPPED),
        ("traps-soon", "trap", all, 20, TRAPPED),
        ("traps-when-told", "trap", json!(["observe"]), 0, TRAPPED),
        ("loops", "loop", json!(["route"]), 0, LOOPED),
        ("loops-when-told", "loop", json!(["observe"]), 10, LOOPED),
        (
            "allocates-when-told",
            "allocate",
            json!(["observe"]),
            0,
            HOARDED,
        ),
        ("recurses", "recurse", json!(["order"]), 0, RECURSED),
        (
            "a-million-rows",
            "million-rows",
            many,
            0,
            "returned too much",
        ),
    ];
    let later = [
        ("traps-later", "trap", "route", 100, TRAPPED),
        ("loops-later", "loop", "route", 100, LOOPED),
        ("allocates-later", "allocate", "route", 100, HOARDED),
        ("recurses-later", "recurse", "order", 100, RECURSED),
        ("loops-when-told-later", "loop", "observe", 20_000, LOOPED),
    ];
    let settings = |outrage: &str, calls: Value, good_calls: u32| json!({"outrage": outrage, "calls": calls, "good-calls": good_calls});
    let at_once = at_once.map(|(name, outrage, calls, good, why)| {
        let ends = Ends::Refused(ReloadStep::Test, why);
        case(name, settings(outrage, calls, good), ends)
    });
    let later = later.map(|(name, outrage, call, good, why)| {
        case(name, settings(outrage, json!([call]), good), Ends::Out(why))
    });
    at_once.into_iter().chain(later).collect()
}

fn answering() -> Vec<Case> {
    let refused = |why| Ends::Refused(ReloadStep::Test, why);
    let answers = [
        ("twice", refused("self-test")),
        ("unknown-executors", refused("self-test")),
        ("displace-unknown", refused("self-test")),
        ("allot-too-much", refused("self-test")),
        ("no-executors", refused("names no executor")),
        ("hold-for-ever", Ends::Out("bound")),
        ("order-nothing", Ends::Stays),
        ("allot-nothing", Ends::Stays),
        ("ignore-allowed", Ends::Stays),
        ("evict-most-urgent", Ends::Stays),
    ];
    let answers = answers.map(|(name, ends)| case(name, json!({"answers": name}), ends));
    let starving = json!({"answers": "starve-tenant", "tenant": "poor"});
    let starving = case("starves-a-tenant", starving, Ends::Out("bound"));
    answers.into_iter().chain([starving]).collect()
}

fn in_time() -> Vec<Case> {
    vec![
        Case {
            name: "right-but-slow",
            versions: vec![
                (json!({}), Ends::Stays),
                (json!({"toil": 300_000}), Ends::Out("fuel")),
            ],
        },
        Case {
            name: "a-thousand-good-answers",
            versions: vec![
                (json!({}), Ends::Stays),
                (
                    json!({"outrage": "trap", "calls": ["route"], "good-calls": 1000}),
                    Ends::Out(TRAPPED),
                ),
            ],
        },
        Case {
            name: "restore-loops",
            versions: vec![
                (json!({}), Ends::Stays),
                (
                    json!({"outrage": "loop", "calls": ["restore"]}),
                    Ends::StaysCold,
                ),
            ],
        },
        case(
            "a-snapshot-of-a-gigabyte",
            json!({"outrage": "gigabyte", "calls": ["snapshot"]}),
            Ends::Out("snapshot"),
        ),
        case(
            "snapshot-loops",
            json!({"outrage": "loop", "calls": ["snapshot", "restore"]}),
            Ends::Out("snapshot"),
        ),
    ]
}

/// Sets up two tenants with keys. Held requests are soon placed by the built-in rule, and a
/// probation is short.
fn two_tenants(config: &mut Config) {
    config.core.unplaced_max = Micros(300_000);
    config.core.held_max = Micros(300_000);
    config.policies.probation.questions = 300;
    config.policies.probation.micros = 1_000_000;
    for name in TENANTS {
        config.tenants.push(TenantConfig::new(name));
        config.keys.push(ApiKey {
            sha256: Sha256::digest(name).into(),
            rights: Rights::of_tenant(name),
        });
    }
}

fn short(n: usize) -> Value {
    let mut body = streamed_chat(&format!("Count to {}.", n % 5 + 2));
    body["max_tokens"] = json!(2);
    body
}

/// The newest transactions of `name` that are newer than number `after`.
fn history(report: &ReconcilerReport, name: &str, after: u64) -> Vec<Transaction> {
    let all = report.transactions.iter();
    let its = all.filter(|made| made.policy == name && made.number > after);
    its.cloned().collect()
}

fn is_in_force(made: &Transaction) -> bool {
    matches!(made.outcome, TransactionOutcome::InForce(_))
}

/// The reason why a version is out of force, if it is.
fn out(made: &Transaction) -> Option<&str> {
    match &made.outcome {
        TransactionOutcome::RolledBack { why } | TransactionOutcome::Dropped { why } => Some(why),
        TransactionOutcome::InForce(_)
        | TransactionOutcome::Canary(..)
        | TransactionOutcome::Shadow(_)
        | TransactionOutcome::Waits { .. }
        | TransactionOutcome::Idle { .. }
        | TransactionOutcome::Refused { .. }
        | TransactionOutcome::Removed
        | TransactionOutcome::Proven => None,
    }
}

/// The policies that hold a hook, by name.
fn holders(report: &ReconcilerReport) -> Vec<&str> {
    let holding = report.policies.iter().filter(|it| !it.held.is_empty());
    holding.map(|policy| policy.name.as_str()).collect()
}

/// Sends requests of `client` until a guest has decided about `times` of them.
async fn answered(client: Client, times: usize) -> Result<()> {
    let (mut answered, mut asked) = (0, 0);
    while answered < times {
        asked += 1;
        ensure!(
            asked <= ASKED_MAX,
            "of {asked} requests it has decided {answered}"
        );
        let stream = client.stream(&short(answered)).await?;
        let by = stream.headers.get("x-pointsman-policy");
        answered += usize::from(by.is_some_and(|by| by != "memory-aware" && by != "built-in"));
        let streamed = stream.finish().await?;
        ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    }
    Ok(())
}

/// Puts one version into the folder, and waits for its fate.
async fn goes(serving: &Serving, client: Client, case: &Case, version: usize) -> Result<()> {
    let Case { name, versions } = case;
    let (settings, ends) = &versions[version];
    let before = serving
        .server
        .reports()
        .borrow()
        .transactions
        .back()
        .map_or(0, |made| made.number);
    serving.drop_in(&format!("{name}.toml"), sidecar(settings)?.as_bytes())?;
    if version == 0 {
        serving.drop_in(&format!("{name}.wasm"), &component("test/hostile")?)?;
    }
    let its = |report: &ReconcilerReport| history(report, name, before);
    match *ends {
        Ends::Refused(step, words) => {
            let report = serving
                .report_until(|report| !its(report).is_empty())
                .await?;
            let [made] = its(&report).try_into().ok().context("several")?;
            let TransactionOutcome::Refused { step: at, why } = &made.outcome else {
                anyhow::bail!("{made:?}")
            };
            ensure!(*at == step && why.contains(words), "{made:?}");
        }
        Ends::Out(words) => {
            let report = serving
                .report_until(|report| its(report).iter().any(|made| out(made).is_some()))
                .await?;
            let its = its(&report);
            ensure!(its.iter().any(is_in_force), "{its:#?}");
            let why = its.iter().find_map(out).unwrap_or_default();
            ensure!(why.contains(words), "{name}: {why}");
        }
        Ends::Stays | Ends::StaysCold => {
            // An earlier version may come into force again meanwhile, without a restored state.
            let is_it = |made: &Transaction| match ends {
                Ends::StaysCold => matches!(made.restored, Some(Restored::Faulted(_))),
                Ends::Stays | Ends::Out(_) | Ends::Refused(..) => true,
            };
            let stays = |made: &Transaction| is_in_force(made) && is_it(made);
            serving
                .report_until(|report| its(report).iter().any(stays))
                .await?;
            answered(client, ANSWERS).await?;
        }
    }
    Ok(())
}

/// Runs the versions of each case one after the other, under load.
async fn go(cases: Vec<Case>) -> Result<()> {
    let serving = Serving::start(two_tenants).await?;
    let clients = TENANTS.map(|tenant| serving.client.with_key(tenant));
    let golden = clients[0].chat("Hello").await?.text()?;
    let loads = clients.map(|client| LoadGenerator::start(client, CLIENTS, short));
    for case in &cases {
        for version in 0..case.versions.len() {
            let gone = goes(&serving, clients[0], case, version).await;
            gone.with_context(|| format!("{}, version {version}", case.name))?;
            is_right(&serving, case, version)?;
            for client in clients {
                let text = client.chat("Hello").await?.text()?;
                ensure!(text == golden, "{}: {text:?}", case.name);
            }
        }
        for file in ["wasm", "toml"] {
            std::fs::remove_file(serving.path(&format!("{}.{file}", case.name)))?;
        }
        let gone = |report: &ReconcilerReport| !holders(report).contains(&case.name);
        serving.report_until(gone).await?;
    }
    for load in loads {
        let served = load.stop().await?;
        ensure!(served >= CLIENTS, "{served} requests served");
    }
    serving.idle().await?;
    ensure!(holders(&serving.server.reports().borrow()) == DEFAULTS);
    serving.server.stop().await?;
    Ok(())
}

/// Checks that the newest version that stays is in force, or else the defaults.
fn is_right(serving: &Serving, case: &Case, version: usize) -> Result<()> {
    let report = serving.server.reports().borrow().clone();
    let stays = |(_, ends): &&(Value, Ends)| matches!(ends, Ends::Stays | Ends::StaysCold);
    let Some((settings, _)) = case.versions[..=version].iter().rev().find(stays) else {
        ensure!(holders(&report) == DEFAULTS, "{:?}", holders(&report));
        return Ok(());
    };
    let holder = report
        .policies
        .iter()
        .find(|policy| policy.name == case.name);
    let holder = holder.context("it is gone")?;
    ensure!(holders(&report) == [case.name], "{:?}", holders(&report));
    let held = Value::Object(holder.settings.clone());
    ensure!(held == *settings, "{held} instead of {settings}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_that_fault_cost_nobody_a_request() -> Result<()> {
    go(faulting()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_that_answer_wrongly_cost_nobody_a_request() -> Result<()> {
    go(answering()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_that_go_wrong_in_time_cost_nobody_a_request() -> Result<()> {
    go(in_time()).await
}

// === Slow starts ===

/// Rounds of idle work in `configure`, which take a second or more.
const SLOW_START: u32 = 400_000_000;
/// Number of requests that must be answered while a policy starts.
const MEANWHILE: usize = 5;

/// Sends a request and returns the policy that placed it.
async fn placed_by(client: Client) -> Result<String> {
    let stream = client.stream(&short(0)).await?;
    let by = stream.headers.get("x-pointsman-policy").cloned();
    let streamed = stream.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    Ok(by.context("nobody is named")?.to_str()?.to_owned())
}

/// Starts a server that soon takes a policy for proven, with one in force that is slow to start and
/// faults at its `good_calls`th routing.
async fn with_slow_starter(good_calls: u32) -> Result<Serving> {
    let serving = Serving::start(|config| {
        config.policies.limits.lifecycle_fuel = 100_000_000_000;
        config.policies.probation.questions = 1;
        config.policies.probation.micros = 1;
        config.patience.back_off_micros = 1000;
    })
    .await?;
    let settings = json!({
        "outrage": "trap", "calls": ["route"],
        "good-calls": good_calls, "start-toil": SLOW_START,
    });
    serving.drop_in("slow.toml", sidecar(&settings)?.as_bytes())?;
    serving.drop_in("slow.wasm", &component("test/hostile")?)?;
    let proven = |report: &ReconcilerReport| {
        let its = history(report, "slow", 0);
        its.iter()
            .any(|made| made.outcome == TransactionOutcome::Proven)
    };
    while !proven(&serving.server.reports().borrow()) {
        placed_by(serving.client).await?;
    }
    Ok(serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_policy_that_starts_again_after_a_fault() -> Result<()> {
    let serving = with_slow_starter(200).await?;
    while placed_by(serving.client).await? == "slow" {}
    // Its back-off is over long before its next instance is there.
    let mut meanwhile = 1;
    while placed_by(serving.client).await? != "slow" {
        meanwhile += 1;
    }
    ensure!(meanwhile >= MEANWHILE, "{meanwhile} requests answered");
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_the_copy_of_a_policy_that_a_forecast_asks() -> Result<()> {
    let serving = with_slow_starter(u32::MAX).await?;
    let client = serving.client;
    let question = json!({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]});
    let forecast = tokio::spawn(async move { client.post("/admin/route", &question).await });
    let mut meanwhile = 0;
    while !forecast.is_finished() {
        ensure!(placed_by(serving.client).await? == "slow");
        meanwhile += 1;
    }
    let forecast = forecast.await??.json()?;
    ensure!(forecast["by"]["policy"] == "slow", "{forecast}");
    ensure!(meanwhile >= MEANWHILE, "{meanwhile} requests answered");
    serving.server.stop().await?;
    Ok(())
}
