//! Machine code that a test program keeps, for its next test and its next run. No other program does.
//!
//! Servers and stages of tests compile in their own process, and the same policies again and again.
//!
//! # Not here
//! The tests that compile in a process of its own, or look at what a cache of theirs has: they do as servers do.

use std::env;
use std::path::PathBuf;
use std::sync::LazyLock;

use wasmtime::component::Component;

use crate::cache::CompileCache;
use crate::digest::Digest;
use crate::engine::PolicyEngine;

/// Size of the smallest component that is kept, in bytes: tests damage smaller ones by the thousand.
const BYTES_MIN: usize = 100_000;

/// The code of `bytes` that was kept, or else what `compile` makes of them.
pub(crate) fn or_compiled(
    engine: &PolicyEngine,
    bytes: &[u8],
    compile: impl FnOnce() -> wasmtime::Result<Component>,
) -> wasmtime::Result<Component> {
    static CODE: LazyLock<Option<CompileCache>> =
        LazyLock::new(|| CompileCache::open(&folder()?).ok());
    if bytes.len() < BYTES_MIN {
        return compile();
    }
    let Some(code) = CODE.as_ref() else {
        return compile();
    };
    let digest = Digest::of(bytes);
    if let Some(component) = code.find(engine, digest) {
        return Ok(component);
    }
    let component = compile()?;
    // What is not kept is compiled once more.
    code.keep(engine, digest, &component).unwrap_or_default();
    Ok(component)
}

/// The folder of this program's code, beside the programs of its profile; absent: it is none of cargo's tests.
fn folder() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let deps = program.parent().filter(|folder| folder.ends_with("deps"))?;
    let name = program.file_stem()?.to_str()?;
    // Behind it is cargo's digest, which is another one for each change.
    let (name, _digest) = name.rsplit_once('-')?;
    Some(deps.with_file_name("compiled-policies").join(name))
}
