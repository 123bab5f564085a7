//! Deterministic runs of the core machine with real policies, without I/O.
//!
//! | part | is for |
//! |---|---|
//! | [`World`] | tests that say what happens, step by step, with a scripted [`Engine`] per executor; it checks the machine after every step |
//! | [`Simulation`] | the effect of policies: workloads, executors with the speed of real ones, failures by seed, and a report |
//! | [`Adversary`] | answers at random, valid and not, for property tests |
//!
//! A simulation puts the machine and the policies of production under a [`workload::Workload`] and a
//! [`fleet::FleetPlan`]:
//!
//! ```
//! use pointsman_core::NoPolicies;
//! use pointsman_sim::fleet::{ExecutorPlan, FleetPlan};
//! use pointsman_sim::workload::{Arrival, Listed, PromptText, Roll};
//! use pointsman_sim::{Micros, Plan, Simulation};
//!
//! let ask = |n: u64| Arrival::new(Micros(n * 10_000), PromptText::unlike_others(500), 20);
//! let workload = Listed::new(Roll::single(), (0..100).map(ask).collect());
//! let fleet = FleetPlan::of(ExecutorPlan::named("polynomial")?, 2);
//! let report = Simulation::new(Plan::new(fleet, workload), NoPolicies)?.run();
//! assert_eq!(report.finished, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Determinism
//! Neither clock, hash order nor the platform's mathematics has a say: the same inputs give the same
//! facts and the same report on every machine.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod adversary;
pub mod draws;
mod engine;
mod executor;
pub mod fleet;
pub mod history;
pub mod latency;
pub mod measure;
pub mod numbers;
mod simulation;
pub mod workload;
mod world;

pub use adversary::Adversary;
pub use engine::{Engine, EngineProfile, PrefillShares};
pub use pointsman_core::Micros;
pub use simulation::{
    AnswerLengths, Checks, Failure, FailurePlan, Plan, PlanError, Progressed, Recurring,
    RequestPlan, Simulation,
};
pub use world::{Recorded, Tape, World, replay};
