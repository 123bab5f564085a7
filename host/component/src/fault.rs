//! [`Fault`]: a call that ended without an answer, in words for operators and authors.
//!
//! The first line is one sentence, with the policy as its subject, and the same wherever it is
//! shown: `my-router panicked at src/routing.rs:20: boom`. Below it stand the functions of the
//! policy, innermost first. The whole trace is for the dump.
//!
//! # Not here
//! Traps put into words (`wasm::faults`).

use std::fmt::Write as _;

use pointsman_interface::FaultKind;

/// A call that ended without an answer. Displayed as its first line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {}", .told.subject(), .told.what)]
pub struct Fault {
    /// Kind of the failure.
    pub kind: FaultKind,
    told: Box<Told>,
}

/// A fault in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    /// Name of the policy; absent: nobody has named it yet.
    policy: Option<String>,
    /// Predicate of the sentence whose subject is the policy.
    what: String,
    /// Lines below the first.
    below: Vec<String>,
    /// Every frame of the backtrace; empty: there is none.
    trace: String,
}

// === impl Fault ===

impl Fault {
    /// Makes a fault of kind `kind`. `what` is the predicate of a sentence about the policy, such as
    /// `has no instance`.
    #[must_use]
    pub fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        let told = Told {
            what: what.into(),
            ..Told::default()
        };
        Self {
            kind,
            told: Box::new(told),
        }
    }

    /// Makes the fault of a call to an interface that the policy does not export.
    #[must_use]
    pub fn not_exported(interface: &str) -> Self {
        let what = format!("does not export {interface}");
        Self::new(FaultKind::Trap, what)
    }

    /// The same fault with further lines, and with the whole trace.
    pub(crate) fn with_trace(mut self, below: Vec<String>, trace: String) -> Self {
        self.told.below = below;
        self.told.trace = trace;
        self
    }

    /// The same fault of the policy `name`, unless it was named before.
    #[must_use]
    pub fn of(mut self, name: &str) -> Self {
        self.told.policy.get_or_insert_with(|| name.to_owned());
        self
    }

    /// The same fault as one of a start: what ended had no question to answer.
    #[must_use]
    pub fn at_start(self) -> Self {
        let kind = FaultKind::Start;
        Self { kind, ..self }
    }

    /// The first line, and the policy's functions below it.
    #[must_use]
    pub fn detail(&self) -> String {
        let mut detail = self.to_string();
        for line in &self.told.below {
            write!(detail, "\n{line}").expect("a text takes any other");
        }
        detail
    }

    /// Every frame of the backtrace, a line each; empty: there is none.
    #[must_use]
    pub fn trace(&self) -> &str {
        &self.told.trace
    }
}

// === impl Told ===

impl Told {
    fn subject(&self) -> &str {
        self.policy.as_deref().unwrap_or("the policy")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_a_sentence_about_the_policy_that_was_named_first() {
        let fault = Fault::new(FaultKind::Trap, "panicked at src/routing.rs:20: boom");
        assert_eq!(
            fault.to_string(),
            "the policy panicked at src/routing.rs:20: boom"
        );
        let fault = fault.with_trace(vec!["  in pick".into()], "whole".into());
        let fault = fault.of("my-router").of("another");
        assert_eq!(
            fault.detail(),
            "my-router panicked at src/routing.rs:20: boom\n  in pick"
        );
        assert_eq!(fault.trace(), "whole");
    }
}
