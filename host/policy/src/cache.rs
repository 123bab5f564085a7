//! Compiled components on disk: a component is compiled once, and starts fast from then on.
//!
//! An entry is machine code that this process will run, so write access to the folder is as good as
//! control of the process. The folder belongs to this process alone, and only the compiler's output
//! gets into it.
//!
//! # Invariants
//! 1. An entry is used only if every bit of it is intact and it was made from the same bytes, by
//!    the same wasmtime, for the same configuration and machine. Anything else is a miss
//!    (`cache::tests`).
//! 2. A folder that others may write to, or that belongs to another user, is not used
//!    (`a_folder_of_others_is_made_private_or_not_used`).
//!
//! # Bounds
//! [`ENTRIES_MAX`] entries of [`ENTRY_BYTES_MAX`] bytes; the oldest are removed first.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::hash::{Hash as _, Hasher};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;

use crate::component::Digest;
use crate::engine::PolicyEngine;

#[cfg(test)]
mod tests;

/// Number of entries that are kept.
const ENTRIES_MAX: usize = 64;

/// Largest size of an entry: machine code is a few times as large as its component.
const ENTRY_BYTES_MAX: u64 = 512 << 20;

/// Mode of the folder: nobody but the owner reads, writes or lists.
const PRIVATE: u32 = 0o700;

/// First bytes of an entry. The digest of the code follows, then the code.
const MAGIC: &[u8; 16] = b"pointsman code 1";

const SUFFIX: &str = ".code";

/// A folder of compiled components.
#[derive(Clone, Debug)]
pub struct CompileCache {
    folder: PathBuf,
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
}

/// The way in which a component was obtained.
#[derive(Debug)]
pub enum Made {
    /// The component was compiled before, and came from the cache.
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
        };
        // A file that this process makes shows its user.
        let probe = cache.folder.join(format!("{}.probe", std::process::id()));
        let user = create(&probe)?.metadata()?.uid();
        fs::remove_file(&probe)?;
        let its: Metadata = fs::metadata(folder)?;
        if its.uid() != user {
            return Err(CacheError::NotOurs(its.uid()));
        }
        if its.mode() & 0o077 != 0 {
            fs::set_permissions(folder, Permissions::from_mode(PRIVATE))?;
            // Others may have written the entries.
            cache.clear()?;
        }
        Ok(cache)
    }

    /// Finds the component that was compiled from the bytes with `digest`, if its entry is intact.
    pub(crate) fn find(&self, engine: &PolicyEngine, digest: Digest) -> Option<Component> {
        let path = self.path(engine, digest);
        let code = read(&path).ok().flatten()?;
        deserialize(engine, &code)
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
        let unfinished = path.with_extension("new");
        let mut file = create(&unfinished)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(&code))?;
        file.write_all(&code)?;
        drop(file);
        fs::rename(&unfinished, &path)?;
        self.prune()
    }

    fn path(&self, engine: &PolicyEngine, digest: Digest) -> PathBuf {
        let mut maker = Digesting(Sha256::new());
        engine
            .wasmtime()
            .precompile_compatibility_hash()
            .hash(&mut maker);
        let maker = maker.finish();
        self.folder.join(format!("{digest}-{maker:016x}{SUFFIX}"))
    }

    /// Removes the oldest entries above the bound.
    fn prune(&self) -> io::Result<()> {
        let mut entries = self.entries()?;
        entries.sort_unstable();
        let past = entries.len().saturating_sub(ENTRIES_MAX);
        entries
            .iter()
            .take(past)
            .try_for_each(|(_, path)| fs::remove_file(path))
    }

    fn clear(&self) -> io::Result<()> {
        let entries = self.entries()?;
        entries
            .iter()
            .try_for_each(|(_, path)| fs::remove_file(path))
    }

    fn entries(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                entries.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        Ok(entries)
    }
}

/// Makes a file that only this process' user can read.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

/// Reads the code of the entry at `path`; `None` for a damaged entry.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    if file.metadata()?.len() > ENTRY_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(ENTRY_BYTES_MAX).read_to_end(&mut bytes)?;
    let code = bytes
        .strip_prefix(MAGIC)
        .and_then(<[u8]>::split_first_chunk);
    let whole = code.filter(|(digest, code)| Digest::of(code) == Digest(**digest));
    Ok(whole.map(|(_, code)| code.to_vec()))
}

/// Makes a component of `code`; `None` if it is for another wasmtime, configuration or machine.
#[expect(unsafe_code, reason = "code that this process has compiled is loaded")]
fn deserialize(engine: &PolicyEngine, code: &[u8]) -> Option<Component> {
    // SAFETY: `code` is, bit by bit, what `Component::serialize` returned in a process of this
    // user: its digest was checked, and nobody else can write to the folder. That it was made by
    // the same wasmtime for the same configuration and machine, `deserialize` checks itself.
    unsafe { Component::deserialize(engine.wasmtime(), code) }.ok()
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
