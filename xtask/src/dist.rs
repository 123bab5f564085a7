//! `cargo xtask dist`: what is given to those who run servers, in `<target>/dist`: a Debian package, an archive, the
//! folder that a container is built over, and the checksums of all.
//!
//! The binary is that of the profile `packaged`, a release that is optimised as a whole: what only a debugger reads is stripped, and the names
//! of functions stay, for the backtrace of a panic: nothing is packed without them, and no names besides (`symbols`). A binary that
//! would not serve by itself, or is too large, is not packed. The same binary at the same commit makes the same files: they have its time, or that of
//! `SOURCE_DATE_EPOCH`.
//!
//! # Not here
//! The unit, the configuration of the service, and the container file: `xtask/dist` in the repository.

mod archive;
mod container;
mod deb;
mod symbols;
#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::apt;
use crate::code::{self, Build};
use crate::policies;
use crate::process;
use crate::serve::{DEFAULTS, PACKAGE};
use crate::workspace::Workspace;

/// The files of a shell each: its name, and the path of its completions. Those of zsh have another folder in Debian.
const COMPLETIONS: [(&str, &str); 2] = [
    ("bash", "usr/share/bash-completion/completions/pointsman"),
    ("fish", "usr/share/fish/vendor_completions.d/pointsman.fish"),
];

/// The profile of the binary in packages.
pub(crate) const PROFILE: &str = "packaged";

/// The variable that gives files their time, in seconds since 1970, where it is not that of the commit.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Bytes of the binary that it may grow to: every machine of a fleet fetches it.
const SIZE_MAX: u64 = 40_000_000;

/// The path of the service's configuration.
const CONFIGURATION: &str = "etc/pointsman/pointsman.toml";

/// The things that are put into packages.
struct Release<'a> {
    /// The root of the repository.
    root: &'a Path,
    /// The binary `pointsman`.
    binary: &'a Path,
    /// The version of the workspace.
    version: &'a str,
    /// The time that all files get, in seconds since 1970.
    time: u64,
}

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    // Before a build that takes long.
    let time = time_of_files(&workspace.root, env::var_os(EPOCH).as_deref())?;
    apt::provide(&["dpkg-deb", "tar", "gzip"], &["dpkg", "tar", "gzip"])?;
    policies::build_named(workspace, &DEFAULTS)?;
    code::make(workspace, &DEFAULTS, Build::Packaged)?;
    let mut build = process::cargo(workspace);
    build.args(["build", "--profile", PROFILE, "--locked"]);
    let built = process::build_program(build.args(["--package", PACKAGE]), "pointsman")?;
    let binary = built.with_extension("pruned");
    symbols::prune(&built, &binary)?;
    let release = Release {
        root: &workspace.root,
        binary: &binary,
        version: env!("CARGO_PKG_VERSION"),
        time,
    };
    symbols::check(release.binary)?;
    let folder = workspace.target.join("dist");
    for file in make(&release, &folder)? {
        println!("dist: {}", file.display());
    }
    Ok(())
}

/// Makes everything in `folder`, which is made anew. Returns the paths that are to be given on.
fn make(release: &Release<'_>, folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    release.check(folder)?;
    let glibc = deb::glibc(&fs::read(release.binary)?);
    let files = [
        deb::make(release, glibc, folder)?,
        archive::make(release, folder)?,
    ];
    let container = container::make(release, glibc, folder)?;
    let sums = folder.join("SHA256SUMS");
    fs::write(&sums, checksums(&files)?)?;
    Ok(files.into_iter().chain([container, sums]).collect())
}

/// The checksums of `files`, as `sha256sum --check` reads them.
fn checksums(files: &[PathBuf]) -> Result<String> {
    let mut text = String::new();
    for file in files {
        let name = file.file_name().context("a file has a name")?;
        let sum = Sha256::digest(fs::read(file)?);
        text.push_str(&format!("{sum:x}  {}\n", name.display()));
    }
    Ok(text)
}

/// The time of the files in packages: the one that is given, or else the commit's.
fn time_of_files(root: &Path, given: Option<&OsStr>) -> Result<u64> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        let given = given.to_string_lossy();
        let time = given.parse::<u64>();
        return time.with_context(|| format!("{EPOCH} is `{given}`, and no number of seconds"));
    }
    commit_time(root).with_context(|| {
        format!("no time is known for the files: set {EPOCH} to one, in seconds since 1970")
    })
}

/// The time of the commit that is checked out.
fn commit_time(root: &Path) -> Result<u64> {
    let mut git = Command::new("git");
    let time = process::stdout_of(git.current_dir(root).args(["log", "-1", "--format=%ct"]))?;
    let time = time.context("`git` is not there, which knows the time of the commit")?;
    Ok(time.trim().parse()?)
}

// === impl Release ===

impl Release<'_> {
    /// A file of `xtask/dist`.
    fn template(&self, name: &str) -> PathBuf {
        self.root.join("xtask/dist").join(name)
    }

    /// Fails where the binary is too large, and unless a server of it alone would start: it has the default policies in it. Run
    /// in `empty`, a folder without policies, it looks at no others.
    fn check(&self, empty: &Path) -> Result<()> {
        let size = fs::metadata(self.binary)?.len();
        ensure!(
            size <= SIZE_MAX,
            "the binary has {size} bytes, and may have {SIZE_MAX}: `nm --size-sort` names its largest functions"
        );
        let mut check = Command::new(self.binary);
        let said = process::stdout_of(check.args(["serve", "--check"]).current_dir(empty))?;
        said.with_context(|| format!("{} is not there", self.binary.display()))?;
        Ok(())
    }

    /// The output of the binary for these arguments.
    fn said(&self, args: &[&str]) -> Result<String> {
        let said = process::stdout_of(Command::new(self.binary).args(args))?;
        said.with_context(|| format!("{} is not there", self.binary.display()))
    }

    /// Writes into `tree` what every package has: binary, manual pages, completions, licence, and the configuration
    /// with every key. `zsh` is the path of the completions for zsh.
    fn write_common(&self, tree: &Path, zsh: &str) -> Result<()> {
        install(self.binary, &tree.join("usr/bin/pointsman"), PROGRAM)?;
        let pages = tree.join("usr/share/man/man1");
        fs::create_dir_all(&pages)?;
        let pages = pages.to_str().context("the target folder is no UTF-8")?;
        self.said(&["man", "--dir", pages])?;
        for (shell, path) in COMPLETIONS.into_iter().chain([("zsh", zsh)]) {
            let script = self.said(&["completions", shell])?;
            write(&tree.join(path), &script)?;
        }
        let docs = tree.join("usr/share/doc/pointsman");
        for (from, to) in [
            ("LICENSE", "copyright"),
            ("CHANGELOG.md", "CHANGELOG.md"),
            ("examples/pointsman.toml", "pointsman.toml"),
        ] {
            install(&self.root.join(from), &docs.join(to), FILE)?;
        }
        Ok(())
    }

    /// Writes into `tree` what the service has: its unit and its user, in the folders of `systemd` below `units`, its
    /// configuration, and a folder for policies.
    fn write_service(&self, tree: &Path, units: &str) -> Result<()> {
        let units = tree.join(units);
        for (name, to) in [
            (
                "pointsman.service",
                units.join("systemd/system/pointsman.service"),
            ),
            (
                "pointsman.sysusers",
                units.join("sysusers.d/pointsman.conf"),
            ),
            ("pointsman.toml", tree.join(CONFIGURATION)),
        ] {
            install(&self.template(name), &to, FILE)?;
        }
        fs::create_dir_all(tree.join("etc/pointsman/policies.d"))?;
        Ok(())
    }
}

/// The mode of programs.
const PROGRAM: u32 = 0o755;
/// The mode of other files.
const FILE: u32 = 0o644;

/// Copies a file with a mode, into a folder that need not be there.
fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Lets everybody read a tree, and run what its owner may run, whatever the mask of new files is here, and whatever bits
/// folders have from the one that they are in.
fn open_to_readers(tree: &Path) -> Result<()> {
    let mut chmod = Command::new("chmod");
    let done = process::stdout_of(chmod.args(["-R", "u=rwX,go=rX,a-s,-t"]).arg(tree))?;
    done.context("`chmod` is not there")?;
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    make_parent(path)?;
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(FILE))?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("a path in a folder")?;
    fs::create_dir_all(parent)?;
    Ok(())
}
