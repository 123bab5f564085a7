//! Processor pools: each device has threads, KV memory and tokens per step of its own.

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, JournalPlace};
use pointsman_driver::provider::ExecutorConfig;
use pointsman_engine::cpu::Cores;
use pointsman_local::{DeviceConfig, Hardware};
use pointsman_policy_cli::Verdict;
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::serving::Serving;
use serde_json::json;
use tokio::task;

use super::pools::used;
use super::{
    ask, asked, endless, error, executor, get, order, over, place, running, second, until,
};

/// The demo model on the device `cpu0` and on one of its own, and `second` on `cpu0` alone.
fn two_pools(config: &mut Config) {
    config.local.models.push(second());
    config.local.devices.push(DeviceConfig {
        kv_bytes: Some(16 << 20),
        tokens_per_step: 64,
        ..DeviceConfig::with_processors("cpu1", 2)
    });
    config.local.executors = vec![
        executor("near", &["demo"]),
        ExecutorConfig {
            device: Some("cpu1".to_owned()),
            ..executor("apart", &["demo"])
        },
        executor("other", &["second"]),
    ];
}

#[tokio::test]
async fn a_request_that_is_forced_to_a_pool_takes_nothing_of_the_others() -> Result<()> {
    let serving = Serving::start(two_pools).await?;
    let client = serving.client;
    for (device, executor) in [("cpu1", "apart"), ("cpu0", "near"), ("cpu1", "apart")] {
        let placed = asked(client, ask("demo", json!({"device": device}))).await??;
        ensure!(placed == executor, "{device}: {placed}");
    }
    serving.idle().await?;
    let idle = get(client, "/admin/devices").await?;
    let stream = running(client, endless("demo", json!({"device": "cpu1"}))).await?;
    ensure!(place(&stream) == "apart");
    let busy = get(client, "/admin/devices").await?;
    ensure!(
        used(&idle) == [0, 0] && used(&busy)[0] == 0 && used(&busy)[1] > 0,
        "{idle} {busy}"
    );
    ensure!(busy["devices"][1]["name"] == "cpu1", "{busy}");
    // With both pools free, the processors may be asked for as such.
    let anywhere = asked(client, ask("demo", json!({"kind": "cpu"}))).await??;
    ensure!(["near", "apart"].contains(&&*anywhere), "{anywhere}");
    drop(stream);
    over(serving).await
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_pool_computes_on_cores_of_its_own() -> Result<()> {
    let usable = Cores::usable().context("no core")?.to_string();
    let (first, _others) = usable.split_once(['-', ',']).unwrap_or((&usable, ""));
    let cores: Cores = first.parse()?;
    let serving = Serving::start(|config| {
        two_pools(config);
        config.local.devices[1] = DeviceConfig {
            hardware: Hardware::Processors {
                threads: 2,
                cores: Some(cores),
            },
            ..DeviceConfig::with_processors("held", 2)
        };
        config.local.executors[1].device = Some("held".to_owned());
    })
    .await?;
    let placed = asked(serving.client, ask("demo", json!({"device": "held"}))).await??;
    ensure!(placed == "apart", "{placed}");
    let threads = ["held-0", "held-1"].map(|name| (name.to_owned(), first.to_owned()));
    ensure!(cores_of("held-")? == threads);
    over(serving).await
}

/// The threads of this process whose names begin so, each with the cores that it may run on.
#[cfg(target_os = "linux")]
fn cores_of(names: &str) -> Result<Vec<(String, String)>> {
    const ALLOWED: &str = "Cpus_allowed_list:";
    let mut found = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let folder = thread?.path();
        // Threads of other tests may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(folder.join("comm")) else {
            continue;
        };
        if name.starts_with(names) {
            let status = std::fs::read_to_string(folder.join("status"))?;
            let allowed = status.lines().find_map(|line| line.strip_prefix(ALLOWED));
            let allowed = allowed.context("no list of cores")?;
            found.push((name.trim().to_owned(), allowed.trim().to_owned()));
        }
    }
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn a_pool_that_is_busy_makes_its_own_requests_wait_and_no_others() -> Result<()> {
    let serving = Serving::start(|config| {
        two_pools(config);
        for executor in &mut config.local.executors {
            executor.terms.slots = 1;
        }
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({"device": "cpu1"}))).await?;
    let forced = asked(client, ask("demo", json!({"device": "cpu1"})));
    serving.load_until(|load| load.queued == 1).await?;
    let free = asked(client, ask("demo", json!({}))).await??;
    ensure!(free == "near", "{free}");
    let load = serving.load_until(|load| load.slots_used == 1).await?;
    ensure!(load.queued == 1, "{load:?}");
    drop(stream);
    ensure!(forced.await?? == "apart");
    over(serving).await
}

#[tokio::test]
async fn a_request_that_is_forced_where_nothing_serves_it_is_refused() -> Result<()> {
    let serving = Serving::start(two_pools).await?;
    for (model, hints, said) in [
        (
            "demo",
            json!({"device": "gpu0"}),
            "there is no device with an executor `gpu0`; there are: cpu0, cpu1",
        ),
        (
            "demo",
            json!({"kind": "cuda"}),
            "there is no executor of the kind `cuda`; there are: cpu",
        ),
        (
            "second",
            json!({"device": "cpu1"}),
            "no executor that the hints allow serves the model `second`; they allow: apart",
        ),
        (
            "demo",
            json!({"device": "cpu1", "executors": ["near"]}),
            "no executor is all that the hints say",
        ),
    ] {
        let asked = ask(model, hints);
        let answer = serving.client.post("/v1/chat/completions", &asked).await?;
        ensure!(
            error(&answer)? == (400, said.to_owned()),
            "{:?}",
            answer.json()
        );
    }
    over(serving).await
}

#[tokio::test]
async fn tokens_per_step_are_a_devices_own_and_change_while_it_runs() -> Result<()> {
    let serving = Serving::start(two_pools).await?;
    let client = serving.client;
    let near = running(client, endless("demo", json!({"device": "cpu0"}))).await?;
    let other = running(client, endless("second", json!({}))).await?;
    let apart = running(client, endless("demo", json!({"device": "cpu1"}))).await?;
    let shares = async |wanted: [u64; 3]| -> Result<()> {
        until(client, "/admin/executors", |listed| {
            let share = |at: usize| listed["executors"][at]["tokens_per_step_max"].as_u64();
            [0, 1, 2].map(share) == wanted.map(Some)
        })
        .await?;
        Ok(())
    };
    // 64 for the pool, of which one engine may have 900 permille.
    shares([128, 57, 128]).await?;
    let path = "/admin/devices/cpu1/tokens-per-step";
    let changed = order(client, path, &json!({"tokens-per-step": 32})).await?;
    ensure!(changed["tokens_per_step"] == 32, "{changed}");
    shares([128, 28, 128]).await?;
    let path = "/admin/devices/cpu0/tokens-per-step";
    order(client, path, &json!({"tokens-per-step": 40})).await?;
    shares([20, 28, 20]).await?;
    for (path, body, status, said) in [
        (path, json!({}), 400, "`tokens-per-step` is missing"),
        (
            path,
            json!({"tokens-per-step": 0}),
            400,
            "an integer from 1 to 65536",
        ),
        (
            path,
            json!({"tokens-per-step": 15}),
            409,
            "16 slots on a device that schedules 15",
        ),
        (
            "/admin/devices/gpu0/tokens-per-step",
            json!({"tokens-per-step": 99}),
            404,
            "there is no device `gpu0`; there are: cpu0, cpu1",
        ),
    ] {
        let (got, message) = error(&client.post(path, &body).await?)?;
        ensure!(
            got == status && message.contains(said),
            "{body}: {got} {message}"
        );
    }
    drop((near, other, apart));
    over(serving).await
}

#[tokio::test]
async fn an_executor_is_added_on_the_device_that_is_named() -> Result<()> {
    let serving = Serving::start(two_pools).await?;
    let client = serving.client;
    let table = json!({"name": "second", "device": "cpu1", "slots": 2});
    let added = order(client, "/admin/executors", &table).await?;
    ensure!(
        added["name"] == "cpu1/second" && added["device"] == "cpu1",
        "{added}"
    );
    let placed = asked(client, ask("second", json!({"device": "cpu1"}))).await??;
    ensure!(placed == "cpu1/second", "{placed}");
    let table = json!({"name": "second", "executor": "x", "device": "gpu0"});
    let answer = client.post("/admin/executors", &table).await?;
    let said = "there is no device `gpu0`; there are: cpu0, cpu1";
    ensure!(
        error(&answer)? == (400, said.to_owned()),
        "{:?}",
        answer.json()
    );
    over(serving).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_change_is_in_the_journal_and_replayed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let place = JournalPlace::Folder(journal.clone());
    let serving = Serving::start(|config| {
        two_pools(config);
        config.journal.place = place;
    })
    .await?;
    let client = serving.client;
    let streams = [
        running(client, endless("demo", json!({"device": "cpu0"}))).await?,
        running(client, endless("second", json!({}))).await?,
    ];
    let shared = json!({"models": ["second", "demo"], "executor": "both", "models-max": 1});
    for (path, body) in [
        (
            "/admin/devices/cpu0/tokens-per-step",
            json!({"tokens-per-step": 99}),
        ),
        ("/admin/models/demo/running-max", json!({"running-max": 2})),
        ("/admin/executors", shared),
        (
            "/admin/executors/near/share-weight",
            json!({"share-weight": 5}),
        ),
    ] {
        order(client, path, &body).await?;
        for model in ["demo", "second"] {
            asked(client, ask(model, json!({}))).await??;
        }
    }
    drop(streams);
    serving.idle().await?;
    serving.server.stop().await?;
    let replay = move || replay_said(&replay_args(&journal));
    let (said, verdict) = task::spawn_blocking(replay).await??;
    ensure!(verdict == Verdict::Good, "{said}");
    Ok(())
}
