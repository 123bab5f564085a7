//! The folder that a container is built over. Nothing is built here: that takes a daemon.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{FILE, PROGRAM, Release, install, open_to_readers, write};

/// The base that the container file names. It is Debian 12, and has its glibc.
const BASE: &str = "cc-debian12";

/// Makes `container` in `folder`, for a binary that asks for this version of glibc.
pub(super) fn make(release: &Release<'_>, glibc: (u32, u32), folder: &Path) -> Result<PathBuf> {
    let container = folder.join("container");
    install(release.binary, &container.join("pointsman"), PROGRAM)?;
    let template = release.template("Containerfile");
    let file = fs::read_to_string(&template);
    let file = file.with_context(|| format!("{} cannot be read", template.display()))?;
    let base = base(glibc)?;
    write(&container.join("Containerfile"), &file.replace(BASE, base))?;
    for (from, name) in [
        (release.template("pointsman.toml"), "pointsman.toml"),
        (release.root.join("LICENSE"), "LICENSE"),
    ] {
        install(&from, &container.join(name), FILE)?;
    }
    for empty in ["state", "policies.d"] {
        fs::create_dir_all(container.join(empty))?;
    }
    open_to_readers(&container)?;
    Ok(container)
}

/// The oldest base that has this version of glibc, or a newer one.
fn base((major, minor): (u32, u32)) -> Result<&'static str> {
    match (major, minor) {
        (2, ..=36) => Ok(BASE),
        (2, 37..=41) => Ok("cc-debian13"),
        _ => bail!(
            "the binary asks for glibc {major}.{minor}, and the newest base of the container has 2.41: build the packages on \
             an older system"
        ),
    }
}
