//! Project tasks, run as `cargo xtask TASK`.
//!
//! `cli` turns the arguments into a [`cli::Task`]; each task is a module of its own. Nothing
//! here is linked into what users run.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user"
)]

mod apt;
mod bench;
mod cli;
mod code;
mod device;
mod dist;
mod engines;
mod kernels;
mod lint;
mod llama_cpp;
mod node;
mod peers;
mod policies;
mod process;
mod python;
mod serve;
mod testing;
mod tidy;
mod watchdog;
mod workspace;

use std::env;
use std::process::ExitCode;

use anyhow::Result;

use cli::Task;
use workspace::Workspace;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let workspace = Workspace::here()?;
    match cli::parse(args)? {
        Task::Help => {
            print!("{}", cli::USAGE);
            Ok(())
        }
        Task::Policies { names } if names.is_empty() => policies::build_all(&workspace),
        Task::Policies { names } => policies::build_named(&workspace, &names),
        Task::Serve { args } => serve::run(&workspace, &args),
        Task::Test(test) => testing::run(&workspace, &test),
        Task::WatchTest { program, args } => watchdog::run(&program, &args),
        Task::Lint => lint::run(&workspace),
        Task::Tidy => tidy::run(&workspace),
        Task::Kernels => kernels::make(&workspace),
        Task::BenchList => bench::list(&workspace),
        Task::Dist => dist::run(&workspace),
        Task::Bench { name, args } => bench::run(&workspace, &name, &args),
    }
}
