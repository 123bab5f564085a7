//! A policy's component: checked, compiled and linked, ready to be instantiated.
//!
//! Loading is slow, up to seconds for interpreted guests, and touches nothing but its own result.
//! It belongs on a thread of its own.
//!
//! # Invariants
//! 1. A loaded component imports nothing but `log`, and exports every function of `lifecycle` and
//!    of at least one hook (`component::tests`). The types of these functions are checked when it
//!    is first instantiated.
//! 2. No bytes make [`PolicyComponent::load`] panic: a panic of the parser or compiler becomes
//!    [`LoadError::Panicked`].
//!
//! # Not here
//! Calls to the component: [`crate::WasmInstance`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_interface::{Hook, HookSet};
use wasmtime::component::{Component, InstancePre, Linker};

use crate::cache::{self, CompileCache, Made};
use crate::compiler::CompileStop;
use crate::digest::Digest;
use crate::engine::PolicyEngine;
use crate::precompiled;
use crate::scan::{self, Exports, Hint, KNOWN};
use crate::store::{StoreState, write_fault, write_log};
use crate::wasm::Indices;

#[cfg(test)]
mod tests;

/// Size of the largest file that is read as a policy, in bytes.
pub const COMPONENT_BYTES_MAX: usize = 64 << 20;

/// The one interface that the host offers.
const LOG: &str = "pointsman:scheduling/log@0.1.0";

/// A compiled and linked policy. Cheap to clone.
#[derive(Clone)]
pub struct PolicyComponent {
    inner: Arc<Inner>,
}

struct Inner {
    // Immutable; the engine keeps the epochs of all instances counting.
    engine: PolicyEngine,
    digest: Digest,
    /// The component as it was loaded, for journals, which carry what a replay needs.
    bytes: Box<[u8]>,
    exports: Exports,
    pre: InstancePre<StoreState>,
    indices: Indices,
}

/// A reason why a file is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file is larger than [`COMPONENT_BYTES_MAX`].
    #[error("{bytes} bytes, a policy may have {COMPONENT_BYTES_MAX}")]
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
    /// The file is neither WebAssembly nor anything near it.
    #[error("not a WebAssembly file")]
    NotWebAssembly,
    /// The file is WebAssembly in text format.
    #[error("WebAssembly text: make a binary component of it, with `wasm-tools parse`")]
    TextFormat,
    /// The file is machine code, such as a `.cwasm`.
    #[error("precompiled machine code is never loaded: use the .wasm it was made from")]
    Precompiled,
    /// The file is a core module.
    #[error("a core module, not a component: make one of it, with `wasm-tools component new`")]
    CoreModule,
    /// The file cannot be read to its end.
    #[error("malformed component: {0}")]
    Malformed(String),
    /// The component imports something that no policy gets.
    #[error("imports {import}: {hint}")]
    ForbiddenImport {
        /// Name of the import.
        import: String,
        /// Advice for the author.
        hint: Hint,
    },
    /// The component was made for another release of the interface.
    #[error("{interface} is of version {version:?}, this host knows {KNOWN}")]
    UnknownVersion {
        /// Name of the interface.
        interface: String,
        /// Version that the component names; empty if it names none.
        version: String,
    },
    /// The component does not export `lifecycle`.
    #[error("does not export pointsman:scheduling/lifecycle")]
    NoLifecycle,
    /// The component exports no hook.
    #[error("exports no hook: one of {} is needed", Hook::ALL.map(Hook::as_str).join(", "))]
    NoHooks,
    /// An interface lacks a function of its release.
    #[error("{interface} differs from its release: {detail}")]
    WrongShape {
        /// Name of the interface.
        interface: &'static str,
        /// Message of the linker.
        detail: String,
    },
    /// The component is invalid, or uses a proposal that is off.
    #[error("not compilable: {0}")]
    Compile(String),
    /// The imports differ from those that the host provides.
    #[error("not linkable: {0}")]
    Link(String),
    /// The file has more of something than a policy may have.
    #[error("too complex: {count} {unit}, {max} are allowed (policies.compile)")]
    TooComplex {
        /// Name of the things that are counted.
        unit: &'static str,
        /// Number of them, as far as they were counted.
        count: u64,
        /// Number of them that a policy may have.
        max: u64,
    },
    /// The compiler was stopped.
    #[error("not compiled: {0}")]
    Stopped(CompileStop),
    /// The file was given up in an earlier life of the host.
    #[error("{why}; to have it compiled once more, remove {}", .note.display())]
    GivenUp {
        /// The reason why it was given up.
        why: String,
        /// File that remembers it.
        note: PathBuf,
    },
    /// There is no process in which to compile, or others have ended it, or what it makes is not wanted
    /// any more; the file may be good.
    #[error("no process for the compiler: {0}")]
    NoCompiler(String),
    /// The parser or compiler panicked on the file.
    #[error("the compiler gave up: {0}")]
    Panicked(String),
}

impl PolicyComponent {
    /// Checks, compiles and links `bytes`.
    ///
    /// # Errors
    /// If the bytes are not a component that this host can ask.
    pub fn load(engine: &PolicyEngine, bytes: &[u8]) -> Result<Self, LoadError> {
        if bytes.len() > COMPONENT_BYTES_MAX {
            return Err(LoadError::TooLarge { bytes: bytes.len() });
        }
        catching(|| {
            let exports = scan::scan(bytes, &engine.compiler().limits)?;
            Self::link(engine, bytes, exports, &compile(engine, bytes)?)
        })
    }

    /// Loads `bytes` as [`Self::load`] does, but takes the compiled code from `cache` if it is
    /// there, and puts it there otherwise.
    ///
    /// # Errors
    /// As [`Self::load`]. A cache that fails makes the load slower, and is no error.
    pub fn load_cached(
        engine: &PolicyEngine,
        bytes: &[u8],
        cache: &CompileCache,
    ) -> Result<(Self, Made), LoadError> {
        Self::load_by(engine, bytes, cache, |digest| {
            cache.trying(engine, digest, || compile(engine, bytes))
        })
    }

    /// Loads `bytes` as [`Self::load_cached`] does, but takes no note of compilations that are cut
    /// short: a person who ends a command does not give up the file.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_kept(
        engine: &PolicyEngine,
        bytes: &[u8],
        cache: &CompileCache,
    ) -> Result<(Self, Made), LoadError> {
        Self::load_by(engine, bytes, cache, |_digest| compile(engine, bytes))
    }

    /// Loads `bytes` as [`Self::load_kept`] does where there is a cache, and compiles them where there is none.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(
        engine: &PolicyEngine,
        bytes: &[u8],
        cache: Option<&CompileCache>,
    ) -> Result<Self, LoadError> {
        match cache {
            Some(cache) => Ok(Self::load_kept(engine, bytes, cache)?.0),
            None => Self::load(engine, bytes),
        }
    }

    /// Loads `bytes` from `cache`, or else by `compile`, and keeps what that makes.
    fn load_by(
        engine: &PolicyEngine,
        bytes: &[u8],
        cache: &CompileCache,
        compile: impl FnOnce(Digest) -> Result<Component, LoadError>,
    ) -> Result<(Self, Made), LoadError> {
        if bytes.len() > COMPONENT_BYTES_MAX {
            return Err(LoadError::TooLarge { bytes: bytes.len() });
        }
        catching(|| {
            let exports = scan::scan(bytes, &engine.compiler().limits)?;
            let digest = Digest::of(bytes);
            // Until the code is kept, so that whoever waits for this turn finds it.
            let _turn = cache.turn(engine, digest)?;
            if let Some(component) = cache.find(engine, digest) {
                let linked = Self::link(engine, bytes, exports, &component)?;
                return Ok((linked, Made::Cached));
            }
            let component = compile(digest)?;
            let linked = Self::link(engine, bytes, exports, &component)?;
            let kept = cache.keep(engine, digest, &component);
            Ok((linked, kept.map_or_else(Made::Unkept, |()| Made::Compiled)))
        })
    }

    /// Loads `bytes` with machine code that [`precompile`](crate::precompile) made of them; absent: it is of
    /// another component, another release or for another processor.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_precompiled(
        engine: &PolicyEngine,
        bytes: &[u8],
        code: &[u8],
    ) -> Result<Option<Self>, LoadError> {
        catching(|| {
            let Some(component) = precompiled::find(engine, Digest::of(bytes), code) else {
                return Ok(None);
            };
            let exports = scan::scan(bytes, &engine.compiler().limits)?;
            Self::link(engine, bytes, exports, &component).map(Some)
        })
    }

    fn link(
        engine: &PolicyEngine,
        bytes: &[u8],
        exports: Exports,
        component: &Component,
    ) -> Result<Self, LoadError> {
        let pre = link(engine.wasmtime(), component)
            .map_err(|error| LoadError::Link(format!("{error:#}")))?;
        let indices = Indices::find(&pre, &exports)?;
        Ok(Self {
            inner: Arc::new(Inner {
                engine: engine.clone(),
                digest: Digest::of(bytes),
                bytes: bytes.into(),
                exports,
                pre,
                indices,
            }),
        })
    }

    /// Digest of the component's bytes.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.inner.digest
    }

    /// The component's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.inner.bytes
    }

    /// Hooks that the component exports.
    #[must_use]
    pub fn hooks(&self) -> HookSet {
        self.inner.exports.hooks
    }

    /// True if the component exports `explanation`.
    #[must_use]
    pub fn explains(&self) -> bool {
        self.inner.exports.explains
    }

    /// Interfaces of the scheduling package that the component exports and this host does not know.
    #[must_use]
    pub fn unknown_exports(&self) -> &[String] {
        &self.inner.exports.unknown
    }

    pub(crate) fn engine(&self) -> &PolicyEngine {
        &self.inner.engine
    }

    pub(crate) fn pre(&self) -> &InstancePre<StoreState> {
        &self.inner.pre
    }

    pub(crate) fn indices(&self) -> &Indices {
        &self.inner.indices
    }
}

impl AsRef<[u8]> for PolicyComponent {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for PolicyComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyComponent")
            .field("digest", &self.inner.digest)
            .field("exports", &self.inner.exports)
            .finish_non_exhaustive()
    }
}

fn catching<R>(load: impl FnOnce() -> Result<R, LoadError>) -> Result<R, LoadError> {
    catch_unwind(AssertUnwindSafe(load))
        .unwrap_or_else(|panic| Err(LoadError::Panicked(message_of(panic.as_ref()))))
}

fn compile(engine: &PolicyEngine, bytes: &[u8]) -> Result<Component, LoadError> {
    let compiled = match &engine.compiler().program {
        None => compile_here(engine, bytes),
        Some(program) => {
            let code = engine
                .compiler()
                .compile_in(program, bytes, || engine.is_over())?;
            cache::deserialize(engine, &code)
        }
    };
    compiled.map_err(|error| LoadError::Compile(format!("{error:#}")))
}

#[cfg(not(any(test, feature = "test-util")))]
fn compile_here(engine: &PolicyEngine, bytes: &[u8]) -> wasmtime::Result<Component> {
    Component::from_binary(engine.wasmtime(), bytes)
}

/// Compiles as servers do, unless this is a test program and has the code already.
#[cfg(any(test, feature = "test-util"))]
fn compile_here(engine: &PolicyEngine, bytes: &[u8]) -> wasmtime::Result<Component> {
    crate::kept::or_compiled(engine, bytes, || {
        Component::from_binary(engine.wasmtime(), bytes)
    })
}

fn link(
    engine: &wasmtime::Engine,
    component: &Component,
) -> wasmtime::Result<InstancePre<StoreState>> {
    let mut linker = Linker::<StoreState>::new(engine);
    let mut log = linker.instance(LOG)?;
    log.func_wrap("write", write_log)?;
    log.func_wrap("fault", write_fault)?;
    linker.instantiate_pre(component)
}

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}
