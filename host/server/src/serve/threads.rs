//! The threads of a server, waited for as it ends.

use std::thread::JoinHandle;

use anyhow::{Result, anyhow, bail};
use pointsman_executor::handle::Ended;

/// An engine's thread, with the name of its executor; absent: that was ordered to go.
type EngineThread = (Option<String>, JoinHandle<Ended>);

/// Waits for the driver and the engines, each of them. The driver first: it holds what the engines wait for.
pub(super) fn join(driver: JoinHandle<()>, engines: Vec<EngineThread>) -> Result<()> {
    let driver = driver.join();
    let driver = driver.map_err(|_panic| anyhow!("the driver panicked"));
    let engines = engines.into_iter();
    engines.fold(driver, |ended, engine| ended.and(join_engine(engine)))
}

/// Waits for an engine. One that had given up is a failure, unless its executor was ordered to go.
fn join_engine((executor, engine): EngineThread) -> Result<()> {
    let ended = engine.join();
    let ended = ended.map_err(|_panic| anyhow!("an engine panicked"))?;
    match (ended, executor) {
        (Ended::GaveUp(why), Some(executor)) => {
            bail!("the engine of executor `{executor}` had given up: {why}")
        }
        (Ended::GaveUp(_), None) | (Ended::Closed, _) => Ok(()),
    }
}
