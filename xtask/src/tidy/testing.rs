//! Fixtures of this crate's tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Problem;
use super::files::File;
use crate::workspace::{Dependency, Kind, PREFIX, Package};

/// A folder that is removed with its contents when dropped.
pub(crate) struct TempDir(PathBuf);

/// A text file that only exists in a test.
pub(super) fn file(path: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        bytes: text.as_bytes().to_vec(),
    }
}

/// A package of ours, in `host/`, with these dependencies.
pub(super) fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
    let dependency = |(name, kind): &(&str, Kind)| Dependency {
        name: (*name).to_owned(),
        kind: *kind,
    };
    Package {
        name: format!("{PREFIX}{name}"),
        folder: format!("host/{name}"),
        cdylib: false,
        cdylib_examples: Vec::new(),
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

/// The texts of problems, in order.
pub(super) fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

// === impl TempDir ===

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-test-{}-{number}", process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, with the folders it needs.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A folder left behind in the system's place for such is no reason to fail.
        drop(fs::remove_dir_all(&self.0));
    }
}
