//! The compiler's process: what it cannot do is a refused file, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pointsman_component::{
    CompileCache, CompileLimits, CompileStop, Compiler, LoadError, PolicyComponent, PolicyEngine,
};
use pointsman_testkit::bombs;

use crate::host::{Host, policy};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pointsman");

fn nested_types(levels: usize) -> Vec<u8> {
    bombs::nested_types(&policy("aging"), levels)
}

fn many_locals(functions: u32, locals: u32) -> Vec<u8> {
    bombs::many_locals(&policy("aging"), functions, locals)
}

/// Limits under which the scan lets every bomb through to the compiler.
fn wide() -> CompileLimits {
    CompileLimits {
        type_depth: 1_000_000,
        locals: 50_000,
        ..CompileLimits::default()
    }
}

fn engine(limits: CompileLimits) -> PolicyEngine {
    let program = Some(PathBuf::from(PROGRAM));
    PolicyEngine::with_compiler(Compiler { limits, program }).unwrap()
}

/// An engine whose compiler is a program in `folder` that does as `script` says.
fn scripted(folder: &Path, limits: CompileLimits, script: &str) -> PolicyEngine {
    let program = folder.join("scripted");
    // Written by another process: a program that this one still writes cannot be started.
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#;
    let written = Command::new("sh")
        .args(["-c", write])
        .arg(&program)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    let program = Some(program);
    PolicyEngine::with_compiler(Compiler { limits, program }).unwrap()
}

fn stopped(limits: CompileLimits, bytes: &[u8]) -> CompileStop {
    let error = PolicyComponent::load(&engine(limits), bytes).unwrap_err();
    let LoadError::Stopped(stop) = error else {
        panic!("{error}");
    };
    stop
}

#[test]
fn a_policy_compiled_elsewhere_is_the_same_policy() {
    let bytes = policy("aging");
    let here = PolicyComponent::load(&PolicyEngine::new().unwrap(), &bytes).unwrap();
    let there = PolicyComponent::load(&engine(wide()), &bytes).unwrap();
    assert_eq!(
        (there.digest(), there.hooks()),
        (here.digest(), here.hooks())
    );
}

#[test]
fn the_compilers_refusal_reads_the_same_from_another_process() {
    // A function without an end.
    let mut bytes = many_locals(1, 1);
    let end = bytes.len() - 1;
    bytes[end] = 0x01;
    let here = PolicyComponent::load(&PolicyEngine::new().unwrap(), &bytes).unwrap_err();
    let there = PolicyComponent::load(&engine(wide()), &bytes).unwrap_err();
    assert!(matches!(here, LoadError::Compile(_)), "{here}");
    assert_eq!(here, there);
}

#[test]
fn types_nested_past_the_compilers_stack_end_its_process_and_no_other() {
    let bomb = nested_types(100_000);
    assert_eq!(stopped(wide(), &bomb), CompileStop::Stack);
    // Nobody who has not asked for it meets the compiler with such a file.
    let refused = PolicyComponent::load(&engine(CompileLimits::default()), &bomb).unwrap_err();
    let expected = LoadError::TooComplex {
        unit: "levels of types",
        count: 33,
        max: 32,
    };
    assert_eq!(refused, expected);
}

#[test]
fn memory_of_the_compiler_is_bounded() {
    // Enough to start, and too little for any policy.
    let limits = CompileLimits {
        memory_bytes: 16 << 20,
        ..wide()
    };
    let stop = stopped(limits, &policy("aging"));
    assert_eq!(stop, CompileStop::Memory(16 << 20));
}

#[test]
fn processor_time_of_the_compiler_is_bounded() {
    let limits = CompileLimits {
        processor_seconds: 1,
        ..wide()
    };
    let stop = stopped(limits, &many_locals(20_000, 50_000));
    assert_eq!(stop, CompileStop::ProcessorTime(1));
}

#[test]
fn a_compiler_that_does_not_end_is_ended() {
    let limits = CompileLimits {
        wall_seconds: 1,
        ..wide()
    };
    let home = tempfile::tempdir().unwrap();
    let engine = scripted(home.path(), limits, "exec sleep 1000");
    let error = PolicyComponent::load(&engine, &policy("aging")).unwrap_err();
    assert_eq!(error, LoadError::Stopped(CompileStop::WallTime(1)));
}

#[test]
fn a_compiler_that_cannot_be_started_is_no_fault_of_the_file() {
    let program = Some(PathBuf::from("/nowhere"));
    let limits = CompileLimits::default();
    let engine = PolicyEngine::with_compiler(Compiler { limits, program }).unwrap();
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let bytes = policy("aging");
    for _ in 0..5 {
        let error = PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap_err();
        assert!(matches!(error, LoadError::NoCompiler(_)), "{error}");
    }
}

/// Signals go to everything in a control group, as when a service is stopped.
#[test]
fn a_compiler_that_is_ended_from_outside_says_nothing_about_the_file() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(&home.path().join("code")).unwrap();
    let bytes = policy("aging");
    for signal in ["TERM", "USR2"] {
        let script = format!("kill -{signal} $$");
        let engine = scripted(home.path(), CompileLimits::default(), &script);
        for _ in 0..5 {
            let error = PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap_err();
            assert!(matches!(error, LoadError::NoCompiler(_)), "{error}");
        }
    }
    let engine = engine(CompileLimits::default());
    PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap();
}

#[test]
fn a_compiler_that_nobody_waits_for_any_more_is_ended_and_says_nothing_about_the_file() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(&home.path().join("code")).unwrap();
    let bytes = policy("aging");
    let sleeping = scripted(home.path(), CompileLimits::default(), "exec sleep 1000");
    let over = sleeping.until(Arc::new(AtomicBool::new(true)));
    for _ in 0..5 {
        let error = PolicyComponent::load_cached(&over, &bytes, &cache).unwrap_err();
        assert!(matches!(error, LoadError::NoCompiler(_)), "{error}");
    }
    let engine = engine(CompileLimits::default());
    PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap();
}

#[test]
fn a_file_whose_compiler_is_killed_again_and_again_is_given_up() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(&home.path().join("code")).unwrap();
    let bytes = policy("aging");
    let engine = scripted(home.path(), CompileLimits::default(), "kill -KILL $$");
    let load = || PolicyComponent::load_cached(&engine, &bytes, &cache).unwrap_err();
    for _ in 0..3 {
        assert_eq!(load(), LoadError::Stopped(CompileStop::Killed));
    }
    let LoadError::GivenUp { why, .. } = load() else {
        panic!("it was compiled again");
    };
    let expected =
        "given up: the host or the compiler was ended 3 times while this file was compiled";
    assert_eq!(why, expected);
}

#[test]
fn a_file_that_was_given_up_is_not_compiled_at_the_next_start() {
    let home = tempfile::tempdir().unwrap();
    let cache = CompileCache::open(home.path()).unwrap();
    let bomb = nested_types(100_000);
    let load = |limits| PolicyComponent::load_cached(&engine(limits), &bomb, &cache);
    let first = load(wide()).unwrap_err();
    assert_eq!(first, LoadError::Stopped(CompileStop::Stack));
    let LoadError::GivenUp { why, note } = load(wide()).unwrap_err() else {
        panic!("it was compiled again");
    };
    assert_eq!(why, "given up before: the compiler ran out of stack");
    // With other limits, and once the note is removed, it is.
    let other = CompileLimits {
        memory_bytes: 1 << 30,
        ..wide()
    };
    assert_eq!(load(other).unwrap_err(), first);
    fs::remove_file(note).unwrap();
    assert_eq!(load(wide()).unwrap_err(), first);
}

#[test]
fn a_server_refuses_bombs_tells_why_and_serves_on() {
    let compile = "[policies.compile]\ntype-depth = 1_000_000\n";
    let mut host = Host::start(compile);
    host.drop_in("bomb.wasm", &nested_types(100_000));
    assert_eq!(
        host.refusal("bomb"),
        "not compiled: the compiler ran out of stack"
    );
    host.drop_in("deep.wasm", &many_locals(1, 6000));
    assert_eq!(
        host.refusal("deep"),
        "too complex: 6000 locals in a function, 5000 are allowed (policies.compile)"
    );
    host.drop_in("good.wasm", &policy("least-loaded"));
    host.wait_for_policy("good");
    host.restart(compile);
    let refusal = host.refusal("bomb");
    let expected =
        "given up before: the compiler ran out of stack; to have it compiled once more, remove ";
    assert!(refusal.starts_with(expected), "{refusal}");
    host.wait_for_policy("good");
}
