//! The operator's emergency switch: hooks back on the embedded defaults, at once.
//!
//! The driver is told directly, so that it does not matter for how long a folder on a slow disk keeps
//! the keeper. The keeper has the order in its inbox by then, notes it, and leaves things so.

use pointsman_core::HookSet;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;

use super::order::{Order, OrderError, OrderHandle};
use crate::driver::message::DriverHandle;
use crate::driver::operator::Operator;

/// For so long the keeper is waited for.
const NOTE_WAIT: Duration = Duration::from_secs(2);

/// Whether an ejection outlives the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It does, where there is a state folder.
    Yes,
    /// The keeper is busy, and notes it as soon as it is not.
    NotYet,
}

/// Puts `hooks` back on the embedded defaults.
///
/// # Errors
/// If the host is shutting down.
///
/// # Cancellation
/// What was begun is done.
pub async fn eject(
    driver: &DriverHandle,
    orders: &OrderHandle,
    hooks: HookSet,
) -> Result<Noted, OrderError> {
    // Biased, so that the keeper cannot hear of it before it hears the order.
    let (noted, done) = tokio::join!(
        biased;
        timeout(NOTE_WAIT, orders.order(Order::Eject { hooks })),
        driver.operate(|answer| Operator::Eject(hooks, answer)),
    );
    done.ok_or(OrderError::Ended)?;
    match noted {
        Ok(carried) => carried.map(|_| Noted::Yes),
        Err(_elapsed) => {
            warn!(
                "hooks ejected, which the policy keeper has not noted yet: is the policy folder slow?"
            );
            Ok(Noted::NotYet)
        }
    }
}
