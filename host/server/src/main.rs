//! The binary `pointsman`: reads the command line, and carries out the command.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stderr,
    reason = "before there is a log, errors go to the terminal"
)]

use std::env;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use pointsman_config::{Config, Flags};
use pointsman_experiments::simulate;
use pointsman_local::list_devices;
use pointsman_policy_cli::journal;
use pointsman_policy_cli::{Done, OperatorCommand, PolicyCommand, Verdict};
use pointsman_server::cli::{self, Cli, CliCommand};
use pointsman_server::{check, embedded, logging, process};

/// Exit code of a command that could not be carried out; clap exits with it too.
const NOT_DONE: u8 = 2;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let (done, otherwise) = match command {
        CliCommand::Serve(args) if args.check => (check(&args.flags), ExitCode::FAILURE),
        CliCommand::Serve(args) => (serve(&args.flags), ExitCode::FAILURE),
        CliCommand::Policy(command) => {
            let command = command.typed(words());
            (policy(&command), ExitCode::from(NOT_DONE))
        }
        CliCommand::Operator(command) => (operate(&command), ExitCode::from(NOT_DONE)),
        CliCommand::Simulate(mut args) => {
            args.command = words();
            let done = printed(|out| simulate::simulate(&args, embedded::built_policies()?, out));
            (done, ExitCode::from(NOT_DONE))
        }
        CliCommand::Replay(args) => {
            let done = printed(|out| journal::replay(&args, out));
            (done, ExitCode::from(NOT_DONE))
        }
        CliCommand::Journal(command) => {
            let done = printed(|out| journal::journal(&command, out));
            (done, ExitCode::from(NOT_DONE))
        }
        CliCommand::Devices => (devices(), ExitCode::from(NOT_DONE)),
        CliCommand::Completions { shell } => (write(&cli::completions(shell)), ExitCode::FAILURE),
        CliCommand::Man { dir: None } => {
            let page = cli::manual().map_err(Into::into);
            let done = page.and_then(|page| write(&page));
            (done, ExitCode::FAILURE)
        }
        CliCommand::Man { dir: Some(folder) } => (manuals(&folder), ExitCode::FAILURE),
        CliCommand::CompileComponent => (compile_component(), ExitCode::FAILURE),
    };
    done.unwrap_or_else(|error| {
        eprintln!("pointsman: {error:#}");
        otherwise
    })
}

fn serve(flags: &Flags) -> Result<ExitCode> {
    let config = configuration(flags)?;
    let log = logging::begin(&config.log)?;
    process::run(config, &log)
}

/// The configuration of this process.
fn configuration(flags: &Flags) -> Result<Config> {
    let mut config = Config::load(flags)?;
    config.state_folder = config.state_folder.or_else(pointsman_state::default_folder);
    config.compiler.program = this_program();
    Ok(config)
}

/// Checks what `serve` would be given.
fn check(flags: &Flags) -> Result<ExitCode> {
    let checked = check::check(&configuration(flags)?)?;
    write(checked.text.as_bytes())?;
    Ok(match checked.is_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A path by which this very program can be started, even if its file has been replaced since.
fn this_program() -> Option<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() {
        return Some(own);
    }
    env::current_exe().ok()
}

/// The command line as it was typed, for those who read it: a path in it may be no UTF-8.
fn words() -> Vec<String> {
    let words = env::args_os();
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Prints the output of `command` on standard output. A reader that closes the pipe is no error.
fn printed(command: impl FnOnce(&mut dyn Write) -> Result<Verdict>) -> Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    let done = command(&mut out).and_then(|verdict| {
        out.flush()?;
        Ok(verdict.into())
    });
    match done {
        Err(error) if error.downcast_ref().is_some_and(is_closed) => Ok(ExitCode::SUCCESS),
        done => done,
    }
}

/// True if the reader of standard output has closed the pipe.
fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

fn compile_component() -> Result<ExitCode> {
    pointsman_component::compile_component(io::stdin().lock(), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

fn devices() -> Result<ExitCode> {
    write(list_devices().as_bytes())
}

fn manuals(folder: &Path) -> Result<ExitCode> {
    let written = cli::write_manuals(folder);
    written.with_context(|| format!("{} cannot be written to", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes bytes on standard output. A reader that closes the pipe is no error.
fn write(bytes: &[u8]) -> Result<ExitCode> {
    match io::stdout().write_all(bytes) {
        Err(error) if !is_closed(&error) => Err(error).context("standard output cannot be written"),
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}

fn policy(command: &PolicyCommand) -> Result<ExitCode> {
    let done = pointsman_policy_cli::run(command, || Ok(embedded::built_policies()?))?;
    print(&done)
}

fn operate(command: &OperatorCommand) -> Result<ExitCode> {
    print(&pointsman_policy_cli::operate(command)?)
}

fn print(done: &Done) -> Result<ExitCode> {
    write(done.text.as_bytes())?;
    Ok(done.verdict.into())
}
