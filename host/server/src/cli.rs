//! The command line: arguments in, a [`CliCommand`] out. `main` runs it.
//!
//! # Not here
//! The effect of the flags of `serve` on the configuration ([`Flags`]).

use clap::{Parser, Subcommand};
use pointsman_policy::COMPILE_COMMAND;
use pointsman_policy_cli::PolicyCommand;
use pointsman_policy_cli::journal::{JournalCommand, ReplayArgs};

use crate::config::Flags;

/// Hosts LLM inference and lets WebAssembly policies decide how it is scheduled.
#[derive(Clone, Debug, Parser)]
#[command(name = "pointsman", version, max_term_width = 100)]
pub struct Cli {
    /// The subcommand to carry out.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// A subcommand of `pointsman`.
#[derive(Clone, Debug, Subcommand)]
pub enum CliCommand {
    /// Serve models over an OpenAI-compatible HTTP interface
    #[command(
        long_about = "Serve models over an OpenAI-compatible HTTP interface.\n\n\
        With nothing given, the embedded demo model is served on 127.0.0.1:8080, and the embedded \
        policies decide. A policy dropped into the policy folder takes over the decisions it makes, \
        while the host runs. Flags override the file.",
        after_help = "SIGINT and SIGTERM end it: nothing new is accepted, and what runs is finished \
        first; a second signal ends it at once."
    )]
    Serve(Flags),

    /// Make, build, check and measure a policy, without a server
    #[command(
        subcommand,
        after_help = "Exit status: 0 where all is well, 1 where the policy has to be changed, 2 where the command \
        could not be carried out."
    )]
    Policy(PolicyCommand),

    /// Make the decisions of a journal again, and say where they come out otherwise
    #[command(
        long_about = "Make the decisions of a journal again, and say where they come out \
        otherwise.\n\nThe policies, their settings and their states are in the journal: nothing \
        else is needed but the version of Pointsman that wrote it. With --policy another policy is \
        asked the same questions, and what it would have decided otherwise is counted.",
        after_help = "Exit status: 0 where everything came out the same or another policy was asked, 1 with the \
        first difference, 2 where the journal cannot be replayed."
    )]
    Replay(ReplayArgs),

    /// Show or export the decision journal
    #[command(subcommand)]
    Journal(JournalCommand),

    /// List the devices that models can run on, or say why there is none
    Devices,

    /// Compile a component from standard input to standard output, for another process of this
    /// program
    #[command(name = COMPILE_COMMAND, hide = true)]
    CompileComponent,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn said(line: &str) -> clap::Error {
        Cli::try_parse_from(line.split_whitespace()).unwrap_err()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_serve_says_what_happens_with_nothing_given_and_what_each_flag_does() {
        let error = said("pointsman serve --help");
        assert_eq!(error.kind(), ErrorKind::DisplayHelp);
        let help = error.to_string();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "With nothing given, the embedded demo model is served on 127.0.0.1:8080",
            "Usage: pointsman serve [OPTIONS] Options:",
            "--config <FILE> Configuration file; examples/pointsman.toml explains every key",
            "--listen <ADDR> Address to listen on [default: 127.0.0.1:8080]",
            "--model <[NAME=]DIR> Model to serve: a Hugging Face folder",
            "--policies <DIR> Folder of policies, watched for changes",
            "--log-format <human|json> Write logs for people or for programs [default: human]",
            "--log <FILTER> Filter of the log",
            "SIGINT and SIGTERM end it",
        ] {
            assert!(words.contains(part), "{part:?} not in\n{help}");
        }
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{help}"
        );
    }

    #[test]
    fn the_readme_has_every_flag_and_command_there_is() {
        let readme = include_str!("../README.md");
        let command = Cli::command();
        let of = |name: &str| command.find_subcommand(name).unwrap();
        for flag in of("serve").get_arguments() {
            let flag = flag.get_long().unwrap();
            assert!(readme.contains(&format!("`--{flag} ")), "--{flag}");
        }
        for command in of("policy").get_subcommands() {
            let name = command.get_name();
            assert!(
                readme.contains(&format!("`{name} ")) || readme.contains(&format!("`{name}`")),
                "{name}"
            );
        }
    }

    #[test]
    fn the_command_is_asked_for_and_the_version_told() {
        let help = said("pointsman");
        let kind = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        assert_eq!(help.kind(), kind);
        assert!(
            help.to_string().contains("serve    Serve models over"),
            "{help}"
        );
        let version = said("pointsman --version").to_string();
        let expected = concat!("pointsman ", env!("CARGO_PKG_VERSION"), "\n");
        assert_eq!(version, expected);
    }

    #[test]
    fn what_is_mistyped_is_refused_with_what_was_probably_meant() {
        for (line, part) in [
            ("pointsman sreve", "'serve'"),
            ("pointsman serve --lisen 1", "'--listen'"),
            (
                "pointsman serve --listen nowhere",
                "invalid value 'nowhere' for '--listen <ADDR>'",
            ),
            ("pointsman serve --model ..", "write NAME=DIR"),
            ("pointsman serve --log-format xml", "human, json"),
            ("pointsman policy chekc x.wasm", "'check'"),
            (
                "pointsman policy new x --hooks routng",
                "invalid value 'routng' for '--hooks <HOOKS>'",
            ),
            (
                "pointsman policy new x --hooks routng",
                "admission, priority, routing, preemption, budget, explanation",
            ),
            (
                "pointsman policy new X",
                "'X' in it: a name is of lower-case",
            ),
            (
                "pointsman policy bench x.wasm --executors 0",
                "0 is not in 1..=100000",
            ),
        ] {
            let said = said(line).to_string();
            assert!(said.contains(part), "{part:?} not in\n{said}");
        }
    }
}
