//! The packages' unit, container file and configuration (`xtask/dist`), as the binary understands them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../xtask/dist")
        .join(name)
}

/// The rest of the line of a packaged file that begins with `start`.
fn line(name: &str, start: &str) -> String {
    let text = fs::read_to_string(packaged(name)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start} in {name}"))
        .to_owned()
}

/// Asserts that a server would take these arguments with the packaged configuration, beside which there is a folder of
/// policies as in the packages. Returns what the check says.
fn taken(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let configuration = folder.path().join("pointsman.toml");
    fs::copy(packaged("pointsman.toml"), &configuration).unwrap();
    fs::create_dir(folder.path().join("policies.d")).unwrap();
    let installed = "/etc/pointsman/pointsman.toml";
    assert!(arguments.contains(&installed), "{arguments:?}");
    let here = configuration.to_str().unwrap();
    let arguments = arguments
        .iter()
        .map(|word| if *word == installed { here } else { word });
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.args(arguments).arg("--check");
    let output = command
        .env("STATE_DIRECTORY", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}{error}");
    assert!(said.contains("the configuration can be used"), "{said}");
    said
}

#[test]
fn the_unit_starts_a_server_that_takes_the_packaged_configuration() {
    let start = line("pointsman.service", "ExecStart=/usr/bin/pointsman ");
    let said = taken(&start.split(' ').collect::<Vec<_>>());
    assert!(said.contains("127.0.0.1:8080"), "{said}");
}

#[test]
fn the_container_starts_a_server_that_others_can_reach() {
    let program = line("Containerfile", "ENTRYPOINT ");
    assert_eq!(program, r#"["/usr/bin/pointsman"]"#);
    let arguments: Vec<String> = serde_json::from_str(&line("Containerfile", "CMD ")).unwrap();
    let said = taken(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains(":8080"), "{said}");
    assert!(!said.contains("127.0.0.1:8080"), "{said}");
    // Its state folder is the volume.
    let state = line("Containerfile", "ENV STATE_DIRECTORY=");
    assert_eq!(line("Containerfile", "VOLUME "), state);
}

#[test]
fn the_packaged_configuration_requires_state() {
    let text = fs::read_to_string(packaged("pointsman.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    assert_eq!(table["state"].as_str(), Some("required"));
}
