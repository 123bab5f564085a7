//! The official `openai` client for Python, against a server on this machine.

use anyhow::{Context, Result, ensure};
use pointsman_server::config::BackendConfig;
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
    run_client(&serving).await?;
    serving.idle().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_elsewhere_answers_it_as_it_does_itself() -> Result<()> {
    let back = Serving::start(|_| {}).await?;
    let url = format!("http://{}", back.server.addr());
    let backend = BackendConfig::new(url.parse()?);
    let front = Serving::start(|config| {
        config.models.clear();
        config.executors.clear();
        config.backends = vec![backend];
    });
    let front = front.await?;
    run_client(&front).await?;
    front.idle().await?;
    back.idle().await?;
    Ok(())
}

/// Runs the client's script against a server.
async fn run_client(serving: &Serving) -> Result<()> {
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
    Ok(())
}
