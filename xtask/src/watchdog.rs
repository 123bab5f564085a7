//! `cargo xtask watch-test`: one test program, ended when it hangs, with the stacks of its threads.
//!
//! `cargo xtask test` has cargo run every test program through it: a test that never ends fails like
//! any other, and says where it is stuck.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::apt;
use crate::process;

/// The longest time that a test program may take, several times what the slowest takes.
const LIMIT: Duration = Duration::from_secs(1200);

/// Runs a test program on this terminal. Fails if it fails, or is not done in time.
pub(crate) fn run(program: &str, args: &[String]) -> Result<()> {
    run_within(&mut command(program, args), LIMIT, show_threads)
}

/// The command of a test program, which is not told where this workspace has its intermediate files: crates that tests
/// build would have theirs there.
fn command(program: &str, args: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env_remove(process::BUILD_DIR);
    command
}

/// Runs a command for `limit` at most, and has `show` tell of its process before it is ended.
fn run_within(command: &mut Command, limit: Duration, show: fn(u32) -> Result<()>) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .spawn()
        .with_context(|| format!("could not start `{name}`"))?;
    let process = child.id();
    let (running, ended) = channel();
    let watchdog = thread::spawn(move || is_over(&ended, limit) && end(process, show));
    let status = child.wait();
    drop(running);
    let hung = watchdog.join().unwrap_or_default();
    let status = status?;
    if hung {
        bail!(
            "`{name}` was ended: it was not done after {} s",
            limit.as_secs()
        );
    }
    if !status.success() {
        bail!("`{name}` ended with {status}");
    }
    Ok(())
}

/// True if `limit` is over before what `ended` is the end of.
fn is_over(ended: &Receiver<()>, limit: Duration) -> bool {
    ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
}

/// Tells of a process that hangs, and ends it. True if it could be ended.
fn end(process: u32, show: fn(u32) -> Result<()>) -> bool {
    eprintln!("process {process} hangs; its threads:");
    if let Err(error) = show(process) {
        eprintln!("they cannot be shown: {error:#}");
    }
    process::succeeds(Command::new("kill").args(["-KILL", &process.to_string()]))
}

/// Shows the stack of each thread of a process.
fn show_threads(process: u32) -> Result<()> {
    apt::provide(&["gdb"], &["gdb"])?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-p", &process.to_string()]);
    process::run(gdb.args(["-ex", "thread apply all backtrace 40"]))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn nothing(_process: u32) -> Result<()> {
        bail!("nothing to show")
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn crates_that_a_test_builds_are_built_apart_from_this_workspace() {
        let command = command("true", &[]);
        let changed: Vec<_> = command.get_envs().collect();
        assert_eq!(changed, [(OsStr::new(process::BUILD_DIR), None)]);
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let ended = run_within(
            &mut shell("exec sleep 600"),
            Duration::from_millis(50),
            nothing,
        );
        assert!(ended.unwrap_err().to_string().contains("not done after"));
    }

    #[test]
    fn a_program_in_time_ends_as_it_does() {
        run_within(&mut shell("true"), LIMIT, nothing).unwrap();
        let error = run_within(&mut shell("exit 3"), LIMIT, nothing).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }
}
