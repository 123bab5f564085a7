//! Compiled components on disk: a component is compiled once, and starts fast from then on.
//!
//! An entry is machine code that this process will run, so write access to the folder is as good as
//! control of the process. The folder belongs to this process alone, and only the compiler's output
//! gets into it. The digest in an entry is against damage; against people are the owner and the
//! mode of folder and file, which are looked at through the descriptors that are read.
//!
//! # Invariants
//! 1. An entry is used only if every bit of it is intact and it was made from the same bytes, by
//!    the same wasmtime, for the same configuration and machine. Anything else is a miss
//!    (`cache::tests`).
//! 2. Nothing that others may write to, or that belongs to another user, is used
//!    (`a_folder_of_others_is_made_private_or_not_used`, `an_entry_of_others_is_a_miss`).
//! 3. The same bytes are compiled by one thread at a time, and the others find what it has made
//!    (`files_with_the_same_code_are_compiled_once`).
//!
//! # Bounds
//! [`ENTRIES_MAX`] entries of [`ENTRY_BYTES_MAX`] bytes, [`ENTRIES_BYTES_MAX`] together; the oldest are
//! removed first.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::hash::{Hash as _, Hasher};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;

use crate::compiler::{self, CODE_BYTES_MAX};
use crate::component::LoadError;
use crate::digest::Digest;
use crate::engine::PolicyEngine;
use attempts::{Attempts, NOTE_SUFFIX};
use turns::{Turn, Turns};

mod attempts;
#[cfg(test)]
mod tests;
mod turns;

/// Number of entries that are kept.
const ENTRIES_MAX: usize = 64;

/// Largest size of all entries together, but for the newest one.
const ENTRIES_BYTES_MAX: u64 = 1 << 30;

/// Largest size of an entry.
const ENTRY_BYTES_MAX: u64 = CODE_BYTES_MAX + 64;

/// The bits of a mode by which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// Mode of the folder: nobody but the owner reads, writes or lists.
const PRIVATE: u32 = 0o700;

/// First bytes of an entry. The digest of the code follows, then the code.
const MAGIC: &[u8; 16] = b"pointsman code 1";

const SUFFIX: &str = ".code";

/// A folder of compiled components.
#[derive(Clone, Debug)]
pub struct CompileCache {
    folder: PathBuf,
    /// The folder itself: its path may lead elsewhere one day.
    opened: Arc<File>,
    /// Shared by all threads that compile.
    turns: Arc<Turns>,
}

/// A file in the folder. Older ones are less.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    at: SystemTime,
    path: PathBuf,
    bytes: u64,
}

/// A reason why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The operating system refused access.
    #[error("cannot be used")]
    Io(#[from] io::Error),
    /// The folder's owner could put code into it.
    #[error("belongs to user {0}, not to the one that runs this")]
    NotOurs(u32),
    /// Others could put code into the folder.
    #[error("has mode {0:03o}: others may write to it")]
    Writable(u32),
}

/// The way in which a component was obtained.
#[derive(Debug)]
pub enum Made {
    /// The component was compiled before.
    Cached,
    /// The component was compiled now, and is in the cache.
    Compiled,
    /// The component was compiled now, and could not be put into the cache.
    Unkept(io::Error),
}

impl CompileCache {
    /// Opens the cache in `folder`. A folder that is missing is made, private to this process'
    /// user.
    ///
    /// # Errors
    /// If the folder cannot be made or written, or belongs to another user.
    pub fn open(folder: &Path) -> Result<Self, CacheError> {
        if !folder.is_dir() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(PRIVATE).create(folder)?;
        }
        let cache = Self {
            folder: folder.to_owned(),
            opened: Arc::new(File::open(folder)?),
            turns: Arc::default(),
        };
        match check_ours(&cache.opened) {
            Err(CacheError::Writable(_)) => {
                cache
                    .opened
                    .set_permissions(Permissions::from_mode(PRIVATE))?;
                // Others may have written the entries.
                cache.clear()?;
                check_ours(&cache.opened)?;
            }
            checked => {
                checked?;
            }
        }
        Ok(cache)
    }

    /// Waits until no other thread compiles the bytes with `digest`. Until the turn is dropped none begins: look for
    /// the component, compile it and keep it meanwhile.
    ///
    /// # Errors
    /// If what `engine` compiles is not wanted any more before that.
    pub(crate) fn turn(
        &self,
        engine: &PolicyEngine,
        digest: Digest,
    ) -> Result<Turn<'_>, LoadError> {
        let turn = self.turns.take(digest, || engine.is_over());
        turn.ok_or_else(compiler::not_wanted)
    }

    /// Finds the component that was compiled from the bytes with `digest`, if its entry is intact.
    pub(crate) fn find(&self, engine: &PolicyEngine, digest: Digest) -> Option<Component> {
        let code = self.entry(&(self.name(engine, digest, "") + SUFFIX));
        deserialize(engine, &code.ok().flatten()?).ok()
    }

    /// Reads the entry `name` in the folder that was opened, wherever its path leads by now.
    fn entry(&self, name: &str) -> Result<Option<Vec<u8>>, CacheError> {
        check_ours(&self.opened)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&*self.opened, name, flags, Mode::empty()).map_err(io::Error::from)?;
        let file = File::from(file);
        let its = check_ours(&file)?;
        if !its.is_file() || its.len() > ENTRY_BYTES_MAX {
            return Ok(None);
        }
        Ok(read(file)?)
    }

    /// Keeps `component`, which was compiled from the bytes with `digest`.
    pub(crate) fn keep(
        &self,
        engine: &PolicyEngine,
        digest: Digest,
        component: &Component,
    ) -> io::Result<()> {
        let code = component.serialize().map_err(io::Error::other)?;
        let path = self.path(engine, digest);
        pointsman_files::replace(&path, |file| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(&code))?;
            file.write_all(&code)
        })?;
        self.prune(SUFFIX)
    }

    /// Does `compile` with the bytes that have `digest`, and takes note of it, so that a file for
    /// which the compiler had to be stopped, or with which this process or the compiler was ended
    /// again and again, is not compiled once more at the next start.
    pub(crate) fn trying<R>(
        &self,
        engine: &PolicyEngine,
        digest: Digest,
        compile: impl FnOnce() -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        let limits = format!("{:?}", engine.compiler().limits);
        let name = self.name(engine, digest, &limits);
        let attempts = Attempts::at(self.folder.join(name + NOTE_SUFFIX));
        attempts.begin()?;
        let compiled = compile();
        attempts.end(compiled.as_ref().err());
        // A note too many is in nobody's way.
        self.prune(NOTE_SUFFIX).unwrap_or_default();
        compiled
    }

    fn path(&self, engine: &PolicyEngine, digest: Digest) -> PathBuf {
        self.folder.join(self.name(engine, digest, "") + SUFFIX)
    }

    /// The name of a file about the bytes with `digest`, for this machine, wasmtime, configuration
    /// and `rest`.
    fn name(&self, engine: &PolicyEngine, digest: Digest, rest: &str) -> String {
        let mut maker = Digesting(Sha256::new());
        engine
            .wasmtime()
            .precompile_compatibility_hash()
            .hash(&mut maker);
        maker.write(rest.as_bytes());
        let maker = maker.finish();
        format!("{digest}-{maker:016x}")
    }

    /// Removes the oldest files that end in `suffix` above the bounds.
    fn prune(&self, suffix: &str) -> io::Result<()> {
        let mut entries = self.entries(suffix)?;
        entries.sort_unstable();
        let past = past(entries.iter().map(|entry| entry.bytes));
        let mut oldest = entries.iter().take(past);
        oldest.try_for_each(|entry| fs::remove_file(&entry.path))
    }

    fn clear(&self) -> io::Result<()> {
        let entries = self.entries(SUFFIX)?;
        entries
            .iter()
            .try_for_each(|entry| fs::remove_file(&entry.path))
    }

    fn entries(&self, suffix: &str) -> io::Result<Vec<Kept>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(suffix) {
                let facts = entry.metadata()?;
                entries.push(Kept {
                    at: facts.modified()?,
                    path: entry.path(),
                    bytes: facts.len(),
                });
            }
        }
        Ok(entries)
    }
}

/// The number of oldest entries that are above the bounds, of entries of these sizes, oldest first.
fn past(bytes: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) -> usize {
    let count = bytes.len();
    let mut sum = 0_u64;
    let kept = bytes.rev().take(ENTRIES_MAX).enumerate();
    let kept = kept.take_while(|(idx, bytes)| {
        sum = sum.saturating_add(*bytes);
        *idx == 0 || sum <= ENTRIES_BYTES_MAX
    });
    count - kept.count()
}

/// Checks through its descriptor that nobody but this process' user can write to `file`.
fn check_ours(file: &File) -> Result<Metadata, CacheError> {
    let its = file.metadata()?;
    if its.uid() != geteuid().as_raw() {
        return Err(CacheError::NotOurs(its.uid()));
    }
    if its.mode() & OTHERS_WRITE != 0 {
        return Err(CacheError::Writable(its.mode() & 0o777));
    }
    Ok(its)
}

/// Reads the code of an entry; `None` for a damaged entry.
fn read(file: File) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(ENTRY_BYTES_MAX).read_to_end(&mut bytes)?;
    let code = bytes
        .strip_prefix(MAGIC)
        .and_then(<[u8]>::split_first_chunk);
    let whole = code.filter(|(digest, code)| Digest::of(code) == Digest(**digest));
    Ok(whole.map(|(_, code)| code.to_vec()))
}

/// Makes a component of `code`, which the compiler of this program has made.
///
/// # Errors
/// If the code is for another wasmtime, configuration or machine.
#[expect(unsafe_code, reason = "code that this program has compiled is loaded")]
pub(crate) fn deserialize(engine: &PolicyEngine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `code` is, bit by bit, what wasmtime's compiler returned in a process of this program
    // and user. It comes through a pipe that only that process has, from a file whose digest
    // was checked, in a folder to which nobody else can write, or it is a part of this program, which
    // was built with it. That it was made by the same
    // wasmtime for the same configuration and machine, `deserialize` checks itself.
    unsafe { Component::deserialize(engine.wasmtime(), code) }
}

/// A hasher whose values do not depend on the release of the standard library.
struct Digesting(Sha256);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        digest
            .first_chunk()
            .map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}
