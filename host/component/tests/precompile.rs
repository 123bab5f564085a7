//! The program `pointsman-precompile`. `cargo xtask test` has it built by this test, with which it shares all that it is
//! made of.

#![expect(clippy::unwrap_used, reason = "in tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&Path]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pointsman-precompile"));
    program.args(args).output().unwrap()
}

/// The last words of a program that failed.
fn refused(args: &[&Path]) -> String {
    let output = run(args);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_code_is_that_of_the_component() {
    let folder = tempfile::tempdir().unwrap();
    let [component, code] = ["in.wasm", "out.code"].map(|name| folder.path().join(name));
    let bytes = wat::parse_str("(component)").unwrap();
    fs::write(&component, &bytes).unwrap();
    let output = run(&[&component, &code]);
    assert!(output.status.success(), "{output:?}");
    let made = pointsman_component::precompile(&bytes).unwrap();
    assert!(fs::read(code).unwrap() == made);
}

#[test]
fn what_it_cannot_do_is_said_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let [component, code] = ["in.wasm", "out.code"].map(|name| folder.path().join(name));
    let said = refused(&[]);
    assert_eq!(
        said,
        "pointsman-precompile: name a component, and the file for its code\n"
    );
    let about = format!("pointsman-precompile: {}: ", component.display());
    let said = refused(&[&component, &code]);
    assert!(said.starts_with(&about), "{said}");
    fs::write(&component, "text").unwrap();
    let said = refused(&[&component, &code]);
    assert!(said.starts_with(&about), "{said}");
    assert!(!code.exists());
}
