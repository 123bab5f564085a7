//! The folder that a container is built over. Nothing is built here: that takes a daemon.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{FILE, PROGRAM, Release, install, open_to_readers};

/// Makes `container` in `folder`.
pub(super) fn make(release: &Release<'_>, folder: &Path) -> Result<PathBuf> {
    let container = folder.join("container");
    install(release.binary, &container.join("pointsman"), PROGRAM)?;
    for name in ["Containerfile", "pointsman.toml"] {
        install(&release.template(name), &container.join(name), FILE)?;
    }
    install(
        &release.root.join("LICENSE"),
        &container.join("LICENSE"),
        FILE,
    )?;
    for empty in ["state", "policies.d"] {
        fs::create_dir_all(container.join(empty))?;
    }
    open_to_readers(&container)?;
    Ok(container)
}
