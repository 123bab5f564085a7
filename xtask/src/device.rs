//! The tests of CUDA devices on a real one, where there is one: what they are run on otherwise is emulated.

mod peer;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{apt, process};

/// The variable by which tests run on a real device.
const TESTS: &str = "POINTSMAN_CUDA_TESTS";
const PACKAGE: &str = "pointsman-cuda";
/// The folder of that package's test programs.
const FOLDER: &str = "host/cuda/tests";
/// The call by which a test takes a real device where it is to have one. A program with such tests is run on one.
const TAKES_DEVICE: &str = "emulation::provide()";
/// The program whose models are in FP8, and the oldest compute capability that has it.
const FP8: (&str, Capability) = ("fp8", (8, 9));

/// The compute capability of a device: major and minor.
type Capability = (u32, u32);

/// Runs the tests of CUDA devices on this machine's, or says that it has none.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    match capability(&mut query()) {
        Some(capability) => test_on(workspace, capability),
        None => {
            println!("{}", skipped());
            Ok(())
        }
    }
}

/// Runs the same tests before a benchmark with these arguments, and where there is a device, installs an engine to compare
/// with.
pub(crate) fn prepare(workspace: &Workspace, args: &[String]) -> Result<()> {
    let Some(capability) = capability(&mut query()) else {
        println!("{}", skipped());
        return Ok(());
    };
    // Some tests compile the emulation of a device with this compiler, even where there is a device.
    apt::provide(&["c++"], &["g++"])?;
    test_on(workspace, capability)?;
    peer::prepare(workspace, args);
    Ok(())
}

/// The question for the compute capability of each device.
fn query() -> Command {
    let mut query = Command::new("nvidia-smi");
    query.args(["--query-gpu=compute_cap", "--format=csv,noheader"]);
    query
}

/// The compute capability of the first device that `query` lists; absent: it lists none.
fn capability(query: &mut Command) -> Option<Capability> {
    let listed = process::stdout_of(query).ok()??;
    let (major, minor) = listed.lines().next()?.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn skipped() -> &'static str {
    "SKIPPED: the tests of CUDA on a real device, for `nvidia-smi` lists none"
}

/// The word that FP8 is not tested on a device of this compute capability; absent: it is.
fn fp8_skipped(capability: Capability) -> Option<String> {
    let ((major, minor), (_, since)) = (capability, FP8);
    (capability < since).then(|| {
        format!(
            "SKIPPED: the tests of FP8 on a real device, for its compute capability is {major}.{minor}: {}.{} has it",
            since.0, since.1
        )
    })
}

/// Runs the tests on a device of this compute capability.
fn test_on(workspace: &Workspace, capability: Capability) -> Result<()> {
    let mut programs = for_devices(&programs(&workspace.root.join(FOLDER))?);
    if let Some(skipped) = fp8_skipped(capability) {
        println!("{skipped}");
        programs.retain(|name| name != FP8.0);
    }
    ensure!(!programs.is_empty(), "{FOLDER} has no test for devices");
    let mut command = process::cargo(workspace);
    command.env(TESTS, "device");
    // All failures at once: another run takes long.
    command.args(["test", "-p", PACKAGE, "--no-fail-fast"]);
    for program in &programs {
        command.args(["--test", program]);
    }
    process::run(&mut command)
}

/// The names of the programs that are run on a device, in order. What loses and counts devices is for the emulation
/// alone.
fn for_devices(programs: &BTreeMap<String, String>) -> Vec<String> {
    let programs = programs.iter();
    let programs = programs.filter(|(_, source)| source.contains(TAKES_DEVICE));
    programs.map(|(name, _)| name.clone()).collect()
}

/// The sources of each test program of a package, by its name: of a file, or of a folder with its `main.rs`.
fn programs(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut programs = BTreeMap::new();
    for path in listed(folder)? {
        let files = match path.is_dir() {
            true if path.join("main.rs").is_file() => listed(&path)?,
            true => continue,
            false => vec![path.clone()],
        };
        let mut sources = String::new();
        for file in files.iter().filter(|file| is_rust(file)) {
            let source = fs::read_to_string(file);
            sources += &source.with_context(|| format!("{} cannot be read", file.display()))?;
        }
        let name = path.file_stem().and_then(OsStr::to_str);
        if let Some(name) = name.filter(|_| !sources.is_empty()) {
            programs.insert(name.to_owned(), sources);
        }
    }
    Ok(programs)
}

/// The paths in a folder, in order.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("{} cannot be listed", folder.display()))?;
    let paths = entries.map(|entry| anyhow::Ok(entry?.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

fn is_rust(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call by which a test has the emulation for itself, and the one by which it leaves that on a real device.
    const ALONE: [&str; 2] = ["emulation::alone()", "emulation::is_on_device()"];

    fn capability_by(script: &str) -> Option<Capability> {
        capability(Command::new("sh").args(["-c", script]))
    }

    fn here() -> BTreeMap<String, String> {
        programs(&Workspace::here().unwrap().root.join(FOLDER)).unwrap()
    }

    #[test]
    fn a_device_is_there_where_its_capability_is_listed() {
        assert_eq!(capability_by("echo 9.0; echo 8.9"), Some((9, 0)));
        assert_eq!(capability_by("echo 12.0"), Some((12, 0)));
    }

    #[test]
    fn without_a_device_its_tests_are_skipped_which_is_said() {
        for script in ["echo No devices were found", "echo 9.0; exit 9", "true"] {
            assert_eq!(capability_by(script), None, "{script}");
        }
        assert_eq!(
            capability(&mut Command::new("no-such-program-of-ours")),
            None
        );
        assert!(skipped().starts_with("SKIPPED: "));
    }

    #[test]
    fn fp8_is_tested_on_devices_that_have_it() {
        let skipped = fp8_skipped((8, 6)).unwrap();
        assert!(
            skipped.ends_with("capability is 8.6: 8.9 has it"),
            "{skipped}"
        );
        for capability in [(8, 9), (9, 0), (12, 0)] {
            assert_eq!(fp8_skipped(capability), None);
        }
    }

    #[test]
    fn programs_that_take_a_device_are_run_on_one() {
        let names = for_devices(&here());
        for name in ["backend", "choice", "contract", FP8.0] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name == "lives"), "{names:?}");
    }

    #[test]
    fn what_is_run_on_a_device_does_without_the_emulation_there() {
        let programs = here();
        for name in for_devices(&programs) {
            let [alone, left] = ALONE.map(|call| programs[&name].matches(call).count());
            assert!(
                alone <= left,
                "{FOLDER}: `{name}` is run on real devices, where a test with `{}` returns by `{}` before",
                ALONE[0],
                ALONE[1]
            );
        }
    }

    #[test]
    fn a_program_is_a_file_or_a_folder_with_its_main() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["two", "shared"] {
            fs::create_dir(path(name)).unwrap();
        }
        for name in [
            "one.rs",
            "two/main.rs",
            "two/part.rs",
            "two/golden.json",
            "shared/mod.rs",
            "x.md",
        ] {
            fs::write(path(name), format!("{name};")).unwrap();
        }
        let programs = programs(folder.path()).unwrap();
        let programs: Vec<(&str, &str)> = programs
            .iter()
            .map(|(name, sources)| (name.as_str(), sources.as_str()))
            .collect();
        assert_eq!(
            programs,
            [("one", "one.rs;"), ("two", "two/main.rs;two/part.rs;")]
        );
    }
}
