//! The part of a build that interpreted languages share: what goes into a component beside the
//! author's files, and the rule when it is made anew.
//!
//! All that a build makes is in `build` of the policy's folder: the world that the policy exports, with
//! the interface of this release, and the file that reports what a policy throws. Two builds of the same
//! files may differ, and compiling takes long, so a component is made anew only after a change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use pointsman_component::Digest;

use super::super::new;
use super::super::written::{self, BUILD};
use super::{Folder, not_run};

/// The world in the author's `world.wit`.
pub(super) const WORLD: &str = "policy";

/// Paths within the policy's folder.
pub(super) const WIT: &str = "build/wit";
pub(super) const COMPONENT: &str = "build/component.wasm";
/// The digest of all that the component was made of.
const STAMP: &str = "build/made-of";
const WORLD_FILE: &str = "world.wit";

/// A file to write, by its path within the policy's folder.
pub(super) type File = (PathBuf, String);

/// An interface that a policy may export.
pub(super) struct Export {
    /// Its name in the WIT.
    pub(super) name: &'static str,
    /// The names of its functions.
    pub(super) functions: Vec<&'static str>,
}

impl Export {
    /// The names of the functions as the elements of a list, in either language.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.functions.join("\", \""))
    }
}

/// Makes the component with `tool`, unless the one that is there was made of the same; the inner error
/// says why there is none. `guest` are the files that run beside the author's, and `remedy` is for a machine
/// on which the tool does not start.
pub(super) fn make(
    folder: Folder<'_>,
    guest: Vec<File>,
    remedy: &str,
    tool: impl FnOnce() -> Result<Command>,
) -> Result<Result<Vec<u8>, String>> {
    let component = folder.path.join(COMPONENT);
    let stamp = folder.path.join(STAMP);
    let files = [guest, interface(folder)?].concat();
    let made_of = digest(folder.path, &files)?;
    if fs::read_to_string(&stamp).is_ok_and(|made_of_then| made_of_then == made_of)
        && let Ok(component) = fs::read(&component)
    {
        return Ok(Ok(component));
    }
    let shown = folder.shown.display();
    write(folder.path, &files).with_context(|| format!("{shown}/{BUILD} cannot be written"))?;
    let mut tool = tool()?;
    // What the tool says of the author's files is told; where in the tool that was, is not.
    tool.current_dir(folder.path)
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE");
    if !succeeds(tool, remedy)? {
        return Ok(Err("does not build".to_owned()));
    }
    let made = fs::read(&component).with_context(|| format!("{shown}/{COMPONENT} not read"))?;
    fs::write(&stamp, made_of).with_context(|| format!("{shown}/{STAMP} not written"))?;
    Ok(Ok(made))
}

/// Runs a command whose errors are shown to the user. Returns true if it succeeds.
pub(super) fn succeeds(mut command: Command, remedy: &str) -> Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status();
    let status = status.map_err(|error| not_run(&command, error, remedy))?;
    Ok(status.success())
}

/// A name that is one part of a path, as the component's file is called after it.
pub(super) fn name(folder: Folder<'_>, manifest: &str, name: Option<String>) -> Result<String> {
    let shown = folder.shown.display();
    let name = name.with_context(|| {
        format!("{shown}/{manifest} has no name: the component's file is called after it")
    })?;
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    anyhow::ensure!(
        !name.is_empty() && !name.starts_with('.') && name.chars().all(allowed),
        "`{name}` in {shown}/{manifest} can be no file's name: a policy's is of letters, digits and hyphens",
    );
    Ok(name)
}

/// The author's world, and the interface that it is made of.
fn interface(folder: Folder<'_>) -> Result<Vec<File>> {
    let world = fs::read_to_string(folder.path.join(WORLD_FILE)).with_context(|| {
        format!(
            "{}/{WORLD_FILE} cannot be read: it names the decisions of the policy, and `pointsman policy \
             new` writes one",
            folder.shown.display(),
        )
    })?;
    let wit = Path::new(WIT);
    let own = (wit.join(WORLD_FILE), world);
    let files = new::interface();
    let deps = files.map(|(name, text)| (wit.join("deps/scheduling").join(name), text.to_owned()));
    Ok([own].into_iter().chain(deps).collect())
}

/// The interfaces that a policy may export, as the WIT of this release has them.
pub(super) fn exports() -> Vec<Export> {
    let hooks = new::interface().find(|(name, _)| *name == "hooks.wit");
    // The last interface is the host's.
    let exported = hooks.and_then(|(_, text)| text.split_once("interface log"));
    let (exported, _) = exported.unwrap_or_default();
    let interfaces = exported.split("\ninterface ").skip(1);
    let export = |text: &'static str| {
        let functions = text.match_indices(": func(");
        let functions = functions.filter_map(|(at, _)| text[..at].split_whitespace().last());
        Export {
            name: text.split_whitespace().next().unwrap_or_default(),
            functions: functions.collect(),
        }
    };
    interfaces.map(export).collect()
}

/// The digest of the author's files and of those that a build adds.
fn digest(folder: &Path, files: &[File]) -> Result<String> {
    let mut paths = Vec::new();
    written::walk(folder, &mut |_| {}, &mut |file| paths.push(file.to_owned()));
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let within = path.strip_prefix(folder).unwrap_or(&path);
        if !is_beside(within) {
            let bytes = contents(&path);
            let bytes = bytes.with_context(|| format!("{} not read", path.display()))?;
            part(&mut all, within, &bytes);
        }
    }
    for (path, text) in files {
        part(&mut all, path, text.as_bytes());
    }
    Ok(Digest::of(&all).to_string())
}

/// The bytes of a file; of a link that leads to a folder or nowhere, its own. Such a folder is not gone through.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    if path.is_symlink() && !path.is_file() {
        return Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes());
    }
    fs::read(path)
}

/// True for files that no component is made of.
fn is_beside(path: &Path) -> bool {
    path.starts_with("scenarios") || path.extension().is_some_and(|is| is == "md")
}

fn part(all: &mut Vec<u8>, path: &Path, bytes: &[u8]) {
    let path = path.as_os_str().as_encoded_bytes();
    for part in [path, bytes] {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        all.extend(length.to_le_bytes());
        all.extend(part);
    }
}

/// Writes the files of a build, and removes what the last one left.
fn write(folder: &Path, files: &[File]) -> io::Result<()> {
    for old in [STAMP, COMPONENT] {
        remove(fs::remove_file(folder.join(old)))?;
    }
    remove(fs::remove_dir_all(folder.join(WIT)))?;
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, text)?;
    }
    Ok(())
}

/// Takes what is not there as removed.
fn remove(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pointsman_core::Hook;

    use super::*;

    #[test]
    fn what_a_component_is_made_of_changes_its_digest_and_nothing_else_does() {
        let home = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let of = |added: &str| digest(home.path(), &[("x".into(), added.to_owned())]).unwrap();
        write("policy.js", "1");
        let first = of("y");
        assert_ne!(of("z"), first);
        for (file, text) in [
            ("README.md", "2"),
            ("scenarios/a.toml", "2"),
            ("mine.wasm", "2"),
            ("build/wit/world.wit", "2"),
        ] {
            write(file, text);
            assert_eq!(of("y"), first, "{file}");
        }
        for (file, text) in [("policy.js", "2"), ("more/mirror.js", "1")] {
            let before = of("y");
            write(file, text);
            assert_ne!(of("y"), before, "{file}");
        }
    }

    #[test]
    fn links_to_folders_and_to_nowhere_are_no_hindrance() {
        let home = tempfile::tempdir().unwrap();
        let of = || digest(home.path(), &[]).unwrap();
        fs::create_dir(home.path().join("lib")).unwrap();
        fs::write(home.path().join(".file"), "1").unwrap();
        let link = |to: &str| {
            let link = home.path().join("link");
            remove(fs::remove_file(&link)).unwrap();
            symlink(to, link).unwrap();
        };
        let mut seen = vec![of()];
        for to in ["lib", "nowhere", ".file"] {
            link(to);
            let made_of = of();
            assert!(!seen.contains(&made_of), "{to}");
            seen.push(made_of);
        }
        // A file is read where it is.
        fs::write(home.path().join(".file"), "2").unwrap();
        assert!(!seen.contains(&of()));
    }

    #[test]
    fn a_component_is_made_anew_where_it_is_gone_or_the_interface_is_another() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder {
            shown: Path::new("mine"),
            path: home.path(),
        };
        fs::create_dir(home.path().join(BUILD)).unwrap();
        fs::write(home.path().join(WORLD_FILE), "world policy {}").unwrap();
        let make = || make(folder, Vec::new(), "", || anyhow::bail!("a tool is needed"));
        let made_of = |files: &[File]| {
            let stamp = digest(home.path(), files).unwrap();
            fs::write(home.path().join(STAMP), stamp).unwrap();
            fs::write(home.path().join(COMPONENT), "made before").unwrap();
            make()
        };
        let files = interface(folder).unwrap();
        let paths: Vec<_> = files.iter().map(|(path, _)| path.as_path()).collect();
        for file in ["deps/scheduling/hooks.wit", "deps/scheduling/types.wit"] {
            assert!(
                paths.contains(&Path::new(WIT).join(file).as_path()),
                "{file}"
            );
        }
        assert_eq!(made_of(&files).unwrap(), Ok(b"made before".to_vec()));
        for idx in 0..files.len() {
            let mut others = files.clone();
            others[idx].1.push(' ');
            let error = made_of(&others).unwrap_err();
            assert_eq!(error.to_string(), "a tool is needed");
        }
        made_of(&files).unwrap().unwrap();
        fs::remove_file(home.path().join(COMPONENT)).unwrap();
        assert_eq!(make().unwrap_err().to_string(), "a tool is needed");
    }

    /// The functions that a host asks, each with the number of its parameters.
    fn functions() -> Vec<(String, usize)> {
        let hooks = new::interface().find(|(name, _)| *name == "hooks.wit");
        // The last interface is the host's.
        let (exported, _) = hooks.unwrap().1.split_once("interface log").unwrap();
        let mut found = Vec::new();
        for (at, _) in exported.match_indices(": func(") {
            let name = exported[..at].split_whitespace().last().unwrap();
            let (parameters, _) = exported[at + 7..].split_once(')').unwrap();
            found.push((name.to_owned(), parameters.matches(": ").count()));
        }
        found
    }

    #[test]
    fn each_function_of_the_interface_reports_what_it_throws() {
        let functions = functions();
        assert!(functions.len() > 10, "{functions:?}");
        for (name, parameters) in &functions {
            assert!(
                *parameters <= 4,
                "pointsman.js passes four on to {name}, not {parameters}"
            );
        }
        let exports = exports();
        let reported = exports.iter().flat_map(|export| &export.functions);
        assert!(reported.eq(functions.iter().map(|(name, _)| name)));
        let hooks = Hook::ALL.map(Hook::as_str);
        let interfaces = ["lifecycle"].into_iter().chain(hooks);
        let interfaces = interfaces.chain(["explanation"]);
        assert!(exports.iter().map(|export| export.name).eq(interfaces));
    }

    #[test]
    fn a_policys_name_is_one_part_of_a_path() {
        let here = Path::new("here");
        let folder = Folder {
            shown: here,
            path: here,
        };
        let named = |text: &str| name(folder, "package.json", Some(text.to_owned()));
        assert_eq!(named("my-router_2.0").unwrap(), "my-router_2.0");
        for bad in ["", "@me/router", "../router", ".hidden", "a b"] {
            let error = named(bad).unwrap_err().to_string();
            assert!(error.contains("can be no file's name"), "{error}");
        }
        let error = name(folder, "package.json", None).unwrap_err().to_string();
        assert!(
            error.starts_with("here/package.json has no name"),
            "{error}"
        );
    }
}
