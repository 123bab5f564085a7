//! Scenarios and property checks for a policy, native or as a component; no server, no device.
//!
//! A scenario is a TOML file: a fleet, then steps in order (requests arrive, time passes, an
//! executor is lost), each with its expectations. It drives the host's real machine through its
//! interlock, with scripted engines and logical time. The README describes the format.
//!
//! A policy's crate runs every scenario of its folder with the policy compiled natively and as a
//! component. Both must decide the same, to the byte:
//!
//! ```no_run
//! use pointsman_testkit::{Registry, check_dir};
//!
//! # fn scenarios(instance: fn() -> Box<dyn pointsman_sdk::Instance>) {
//! let registry = Registry::new().with("newest", instance);
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
//! if let Err(failures) = check_dir(folder.as_ref(), registry) {
//!     panic!("{failures}");
//! }
//! # }
//! ```
//!
//! # Determinism
//! A scenario has no seed and no clock, so two runs make the same facts. A scenario that fails is
//! run again, to collect explanations.
//!
//! Scenarios show what one policy is for; [`properties`] checks on random fleets and loads what every
//! policy must be. Either gives a [`report`] for people, CI and programs.
//!
//! # Not here
//! Traces and latency models.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[doc(hidden)]
pub mod bombs;
pub mod component;
mod evictions;
mod kit;
pub mod native;
pub mod properties;
pub mod report;
mod run;
pub mod scale;
mod scenario;
mod shuffled;
pub mod standing;

pub use kit::{Failures, Flavour, Kit, Registry, check_dir, run, scenario_files};
pub use run::{Ran, RunError, Unmet};
pub use scenario::Scenario;
