//! Write a Pointsman policy: bindings, mirror, settings and export macro.
//!
//! A policy is a type that implements [`Policy`] and one trait for each decision it makes. The
//! SDK keeps its [`Mirror`] of the host current, parses its settings, counts what it has placed in
//! one batch ([`Tentative`]) and exports it as a component. The same type runs natively, behind
//! [`Instance`], so that it is tested without a host.
//!
//! ```
//! use pointsman_sdk::{Mirror, Moment, Policy, Priority, wire::lifecycle::{Description, Feed}};
//!
//! #[derive(serde::Deserialize, Default)]
//! #[serde(deny_unknown_fields, default)]
//! pub struct Settings {}
//!
//! /// The newest first.
//! pub struct Newest;
//!
//! impl Policy for Newest {
//!     type Settings = Settings;
//!
//!     fn describe() -> Description {
//!         Description {
//!             name: "newest".into(),
//!             version: "1.0.0".into(),
//!             summary: "The newest first.".into(),
//!             feed: Feed::WAITING,
//!             reasons: Vec::new(),
//!             state_version: 1,
//!         }
//!     }
//!
//!     fn new(_settings: Settings) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Priority for Newest {
//!     fn order(&mut self, _mirror: &Mirror, _at: Moment, requests: &[u64]) -> Vec<u64> {
//!         let mut order = requests.to_vec();
//!         order.sort_unstable_by(|a, b| b.cmp(a));
//!         order
//!     }
//! }
//!
//! pointsman_sdk::export!(Newest: priority);
//!
//! let mut policy = instance();
//! policy.configure("{}").expect("the defaults are valid");
//! assert_eq!(policy.order(Moment { now: 0, round: 1 }, vec![1, 2, 3]), [3, 2, 1]);
//! ```
//!
//! # Determinism
//!
//! A policy has no clock, randomness or files; its answers follow from what it was told. Two
//! things would break that silently: a hash map, whose order depends on where memory was
//! allocated, and floating point. The SDK uses neither, and a policy should not.
//!
//! # Not here
//!
//! The host checks that an answer is lawful. [`fit`] only spares a policy refusals.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod explain;
mod export;
mod fit;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod instance;
pub mod log;
mod mirror;
mod policy;
mod ranking;
mod reasons;
pub mod rendezvous;
mod router;
mod rows;
mod settings;
mod sheet;
mod tentative;
mod touched;
mod urgency;
pub mod wire;

pub use export::component;
pub use fit::{Fit, Need, Obstacle, Seat, Standing, fit, open_seat, open_tokens};
pub use instance::{Hook, Instance, Runtime};
pub use mirror::{Executor, Mirror};
pub use policy::{Admission, Budget, Explanation, Policy, Preemption, Priority, Routing};
pub use ranking::{BestFirst, Ranking};
pub use router::{Case, Pick, Router};
pub use settings::check_range;
pub use sheet::Sheet;
pub use tentative::{Counts, Tentative};
pub use urgency::Urgency;
pub use wire::types::Moment;
