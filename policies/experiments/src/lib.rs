//! Policies in simulated runs: the commands that say what a policy does before a server has it.
//!
//! [`simulate`] is `pointsman simulate`: policies beside one another, on one workload. [`tune`] is
//! `pointsman policy tune`: many settings of one policy, and the best of them. Both put the
//! components of production into the simulation (`pointsman-sim`).
//!
//! The command line of a policy's author (`pointsman-policy-cli`) reads and compiles a policy's
//! file as these two do ([`file`](mod@file), [`code`]), ends on Ctrl-C as they do ([`stop`]), and returns the
//! same [`Done`].
//!
//! # Not here
//! The simulation itself (`pointsman-sim`); commands that simulate nothing (`pointsman-policy-cli`).

#![forbid(unsafe_code)]

pub mod code;
pub mod file;
pub mod simulate;
pub mod stop;
pub mod tune;

use std::process::ExitCode;

/// The result of a command that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The text to print.
    pub text: String,
    /// The verdict on the policy, or on an order.
    pub verdict: Verdict,
}

/// The verdict of a command on a policy or an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The policy is good, or the order was carried out.
    Good,
    /// The policy has to be changed, or the server refuses an order.
    NotGood,
}

// === impl Done ===

impl Done {
    /// A text with a good verdict.
    #[must_use]
    pub fn good(text: String) -> Self {
        Self {
            text,
            verdict: Verdict::Good,
        }
    }

    /// A text that says why the verdict is not good.
    #[must_use]
    pub fn not_good(text: String) -> Self {
        Self {
            text,
            verdict: Verdict::NotGood,
        }
    }
}

// === impl Verdict ===

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::SUCCESS,
            Verdict::NotGood => Self::from(1),
        }
    }
}
