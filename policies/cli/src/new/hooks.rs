//! The parts that each hook brings to a new policy: a module, a scenario, reasons; and
//! `lib.rs`, which puts the chosen parts together.

use anyhow::Result;

use super::super::hooks::Hook;

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
        .flat_map(|hook| hook.part().reasons)
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
