//! The parts that each hook brings to a new policy: a module, a scenario, reasons; and
//! `lib.rs`, which puts the chosen parts together.

use anyhow::Result;

/// A question that a policy may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Hook {
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

/// Returns each hook once, in the order of a round.
///
/// # Errors
/// If the only hook is the explanation, which is no decision.
pub(super) fn chosen(hooks: &[Hook]) -> Result<Vec<Hook>> {
    let mut hooks = hooks.to_vec();
    hooks.sort_unstable();
    hooks.dedup();
    anyhow::ensure!(
        hooks != [Hook::Explanation],
        "explanation is no decision: name what it explains too, as in --hooks routing,explanation",
    );
    Ok(hooks)
}

/// The hooks that have a module of their own: a policy that ranks executors explains itself.
pub(super) fn with_module(hooks: &[Hook]) -> impl Iterator<Item = Hook> {
    let ranks = hooks.contains(&Hook::Routing);
    let hooks = hooks.iter().copied();
    hooks.filter(move |hook| !(ranks && *hook == Hook::Explanation))
}

/// The text of `src/lib.rs`.
pub(super) fn library(hooks: &[Hook]) -> String {
    let mut modules: Vec<_> = with_module(hooks).map(Hook::as_str).collect();
    modules.sort_unstable();
    let modules = modules.iter().map(|name| format!("mod {name};\n"));
    let exports: Vec<_> = hooks.iter().map(|hook| hook.as_str()).collect();
    let reasons: Vec<_> = hooks
        .iter()
        .flat_map(|hook| hook.reasons())
        .copied()
        .collect();
    let (texts, module) = if reasons.is_empty() {
        ("Vec::new()", String::new())
    } else {
        (
            "reason::TEXTS.map(String::from).into()",
            reason_module(&reasons),
        )
    };
    let (imports, exported) = if hooks.contains(&Hook::Routing) {
        ("ByRank, Description, Policy, export", "ByRank<Decisions>")
    } else {
        ("Description, Policy, export", "Decisions")
    };
    include_str!("templates/lib.rs.txt")
        .replace("IMPORTS", imports)
        .replace("EXPORTED", exported)
        .replace("MODULES", &modules.collect::<String>())
        .replace("REASON_MODULE", &module)
        .replace("REASONS", texts)
        .replace("EXPORTS", &exports.join(", "))
}

fn reason_module(reasons: &[(&str, &str)]) -> String {
    let texts: Vec<_> = reasons
        .iter()
        .map(|(_, text)| format!("{text:?}"))
        .collect();
    let line = texts.join(", ");
    // As rustfmt breaks lists.
    let texts = if line.len() <= 60 {
        line
    } else {
        format!("\n        {},\n    ", texts.join(",\n        "))
    };
    let numbers = reasons.iter().enumerate();
    let numbers =
        numbers.map(|(idx, (name, _))| format!("    pub(crate) const {name}: u16 = {idx};\n"));
    let numbers = numbers.collect::<String>();
    let count = reasons.len();
    format!(
        "\n/// Why it decided as it did: texts for operators, which an answer names by their place.\n\
         mod reason {{\n    pub(crate) const TEXTS: [&str; {count}] = [{texts}];\n{numbers}}}\n"
    )
}

// === impl Hook ===

impl Hook {
    /// The hook's name in the interface.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Priority => "priority",
            Self::Routing => "routing",
            Self::Preemption => "preemption",
            Self::Budget => "budget",
            Self::Explanation => "explanation",
        }
    }

    /// The text of `src/HOOK.rs`.
    pub(super) fn module(self) -> &'static str {
        match self {
            Self::Admission => include_str!("templates/admission.rs"),
            Self::Priority => include_str!("templates/priority.rs"),
            Self::Routing => include_str!("templates/routing.rs"),
            Self::Preemption => include_str!("templates/preemption.rs"),
            Self::Budget => include_str!("templates/budget.rs"),
            Self::Explanation => include_str!("templates/explanation.rs"),
        }
    }

    /// The text of `scenarios/HOOK.toml`; absent: an explanation decides nothing to expect.
    pub(super) fn scenario(self) -> Option<&'static str> {
        match self {
            Self::Admission => Some(include_str!("templates/admission.toml")),
            Self::Priority => Some(include_str!("templates/priority.toml")),
            Self::Routing => Some(include_str!("templates/routing.toml")),
            Self::Preemption => Some(include_str!("templates/preemption.toml")),
            Self::Budget => Some(include_str!("templates/budget.toml")),
            Self::Explanation => None,
        }
    }

    /// The names and texts of the hook's reasons.
    fn reasons(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Admission => &[
                ("ROOM", "the queue has room"),
                ("FULL", "the queue is full"),
            ],
            Self::Routing => &[
                ("MOST_FREE", "most free slots"),
                ("NO_SLOT", "no slot is free"),
            ],
            Self::Preemption => &[("LESS_URGENT", "less urgent than who needs its room")],
            Self::Priority | Self::Budget | Self::Explanation => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hook_is_taken_once_and_one_must_decide() {
        let twice = [Hook::Routing, Hook::Admission, Hook::Routing];
        assert_eq!(chosen(&twice).unwrap(), [Hook::Admission, Hook::Routing]);
        let error = chosen(&[Hook::Explanation]).unwrap_err().to_string();
        assert!(error.starts_with("explanation is no decision"), "{error}");
    }

    #[test]
    fn reasons_are_numbered_across_the_hooks() {
        let text = library(&[Hook::Admission, Hook::Priority, Hook::Routing]);
        for part in [
            "mod admission;\nmod priority;\nmod routing;\n\nuse ",
            "NO_SLOT: u16 = 3;",
            "const TEXTS: [&str; 4]",
        ] {
            assert!(text.contains(part), "{part:?} not in\n{text}");
        }
        assert!(library(&[Hook::Budget]).contains("reasons: Vec::new()"));
    }

    #[test]
    fn a_policy_that_ranks_executors_explains_itself() {
        let ranked = library(&[Hook::Routing, Hook::Explanation]);
        assert!(ranked.contains("export!(ByRank<Decisions>: routing, explanation);"));
        assert!(!ranked.contains("mod explanation;"), "{ranked}");
        let ordered = library(&[Hook::Priority, Hook::Explanation]);
        assert!(ordered.contains("mod explanation;\nmod priority;"));
        assert!(ordered.contains("export!(Decisions: priority, explanation);"));
    }
}
