//! The official `openai` client for Python, against a server on this machine.

use anyhow::{Context, Result, ensure};
use pointsman_tests::serving::{Serving, target};
use tokio::process::Command;

const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/demo-model/golden.json"
);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_chat.py");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_streams_and_understands_errors() -> Result<()> {
    let serving = Serving::start(|_| {}).await?;
    let python = target().join("python/bin/python");
    let output = Command::new(&python)
        .arg(SCRIPT)
        .arg(format!("http://{}/v1", serving.server.addr()))
        .arg(GOLDEN)
        .output()
        .await
        .with_context(|| format!("{}: run `cargo xtask test`", python.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}\n{complained}");
    serving.idle().await?;
    Ok(())
}
