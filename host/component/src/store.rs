//! The data in the store of one instance: memory limiter, deadline, log.
//!
//! # The deadline
//! Reading a thread's processor time is a system call, too slow for every question. So nothing is
//! read until a call passes its first wall-clock deadline. Only then its processor time begins to
//! count, and each further deadline compares it with the rest of the allowance. A guest is not blamed for time in which the machine did not run its
//! thread, up to a number of deadlines.
//!
//! # Fuel of the host's work
//! Fuel counts a guest's instructions. What a few of them make the host do (a line that is copied, a
//! list that is lifted and checked) is charged on top, in proportion to its size.
//!
//! # Invariants
//! 1. All memories together stay within the limit, and so do all tables (`wasm::tests`).
//! 2. The log keeps a bounded number of lines of bounded length (`wasm::tests`).

use std::time::Duration;

use pointsman_notation::untrusted;
use rustix::time::{ClockId, clock_gettime};
use wasmtime::{ResourceLimiter, StoreContextMut, Trap, UpdateDeadline};

use crate::bindings::log;
use crate::engine::TICK;
use crate::instance::{LogLevel, LogLine};
use crate::limits::Limits;

/// Data of one instance's store.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(crate) limiter: Limiter,
    pub(crate) deadline: Deadline,
    pub(crate) log: Log,
    /// The guest's word on the end of the call in progress; absent: it has said nothing.
    pub(crate) last_words: Option<String>,
}

/// Most bytes that are kept of a guest's last words.
const LAST_WORDS_BYTES: usize = 4096;

impl StoreState {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            limiter: Limiter::new(limits),
            deadline: Deadline::new(limits.deadline_extensions),
            log: Log::new(limits),
            last_words: None,
        }
    }

    /// Prepares for a call with `fuel`, and returns its wall-clock deadline in ticks.
    pub(crate) fn begin(&mut self, limits: &Limits, fuel: u64) -> u64 {
        self.limiter.denied = false;
        self.last_words = None;
        let allowance = Duration::from_nanos(fuel.saturating_mul(limits.fuel_nanos));
        self.deadline.begin(allowance)
    }
}

fn to_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

// === Memory ===

/// The bounds on memories and tables of a component, all its instances together.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes_left: u64,
    table_elements_left: u64,
    instances: usize,
    memories: usize,
    /// True if a growth was denied in this call.
    pub(crate) denied: bool,
    /// Size of the last growth that was allowed, given back if it fails.
    pending: u64,
}

impl Limiter {
    fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes_left: limits.memory_bytes,
            table_elements_left: limits.table_elements,
            instances: to_usize(limits.instances),
            memories: to_usize(limits.memories),
            denied: false,
            pending: 0,
        }
    }
}

/// Takes a growth from `left`, if enough is left.
fn take(left: &mut u64, current: usize, desired: usize) -> Option<u64> {
    let growth = u64::try_from(desired.saturating_sub(current)).ok()?;
    *left = left.checked_sub(growth)?;
    Some(growth)
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let taken = take(&mut self.memory_bytes_left, current, desired);
        self.denied |= taken.is_none();
        self.pending = taken.unwrap_or(0);
        Ok(taken.is_some())
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_bytes_left += std::mem::take(&mut self.pending);
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let taken = take(&mut self.table_elements_left, current, desired);
        self.denied |= taken.is_none();
        self.pending = taken.unwrap_or(0);
        Ok(taken.is_some())
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.table_elements_left += std::mem::take(&mut self.pending);
        Ok(())
    }

    fn instances(&self) -> usize {
        self.instances
    }

    fn tables(&self) -> usize {
        self.memories
    }

    fn memories(&self) -> usize {
        self.memories
    }
}

// === Deadline ===

/// The time limit of one call, the backstop behind its fuel.
#[derive(Debug)]
pub(crate) struct Deadline {
    allowance: Duration,
    extensions_max: u32,
    /// Number of deadlines that this call has passed.
    passed: u32,
    /// Processor time of the thread at the first passed deadline.
    counted_from: Option<Duration>,
}

impl Deadline {
    fn new(extensions_max: u32) -> Self {
        Self {
            allowance: Duration::ZERO,
            extensions_max,
            passed: 0,
            counted_from: None,
        }
    }

    /// Begins a call. Half of its time goes by before the processor time is read at all, so a call
    /// that has its thread for itself ends within its allowance.
    fn begin(&mut self, allowance: Duration) -> u64 {
        let allowance = allowance / 2;
        self.allowance = allowance;
        self.passed = 0;
        self.counted_from = None;
        ticks(allowance)
    }

    /// Handles a passed deadline, with the thread's processor time at `used`.
    pub(crate) fn pass(&mut self, used: Duration) -> UpdateDeadline {
        self.passed = self.passed.saturating_add(1);
        let counted_from = *self.counted_from.get_or_insert(used);
        let left = self
            .allowance
            .saturating_sub(used.saturating_sub(counted_from));
        if left.is_zero() || self.passed > self.extensions_max {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(ticks(left))
        }
    }
}

/// Number of ticks that take at least `time`: the first one may come at once.
fn ticks(time: Duration) -> u64 {
    let whole = time.as_nanos().div_ceil(TICK.as_nanos());
    u64::try_from(whole)
        .unwrap_or(u64::MAX / 2)
        .saturating_add(1)
}

/// Processor time of this thread so far.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

// === Log ===

/// The lines that a policy logged and the host has not fetched.
#[derive(Debug)]
pub(crate) struct Log {
    lines_max: usize,
    line_bytes: usize,
    lines: Vec<LogLine>,
    dropped: u64,
}

impl Log {
    fn new(limits: &Limits) -> Self {
        Self {
            lines_max: to_usize(limits.log_lines),
            line_bytes: to_usize(limits.log_line_bytes),
            lines: Vec::new(),
            dropped: 0,
        }
    }

    fn write(&mut self, level: log::Level, message: &str) {
        if self.lines.len() >= self.lines_max {
            self.dropped += 1;
            return;
        }
        let level = match level {
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
        };
        let message = untrusted::line(message, self.line_bytes);
        self.lines.push(LogLine { level, message });
    }

    pub(crate) fn take(&mut self, out: &mut Vec<LogLine>) -> u64 {
        out.append(&mut self.lines);
        std::mem::take(&mut self.dropped)
    }
}

/// Keeps a line that the guest logs, and charges the guest for what the host did about it.
///
/// # Errors
/// If the call has too little fuel left.
pub(crate) fn write_log(
    mut context: StoreContextMut<'_, StoreState>,
    (level, message): (log::Level, String),
) -> wasmtime::Result<()> {
    let bytes = u64::try_from(message.len()).unwrap_or(u64::MAX);
    charge(&mut context, bytes.saturating_add(LINE_FUEL))?;
    context.data_mut().log.write(level, &message);
    Ok(())
}

/// Keeps what the guest says of its end, the first time in a call, and charges it for that.
///
/// # Errors
/// If the call has too little fuel left.
pub(crate) fn write_fault(
    mut context: StoreContextMut<'_, StoreState>,
    (message,): (String,),
) -> wasmtime::Result<()> {
    let bytes = u64::try_from(message.len()).unwrap_or(u64::MAX);
    charge(&mut context, bytes.saturating_add(LINE_FUEL))?;
    let words = &mut context.data_mut().last_words;
    words.get_or_insert_with(|| untrusted::paragraph(&message, LAST_WORDS_BYTES));
    Ok(())
}

// === Fuel ===

/// Fuel of a line in the log, beside a unit for each byte of it.
const LINE_FUEL: u64 = 200;

/// Takes `fuel` from the call in progress.
///
/// # Errors
/// If there is less left. Then none is left.
fn charge(context: &mut StoreContextMut<'_, StoreState>, fuel: u64) -> wasmtime::Result<()> {
    let left = context.get_fuel()?.checked_sub(fuel);
    context.set_fuel(left.unwrap_or(0))?;
    left.map(drop).ok_or_else(|| Trap::OutOfFuel.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn interrupts(update: UpdateDeadline) -> bool {
        matches!(update, UpdateDeadline::Interrupt)
    }

    #[test]
    fn a_descheduled_thread_is_given_more_time() {
        let mut deadline = Deadline::new(8);
        assert_eq!(deadline.begin(100 * MS), 11);
        assert!(!interrupts(deadline.pass(7 * MS)));
        assert!(!interrupts(deadline.pass(8 * MS)));
        assert!(!interrupts(deadline.pass(56 * MS)));
        assert!(interrupts(deadline.pass(57 * MS)));
    }

    #[test]
    fn time_without_processor_is_bounded_too() {
        let mut deadline = Deadline::new(3);
        deadline.begin(100 * MS);
        let passes: Vec<bool> = (0..4).map(|_| interrupts(deadline.pass(MS))).collect();
        assert_eq!(passes, [false, false, false, true]);
    }

    #[test]
    fn a_failed_growth_is_given_back() {
        let mut limiter = Limiter::new(&Limits {
            memory_bytes: 100,
            ..Limits::default()
        });
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(60, 101, None).unwrap());
        assert!(limiter.denied);
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        limiter
            .memory_grow_failed(wasmtime::Error::msg("no memory"))
            .unwrap();
        assert!(limiter.memory_growing(0, 40, None).unwrap());
    }
}
