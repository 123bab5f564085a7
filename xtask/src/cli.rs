//! The command line: arguments in, a [`Task`] out.

use anyhow::{Context, Result, bail};
use pointsman_notation::nearest;

pub(crate) const USAGE: &str = "\
Project tasks. Usage: cargo xtask TASK

  serve [ARGS]                    the default policies, then `pointsman serve ARGS` in release;
                                  `serve --fleet 4` has several executors to route between,
                                  `serve -- --help` lists its flags
  policies [NAME...]              build these policies, or all, to components in <target>/policies
  test [OPTIONS] [ARGS]           policies, then cargo test --workspace ARGS
      --skip-policies             the policies as they were built last
      --with llama-cpp            also against a real llama-server, built once in some ten minutes
      --with frameworks           also through LiteLLM and LangChain
  watch-test PROGRAM [ARGS]       a test program, ended with its threads' stacks where it hangs
  lint                            rustfmt, tidy, clippy, rustdoc and, where installed, cargo-deny
  tidy                            the project's own rules only; takes a second
  kernels                         compile the kernels for CUDA devices to their PTX
  dist                            what operators install, in <target>/dist: .deb, archive, container folder
  bench                           list the benchmarks
  bench NAME [ARGS]               policies, then benchmark NAME, built as packages are; ARGS go to it
  help                            this text

<target> is CARGO_TARGET_DIR, or target/ beside the root Cargo.toml; no other setting of cargo moves it.
";

const TASKS: &[&str] = &[
    "serve",
    "policies",
    "test",
    "watch-test",
    "lint",
    "tidy",
    "kernels",
    "dist",
    "bench",
    "help",
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Serve { args: Vec<String> },
    Policies { names: Vec<String> },
    Test(Test),
    WatchTest { program: String, args: Vec<String> },
    Lint,
    Tidy,
    Kernels,
    Dist,
    BenchList,
    Bench { name: String, args: Vec<String> },
}

/// The tests to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) guests: Guests,
    pub(crate) with: Vec<Extra>,
    /// Arguments for cargo.
    pub(crate) args: Vec<String>,
}

/// Programs that are worth testing against, but take long to install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    LlamaCpp,
    Frameworks,
}

/// The state of the guests when the tests run: just built, or as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guests {
    Build,
    AsTheyAre,
}

pub(crate) fn parse(args: &[String]) -> Result<Task> {
    let Some((task, rest)) = args.split_first() else {
        return Ok(Task::Help);
    };
    let asks_for_help = |arg: &String| matches!(arg.as_str(), "--help" | "-h");
    if asks_for_help(task) || rest.first().is_some_and(asks_for_help) {
        return Ok(Task::Help);
    }
    match task.as_str() {
        "help" => Ok(Task::Help),
        "serve" => Ok(Task::Serve {
            args: without_dashes(rest).to_vec(),
        }),
        "policies" => Ok(Task::Policies {
            names: rest.to_vec(),
        }),
        "lint" => alone(Task::Lint, rest),
        "tidy" => alone(Task::Tidy, rest),
        "kernels" => alone(Task::Kernels, rest),
        "dist" => alone(Task::Dist, rest),
        "test" => test(rest).map(Task::Test),
        "watch-test" => watch_test(rest),
        "bench" => bench(rest),
        unknown => bail!("{}", unknown_task(unknown)),
    }
}

fn alone(task: Task, rest: &[String]) -> Result<Task> {
    match rest.first() {
        None => Ok(task),
        Some(extra) => bail!("unexpected argument `{extra}`\n\n{USAGE}"),
    }
}

fn test(mut rest: &[String]) -> Result<Test> {
    let (mut guests, mut with) = (Guests::Build, Vec::new());
    loop {
        rest = match rest {
            [flag, rest @ ..] if flag == "--skip-policies" => {
                guests = Guests::AsTheyAre;
                rest
            }
            [flag, name, rest @ ..] if flag == "--with" => {
                with.push(Extra::named(name)?);
                rest
            }
            [flag] if flag == "--with" => bail!("`--with` takes one of: {}", Extra::names()),
            _ => break,
        };
    }
    let args = rest.to_vec();
    Ok(Test { guests, with, args })
}

fn watch_test(rest: &[String]) -> Result<Task> {
    let Some((program, args)) = rest.split_first() else {
        bail!("expected the test program to run\n\n{USAGE}");
    };
    Ok(Task::WatchTest {
        program: program.clone(),
        args: args.to_vec(),
    })
}

fn bench(rest: &[String]) -> Result<Task> {
    let Some((name, args)) = rest.split_first() else {
        return Ok(Task::BenchList);
    };
    if name.starts_with('-') {
        bail!("expected a benchmark's name before `{name}`; `cargo xtask bench` lists them");
    }
    Ok(Task::Bench {
        name: name.clone(),
        args: without_dashes(args).to_vec(),
    })
}

/// Arguments for another program, without a leading `--`.
fn without_dashes(args: &[String]) -> &[String] {
    match args.split_first() {
        Some((first, rest)) if first == "--" => rest,
        _ => args,
    }
}

fn unknown_task(name: &str) -> String {
    match nearest(name, TASKS.iter().copied()) {
        Some(known) => format!("no task `{name}`; did you mean `{known}`?\n\n{USAGE}"),
        None => format!("no task `{name}`\n\n{USAGE}"),
    }
}

// === impl Extra ===

impl Extra {
    const ALL: [Extra; 2] = [Extra::LlamaCpp, Extra::Frameworks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Extra::LlamaCpp => "llama-cpp",
            Extra::Frameworks => "frameworks",
        }
    }

    fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|extra| extra.name() == name);
        found.with_context(|| format!("no `--with {name}`; there are: {}", Self::names()))
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args)
    }

    fn refusal(line: &str) -> String {
        parsed(line).unwrap_err().to_string()
    }

    #[test]
    fn help_is_asked_for_by_its_name_and_by_no_task() {
        assert_eq!(parsed("").unwrap(), Task::Help);
        assert_eq!(parsed("--help").unwrap(), Task::Help);
        // Not a build of some minutes, and then the help of another program.
        for task in TASKS {
            assert_eq!(parsed(&format!("{task} --help")).unwrap(), Task::Help);
        }
        let expected = Task::Serve {
            args: vec!["--help".into()],
        };
        assert_eq!(parsed("serve -- --help").unwrap(), expected);
    }

    #[test]
    fn test_passes_its_arguments_on() {
        let test = |line| {
            let Task::Test(test) = parsed(line).unwrap() else {
                panic!("{line}");
            };
            test
        };
        let expected = Test {
            guests: Guests::AsTheyAre,
            with: vec![],
            args: vec!["-p".into(), "xtask".into()],
        };
        assert_eq!(test("test --skip-policies -p xtask"), expected);
        let expected = Test {
            guests: Guests::Build,
            with: vec![],
            args: vec!["--".into(), "--skip-policies".into()],
        };
        assert_eq!(test("test -- --skip-policies"), expected);
        let with = test("test --with llama-cpp --skip-policies --with frameworks --lib");
        assert_eq!(with.with, [Extra::LlamaCpp, Extra::Frameworks]);
        assert_eq!(with.guests, Guests::AsTheyAre);
        assert_eq!(with.args, ["--lib"]);
    }

    #[test]
    fn test_is_told_what_it_may_be_run_with() {
        let there_are = "there are: llama-cpp, frameworks";
        assert!(refusal("test --with vllm").contains(there_are));
        assert!(refusal("test --with").contains("takes one of: llama-cpp, frameworks"));
    }

    #[test]
    fn serve_passes_its_arguments_on() {
        assert_eq!(parsed("serve").unwrap(), Task::Serve { args: vec![] });
        let expected = Task::Serve {
            args: vec!["--listen".into(), "[::1]:9000".into()],
        };
        assert_eq!(parsed("serve --listen [::1]:9000").unwrap(), expected);
        assert_eq!(parsed("serve -- --listen [::1]:9000").unwrap(), expected);
    }

    #[test]
    fn bench_takes_a_name_and_arguments() {
        assert_eq!(parsed("bench").unwrap(), Task::BenchList);
        let expected = Task::Bench {
            name: "decide".into(),
            args: vec!["--quick".into()],
        };
        assert_eq!(parsed("bench decide --quick").unwrap(), expected);
        assert_eq!(parsed("bench decide -- --quick").unwrap(), expected);
        assert!(refusal("bench --quick").contains("name before `--quick`"));
    }

    #[test]
    fn names_the_task_that_was_probably_meant() {
        assert!(refusal("polices").contains("did you mean `policies`?"));
        assert!(refusal("tets").contains("did you mean `test`?"));
        assert!(!refusal("deploy").contains("did you mean"));
        assert!(refusal("deploy").contains("Usage: cargo xtask"));
    }

    #[test]
    fn refuses_arguments_that_would_be_ignored() {
        assert!(refusal("lint --fix").contains("unexpected argument `--fix`"));
    }

    #[test]
    fn every_task_is_listed_and_described() {
        for task in TASKS {
            assert!(
                parsed(&format!("{task} name")).is_ok() || parsed(task).is_ok(),
                "{task}"
            );
            assert!(USAGE.contains(&format!("\n  {task} ")), "{task}");
        }
    }
}
