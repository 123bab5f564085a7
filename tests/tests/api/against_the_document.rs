//! schemathesis, which tests a server by the document it serves: requests that fit are understood, others
//! are refused, and every answer is one that the document has.

use anyhow::{Context, Result, ensure};
use pointsman_tests::serving::{Serving, target};
use tokio::process::Command;

/// The tester's configuration: what is asked is the same each time.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/schemathesis.toml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_does_what_its_document_says() -> Result<()> {
    let elsewhere = Serving::start(|_| {}).await?;
    let backend = elsewhere.as_backend()?;
    let serving = Serving::start(|config| config.backends = vec![backend]).await?;
    let program = target().join("python/bin/st");
    // It remembers what failed, where it runs.
    let folder = tempfile::tempdir()?;
    let output = Command::new(&program)
        .args(["--config-file", CONFIG, "run", "--no-color"])
        .arg(format!("http://{}/openapi.json", serving.server.addr()))
        .current_dir(folder.path())
        .output()
        .await
        .with_context(|| format!("{}: run `cargo xtask test`", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}\n{complained}");
    serving.idle_but_for_blocks().await?;
    elsewhere.idle().await?;
    Ok(())
}
