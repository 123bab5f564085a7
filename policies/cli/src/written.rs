//! The files of a policy's folder that its author writes, apart from those that builds and tests make.

use std::fs;
use std::path::Path;

/// Folders that builds and tests write to.
const MADE: [&str; 4] = ["target", "found", "node_modules", "__pycache__"];

/// A file that each virtual environment of Python has in its folder. What is in it was installed.
const INSTALLED: &str = "pyvenv.cfg";

/// The folder that builds of interpreted languages write to. In a crate, one deeper down is a module.
pub(crate) const BUILD: &str = "build";

/// Goes through a folder without what is hidden or made.
pub(crate) fn walk(root: &Path, enter: &mut dyn FnMut(&Path), found: &mut dyn FnMut(&Path)) {
    walk_into(root, root, (enter, found));
}

/// Called at each folder, and at each file.
type Visitor<'a> = (&'a mut dyn FnMut(&Path), &'a mut dyn FnMut(&Path));

fn walk_into(root: &Path, folder: &Path, (enter, found): Visitor<'_>) {
    enter(folder);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        // A link is not followed: it may lead back.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let is_made = MADE.contains(&&*name)
                || (folder == root && name == BUILD)
                || path.join(INSTALLED).is_file();
            if !is_made {
                walk_into(root, &path, (enter, found));
            }
        } else if !name.contains(".wasm") && name != "Cargo.lock" {
            found(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn sources_are_what_an_author_writes() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        for folder in [
            "src/build",
            "target/release",
            "found",
            ".git",
            "scenarios",
            "build/guest",
            "node_modules/x",
            "__pycache__",
            "environment/bin",
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let written = [
            "Cargo.toml",
            "policy.js",
            "src/lib.rs",
            "src/build/er.rs",
            "scenarios/a.toml",
        ];
        let made = [
            "mine.wasm",
            "mine.wasm.123",
            "Cargo.lock",
            "target/release/x.rs",
            "found/x.toml",
            ".git/x",
            "build/guest/main.js",
            "node_modules/x/x.js",
            "__pycache__/x.pyc",
            "environment/pyvenv.cfg",
            "environment/bin/x.py",
        ];
        for file in written.iter().chain(&made) {
            fs::write(root.join(file), "x").unwrap();
        }
        let (mut folders, mut files) = (0, Vec::new());
        walk(root, &mut |_| folders += 1, &mut |file| {
            files.push(file.strip_prefix(root).unwrap().to_owned());
        });
        files.sort();
        let mut expected = written.map(PathBuf::from);
        expected.sort();
        assert_eq!((folders, files), (4, expected.to_vec()));
    }
}
