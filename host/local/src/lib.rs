//! The models of this machine: fetched from a hub or found in a folder, opened, and computed by executors on its
//! processors and CUDA devices.
//!
//! [`LocalSettings`] name models, devices and executors. [`hub::fetched`] makes a folder or a file of each model,
//! [`load_all`] opens them, and [`start`] attaches devices and executors to a machine and returns the
//! [`LocalProvider`], by which the fleet adds others later. [`check`] says without any of that what a start would refuse.
//!
//! # Not here
//! The configuration that settings are made of (`pointsman-config`); engines (`pointsman-engine`, `pointsman-cuda`);
//! files and architectures of models (`pointsman-model`); executors elsewhere (`pointsman-remote`).

#![forbid(unsafe_code)]

mod check;
mod demo;
mod devices;
pub mod hub;
mod local_model;
mod longest;
mod progress;
mod provider;
mod settings;

pub use check::{check, check_kv};
pub use demo::has_demo_model;
pub use devices::list_devices;
pub use pointsman_engine::cpu::Cores;
pub use provider::{Backends, LocalProvider, load_all, start};
pub use settings::{DEFAULT_DEVICE, DeviceConfig, Hardware, LocalSettings};
