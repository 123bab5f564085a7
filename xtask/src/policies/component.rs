//! Component files, made of core modules.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};
use wit_component::ComponentEncoder;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// A new or changed file, of this many bytes.
    Changed(usize),
    Unchanged,
}

/// Makes a component of a module and puts it in place in one step, so that no reader sees half a
/// file.
pub(crate) fn write(module: &Path, component: &Path) -> Result<Written> {
    let bytes = fs::read(module).with_context(|| format!("no module {}", module.display()))?;
    let bytes = encode(&bytes).with_context(|| format!("{} is no policy", module.display()))?;
    replace(component, &bytes).with_context(|| format!("{} not written", component.display()))
}

fn encode(module: &[u8]) -> Result<Vec<u8>> {
    ComponentEncoder::default()
        .module(module)?
        .validate(true)
        .encode()
}

fn replace(path: &Path, bytes: &[u8]) -> Result<Written> {
    match fs::read(path) {
        Ok(old) if old == bytes => return Ok(Written::Unchanged),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // The name contains the process id: two builds at once must not write to one file.
    let draft = path.with_extension(format!("wasm.{}", process::id()));
    fs::write(&draft, bytes)?;
    fs::rename(&draft, path)?;
    Ok(Written::Changed(bytes.len()))
}

/// Removes components below `folder` that no guest makes any more, because tests load every file
/// there.
pub(crate) fn prune(folder: &Path, current: &[&Path]) -> Result<()> {
    for path in components(folder)? {
        let known = path
            .strip_prefix(folder)
            .is_ok_and(|name| current.contains(&name));
        if !known {
            println!("policies: removed {}, which no guest makes", path.display());
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The `.wasm` files of a folder and of the folders in it.
fn components(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(components(&path)?);
        } else if path.extension() == Some(OsStr::new("wasm")) {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::TempDir;

    /// A module with a header and nothing else.
    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";
    /// The header of a component.
    const COMPONENT_HEADER: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn encodes_a_module() {
        let component = encode(EMPTY).unwrap();
        assert_eq!(&component[..8], COMPONENT_HEADER);
    }

    #[test]
    fn refuses_what_is_no_module() {
        assert!(encode(b"text").is_err());
        assert!(encode(COMPONENT_HEADER).is_err());
    }

    #[test]
    fn writes_only_what_changed() {
        let temp = TempDir::new();
        let module = temp.write("in.wasm", EMPTY);
        let component = temp.path().join("deep/out.wasm");
        assert!(matches!(
            write(&module, &component).unwrap(),
            Written::Changed(_)
        ));
        let before = fs::metadata(&component).unwrap().modified().unwrap();
        assert_eq!(write(&module, &component).unwrap(), Written::Unchanged);
        assert_eq!(
            fs::metadata(&component).unwrap().modified().unwrap(),
            before
        );
        assert_eq!(fs::read_dir(temp.path().join("deep")).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_module_is_named() {
        let temp = TempDir::new();
        let error = write(
            &temp.path().join("none.wasm"),
            &temp.path().join("out.wasm"),
        );
        assert!(error.unwrap_err().to_string().contains("none.wasm"));
    }

    #[test]
    fn removes_components_that_no_guest_makes() {
        let temp = TempDir::new();
        for file in [
            "kept.wasm",
            "gone.wasm",
            "test/kept.wasm",
            "test/gone.wasm",
            "note.txt",
        ] {
            temp.write(file, EMPTY);
        }
        prune(
            temp.path(),
            &[Path::new("kept.wasm"), Path::new("test/kept.wasm")],
        )
        .unwrap();
        let left = |file: &str| temp.path().join(file).exists();
        assert!(left("kept.wasm") && left("test/kept.wasm") && left("note.txt"));
        assert!(!left("gone.wasm") && !left("test/gone.wasm"));
    }
}
