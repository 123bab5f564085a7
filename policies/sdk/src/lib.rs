//! Write a Pointsman policy: bindings, mirror, settings and export macro.
//!
//! A policy is a type that implements [`Policy`] and one trait for each decision it makes. The
//! SDK keeps the policy's [`Mirror`] of the host and its index of executors current, parses its
//! settings, counts the placements of a batch and exports the policy as a component. The same type
//! runs natively behind [`Instance`], which is how tests drive it without a host.
//!
//! A routing policy implements the first of these that will do:
//!
//! | trait | the policy says | the SDK supplies |
//! |---|---|---|
//! | [`Ranked`] | how an executor ranks | the order, the choice, turns among equals, `explain` |
//! | [`Router`] | where one request goes | the placements of the batch, the index, the verdicts |
//! | [`Routing`] | the verdicts on a batch | the counts of placements |
//!
//! ```
//! use pointsman_sdk::wire::types::AskedRequest;
//! use pointsman_sdk::{Mirror, Moment, NoSettings, Policy, Priority, Description, Feed};
//!
//! /// The newest first.
//! pub struct Newest;
//!
//! impl Policy for Newest {
//!     type Settings = NoSettings;
//!
//!     fn describe() -> Description {
//!         Description {
//!             name: "newest".into(),
//!             version: "1.0.0".into(),
//!             summary: "The newest first.".into(),
//!             reasons: Vec::new(),
//!             state_version: 1,
//!         }
//!     }
//!
//!     fn new(_: NoSettings) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Priority for Newest {
//!     const NEEDS: Feed = Feed::WAITING;
//!
//!     fn order(&mut self, _: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
//!         let mut order: Vec<u64> = requests.iter().map(|asked| asked.request).collect();
//!         order.sort_unstable_by(|a, b| b.cmp(a));
//!         order
//!     }
//! }
//!
//! pointsman_sdk::export!(Newest: priority);
//!
//! let mut policy = instance();
//! policy.configure("{}", pointsman_sdk::fixture::bounds()).expect("the defaults are valid");
//! let asked = |request| AskedRequest { request, cached_tokens: 0, overtaken: 0 };
//! let requests = vec![asked(1), asked(2), asked(3)];
//! assert_eq!(policy.order(Moment { now: 0, round: 1 }, requests), [3, 2, 1]);
//! ```
//!
//! # Needs
//!
//! Each hook says what it reads, as `NEEDS`, and is told nothing else: rows of other kinds may be
//! missing, or as old as another hook's last question. To read what was not asked for panics in
//! tests.
//!
//! # Determinism
//!
//! A policy has no clock, randomness or files: its answers follow from what it was told. Two
//! things would break that silently: a hash map, whose order depends on where memory was
//! allocated, and floating point. The SDK uses neither, and a policy should not.
//!
//! # Not here
//!
//! The check that an answer is lawful, which is the host's. [`Case::fit`] only spares a policy
//! refusals.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod case;
mod executor;
pub mod explain;
mod export;
#[cfg(any(test, feature = "test-util"))]
pub mod fixture;
mod fleet;
mod groups;
mod held;
#[doc(hidden)]
pub mod hooks;
mod index;
mod lack;
mod last_minute;
pub mod log;
mod mirror;
mod needs;
mod overrides;
mod overtaken;
mod placements;
mod policy;
mod ranked;
mod ranking;
mod reasons;
pub mod rendezvous;
mod requests;
mod router;
mod rows;
mod runtime;
mod settings;
pub mod snapshot;
mod table;
pub mod tenants;
mod turns;
mod urgency;
pub mod wire;

pub use case::{Case, Obstacle};
pub use executor::{Executor, Residencies};
pub use export::component;
pub use fleet::{Fleet, Place, Readiness, Seat};
pub use groups::KnownGroups;
pub use hooks::Instance;
pub use hooks::traits::*;
pub use index::{ExecutorIndex, Reach};
pub use lack::Lack;
pub use last_minute::LastMinute;
pub use mirror::Mirror;
#[doc(hidden)]
pub use needs::Ask;
pub use needs::Description;
pub use overrides::{BadOverride, Overridable, Overrides};
pub use overtaken::overtaken_first;
pub use placements::{BatchPlacements, PlacementCounts};
pub use policy::Policy;
pub use ranked::{ByRank, Ranked};
pub use ranking::{BestFirst, Ranking};
pub use router::{Pick, Router};
pub use runtime::Runtime;
pub use settings::NoSettings;
pub use table::ExecutorTable;
pub use turns::{Turn, Turns};
pub use urgency::Urgency;
pub use wire::lifecycle::{Bounds, Feed, Hook, Setting, TimeUnit};
pub use wire::types::Moment;
