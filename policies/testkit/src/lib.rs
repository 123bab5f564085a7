//! Scenarios and property checks for a policy, native or as a component; no server, no device.
//!
//! A scenario is a TOML file: a fleet, then steps in order (requests arrive, time passes, an
//! executor is lost), with what is expected after them. It drives the host's real machine through
//! its interlock, with scripted engines and logical time. The README describes the format.
//!
//! A policy's crate runs every scenario of its folder, as compiled natively and as a component,
//! and both must decide alike to the byte:
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
//! A scenario has no seed and no clock: two runs make the same facts, so one that failed is run
//! again to have it explained.
//!
//! What a policy is for, its scenarios say; what any policy must be, [`properties`] checks on
//! random fleets and loads. Either is a [`report`] for people, CI and programs.
//!
//! # Not here
//! Traces and latency models: the simulator's.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod component;
mod kit;
pub mod native;
pub mod properties;
pub mod report;
mod run;
pub mod scale;
mod scenario;

pub use kit::{Failures, Flavour, Kit, Registry, check_dir, run, scenario_files};
pub use run::{Ran, RunError, Unmet};
pub use scenario::{FormatError, Place, Scenario};
