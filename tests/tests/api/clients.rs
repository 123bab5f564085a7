//! Clients and frameworks that programs are written with: a server answers them on its own, and through
//! it a server elsewhere.

use anyhow::Result;
use pointsman_tests::extras::ClientScript;
use pointsman_tests::serving::Serving;

/// A server with an engine, and one that has it as its backend.
async fn back_and_front() -> Result<[Serving; 2]> {
    let back = Serving::start(|_| {}).await?;
    let backend = back.as_backend()?;
    let front = Serving::start(|config| {
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = vec![backend];
    });
    Ok([back, front.await?])
}

async fn answered(script: ClientScript) -> Result<()> {
    let servers = back_and_front().await?;
    for serving in &servers {
        script.run(serving).await?;
    }
    for serving in &servers {
        serving.idle().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_python_is_answered() -> Result<()> {
    answered(ClientScript::python()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_client_for_node_is_answered() -> Result<()> {
    answered(ClientScript::node()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm_and_langchain_are_answered() -> Result<()> {
    match ClientScript::frameworks() {
        Some(script) => answered(script).await,
        None => Ok(()),
    }
}
