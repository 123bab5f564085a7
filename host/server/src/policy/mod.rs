//! `pointsman policy`: make, build, check, test and measure a policy, without a server; and give
//! orders about policies to one that runs.
//!
//! Every command uses the host crate, engine configuration and limits of the server, so that what
//! is good here is good there. A command returns what there is to say and whether the policy is
//! good; `main` prints it and exits with 0 (good), 1 (not good) or 2 (could not be done).
//!
//! # Not here
//! Policies in a running server (`reload`); what a scenario is (`pointsman-testkit`).

mod bench;
mod build;
mod check;
mod dump;
mod facts;
mod file;
mod inspect;
mod new;
mod order;
mod server;
mod settings;
mod status;
mod table;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

/// What to do with a policy.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyCommand {
    /// Make a folder with a policy that builds and passes its scenarios
    New(new::Args),
    /// Build a policy's crate to a component
    Build(build::Args),
    /// Load, start and configure a policy as a server would, and say what to fix
    Check(check::Args),
    /// Show what a file is, without running it
    Inspect(inspect::Args),
    /// Run scenarios against a policy
    Test(test::Args),
    /// Measure latency and fuel by fleet size, beside the default policies
    Bench(bench::Args),
    /// Show what is in force in a running server
    Status(status::Args),
    /// Order whose a decision is, in a running server
    Bind(order::Bind),
    /// Order how far a policy's answers count: enforce, shadow or canary
    Mode(order::SetMode),
    /// Give a shadow or canary every decision it makes
    Promote(order::About),
    /// Put the version before in force again
    Rollback(order::About),
    /// Put decisions back on the embedded defaults, at once
    Eject(order::Eject),
    /// Let a version in quarantine be put in force again
    Release(order::Release),
    /// Show what faults of policies left behind
    Dump(dump::Args),
}

/// How a command ended that could be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What there is to say.
    pub text: String,
    /// What came out.
    pub verdict: Verdict,
}

/// Whether what a command was about is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Good,
    /// The policy has to be changed, or the server does not do what it was told.
    NotGood,
}

/// Does it.
///
/// # Errors
/// If it cannot be done: an argument that is of no use, a file that is not there, a tool that is
/// missing. What is wrong with the policy itself is no error, but a [`Verdict`].
pub fn run(command: &PolicyCommand) -> anyhow::Result<Done> {
    match command {
        PolicyCommand::New(args) => new::run(args),
        PolicyCommand::Build(args) => build::run(args),
        PolicyCommand::Check(args) => check::run(args),
        PolicyCommand::Inspect(args) => inspect::run(args),
        PolicyCommand::Test(args) => test::run(args),
        PolicyCommand::Bench(args) => bench::run(args),
        PolicyCommand::Status(args) => status::run(args),
        PolicyCommand::Bind(args) => order::bind(args),
        PolicyCommand::Mode(args) => order::mode(args),
        PolicyCommand::Promote(args) => order::promote(args),
        PolicyCommand::Rollback(args) => order::rollback(args),
        PolicyCommand::Eject(args) => order::eject(args),
        PolicyCommand::Release(args) => order::release(args),
        PolicyCommand::Dump(args) => dump::run(args),
    }
}

/// A policy's file on the command line.
#[derive(Clone, Debug, clap::Args)]
struct PolicyFileArg {
    /// The policy, as `pointsman policy build` writes it
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A policy's settings on the command line.
#[derive(Clone, Debug, clap::Args)]
struct SettingsArg {
    /// Its [settings] and [limits], as in the file beside a policy in the policy folder
    #[arg(long, value_name = "FILE.toml")]
    settings: Option<PathBuf>,
}

// === impl Done ===

impl Done {
    fn good(text: String) -> Self {
        Self {
            text,
            verdict: Verdict::Good,
        }
    }

    fn not_good(text: String) -> Self {
        Self {
            text,
            verdict: Verdict::NotGood,
        }
    }
}

// === impl Verdict ===

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::SUCCESS,
            Verdict::NotGood => Self::from(1),
        }
    }
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
