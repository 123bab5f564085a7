//! The state folder of a server: opened, or done without.
//!
//! # Invariants
//! 1. Where the configuration says that state is required, nothing serves without a usable folder
//!    (`tests/running/state.rs`).
//!
//! # Not here
//! The folder and its files (`pointsman_state`).

use std::path::Path;

use anyhow::{Context, Result};
use pointsman_state::State;

use pointsman_config::{Config, StateNeed};

const UNUSABLE: &str = "state = \"required\": the folder cannot be used";

/// Opens the state folder that `config` names.
///
/// # Errors
/// If state is required and cannot be had.
pub(crate) fn open(config: &Config) -> Result<State> {
    match (config.state, config.state_folder.as_deref()) {
        (StateNeed::Optional, None) => Ok(State::default()),
        (StateNeed::Optional, Some(folder)) => Ok(State::open(folder)),
        (StateNeed::Required, _) => State::open_whole(required(config)?).context(UNUSABLE),
    }
}

/// Checks that the state folder can be had, if state is required, but for whether another server uses it. Makes nothing.
///
/// # Errors
/// If it cannot be had.
pub(crate) fn check(config: &Config) -> Result<()> {
    match config.state {
        StateNeed::Optional => Ok(()),
        StateNeed::Required => State::check(required(config)?).context(UNUSABLE),
    }
}

/// The state folder of a configuration that cannot do without.
fn required(config: &Config) -> Result<&Path> {
    let folder = config.state_folder.as_deref();
    folder.context(
        "state = \"required\": there is no state folder; name one with `state-folder` or `--state`, \
         or set STATE_DIRECTORY or HOME",
    )
}
