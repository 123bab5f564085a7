//! The files the rules look at: what git tracks, and what it would.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root, with `/` between folders.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
}

/// Every file of the checkout, by path. Without git: all but hidden folders and `target`.
pub(super) fn list(root: &Path) -> Result<Vec<File>> {
    let mut paths = match tracked(root) {
        Some(paths) => paths,
        None => walk(root, "")?,
    };
    paths.sort();
    paths.dedup();
    let files = paths.into_iter().map(|path| read(root, path));
    files.filter_map(Result::transpose).collect()
}

/// Tracked and untracked files that are not ignored; `None` outside a git checkout.
fn tracked(root: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("git");
    command
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root);
    let listed = process::stdout_of(&mut command).ok()??;
    let paths: Vec<String> = listed.split_terminator('\0').map(str::to_owned).collect();
    // An unpacked archive inside someone else's checkout, where all of it is ignored.
    (!paths.is_empty()).then_some(paths)
}

fn walk(root: &Path, folder: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if !name.starts_with('.') && name != "target" {
            paths.extend(walk(root, &path)?);
        }
    }
    Ok(paths)
}

/// `None` for what is listed and gone, such as a file deleted and not yet committed so.
fn read(root: &Path, path: String) -> Result<Option<File>> {
    match fs::read(root.join(&path)) {
        Ok(bytes) => Ok(Some(File { path, bytes })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{path} cannot be read")),
    }
}

// === impl File ===

impl File {
    /// The contents, if they are text.
    pub(super) fn text(&self) -> Option<&str> {
        let text = str::from_utf8(&self.bytes).ok()?;
        (!text.contains('\0')).then_some(text)
    }

    pub(super) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension() == Some(OsStr::new(extension))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::TempDir;

    fn paths(root: &Path) -> Vec<String> {
        let files = list(root).unwrap();
        files.into_iter().map(|file| file.path).collect()
    }

    #[test]
    fn lists_files_without_git() {
        let temp = TempDir::new();
        for name in ["b.rs", "a/c.rs", "target/x", ".cache/x"] {
            temp.write(name, b"");
        }
        assert_eq!(walk(temp.path(), "").unwrap().len(), 2);
        assert_eq!(paths(temp.path()), ["a/c.rs", "b.rs"]);
    }

    #[test]
    fn lists_what_git_tracks_and_what_it_does_not_ignore() {
        let temp = TempDir::new();
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            process::succeeds(command.args(args).current_dir(temp.path()))
        };
        if !git(&["init"]) {
            println!("skipped: no git on this machine");
            return;
        }
        for name in ["tracked", "gone", "new", "ignored"] {
            temp.write(name, b"");
        }
        temp.write(".gitignore", b"ignored\n");
        assert!(git(&["add", "tracked", "gone"]));
        fs::remove_file(temp.path().join("gone")).unwrap();
        assert_eq!(paths(temp.path()), [".gitignore", "new", "tracked"]);
    }

    #[test]
    fn tells_text_from_other_bytes() {
        let file = |bytes: &[u8]| File {
            path: "a.b.rs".to_owned(),
            bytes: bytes.to_vec(),
        };
        assert_eq!(file(b"fn").text(), Some("fn"));
        assert_eq!(file(b"\0asm").text(), None);
        assert_eq!(file(b"\xff").text(), None);
        assert!(file(b"").has_extension("rs"));
    }
}
