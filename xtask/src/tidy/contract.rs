//! The scheduling interface is documented throughout: it is what policies are written against.

use super::Problem;
use super::files::File;

/// Items of a WIT file that have no documentation: types, functions, fields and cases that stand
/// on a line of their own.
pub(super) fn check(file: &File) -> Vec<Problem> {
    let Some(text) = file.text().filter(|_| file.has_extension("wit")) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut is_documented = false;
    for (line_idx, line) in text.lines().enumerate() {
        let line = line.trim();
        if is_item(line) && !is_documented {
            let text = format!("`{line}` has no `///`: say what it is, its unit and who sets it");
            problems.push(Problem::at_line(&file.path, line_idx, text));
        }
        is_documented = line.starts_with("///");
    }
    problems
}

fn is_item(line: &str) -> bool {
    let passes = ["//", "}", "package ", "use ", "import ", "export "];
    !line.is_empty() && !passes.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::{file, texts};

    #[test]
    fn what_has_no_documentation_is_named() {
        let wit = "package a:b@0.1.0;\n\n/// Data.\ninterface types {\n    use a.{b};\n    \
                   /// One.\n    record one {\n        /// Microseconds.\n        id: u32,\n        \
                   size: u32,\n    }\n    enum two { a, b }\n}\n";
        let said = texts(&check(&file("wit/a.wit", wit)));
        assert_eq!(said.len(), 2);
        assert!(said[0].starts_with("wit/a.wit:10: `size: u32,` has no `///`"));
        assert!(said[1].starts_with("wit/a.wit:12: `enum two { a, b }` has no `///`"));
        assert!(check(&file("a.rs", wit)).is_empty());
    }
}
