//! The hooks as authors name them: what each brings to a new policy, and the question of each that is
//! measured.

use clap::ValueEnum as _;
use pointsman_component::PolicyComponent;
use pointsman_core::{
    DeviceId, ExecutorId, Question, RequestId, Shortage, ShortageCause, TokensUsed, fixture,
};

/// Waiting requests of the fleet that is measured, the first of which has id 0.
pub(crate) const WAITING: u64 = 64;
/// Executors of that fleet that share a device.
pub(crate) const PER_DEVICE: u32 = 8;

/// A question that a policy may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Hook {
    /// Decides if requests may wait at all
    Admission,
    /// Decides the order in which waiting requests are tried
    Priority,
    /// Decides where a request runs
    Routing,
    /// Decides which placed sequences give way
    Preemption,
    /// Decides how many tokens each engine of a device may schedule in a step
    Budget,
    /// Explains why a request would go to its place
    Explanation,
}

/// The parts that a hook brings to a new policy.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The text of `src/HOOK.rs`.
    pub(crate) module: &'static str,
    /// The text of `scenarios/HOOK.toml`; absent: an explanation decides nothing to expect.
    pub(crate) scenario: Option<&'static str>,
    /// The names and texts of the hook's reasons.
    pub(crate) reasons: &'static [(&'static str, &'static str)],
}

// === impl Hook ===

impl Hook {
    /// Every hook, in the order of a round.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// The hook's name in the interface.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Priority => "priority",
            Self::Routing => "routing",
            Self::Preemption => "preemption",
            Self::Budget => "budget",
            Self::Explanation => "explanation",
        }
    }

    /// True if the policy has the hook.
    pub(crate) fn is_answered_by(self, policy: &PolicyComponent) -> bool {
        match pointsman_core::Hook::named(self.as_str()) {
            Some(hook) => policy.hooks().contains(hook),
            None => policy.explains(),
        }
    }

    /// The parts that the hook brings to a new policy.
    pub(crate) fn part(self) -> Part {
        match self {
            Self::Admission => Part {
                module: include_str!("new/templates/admission.rs"),
                scenario: Some(include_str!("new/templates/admission.toml")),
                reasons: &[
                    ("ROOM", "the queue has room"),
                    ("FULL", "the queue is full"),
                ],
            },
            Self::Priority => Part {
                module: include_str!("new/templates/priority.rs"),
                scenario: Some(include_str!("new/templates/priority.toml")),
                reasons: &[],
            },
            Self::Routing => Part {
                module: include_str!("new/templates/routing.rs"),
                scenario: Some(include_str!("new/templates/routing.toml")),
                reasons: &[
                    ("MOST_FREE", "most free slots"),
                    ("NO_SLOT", "no slot is free"),
                ],
            },
            Self::Preemption => Part {
                module: include_str!("new/templates/preemption.rs"),
                scenario: Some(include_str!("new/templates/preemption.toml")),
                reasons: &[("LESS_URGENT", "less urgent than who needs its room")],
            },
            Self::Budget => Part {
                module: include_str!("new/templates/budget.rs"),
                scenario: Some(include_str!("new/templates/budget.toml")),
                reasons: &[],
            },
            Self::Explanation => Part {
                module: include_str!("new/templates/explanation.rs"),
                scenario: None,
                reasons: &[],
            },
        }
    }

    /// The question that is measured; absent: an explanation is no decision.
    pub(crate) fn question(self) -> Option<Question<'static>> {
        let used = (0..PER_DEVICE).map(|id| TokensUsed {
            executor: ExecutorId(id),
            tokens: 0,
        });
        Some(match self {
            Self::Admission => Question::Admission {
                arrivals: fixture::asked(&[0]).into(),
                room: 1000,
            },
            Self::Priority => {
                let all: Vec<u64> = (0..WAITING).collect();
                Question::Priority(fixture::asked(&all).into())
            }
            Self::Routing => Question::Routing(vec![fixture::cached(0)].into()),
            Self::Preemption => Question::Preemption(Shortage {
                cause: ShortageCause::Slots,
                needy: RequestId(0),
                executor: None,
                blocks: 0,
            }),
            Self::Budget => Question::Budget {
                device: DeviceId(0),
                tokens_total: 8192,
                used: used.collect(),
            },
            Self::Explanation => return None,
        })
    }
}
