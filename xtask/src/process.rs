//! Other programs: running them, reading their output, and ending those that hang.

use std::env;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Beginnings of the variables by which cargo tells this program of its package. Some build scripts ask for them, and
/// with others than when cargo is called by hand they, and all that is above them, would be built anew each time.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The variable by which cargo is told the folder of what it builds.
pub(crate) const TARGET_DIR: &str = "CARGO_TARGET_DIR";
/// The variable by which cargo is told the folder of intermediate files, those of build scripts included.
pub(crate) const BUILD_DIR: &str = "CARGO_BUILD_BUILD_DIR";

/// The cargo that runs this task, so that inner builds use the same toolchain. It builds into the target folder of the
/// workspace, whatever the user's configuration of cargo says.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(&workspace.root);
    // The server's build script finds policies by the place of its own files (`host/server/build.rs`), so that these are
    // in the target folder, too.
    for variable in [TARGET_DIR, BUILD_DIR] {
        command.env(variable, &workspace.target);
    }
    for (name, _) in env::vars_os() {
        if is_of_this_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

fn is_of_this_package(variable: &str) -> bool {
    let mut beginnings = OF_THIS_PACKAGE.iter();
    beginnings.any(|beginning| variable.starts_with(beginning))
}

/// Shows the command and runs it on this terminal. Fails if the command fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    println!("$ {shown}");
    let status = command
        .status()
        .with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Shows a command of cargo that builds the program `name`, and runs it on this terminal. Returns the path of the program:
/// the user's configuration of cargo may have it in a folder for a platform (`build.target`).
pub(crate) fn build_program(command: &mut Command, name: &str) -> Result<PathBuf> {
    command.arg("--message-format=json-render-diagnostics");
    let shown = show(command);
    println!("$ {shown}");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` ended with {}", output.status);
    }
    let messages = String::from_utf8(output.stdout)
        .with_context(|| format!("`{shown}` printed something that is not UTF-8"))?;
    executable(&messages, name).with_context(|| format!("`{shown}` built no program `{name}`"))
}

/// The path of the program `name` in cargo's messages, of which each line is one, in JSON.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let path = |line: &str| {
        let (_, rest) = line.split_once(r#""executable":""#)?;
        let (path, _) = rest.split_once('"')?;
        Some(PathBuf::from(path))
    };
    let mut paths = messages.lines().filter_map(path);
    paths.find(|path| path.ends_with(name))
}

/// Shows the command and replaces this process by it, so that the command alone gets signals, and
/// its exit status is this tool's. Returns only on failure. On other systems than Unix, runs the
/// command.
pub(crate) fn replace(command: &mut Command) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;

        let shown = show(command);
        println!("$ {shown}");
        Err(command.exec()).with_context(|| format!("could not start `{shown}`"))
    }
    #[cfg(not(unix))]
    run(command)
}

/// True if the command starts and succeeds. Its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Standard output of a command that succeeds; `None` if the program is missing.
pub(crate) fn stdout_of(command: &mut Command) -> Result<Option<String>> {
    let shown = show(command);
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("could not start `{shown}`")),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}", output.status, said.trim());
    }
    let text = String::from_utf8(output.stdout)
        .with_context(|| format!("`{shown}` printed something that is not UTF-8"))?;
    Ok(Some(text))
}

/// The end of a command that had a time limit.
#[derive(Debug)]
pub(crate) enum Exit {
    Success,
    /// Exit with an error status, and the text of standard error.
    Failure(String),
    TimedOut,
    NotFound,
}

/// Runs a command that may hang, for `limit` at most.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<Exit> {
    let shown = show(command);
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Exit::NotFound),
        Err(error) => return Err(error).with_context(|| format!("could not start `{shown}`")),
    };
    let mut stderr = child
        .stderr
        .take()
        .context("standard error was not piped")?;
    let (said, listen) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stderr.read_to_end(&mut bytes).map(|_| bytes);
        // After the limit nobody receives the text.
        drop(said.send(read));
    });
    let Ok(read) = listen.recv_timeout(limit) else {
        child
            .kill()
            .with_context(|| format!("could not end `{shown}`"))?;
        child.wait()?;
        return Ok(Exit::TimedOut);
    };
    let text = String::from_utf8_lossy(&read?).trim().to_owned();
    let status = child.wait()?;
    Ok(if status.success() {
        Exit::Success
    } else {
        Exit::Failure(text)
    })
}

/// Finds a program on `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The command as one would type it, without the program's folder.
fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_inner_cargo_is_told_nothing_of_this_package() {
        for name in [
            "CARGO_MANIFEST_DIR",
            "CARGO_MANIFEST_PATH",
            "CARGO_PKG_NAME",
        ] {
            assert!(is_of_this_package(name), "{name}");
        }
        for name in ["CARGO", "CARGO_HOME", "CARGO_INCREMENTAL", "PATH"] {
            assert!(!is_of_this_package(name), "{name}");
        }
        let command = cargo(&Workspace::here().unwrap());
        let mut removed = command.get_envs().filter(|(_, value)| value.is_none());
        assert!(removed.all(|(name, _)| is_of_this_package(&name.to_string_lossy())));
    }

    #[test]
    fn an_inner_cargo_builds_where_its_work_is_looked_for() {
        let workspace = Workspace::here().unwrap();
        assert!(workspace.target.is_absolute());
        let command = cargo(&workspace);
        let set: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_some())
            .collect();
        let target = Some(workspace.target.as_os_str());
        assert_eq!(
            set,
            [BUILD_DIR, TARGET_DIR].map(|name| (OsStr::new(name), target))
        );
    }

    #[test]
    fn a_program_is_where_cargo_says_that_it_built_it() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/t/release/liba.rlib"],"executable":null,"fresh":true}
{"reason":"compiler-artifact","filenames":["/t/musl/release/deps/tool-1f"],"executable":"/t/musl/release/deps/tool-1f"}
{"reason":"compiler-artifact","filenames":["/t/musl/release/tool"],"executable":"/t/musl/release/tool","fresh":true}
{"reason":"build-finished","success":true}"#;
        let built = build_program(&mut shell(&format!("echo '{messages}'")), "tool");
        assert_eq!(built.unwrap(), Path::new("/t/musl/release/tool"));
        let other = build_program(&mut shell(&format!("echo '{messages}'")), "other");
        assert!(
            other
                .unwrap_err()
                .to_string()
                .ends_with("no program `other`")
        );
        let failed = build_program(&mut shell("exit 3"), "tool").unwrap_err();
        assert!(failed.to_string().contains("exit status: 3"), "{failed}");
    }

    #[test]
    fn a_failing_command_is_an_error_that_shows_it() {
        let error = run(&mut shell("exit 3")).unwrap_err().to_string();
        assert!(error.contains("sh -c exit 3"), "{error}");
        assert!(error.contains('3'), "{error}");
    }

    #[test]
    fn a_missing_program_is_told_from_a_failing_one() {
        let mut missing = Command::new("no-such-program-of-ours");
        assert_eq!(stdout_of(&mut missing).unwrap(), None);
        assert!(stdout_of(&mut shell("echo no >&2; false")).is_err());
        assert!(!succeeds(&mut missing));
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let exit = run_within(&mut shell("exec sleep 600"), Duration::from_millis(50)).unwrap();
        assert!(matches!(exit, Exit::TimedOut), "{exit:?}");
    }

    #[test]
    fn a_command_in_time_keeps_its_words() {
        let exit = run_within(&mut shell("echo why >&2; false"), Duration::from_secs(60)).unwrap();
        assert!(
            matches!(&exit, Exit::Failure(text) if text == "why"),
            "{exit:?}"
        );
        let exit = run_within(&mut shell("true"), Duration::from_secs(60)).unwrap();
        assert!(matches!(exit, Exit::Success), "{exit:?}");
    }
}
