//! Engines that stand still while a test looks at them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use pointsman_local::Backends;

use crate::stepped;

/// A gate in front of every step of a server's engines. It is open at first. To be opened before the
/// server is stopped.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Engines wait for it to be open.
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// True while no step begins, but for so many of these executors.
    shut: bool,
    allowed: BTreeMap<String, u32>,
    /// Engines that would begin a step.
    standing: usize,
}

impl Gate {
    /// Backends whose steps go through the gate.
    #[must_use]
    pub fn backends(&self) -> Backends {
        let gate = self.clone();
        stepped::backends(move |name| {
            gate.pass(name);
            Ok(())
        })
    }

    /// Lets no further step begin.
    pub fn shut(&self) {
        let mut state = self.state();
        state.shut = true;
        state.allowed.clear();
    }

    /// Lets the engines go on.
    pub fn open(&self) {
        self.state().shut = false;
        self.0.opened.notify_all();
    }

    /// Lets the engine of this executor make so many further steps.
    pub fn allow(&self, executor: &str, steps: u32) {
        let mut state = self.state();
        *state.allowed.entry(executor.to_owned()).or_default() += steps;
        self.0.opened.notify_all();
    }

    /// Waits until so many engines would begin a step, each with the sequences it has then.
    ///
    /// # Errors
    /// If there are fewer for long.
    pub async fn stands(&self, engines: usize) -> Result<()> {
        for _ in 0..6000 {
            if self.state().standing == engines {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("{:?} instead of {engines} engines", self.state())
    }

    fn pass(&self, executor: &str) {
        let mut state = self.state();
        state.standing += 1;
        let opened = self.0.opened.wait_while(state, |state| {
            state.shut && state.allowed.get(executor).is_none_or(|steps| *steps == 0)
        });
        let mut state = opened.unwrap_or_else(PoisonError::into_inner);
        state.standing -= 1;
        if let Some(steps) = state.allowed.get_mut(executor) {
            *steps = steps.saturating_sub(1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
