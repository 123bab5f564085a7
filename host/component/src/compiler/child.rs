//! The compiler's own process: bounded, and without anything to lose.

use std::fs;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Resource, Rlimit, nice, setrlimit};

use super::{CompileLimits, TAG_CODE, TAG_PANICKED, TAG_REFUSED};
use crate::component::message_of;
use crate::engine::config;

/// Number of bytes of [`head`].
const HEAD_BYTES: usize = 16;

/// The steps by which the compiler's priority is lowered: an ordinary process goes first.
const NICE: i32 = 10;

/// The first bytes of the child's input: the limits that it sets for itself.
pub(super) fn head(limits: &CompileLimits) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let (memory, time) = head.split_at_mut(HEAD_BYTES / 2);
    memory.copy_from_slice(&limits.memory_bytes.to_le_bytes());
    time.copy_from_slice(&limits.processor_seconds.to_le_bytes());
    head
}

/// Compiles the component in `input`, as the body of a process that another one has started for
/// it, and writes machine code or a message to `output`.
///
/// # Errors
/// If input or output fails.
pub fn compile_component(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    input.read_exact(&mut head)?;
    confine(&head);
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let (tag, said) = match catch_unwind(AssertUnwindSafe(|| compile(&bytes))) {
        Ok(Ok(code)) => (TAG_CODE, code),
        Ok(Err(why)) => (TAG_REFUSED, why.into_bytes()),
        Err(panic) => (TAG_PANICKED, message_of(panic.as_ref()).into_bytes()),
    };
    output.write_all(&[tag])?;
    output.write_all(&said)?;
    output.flush()
}

fn compile(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let code =
        wasmtime::Engine::new(&config()).and_then(|engine| engine.precompile_component(bytes));
    code.map_err(|error| format!("{error:#}"))
}

/// Limits this process. A limit that the system does not have is left out: the parent's clock
/// bounds this process in any case.
fn confine(head: &[u8; HEAD_BYTES]) {
    let (numbers, _) = head.as_chunks();
    let [memory, seconds] = [0, 1].map(|index| u64::from_le_bytes(numbers[index]));
    // At the lower of the two limits on time comes a signal that says so.
    for (resource, current, maximum) in [
        (Resource::Data, memory, memory),
        (Resource::Cpu, seconds, seconds.saturating_add(1)),
        (Resource::Core, 0, 0),
    ] {
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        };
        setrlimit(resource, limit).unwrap_or_default();
    }
    nice(NICE).unwrap_or_default();
    die_first();
}

/// Sees to it that this process ends with its parent, and before it where memory runs out.
#[cfg(target_os = "linux")]
fn die_first() {
    let signal = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal).unwrap_or_default();
    fs::write("/proc/self/oom_score_adj", "1000").unwrap_or_default();
}

#[cfg(not(target_os = "linux"))]
fn die_first() {}
