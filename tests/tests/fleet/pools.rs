//! Executors on pools of so many KV blocks, and requests that hold so many of them.

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, PrefixCache};
use pointsman_driver::provider::ExecutorConfig;
use pointsman_local::DeviceConfig;
use pointsman_tests::client::{Answer, Client};
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

use super::{executor, get, until};

/// Bytes of a block of the demo model.
pub(super) const BLOCK: u64 = 48 << 10;
const TOKENS_PER_BLOCK: usize = 16;
/// Steps of a request of one block, each of which makes a token of its answer.
pub(super) const STEPS: u32 = 4;

/// Has the demo model served by `a`, `b` and so on, each on a pool of so many blocks. No request
/// uses what another one left there.
pub(super) fn pools(config: &mut Config, blocks: &[u64]) {
    config.http.prefix_cache = PrefixCache::Off;
    let pools = blocks.iter().zip(["a", "b", "c"]).enumerate();
    let (devices, executors) = pools
        .map(|(at, (blocks, name))| {
            let device = format!("cpu{at}");
            let pool = DeviceConfig {
                kv_bytes: Some(blocks * BLOCK),
                ..DeviceConfig::with_processors(&device, 1)
            };
            let on_it = ExecutorConfig {
                device: Some(device),
                ..executor(name, &["demo"])
            };
            (pool, on_it)
        })
        .unzip();
    config.local.devices = devices;
    config.local.executors = executors;
}

/// A request to `model` that holds so many blocks from its prompt to its end, with hints.
pub(super) fn of_blocks(blocks: usize, model: &str, hints: &Value) -> Value {
    json!({
        "model": model,
        "prompt": vec![7; blocks * TOKENS_PER_BLOCK - 8],
        "max_tokens": STEPS,
        "ignore_eos": true,
        "pointsman": hints,
    })
}

/// The answer to a request of [`of_blocks`], on a task of its own.
pub(super) fn answered(client: Client, body: Value) -> JoinHandle<Result<Answer>> {
    task::spawn(async move { client.post("/v1/completions", &body).await })
}

/// A request of [`of_blocks`] that is answered on a task of its own.
pub(super) fn completed(client: Client, body: Value) -> JoinHandle<Result<()>> {
    task::spawn(async move {
        let answer = answered(client, body).await??;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
}

/// The executor on which a request is placed once it is `sent`, whatever becomes of it there.
pub(super) async fn places<T>(client: Client, sent: impl FnOnce() -> T) -> Result<(String, T)> {
    const PATH: &str = "/admin/executors";
    let before = placements(&get(client, PATH).await?);
    let sent = sent();
    let listed = until(client, PATH, |listed| placements(listed) != before).await?;
    let mut after = placements(&listed).into_iter().zip(before);
    let taken = after.find(|(after, before)| after != before);
    let ((name, _), _) = taken.context("an executor is gone")?;
    Ok((name, sent))
}

/// The executors, with the requests placed on each so far.
fn placements(listed: &Value) -> Vec<(String, u64)> {
    let executors = listed["executors"].as_array().into_iter().flatten();
    let of = |executor: &Value| {
        let name = executor["name"].as_str()?.to_owned();
        Some((name, executor["placed_total"].as_u64()?))
    };
    executors.filter_map(of).collect()
}

/// The blocks of each device that hold something that is in use.
pub(super) fn used(devices: &Value) -> Vec<u64> {
    let devices = devices["devices"].as_array().into_iter().flatten();
    let used = |device: &Value| {
        let count = |field: &str| device[field].as_u64();
        Some(count("blocks_total")? - count("blocks_free")? - count("blocks_cached")?)
    };
    devices.filter_map(used).collect()
}
