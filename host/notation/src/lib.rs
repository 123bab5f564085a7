//! Values as people write them, and what people are told when they wrote something wrong.
//!
//! Configuration, sidecars, scenarios, command lines and `cargo xtask` all read and print with this
//! crate, so that a duration that one of them takes, all of them take.
//!
//! - [`Time`], [`Size`] and [`Number`] are values of a TOML file.
//! - [`TomlText`] is a TOML file; a [`TomlError`] says where in the file something is wrong.
//! - [`nearest`] and [`instead`] find the name that was probably meant.
//! - [`NamedLimits`] are numbers with names and ceilings.
//! - [`HubModel`] is a model on a hub, by the name that its maker gave it.
//! - [`is_name`] tells the names that operators may give.
//! - [`Secret`] is a text that nothing prints.
//! - [`untrusted`] makes the text of a stranger fit to be shown.
//! - [`grouped`] sets the thousands of a number apart.
//! - [`chain`] writes an error with its causes in one line, and [`causes`] goes through them.
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//! use pointsman_notation::{Time, TomlText};
//!
//! #[derive(Debug, serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct File {
//!     drain: Time,
//! }
//!
//! let file: File = TomlText::new(Path::new("a.toml"), "drain = '1.5s'").parse().unwrap();
//! assert_eq!(file.drain, Time(Duration::from_millis(1500)));
//! let error = TomlText::new(Path::new("a.toml"), "drian = '1s'").parse::<File>().unwrap_err();
//! assert_eq!(error.to_string(), "a.toml:1:1: unknown key `drian`; did you mean `drain`?");
//! ```
//!
//! # Not here
//! The keys that a file may have, and the ranges of their values: each file's reader knows these.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod chain;
mod grouped;
mod hub_model;
mod limits;
mod name;
mod secret;
mod suggest;
mod toml_text;
mod units;
pub mod untrusted;

pub use chain::{causes, chain};
pub use grouped::grouped;
pub use hub_model::{HubModel, NoHubModel};
pub use limits::{LimitsError, NamedLimits, SetLimitError, checked_limit};
pub use name::{NAME, NAME_CHARS_MAX, NAME_PATTERN, is_name};
pub use secret::Secret;
pub use suggest::{instead, nearest};
pub use toml_text::{Location, TomlError, TomlProblem, TomlText};
pub use units::{Number, Size, Time};
