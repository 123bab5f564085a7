//! The Debian package.
//!
//! It makes the user `pointsman`, and starts nothing by itself: the operator says who may connect first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{CONFIGURATION, PROGRAM, Release, install, open_to_readers, write};
use crate::process;

/// The scripts that dpkg calls.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The path of the completions for zsh.
const ZSH: &str = "usr/share/zsh/vendor-completions/_pointsman";

/// Makes the package of a binary that asks for this version of glibc, in `folder`.
pub(super) fn make(release: &Release<'_>, glibc: (u32, u32), folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("deb");
    release.write_common(&tree, ZSH)?;
    release.write_service(&tree, "usr/lib")?;
    for script in SCRIPTS {
        let to = tree.join("DEBIAN").join(script);
        install(&release.template(script), &to, PROGRAM)?;
    }
    // An upgrade does not overwrite it.
    write(
        &tree.join("DEBIAN/conffiles"),
        &format!("/{CONFIGURATION}\n"),
    )?;
    let architecture = architecture()?;
    write(
        &tree.join("DEBIAN/control"),
        &control(release.version, architecture, glibc),
    )?;
    open_to_readers(&tree)?;
    let package = folder.join(format!("pointsman_{}_{architecture}.deb", release.version));
    let mut build = Command::new("dpkg-deb");
    build
        .env("SOURCE_DATE_EPOCH", release.time.to_string())
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([&tree, &package]);
    let built = process::stdout_of(&mut build)?;
    built.context("`dpkg-deb` is not there, which makes the package")?;
    fs::remove_dir_all(&tree)?;
    Ok(package)
}

/// Debian's name of the architecture that this is built for.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("Debian's name of the architecture {other} is not known here"),
    }
}

fn control(version: &str, architecture: &str, (major, minor): (u32, u32)) -> String {
    format!(
        "Package: pointsman\nVersion: {version}\nArchitecture: {architecture}\nSection: net\nPriority: optional\n\
         Maintainer: Pointsman <pointsman@localhost>\n\
         Depends: libc6 (>= {major}.{minor}), libgcc-s1, systemd\nRecommends: ca-certificates\n\
         Homepage: https://github.com/pointsman/pointsman\n\
         Description: host of LLM inference that lets WebAssembly policies decide\n \
         It owns queues, executors and KV blocks, and asks replaceable policies for\n \
         every decision: whom to admit, in which order, where, and who gives way.\n"
    )
}

/// The newest version of glibc that a binary asks for, of the names of versions in it.
pub(super) fn glibc(binary: &[u8]) -> (u32, u32) {
    const NAME: &[u8] = b"GLIBC_2.";
    let versions = binary.windows(NAME.len()).enumerate();
    let versions = versions.filter(|(_, window)| *window == NAME);
    let minors = versions.filter_map(|(at, _)| {
        let digits = binary[at + NAME.len()..].iter();
        let digits: Vec<u8> = digits
            .take_while(|it| it.is_ascii_digit())
            .copied()
            .collect();
        String::from_utf8(digits).ok()?.parse().ok()
    });
    (2, minors.max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_asks_for_the_newest_glibc_that_the_binary_names() {
        let binary = b"\0GLIBC_2.2.5\0GLIBC_2.34\0\0GLIBC_2.9\0GLIBC_PRIVATE\0GLIBC_2.";
        assert_eq!(glibc(binary), (2, 34));
        assert!(control("1.2.3", "amd64", (2, 34)).contains("Depends: libc6 (>= 2.34), "));
    }
}
