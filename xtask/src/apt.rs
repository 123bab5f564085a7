//! Debian packages, installed where this tool may install them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// The line that a user types to install `packages`.
pub(crate) fn install_line(packages: &[&str]) -> String {
    format!(
        "apt-get update && apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

/// Installs `packages` if one of their `programs` is not on `PATH`.
pub(crate) fn provide(programs: &[&str], packages: &[&str]) -> Result<()> {
    let is_missing = |name: &&&str| process::find_program(name).is_none();
    let Some(missing) = programs.iter().find(is_missing) else {
        return Ok(());
    };
    if !may_install()? {
        bail!("`{missing}` is not there: {}", install_line(packages));
    }
    install(packages)
}

/// True if this is a Debian on which this tool may install packages.
pub(crate) fn may_install() -> Result<bool> {
    if !Path::new("/etc/debian_version").is_file() || process::find_program("apt-get").is_none() {
        return Ok(false);
    }
    let user = process::stdout_of(Command::new("id").arg("-u"))?;
    Ok(user.is_some_and(|user| user.trim() == "0"))
}

/// Installs packages. Fails rather than remove a package that someone chose.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    const INSTALL: &[&str] = &["install", "-y", "--no-install-recommends", "--no-remove"];
    process::run(&mut apt_get(&["update"]))?;
    process::run(apt_get(INSTALL).args(packages))
}

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
