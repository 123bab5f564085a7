//! The command line: arguments in, a [`CliCommand`] out. `main` runs it.
//!
//! # Not here
//! The effect of the flags of `serve` on the configuration ([`Flags`]).

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use pointsman_component::COMPILE_COMMAND;
use pointsman_experiments::simulate::SimulateArgs;
use pointsman_policy_cli::journal::{JournalCommand, ReplayArgs};
use pointsman_policy_cli::{OperatorCommand, PolicyCommand};

use pointsman_config::Flags;

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
    Serve(ServeArgs),

    /// Make, build, check and measure a policy, without a server
    #[command(
        subcommand,
        after_help = "Exit status: 0 where all is well, 1 where the policy has to be changed, 2 where the command \
        could not be carried out."
    )]
    Policy(PolicyCommand),

    #[command(flatten)]
    Operator(OperatorCommand),

    /// Simulate what policies do to latency and fairness
    #[command(
        long_about = "Simulate what policies do to latency and fairness.\n\nThe machine and the \
        policies' components are those of a server. Requests come from a trace or a generator, and \
        executors have the speed of a named profile, chunked prefill, batches, paged KV and prefix \
        caches. The same arguments give the same output on every machine.",
        after_help = "Examples:\n  \
        pointsman simulate poisson:rate=20,requests=5000,prompt=1500,prefixes=50,prefix-tokens=800\n  \
        pointsman simulate conversation_trace.jsonl --speed-up 2 --compare my-router.wasm\n  \
        pointsman simulate agents --executors 8 --seeds 5 --format json"
    )]
    Simulate(Box<SimulateArgs>),

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

    /// Print completions for a shell
    #[command(
        after_help = "For bash, with bash-completion: pointsman completions bash > \
        ~/.local/share/bash-completion/completions/pointsman"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print the manual page, or write those of all commands into a folder
    Man {
        /// The folder
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },

    /// Compile a component from standard input to standard output, for another process of this
    /// program
    #[command(name = COMPILE_COMMAND, hide = true)]
    CompileComponent,
}

/// Arguments of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub flags: Flags,

    /// Check the configuration, its files and its policies, say what is wrong, and serve nobody
    #[arg(long)]
    pub check: bool,
}

/// The completions of the command line for a shell.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut command = Cli::command();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "pointsman", &mut script);
    script
}

/// The manual page of `pointsman`, in the form that `man` reads.
///
/// # Errors
/// Never: memory takes everything.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    Ok(page)
}

/// Writes the manual pages of all commands into a folder, which is made.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write_manuals(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use pointsman_core::Hook;

    use super::*;

    fn said(line: &str) -> clap::Error {
        Cli::try_parse_from(line.split_whitespace()).unwrap_err()
    }

    #[test]
    fn completions_and_manual_know_every_command() {
        let script = |shell| String::from_utf8(completions(shell)).unwrap();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for word in ["serve", "explain", "executors", "log-format"] {
                assert!(script.contains(word), "{shell} {word}");
            }
        }
        let page = String::from_utf8(manual().unwrap()).unwrap();
        for part in [
            ".TH pointsman 1",
            "pointsman\\-explain(1)",
            "pointsman\\-serve(1)",
        ] {
            assert!(page.contains(part), "{part} not in\n{page}");
        }
        let folder = tempfile::tempdir().unwrap();
        write_manuals(folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join("pointsman-serve.1")).unwrap();
        assert!(page.contains("\\-\\-listen"), "{page}");
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
            "--listen <ADDR> Address to listen on: `localhost:8080`, or `:8080` for all of this machine's, \
             of IPv4 and of IPv6 [default: 127.0.0.1:8080]",
            "--model <[NAME=]PATH> Model to serve: a Hugging Face folder or a GGUF file",
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
        for name in ["executors", "tenants", "route", "decisions", "explain"] {
            assert!(readme.contains(&format!("| `{name}")), "{name}");
            of(name);
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
            help.to_string().contains("serve        Serve models over"),
            "{help}"
        );
        let version = said("pointsman --version").to_string();
        let expected = concat!("pointsman ", env!("CARGO_PKG_VERSION"), "\n");
        assert_eq!(version, expected);
    }

    #[test]
    fn what_is_mistyped_is_refused_with_what_was_probably_meant() {
        let hooks = Hook::ALL.map(Hook::as_str).join(", ") + ", explanation";
        for (line, part) in [
            ("pointsman sreve", "'serve'"),
            ("pointsman serve --lisen 1", "'--listen'"),
            (
                "pointsman serve --listen nowhere",
                "invalid value 'nowhere' for '--listen <ADDR>': expected an address and a port, such as \
                 127.0.0.1:8080, localhost:8080 or :8080",
            ),
            ("pointsman serve --model ..", "write NAME=PATH"),
            ("pointsman serve --log-format xml", "human, json"),
            ("pointsman policy chekc x.wasm", "'check'"),
            (
                "pointsman policy new x --hooks routng",
                "invalid value 'routng' for '--hooks <HOOKS>'",
            ),
            ("pointsman policy new x --hooks routng", hooks.as_str()),
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
