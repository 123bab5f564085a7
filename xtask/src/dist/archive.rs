//! The archive for other systems than Debian: what every package has, the unit, and the configuration of the service.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Release, open_to_readers};
use crate::process;

/// The path of the completions for zsh.
const ZSH: &str = "usr/share/zsh/site-functions/_pointsman";

/// Makes the archive in `folder`.
pub(super) fn make(release: &Release<'_>, folder: &Path) -> Result<PathBuf> {
    let name = format!(
        "pointsman-{}-{}-linux",
        release.version,
        std::env::consts::ARCH
    );
    let tree = folder.join(&name);
    release.write_common(&tree, ZSH)?;
    release.write_service(&tree, "etc")?;
    open_to_readers(&tree)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.current_dir(folder)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", release.time))
        .args(["--use-compress-program", "gzip -n", "-cf"])
        .arg(&archive)
        .arg(&name);
    process::stdout_of(&mut tar)?.context("`tar` is not there, which makes the archive")?;
    fs::remove_dir_all(&tree)?;
    Ok(archive)
}
