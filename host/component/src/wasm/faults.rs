//! Traps put into words: what happened, in which functions of the policy.
//!
//! # Bounds
//! Names of functions are the author's, up to megabytes each, and may say more still once they are
//! demangled. No more is read or written than is kept.

use pointsman_interface::FaultKind;
use pointsman_notation::untrusted;
use wasmtime::{Trap, WasmBacktrace};

use crate::fault::Fault;
use crate::limits::Limits;
use crate::store::StoreState;

/// Largest size of a line of a fault, in bytes.
const LINE_BYTES: usize = 512;

/// Largest size of a function's name as the component has it, in bytes: a longer one is cut.
const NAME_BYTES: usize = 4096;

/// Functions of the standard library and of the code around it, by the beginnings of their names.
/// They say nothing about the policy.
const RUNTIME: &[&str] = &[
    "std::",
    "core::",
    "alloc::",
    "compiler_builtins::",
    "dlmalloc::",
    "wit_bindgen::",
    "hashbrown::",
    "__rust",
    "rust_",
    "cabi_",
    "_Exit",
    "abort",
];

/// A call that ended without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedCall {
    /// Name of the call.
    pub(super) what: &'static str,
    /// The fuel it was given.
    pub(super) fuel: u64,
}

/// The fault that `error` is. The guest's last words, which `state` has, are the message of a trap.
pub(super) fn fault(
    call: EndedCall,
    error: &wasmtime::Error,
    (state, limits): (&StoreState, &Limits),
) -> Fault {
    let kind = kind_of(error, state);
    let frames = frames(error);
    let words = state.last_words.as_deref().unwrap_or_default();
    let mut words = words.lines().map(|line| untrusted::line(line, LINE_BYTES));
    let said = words.next().filter(|_| kind == FaultKind::Trap);
    let what = said.unwrap_or_else(|| in_words(kind, call, error, limits));
    let mut below: Vec<String> = words.collect();
    if below.is_empty() {
        let own = frames.iter().filter(|frame| !frame.is_runtime());
        // A function that calls itself stands there once.
        let mut own: Vec<&str> = own.map(|frame| frame.name.as_str()).collect();
        own.dedup();
        below.extend(own.iter().map(|name| format!("  in {name}")));
    }
    let trace: Vec<String> = frames.iter().map(Frame::shown).collect();
    Fault::new(kind, what).with_trace(below, trace.join("\n"))
}

fn kind_of(error: &wasmtime::Error, state: &StoreState) -> FaultKind {
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::OutOfFuel) {
        FaultKind::Fuel
    } else if trap == Some(&Trap::Interrupt) {
        FaultKind::Deadline
    } else if is_oversize(error) {
        FaultKind::Oversize
    } else if state.limiter.denied {
        // Allocators abort when they get no memory.
        FaultKind::Memory
    } else {
        FaultKind::Trap
    }
}

/// True if the guest returned or logged more than the store allows. The error's type is private to
/// wasmtime; `wasm::tests` would notice another text.
fn is_oversize(error: &wasmtime::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.to_string().contains("fuel allocated for hostcalls"))
}

/// A failure as a predicate.
fn in_words(
    kind: FaultKind,
    EndedCall { what, fuel }: EndedCall,
    error: &wasmtime::Error,
    limits: &Limits,
) -> String {
    match kind {
        FaultKind::Fuel => format!("ran out of fuel at {what}, of which it had {fuel}"),
        FaultKind::Deadline => {
            let allowed = fuel.saturating_mul(limits.fuel_nanos) / 1_000_000;
            format!("took too long at {what}, for which it had {allowed} ms of processor time")
        }
        FaultKind::Memory => {
            let bytes = limits.memory_bytes;
            format!("ran out of memory at {what}, of which it may have {bytes} bytes")
        }
        FaultKind::Oversize => {
            let bytes = limits.result_bytes;
            format!("returned too much at {what}, where it may return {bytes} bytes")
        }
        FaultKind::Trap | FaultKind::Start | FaultKind::Struck => {
            let cause = untrusted::formatted(format_args!("{}", error.root_cause()), LINE_BYTES);
            let cause = cause.lines().next().unwrap_or_default();
            let cause = cause.strip_prefix("wasm trap: ").unwrap_or(cause);
            format!("trapped at {what}: {cause}")
        }
    }
}

// === Frames ===

/// A function that was being called.
struct Frame {
    /// Its name, demangled.
    name: String,
    /// Position in the module.
    offset: Option<usize>,
}

impl Frame {
    /// True if the function is part of the standard library, or of the code around it.
    fn is_runtime(&self) -> bool {
        let name = self.name.trim_start_matches(['<', '&', '*', '(', '[']);
        let name = name.strip_prefix("dyn ").unwrap_or(name);
        RUNTIME.iter().any(|beginning| name.starts_with(beginning))
    }

    fn shown(&self) -> String {
        match self.offset {
            Some(offset) => format!("{offset:>#9x}  {}", self.name),
            None => format!("{:>9}  {}", "?", self.name),
        }
    }
}

/// The functions that were being called, innermost first.
fn frames(error: &wasmtime::Error) -> Vec<Frame> {
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    let frames = backtrace.into_iter().flat_map(WasmBacktrace::frames);
    let frames = frames.map(|frame| Frame {
        name: match frame.func_name() {
            Some(name) => demangled(name),
            None => format!("function {}", frame.func_index()),
        },
        offset: frame.module_offset(),
    });
    frames.collect()
}

/// A function's name as its author wrote it.
fn demangled(name: &str) -> String {
    let name = &name[..name.floor_char_boundary(NAME_BYTES)];
    let name = rustc_demangle::demangle(name);
    untrusted::formatted(format_args!("{name:#}"), LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Frame {
        Frame {
            name: demangled(name),
            offset: Some(0x1234),
        }
    }

    #[test]
    fn names_are_demangled_and_those_of_the_standard_library_known() {
        let own = named("_ZN9my_router7routing4pick17h0123456789abcdefE");
        assert_eq!(own.name, "my_router::routing::pick");
        assert_eq!(own.shown(), "   0x1234  my_router::routing::pick");
        assert!(!own.is_runtime());
        assert!(!named("<my_router::Routing as core::fmt::Display>::fmt").is_runtime());
        for name in [
            "_ZN4core9panicking9panic_fmt17h0123456789abcdefE",
            "<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop",
            "<&T as core::fmt::Debug>::fmt",
            "rust_begin_unwind",
            "__rust_start_panic",
        ] {
            let is_of_t = name.starts_with("<&T");
            assert_eq!(named(name).is_runtime(), !is_of_t, "{name}");
        }
    }

    #[test]
    fn a_name_is_cut() {
        assert_eq!(named(&"x".repeat(1 << 20)).name.len(), LINE_BYTES);
    }
}
