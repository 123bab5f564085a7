//! Lines for the host's log.
//!
//! In a component they go to the host. Natively the last few are kept for tests to [`take`].

pub use crate::wire::log::Level;

/// Logs a line for the policy's author.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Logs a line worth knowing in normal operation. Never per request.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Logs a line that the operator should look at.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Tells the host why the call in progress is about to trap. The SDK does that for a panic.
///
/// `message` is a predicate, of which the policy is the subject: `panicked at src/routing.rs:20:
/// boom`. Further lines are a stack.
#[cfg(target_arch = "wasm32")]
pub fn fault(message: &str) {
    crate::wire::log::fault(message);
}

#[cfg(target_arch = "wasm32")]
fn write(level: Level, message: &str) {
    crate::wire::log::write(level, message);
}

#[cfg(not(target_arch = "wasm32"))]
pub use native::take;
#[cfg(not(target_arch = "wasm32"))]
use native::write;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::Level;

    /// Lines kept natively; older ones are dropped.
    const KEPT_MAX: usize = 256;

    thread_local! {
        static LINES: RefCell<VecDeque<(Level, String)>> = const { RefCell::new(VecDeque::new()) };
    }

    pub(super) fn write(level: Level, message: &str) {
        LINES.with_borrow_mut(|lines| {
            if lines.len() == KEPT_MAX {
                lines.pop_front();
            }
            lines.push_back((level, message.to_owned()));
        });
    }

    /// The lines this thread's policies have written, oldest first; forgets them.
    #[must_use]
    pub fn take() -> Vec<(Level, String)> {
        LINES.with_borrow_mut(|lines| lines.drain(..).collect())
    }
}
