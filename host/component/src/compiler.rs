//! Compilation of components, in a process of its own or in this one.
//!
//! The compiler is the one program that reads every byte of a file before anybody has vouched for
//! it, and a file can make it use more memory, time or stack than there is. [`crate::scan`] refuses
//! most such files; a process of its own bounds the rest. There the compiler has limits on memory
//! and processor time, a low priority, no environment, and nothing to lose.
//!
//! The child is this program, called with [`COMPILE_COMMAND`]. It reads the limits and then the
//! component from its standard input, and writes a tag and machine code, or a tag and a message, to
//! its standard output.
//!
//! # Invariants
//! 1. Whatever happens to the child, the caller gets a [`LoadError`] within the wall-clock limit, and
//!    soon where nobody wants what the child makes (`compiler` in `host/server/tests/running/hostile`).
//!
//! # Not here
//! The memory of what was given up, over restarts: [`crate::CompileCache`].

mod child;
mod limits;

use std::io::{self, Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use pointsman_notation::Time;
use rustix::process::Signal;

use crate::component::LoadError;

pub use child::compile_component;
pub use limits::CompileLimits;

/// The hidden subcommand by which this program becomes the compiler's process.
pub const COMPILE_COMMAND: &str = "compile-component";

/// Largest size of machine code, in bytes: a few times that of the largest component.
pub(crate) const CODE_BYTES_MAX: u64 = 512 << 20;

/// Number of bytes that are kept of the child's last words.
const LAST_WORDS_BYTES: u64 = 4096;

/// First byte of the child's output where machine code follows.
const TAG_CODE: u8 = b'C';
/// First byte of the child's output where the compiler's refusal follows.
const TAG_REFUSED: u8 = b'R';
/// First byte of the child's output where the message of a panic follows.
const TAG_PANICKED: u8 = b'P';

/// Time between two looks at whether what is compiled is still wanted.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// Number of looks in a second.
const LOOKS_PER_SECOND: u64 = 10;

/// Signals that only others send, as a terminal or a service manager does to all at once, and never a
/// compiler to itself.
const FROM_OUTSIDE: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// The place where components are compiled, and the limits there.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// Limits of each compilation.
    pub limits: CompileLimits,
    /// Program to be called with [`COMPILE_COMMAND`]; `None`: compiles in this process, where only
    /// the limits of the scan hold.
    pub program: Option<PathBuf>,
}

/// The reason why a compilation was stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileStop {
    /// The compiler needed more memory than it gets.
    #[error("it needs more than {0} bytes of memory (policies.compile.memory-bytes)")]
    Memory(u64),
    /// The compiler needed more processor time than it gets.
    #[error("it takes more than {} of processor time (policies.compile.processor-time)", Time::from_secs(*.0))]
    ProcessorTime(u64),
    /// The compiler had not ended after the time that it gets.
    #[error("it takes longer than {} (policies.compile.wall-time)", Time::from_secs(*.0))]
    WallTime(u64),
    /// The compiler ran out of stack.
    #[error("the compiler ran out of stack")]
    Stack,
    /// The compiler was killed: by the system where memory ran out, or by somebody.
    #[error("the compiler was killed, as it is where memory runs out")]
    Killed,
    /// The machine code is larger than any that is loaded.
    #[error("it makes more than {CODE_BYTES_MAX} bytes of machine code")]
    CodeSize,
    /// The compiler ended in another way.
    #[error("the compiler crashed: {0}")]
    Crashed(String),
}

/// The output of a child that has ended.
struct ChildOutput {
    status: ExitStatus,
    said: Said,
    last_words: String,
}

/// The bytes that a child wrote to its standard output.
#[derive(Default)]
struct Said {
    /// The first byte; `None`: there was none.
    tag: Option<u8>,
    rest: Vec<u8>,
}

impl Compiler {
    /// Makes machine code of the component `bytes`, in a process of its own, unless it `is_over`: nobody
    /// wants the code any more.
    pub(crate) fn compile_in(
        &self,
        program: &Path,
        bytes: &[u8],
        is_over: impl Fn() -> bool,
    ) -> Result<Vec<u8>, LoadError> {
        let child = Command::new(program)
            .arg(COMPILE_COMMAND)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(no_compiler)?;
        let output = self.converse(child, bytes, is_over)?;
        self.understand(output)
    }

    /// Passes limits and component to `child`, and collects its output within the wall-clock limit, and
    /// as long as it is wanted.
    fn converse(
        &self,
        mut child: Child,
        bytes: &[u8],
        is_over: impl Fn() -> bool,
    ) -> Result<ChildOutput, LoadError> {
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(LoadError::NoCompiler("no pipes".to_owned()));
        };
        let (done, ended) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| send(stdin, &self.limits, bytes));
            let last_words = scope.spawn(|| read_last_words(stderr));
            scope.spawn(move || done.send(read_said(stdout)).unwrap_or_default());
            let said = self.hear(&ended, is_over);
            if said.is_err() {
                // Closes the pipes, which ends the threads.
                child.kill().unwrap_or_default();
            }
            let status = child.wait().map_err(no_compiler)?;
            let last_words = last_words.join().unwrap_or_default();
            Ok(ChildOutput {
                status,
                said: said?.map_err(no_compiler)?,
                last_words,
            })
        })
    }

    /// Waits for what a child says.
    ///
    /// # Errors
    /// If the child takes too long, or it `is_over`.
    fn hear<T>(&self, said: &Receiver<T>, is_over: impl Fn() -> bool) -> Result<T, LoadError> {
        for _ in 0..self.limits.wall_seconds.saturating_mul(LOOKS_PER_SECOND) {
            if is_over() {
                return Err(not_wanted());
            }
            if let Ok(said) = said.recv_timeout(LOOK) {
                return Ok(said);
            }
        }
        Err(self.too_long())
    }

    fn too_long(&self) -> LoadError {
        LoadError::Stopped(CompileStop::WallTime(self.limits.wall_seconds))
    }

    /// The machine code in a child's output, or the reason why there is none.
    fn understand(&self, output: ChildOutput) -> Result<Vec<u8>, LoadError> {
        let Said { tag, rest } = &output.said;
        if rest.len() as u64 > CODE_BYTES_MAX {
            return Err(LoadError::Stopped(CompileStop::CodeSize));
        }
        let text = || String::from_utf8_lossy(rest).into_owned();
        match tag {
            Some(tag) if output.status.success() => match *tag {
                TAG_CODE => Ok(output.said.rest),
                TAG_REFUSED => Err(LoadError::Compile(text())),
                _ => Err(LoadError::Panicked(text())),
            },
            Some(_) | None => Err(self.cut_short(&output)),
        }
    }

    /// The error of a child that ended before its time. One that others have ended says nothing about
    /// the file.
    fn cut_short(&self, output: &ChildOutput) -> LoadError {
        let signal = output.status.signal();
        if FROM_OUTSIDE.iter().any(|it| signal == Some(it.as_raw())) {
            LoadError::NoCompiler(format!("it was ended from outside, by {}", output.status))
        } else {
            LoadError::Stopped(self.stop_of(output))
        }
    }

    /// The reason why a child ended before its time. The standard library says on standard error
    /// why it aborts, and in no other way.
    fn stop_of(&self, output: &ChildOutput) -> CompileStop {
        let words = &output.last_words;
        let signal = output.status.signal();
        if signal == Some(Signal::XCPU.as_raw()) {
            CompileStop::ProcessorTime(self.limits.processor_seconds)
        } else if signal == Some(Signal::KILL.as_raw()) {
            CompileStop::Killed
        } else if words.contains("overflowed its stack") {
            CompileStop::Stack
        } else if words.contains("memory allocation of") {
            CompileStop::Memory(self.limits.memory_bytes)
        } else {
            let first = words.lines().find(|line| !line.is_empty());
            let first = first.unwrap_or("without a word");
            CompileStop::Crashed(format!("{}: {first}", output.status))
        }
    }
}

/// The error of a compilation whose result nobody wants any more.
pub(crate) fn not_wanted() -> LoadError {
    LoadError::NoCompiler("the policy is not wanted any more".to_owned())
}

fn no_compiler(error: io::Error) -> LoadError {
    LoadError::NoCompiler(error.to_string())
}

/// Sends the limits and the component. A child that has ended says why itself.
fn send(mut stdin: ChildStdin, limits: &CompileLimits, bytes: &[u8]) {
    let head = child::head(limits);
    let sent = stdin.write_all(&head).and_then(|()| stdin.write_all(bytes));
    sent.unwrap_or_default();
}

fn read_said(mut stdout: ChildStdout) -> io::Result<Said> {
    let mut tag = [0];
    let mut said = Said::default();
    if stdout.read(&mut tag)? == 1 {
        said.tag = Some(tag[0]);
        stdout
            .take(CODE_BYTES_MAX + 1)
            .read_to_end(&mut said.rest)?;
    }
    Ok(said)
}

/// The first bytes of the child's standard error; the rest is read and dropped.
fn read_last_words(mut stderr: ChildStderr) -> String {
    let mut words = Vec::new();
    let kept = (&mut stderr).take(LAST_WORDS_BYTES).read_to_end(&mut words);
    let dropped = kept.and_then(|_| io::copy(&mut stderr, &mut io::sink()));
    dropped.unwrap_or_default();
    String::from_utf8_lossy(&words).into_owned()
}
