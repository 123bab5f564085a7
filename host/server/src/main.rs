//! The binary `pointsman`: reads what is wanted, and does it.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "before there is a log, errors go to the terminal"
)]

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use pointsman_server::cli::{Cli, Command};
use pointsman_server::config::{Config, Flags};
use pointsman_server::policy::{self, PolicyCommand};
use pointsman_server::{logging, serve, state};

/// What could not be done, as against what was done and found wanting; clap's own status too.
const NOT_DONE: u8 = 2;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let (done, otherwise) = match command {
        Command::Serve(flags) => (serve(&flags), ExitCode::FAILURE),
        Command::Policy(command) => (policy(&command), ExitCode::from(NOT_DONE)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("pointsman: {error:#}");
        otherwise
    })
}

fn serve(flags: &Flags) -> Result<ExitCode> {
    let mut config = Config::load(flags)?;
    config.state_folder = config.state_folder.or_else(state::default_folder);
    logging::begin(&config.log)?;
    serve::run(config)
}

fn policy(command: &PolicyCommand) -> Result<ExitCode> {
    let done = policy::run(command)?;
    let written = io::stdout().write_all(done.text.as_bytes());
    written.context("standard output cannot be written")?;
    Ok(done.verdict.into())
}
