//! Parts of a program that are packed when it is built, and unpacked when they are first used.
//!
//! Build scripts [`pack`] what they embed, files by [`pack_file`], and the program has it as a [`Packed`]. So models, components, machine
//! code and kernels take half of their size in the binary. Unpacking takes some milliseconds for each
//! megabyte.
//!
//! A packed part is the length of its stream, unpacked, in 8 bytes with the lowest first, and the stream: zlib's, of the
//! part's bytes and one byte for their order (`Order`). It ends with a checksum of all these.
//!
//! # Invariants
//! 1. What was packed is unpacked byte by byte, or is an error (`tests`; the parts of the real program in
//!    `embedded::tests` of `pointsman-server`, `demo::tests` of `pointsman-local` and in `host/cuda/tests/packed.rs`).
//!
//! # Not here
//! The files that are embedded: the build scripts of `host/server`, `host/local` and `host/cuda`. Here is only the way to
//! those that are built (`target_folder`).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::ffi::OsStr;
use std::path::Path;
use std::{fmt, fs, io};

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// The level of compression, from 0 to 10.
const LEVEL: u8 = 9;

/// A part of the program, as it was packed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    name: &'static str,
    bytes: &'static [u8],
}

/// A part of the program that is not as it was packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}`, a part of this program, is damaged: install the program again")]
pub struct Damaged {
    name: &'static str,
}

/// The order in which the bytes of a part are in its stream.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// As they are.
    AsTheyAre,
    /// Bytes at even places, then bytes at odd ones. Of weights in 16 bits the upper halves resemble each other, and
    /// the lower halves nothing.
    EvenThenOdd,
}

/// Packs a part of a program that is being built, in the order in which it becomes smallest.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let as_they_are = pack_in(Order::AsTheyAre, bytes);
    let even = bytes.iter().step_by(2);
    let odd = bytes.iter().skip(1).step_by(2);
    let apart: Vec<u8> = even.chain(odd).copied().collect();
    let apart = pack_in(Order::EvenThenOdd, &apart);
    if apart.len() < as_they_are.len() {
        return apart;
    }
    as_they_are
}

/// Packs a file into `folder` under its own name. Returns the packed part as an expression of Rust.
///
/// # Errors
/// If the file cannot be read or the packed one not written, or a name is no UTF-8; the error names the file.
pub fn pack_file(file: &Path, folder: &Path) -> io::Result<String> {
    let packed = || {
        let name = file.file_name().and_then(OsStr::to_str);
        let name = name.ok_or(io::ErrorKind::InvalidFilename)?;
        let path = folder.join(format!("{name}.packed"));
        fs::write(&path, pack(&fs::read(file)?))?;
        let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        Ok(format!("Packed::new({name:?}, include_bytes!({path:?}))"))
    };
    packed().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", file.display()))
    })
}

/// Finds cargo's target folder from `out`, the `OUT_DIR` of a build script for the platform `triple`, which is
/// `<target>[/<triple>]/<profile>/build/<package>/out`, or from cargo 1.100 on
/// `<target>[/<triple>]/<profile>/build/<package>/<hash>/out`; absent: `out` is in no such folder.
#[must_use]
pub fn target_folder<'a>(out: &'a Path, triple: &OsStr) -> Option<&'a Path> {
    let build = out.ancestors().find(|folder| folder.ends_with("build"))?;
    let above_profile = build.parent()?.parent()?;
    if above_profile.file_name() == Some(triple) {
        return above_profile.parent();
    }
    Some(above_profile)
}

fn pack_in(order: Order, bytes: &[u8]) -> Vec<u8> {
    let stream = [bytes, &[order.tag()]].concat();
    let mut packed = (stream.len() as u64).to_le_bytes().to_vec();
    packed.extend(compress_to_vec_zlib(&stream, LEVEL));
    packed
}

// === impl Order ===

impl Order {
    fn tag(self) -> u8 {
        match self {
            Self::AsTheyAre => b'=',
            Self::EvenThenOdd => b'2',
        }
    }

    fn of(tag: u8) -> Option<Self> {
        let all = [Self::AsTheyAre, Self::EvenThenOdd];
        all.into_iter().find(|order| order.tag() == tag)
    }

    /// The bytes of a stream as they were before.
    fn restore(self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::AsTheyAre => bytes,
            Self::EvenThenOdd => {
                let (even, odd) = bytes.split_at(bytes.len().div_ceil(2));
                let pairs = even.iter().zip(odd).flat_map(|(even, odd)| [*even, *odd]);
                let last = even.get(odd.len()).copied();
                pairs.chain(last).collect()
            }
        }
    }
}

// === impl Packed ===

impl Packed {
    /// The part `name`, which [`pack`] has made `bytes` of.
    #[must_use]
    pub const fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        Self { name, bytes }
    }

    /// The part's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Unpacks the part.
    ///
    /// # Errors
    /// If it is not as it was packed.
    pub fn unpack(&self) -> Result<Vec<u8>, Damaged> {
        self.unpacked().ok_or(Damaged { name: self.name })
    }

    fn unpacked(&self) -> Option<Vec<u8>> {
        let (length, stream) = self.bytes.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let mut bytes = decompress_to_vec_zlib_with_limit(stream, length).ok()?;
        if bytes.len() != length {
            return None;
        }
        let order = Order::of(bytes.pop()?)?;
        Some(order.restore(bytes))
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packed")
            .field("name", &self.name)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(packed: Vec<u8>) -> Packed {
        Packed::new("a part", packed.leak())
    }

    #[test]
    fn what_was_packed_comes_out_as_it_was_and_takes_less() {
        let text = include_bytes!("lib.rs");
        let packed = pack(text);
        assert!(packed.len() < text.len() / 2);
        assert_eq!(part(packed).unpack().unwrap(), text);
        assert_eq!(part(pack(b"")).unpack().unwrap(), b"");
    }

    #[test]
    fn numbers_of_two_bytes_are_packed_by_halves() {
        // Noise below, and a slow rise above it.
        let noise = |at: u32| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8;
        for count in [4000, 4001] {
            let bytes = (0..count).map(|at| match at % 2 {
                0 => noise(at),
                _ => u8::try_from(at / 1000).unwrap(),
            });
            let bytes: Vec<u8> = bytes.collect();
            let packed = pack(&bytes);
            let as_they_are = pack_in(Order::AsTheyAre, &bytes);
            assert!(packed.len() < as_they_are.len());
            assert_eq!(part(as_they_are).unpack().unwrap(), bytes);
            assert_eq!(part(packed).unpack().unwrap(), bytes);
        }
    }

    #[test]
    fn a_file_is_packed_under_its_name_or_the_error_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
        let expression = pack_file(&file, folder.path()).unwrap();
        let path = folder.path().join("lib.rs.packed");
        assert_eq!(
            expression,
            format!("Packed::new(\"lib.rs\", include_bytes!({path:?}))")
        );
        let packed = part(fs::read(path).unwrap());
        assert_eq!(packed.unpack().unwrap(), include_bytes!("lib.rs"));
        let error = pack_file(Path::new("no/such.wasm"), folder.path()).unwrap_err();
        assert!(error.to_string().starts_with("no/such.wasm: "), "{error}");
    }

    #[test]
    fn the_target_folder_is_found_from_where_build_scripts_write() {
        let triple = "x86_64-unknown-linux-gnu";
        let found = |out: &str| {
            let found = target_folder(Path::new(out), OsStr::new(triple));
            found.map(|folder| folder.to_str().unwrap().to_owned())
        };
        for target in ["/t", "/home/build/pointsman/target"] {
            for above_profile in [target.to_owned(), format!("{target}/{triple}")] {
                for unit in ["pointsman-server-1f", "pointsman-server/1f"] {
                    let out = format!("{above_profile}/debug/build/{unit}/out");
                    assert_eq!(found(&out).as_deref(), Some(target), "{out}");
                }
            }
        }
        assert_eq!(found("/t/debug/out"), None);
    }

    #[test]
    fn damage_anywhere_is_an_error_with_the_parts_name() {
        let whole = pack(b"the same text, the same text, the same text");
        for at in 0..whole.len() {
            // The flags in the second byte of the stream say how it was made, and are checked alone.
            let mut damaged = whole.clone();
            damaged[at] ^= 0x55;
            assert_eq!(
                part(damaged).unpack(),
                Err(Damaged { name: "a part" }),
                "{at}"
            );
            let cut = part(whole[..at].to_vec());
            assert_eq!(cut.unpack(), Err(Damaged { name: "a part" }), "{at} bytes");
        }
        let error = part(Vec::new()).unpack().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`a part`, a part of this program, is damaged: install the program again"
        );
    }
}
