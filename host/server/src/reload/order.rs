//! What an operator may order about policies, while the host runs.
//!
//! Orders come from the admin interface, the command line and signals. The keeper carries out one
//! after another, between its passes and while something is compiled, and writes down what is to
//! hold in its next life.
//!
//! # Not here
//! How each is carried out (`keeper`).

use pointsman_core::{Hook, HookSet};
use pointsman_policy::{Digest, Mode};
use tokio::sync::{mpsc, oneshot};

use super::report::Step;
use crate::bell::Bell;

/// Orders that may wait; past it those who give them do.
const ORDERS_MAX: usize = 16;

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// A hook is a policy's, whatever else the folder and the configuration say.
    Bind {
        /// Which hook.
        hook: Hook,
        /// Whose; absent: as if nothing had been ordered about the hook.
        policy: Option<String>,
    },
    /// A policy's answers count so far, until its file says something else than it says now.
    Mode {
        /// Whose.
        policy: String,
        /// How far.
        mode: Mode,
    },
    /// A shadow or a canary gets every hook it exports.
    Promote {
        /// Who.
        policy: String,
    },
    /// The version that was there before is in force again, and this one is not tried again.
    Rollback {
        /// Whose version.
        policy: String,
    },
    /// Hooks are the embedded defaults', at once.
    Eject {
        /// Which hooks.
        hooks: HookSet,
    },
    /// A version that is in quarantine may be put in force again.
    Release {
        /// Digest of its code and settings.
        fingerprint: Digest,
    },
}

/// What is, once an order has been carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Who decides what; absent: the built-in rule.
    pub holders: Vec<(Hook, Option<String>)>,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// There is no such policy, or no version of it can be put in force.
    #[error("there is no policy {0}")]
    NoPolicy(String),
    /// It makes no such decision.
    #[error("policy {policy} does not export {}", .hook.as_str())]
    NotExported {
        /// Which policy.
        policy: String,
        /// Which hook.
        hook: Hook,
    },
    /// Its answers do not count: it has to be promoted.
    #[error("policy {policy} is in mode {mode}: promote it")]
    NotEnforced {
        /// Which policy.
        policy: String,
        /// Its mode.
        mode: Mode,
    },
    /// Its answers count already.
    #[error("policy {0} is neither a shadow nor a canary")]
    InForce(String),
    /// It makes no decision that can be tried on some of the tenants.
    #[error("policy {0} exports neither admission nor routing: it cannot be a canary")]
    NoCanary(String),
    /// It is part of the server, and is what is fallen back to.
    #[error("policy {0} is embedded")]
    Embedded(String),
    /// It holds nothing that another could get back.
    #[error("policy {0} holds no hook")]
    Idle(String),
    /// No version in quarantine has that fingerprint.
    #[error("nothing with fingerprint {0} is in quarantine")]
    NotQuarantined(Digest),
    /// A step on the way to it failed. What is in force stays.
    #[error("not done: {step}: {why}")]
    Failed {
        /// Which step.
        step: Step,
        /// Why.
        why: String,
    },
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Ended,
}

/// The way to the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OrderHandle {
    orders: mpsc::Sender<Placed>,
    bell: Bell,
}

/// An order, and who waits for it.
#[derive(Debug)]
pub struct Placed {
    /// What is wanted.
    pub order: Order,
    /// Told what came of it.
    pub answer: oneshot::Sender<Result<Carried, OrderError>>,
}

/// Where orders arrive.
pub type Orders = mpsc::Receiver<Placed>;

/// A way to whoever reads the second, who is woken by `bell`.
#[must_use]
pub fn orders(bell: Bell) -> (OrderHandle, Orders) {
    let (orders, inbox) = mpsc::channel(ORDERS_MAX);
    (OrderHandle { orders, bell }, inbox)
}

impl OrderHandle {
    /// Has `order` carried out.
    ///
    /// # Errors
    /// If it cannot be; then what was in force still is.
    ///
    /// # Cancellation
    /// An order that was placed is carried out, whether anybody waits for it or not.
    pub async fn order(&self, order: Order) -> Result<Carried, OrderError> {
        let (answer, answered) = oneshot::channel();
        let placed = self.orders.send(Placed { order, answer }).await;
        placed.map_err(|_closed| OrderError::Ended)?;
        self.bell.ring();
        answered.await.unwrap_or(Err(OrderError::Ended))
    }
}
