//! Metrics for Prometheus, whatever they are of, and those of the process.
//!
//! - [`Builder`] makes metrics and registers them, and notes what each is: a [`DescribedMetric`].
//! - [`Family`] is a metric for each set of labels.
//! - [`process`] has what the system tells of the process.
//!
//! # Invariants
//! 1. No metric has more than twice [`SERIES_MAX`] series and a few, whatever the labels are (`family::tests`).
//! 2. A label's value cannot break out of its quotes (`family::tests`).

#![deny(missing_docs)]

mod builder;
mod family;
pub mod process;

pub use builder::{Builder, DescribedMetric};
pub use family::{Family, SERIES_MAX};
