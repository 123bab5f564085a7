//! The end of a command.

use std::process::Command;

/// The end of a command: exit code and output.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Runs a command to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        if code == 2 { &self.err } else { &self.out }
    }

    #[track_caller]
    pub(crate) fn says(&self, code: i32, parts: &[&str]) {
        let text = self.ended(code);
        for part in parts {
            assert!(text.contains(part), "{part:?} not in\n{text}");
        }
    }
}
