//! The commands of policies' authors and of operators.
//!
//! [`PolicyCommand`] is `pointsman policy`: it makes, builds, checks, tests, measures and tunes a
//! policy without a server, and gives orders about policies to a running server. [`journal`] has
//! `pointsman replay` and `pointsman journal`, and [`OperatorCommand`] has questions and orders to a
//! running server that are not about policies.
//!
//! Every command uses the policy host (`pointsman-policy`), engine configuration and limits of the
//! server, so that a policy that is good here is good there. [`run`] returns a [`Done`]: a text and
//! a [`Verdict`]. The binary `pointsman` prints the text and exits with 0 (good), 1 (not good) or 2
//! (the command could not be carried out).
//!
//! # Not here
//! What simulates: `pointsman simulate`, and the search of `policy tune` (`pointsman-experiments`);
//! policies in a running server (`pointsman-lifecycle`); the format of scenarios
//! (`pointsman-testkit`); replay itself (`pointsman-replay`); the binary (`pointsman-server`).

#![forbid(unsafe_code)]

mod bench;
mod build;
mod check;
mod code;
mod dev;
mod dump;
mod facts;
mod file;
mod hooks;
mod inspect;
pub mod journal;
mod language;
mod new;
mod operate;
mod order;
mod pitfalls;
mod scenario;
mod server;
mod settings;
mod status;
mod stopwatch;
mod table;
mod test;
mod written;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use pointsman_component::EmbeddedPolicy;
use pointsman_experiments::file::PolicyFileArg;
use pointsman_experiments::tune;

pub use operate::{OperatorCommand, operate};
pub use pointsman_experiments::{Done, Verdict};

/// A subcommand of `pointsman policy`.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyCommand {
    /// Make a folder with a policy that builds and passes its scenarios
    New(new::Args),
    /// Build a policy's folder, in Rust, JavaScript or Python, to a component
    Build(build::Args),
    /// Load, start, configure and test a policy as a server would, and say what to fix
    Check(check::Args),
    /// Show the facts of a file, and the settings of a policy
    Inspect(inspect::Args),
    /// Run scenarios against a policy, and check its properties
    Test(test::Args),
    /// Build and test a policy at each change, and have a running server ask it as a shadow
    Dev(dev::Args),
    /// Make a scenario of a decision in a journal
    Scenario(scenario::Args),
    /// Measure latency and fuel by fleet size, beside the default policies
    Bench(bench::Args),
    /// Search settings that do better in simulations, and write them beside the policy
    Tune(Box<tune::Args>),
    /// Show the policies in force in a running server
    Status(status::Args),
    /// Bind a decision to a policy, in a running server
    Bind(order::Bind),
    /// Set the mode of a policy: enforce, shadow or canary
    Mode(order::SetMode),
    /// Give a shadow or canary every decision it makes
    Promote(order::About),
    /// Put the version before in force again
    Rollback(order::About),
    /// Put decisions back on the embedded defaults, at once
    Eject(order::Eject),
    /// Let a version in quarantine be put in force again
    Release(order::Release),
    /// Show the dumps that faults of policies left behind
    Dump(dump::Args),
}

/// Carries out a command. The `defaults` are the policies that the binary embeds, which it unpacks for the commands that use
/// them.
///
/// # Errors
/// If the command cannot be carried out: an argument is of no use, a file or a tool is missing. A
/// problem of the policy itself is no error, but a [`Verdict`].
pub fn run(
    command: &PolicyCommand,
    defaults: impl FnOnce() -> anyhow::Result<&'static [EmbeddedPolicy]>,
) -> anyhow::Result<Done> {
    match command {
        PolicyCommand::New(args) => new::run(args),
        PolicyCommand::Build(args) => build::run(args),
        PolicyCommand::Check(args) => check::run(args),
        PolicyCommand::Inspect(args) => inspect::run(args),
        PolicyCommand::Test(args) => test::run(args, defaults()?),
        PolicyCommand::Dev(args) => dev::run(args, defaults()?),
        PolicyCommand::Scenario(args) => scenario::run(args),
        PolicyCommand::Bench(args) => bench::run(args, defaults()?),
        PolicyCommand::Tune(args) => tune::run(args, defaults()?),
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

/// A policy's settings on the command line.
#[derive(Clone, Debug, clap::Args)]
struct SettingsArg {
    /// The policy's [settings] and [limits], as in the file beside a policy in the policy folder
    #[arg(long, value_name = "FILE.toml")]
    settings: Option<PathBuf>,
}

// === impl PolicyCommand ===

impl PolicyCommand {
    /// Takes note of the command line, which some commands write down.
    #[must_use]
    pub fn typed(mut self, words: Vec<String>) -> Self {
        if let Self::Tune(args) = &mut self {
            args.command = words;
        }
        self
    }
}

// === impl SettingsArg ===

impl SettingsArg {
    fn path(&self) -> Option<&Path> {
        self.settings.as_deref()
    }
}
