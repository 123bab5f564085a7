//! The binary `pointsman`: reads what is wanted, and does it.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "before there is a log, errors go to the terminal"
)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use pointsman_server::cli::{Cli, Command};
use pointsman_server::config::{Config, Flags};
use pointsman_server::{logging, serve};

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let done = match command {
        Command::Serve(flags) => serve(&flags),
    };
    done.unwrap_or_else(|error| {
        eprintln!("pointsman: {error:#}");
        ExitCode::FAILURE
    })
}

fn serve(flags: &Flags) -> Result<ExitCode> {
    let config = Config::load(flags)?;
    logging::begin(&config.log)?;
    serve::run(config)
}
