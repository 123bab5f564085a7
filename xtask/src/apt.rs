//! Debian packages, installed where this tool may install them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// The line that a user types to install `packages`.
pub(crate) fn install_line(packages: &[&str]) -> String {
    format!(
        "apt-get update && apt-get install --no-install-recommends {}",
        packages.join(" ")
    )
}

/// The advice to a user who lacks `packages`: the line to type where there is apt-get, or else their names.
pub(crate) fn remedy(packages: &[&str]) -> String {
    remedy_by(process::find_program("apt-get").as_deref(), packages)
}

fn remedy_by(apt_get: Option<&Path>, packages: &[&str]) -> String {
    match apt_get {
        Some(_) => install_line(packages),
        None => format!("install it; Debian has it in: {}", packages.join(", ")),
    }
}

/// Returns the first of `programs` that is on `PATH`, of which one is as good as another. Installs `packages`, which have
/// the first of all, if none is.
pub(crate) fn provide_one<'a>(programs: &[&'a str], packages: &[&str]) -> Result<&'a str> {
    let mut names = programs.iter().copied();
    if let Some(found) = names.find(|name| process::find_program(name).is_some()) {
        return Ok(found);
    }
    let first = programs.first().copied().context("no program is named")?;
    provide(&[first], packages)
        .with_context(|| format!("there is none of: {}", programs.join(", ")))?;
    Ok(first)
}

/// Installs `packages` if one of their `programs` is not on `PATH`.
pub(crate) fn provide(programs: &[&str], packages: &[&str]) -> Result<()> {
    let is_missing = |name: &&&str| process::find_program(name).is_none();
    let Some(missing) = programs.iter().find(is_missing) else {
        return Ok(());
    };
    if !may_install()? {
        bail!("`{missing}` is not there: {}", remedy(packages));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_to_be_typed_only_where_there_is_apt_get() {
        let packages = ["nodejs", "npm"];
        let line = remedy_by(Some(Path::new("/usr/bin/apt-get")), &packages);
        assert!(
            line.ends_with("--no-install-recommends nodejs npm"),
            "{line}"
        );
        let names = remedy_by(None, &packages);
        assert_eq!(names, "install it; Debian has it in: nodejs, npm");
    }

    #[test]
    fn of_programs_that_do_the_same_any_will_do() {
        let programs = ["no-such-program-of-ours", "sh", "cat"];
        let found = provide_one(&programs, &["no-such-package-of-ours"]);
        assert_eq!(found.unwrap(), "sh");
    }
}
