//! Orders of operators about policies, while the host runs.
//!
//! Orders come from the admin interface, the command line and signals. The reconciler carries out
//! one after another, between its passes and while a policy is compiled, and writes down the orders
//! that hold in its next life.
//!
//! # Not here
//! The execution of each order (`reconciler::orders`).

use std::task::Waker;

use pointsman_component::Digest;
use pointsman_interface::{Hook, HookSet};
use pointsman_policy::Mode;
use tokio::sync::{mpsc, oneshot};

use super::report::ReloadStep;

/// The most orders that may wait. With more, their givers wait.
const ORDERS_MAX: usize = 16;

/// An order of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Binds a hook to a policy, before the folder and the configuration.
    Bind {
        hook: Hook,
        /// The policy to bind; absent: as if no order about the hook had been given.
        policy: Option<String>,
    },
    /// Sets the mode of a policy, until the policy's file says another mode than now.
    Mode { policy: String, mode: Mode },
    /// Gives a shadow or a canary every hook that the policy exports.
    Promote { policy: String },
    /// Puts the version before in force again. The present one is not tried again.
    Rollback { policy: String },
    /// Gives hooks back to the embedded defaults, at once.
    Eject { hooks: HookSet },
    /// Lets a version in quarantine be put in force again.
    Release {
        /// Digest of the version's code and settings.
        fingerprint: Digest,
    },
}

/// The reason why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// There is no such policy, or no version of it is ready yet.
    #[error("there is no policy {0}")]
    NoPolicy(String),
    /// The policy makes no such decision.
    #[error("policy {policy} does not export {}", .hook.as_str())]
    NotExported { policy: String, hook: Hook },
    /// The policy's answers do not count: the policy has to be promoted.
    #[error("policy {policy} is in mode {mode}: promote it")]
    NotEnforced { policy: String, mode: Mode },
    /// The policy's answers count already.
    #[error("policy {0} is neither a shadow nor a canary")]
    InForce(String),
    /// The policy makes no decision that can be tried on some of the tenants.
    #[error("policy {0} exports neither admission nor routing: it cannot be a canary")]
    NoCanary(String),
    /// The policy is part of the server, and is the fallback of the others.
    #[error("policy {0} is embedded")]
    Embedded(String),
    /// The policy holds nothing that another could get back.
    #[error("policy {0} holds no hook")]
    Idle(String),
    /// No version in quarantine has that fingerprint.
    #[error("nothing with fingerprint {0} is in quarantine")]
    NotQuarantined(Digest),
    /// A step on the way failed. What is in force stays.
    #[error("not done: {step}: {why}")]
    Failed { step: ReloadStep, why: String },
    /// The host is shutting down.
    #[error("the host is shutting down")]
    HostEnded,
}

/// An order, and the channel for its result.
pub type PlacedOrder = (Order, oneshot::Sender<Result<(), OrderError>>);

/// The way to give orders. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OrderHandle {
    orders: mpsc::Sender<PlacedOrder>,
    waker: Waker,
}

/// A way to give orders, and the channel on which they arrive. `waker` wakes their reader.
#[must_use]
pub fn orders(waker: Waker) -> (OrderHandle, mpsc::Receiver<PlacedOrder>) {
    let (orders, inbox) = mpsc::channel(ORDERS_MAX);
    (OrderHandle { orders, waker }, inbox)
}

impl OrderHandle {
    /// Has `order` carried out.
    ///
    /// # Errors
    /// If the order cannot be carried out; the policies in force stay then.
    ///
    /// # Cancellation
    /// An order that was placed is carried out, even if nobody waits for the result.
    pub async fn order(&self, order: Order) -> Result<(), OrderError> {
        let (answer, answered) = oneshot::channel();
        let placed = self.orders.send((order, answer)).await;
        placed.map_err(|_closed| OrderError::HostEnded)?;
        self.waker.wake_by_ref();
        answered.await.unwrap_or(Err(OrderError::HostEnded))
    }
}
