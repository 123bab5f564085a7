//! Engines that die at a step that a test chooses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pointsman_engine::backend::DeviceError;
use pointsman_local::Backends;

use crate::stepped;

/// The way in which an engine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    DeviceError,
    Panic,
}

/// The times of death of engines: of whichever of a server's makes the last of these steps.
#[derive(Debug)]
pub struct Fate {
    death: Death,
    /// Steps and deaths. Engines count on threads of their own.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps before each death to come, counted from the one before it.
    steps: VecDeque<u32>,
    /// Executors whose engines died, in this order.
    died: Vec<String>,
}

// === impl Death ===

impl Death {
    /// Makes the error of a device, or panics.
    fn come(self) -> DeviceError {
        let why = "as the test says";
        match self {
            Self::DeviceError => DeviceError(why.to_owned()),
            Self::Panic => panic!("{why}"),
        }
    }
}

// === impl Fate ===

impl Fate {
    #[must_use]
    pub fn new(death: Death) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { death, state })
    }

    /// Has an engine die after so many further steps.
    pub fn after(&self, steps: u32) {
        self.after_each(&[steps]);
    }

    /// Has an engine die after so many further steps, then another one after so many more, and so on.
    pub fn after_each(&self, steps: &[u32]) {
        self.state().steps = steps.iter().copied().collect();
    }

    /// Takes the names of the executors whose engines have died, in this order.
    #[must_use]
    pub fn died(&self) -> Vec<String> {
        std::mem::take(&mut self.state().died)
    }

    /// Backends whose steps are counted.
    #[must_use]
    pub fn backends(self: &Arc<Self>) -> Backends {
        let fate = Arc::clone(self);
        stepped::backends(move |name| match fate.is_last(name) {
            true => Err(fate.death.come()),
            false => Ok(()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a step. True if it is the last one of the executor's engine.
    fn is_last(&self, name: &str) -> bool {
        let mut state = self.state();
        match state.steps.front_mut() {
            None => return false,
            Some(steps) if *steps > 0 => {
                *steps -= 1;
                return false;
            }
            Some(_) => {}
        }
        state.steps.pop_front();
        state.died.push(name.to_owned());
        true
    }
}
