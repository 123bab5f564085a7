//! The twins of `examples/01-first-policy` in other languages, for the test that compares them.
//!
//! Each is built by its `build.sh`, as its README tells readers to, and only if one of its sources
//! is newer than its component.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::apt;
use crate::process;
use crate::workspace::Workspace;

struct Twin {
    /// Name of the folder within `examples`.
    folder: &'static str,
    /// File that `build.sh` makes in that folder.
    component: &'static str,
    /// Programs that `build.sh` calls.
    programs: &'static [&'static str],
    packages: &'static [&'static str],
}

const TWINS: &[Twin] = &[
    Twin {
        folder: "02-javascript-policy",
        component: "javascript-policy.wasm",
        programs: &["node", "npm"],
        packages: &["nodejs", "npm"],
    },
    Twin {
        folder: "03-python-policy",
        component: "python-policy.wasm",
        programs: &["python3"],
        packages: &["python3", "python3-venv"],
    },
];

pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    for twin in TWINS {
        let folder = workspace.root.join("examples").join(twin.folder);
        let component = folder.join(twin.component);
        let shown = component.display();
        if is_current(modified(&component).ok(), &sources(workspace, &folder)?) {
            println!("twins: {shown} (unchanged)");
            continue;
        }
        apt::provide(twin.programs, twin.packages)
            .with_context(|| format!("{shown} cannot be built"))?;
        process::run(&mut Command::new(folder.join("build.sh")))?;
    }
    Ok(())
}

/// True if the component is newer than all its sources.
fn is_current(made: Option<SystemTime>, sources: &[SystemTime]) -> bool {
    made.is_some_and(|made| sources.iter().all(|source| *source < made))
}

/// Times of change of a twin's sources: the files of its folder, and the interface.
fn sources(workspace: &Workspace, folder: &Path) -> Result<Vec<SystemTime>> {
    let mut times = Vec::new();
    for folder in [folder, &workspace.root.join("wit")] {
        for path in files(folder).with_context(|| format!("{} not listed", folder.display()))? {
            if path.extension().is_none_or(|kind| kind != "wasm") {
                times.push(modified(&path)?);
            }
        }
    }
    Ok(times)
}

/// The files of a folder. Subfolders are skipped: only builds make them.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

fn modified(path: &Path) -> Result<SystemTime> {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.with_context(|| format!("{} has no time of change", path.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn builds_what_is_missing_or_older_than_a_source() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(is_current(Some(at(3)), &[at(1), at(2)]));
        assert!(!is_current(None, &[at(1)]));
        assert!(!is_current(Some(at(3)), &[at(1), at(4)]));
        assert!(!is_current(Some(at(3)), &[at(3)]), "may have changed since");
    }

    #[test]
    fn a_twin_is_made_of_its_own_files_and_the_interface() {
        let workspace = Workspace::here().unwrap();
        for twin in TWINS {
            let folder = workspace.root.join("examples").join(twin.folder);
            let own = files(&folder).unwrap();
            assert!(own.contains(&folder.join("build.sh")), "{}", twin.folder);
            let made = own.iter().filter(|path| path.ends_with(twin.component));
            let wit = files(&workspace.root.join("wit")).unwrap();
            let times = sources(&workspace, &folder).unwrap();
            assert_eq!(times.len(), own.len() - made.count() + wit.len());
        }
    }
}
