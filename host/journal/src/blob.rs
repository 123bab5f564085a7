//! Bytes that the journal carries and does not look into.

use std::fmt;

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Something serialised by somebody else: a machine, a policy's snapshot.
///
/// For people it is its length and checksum: megabytes in hex would bury the rest of a line.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

/// Why a value does not become a blob, or a blob no value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BlobError(String);

impl Blob {
    /// The bytes of a value.
    ///
    /// # Errors
    /// If the value cannot be written down.
    pub fn of(value: &impl Serialize) -> Result<Self, BlobError> {
        let bytes = postcard::to_allocvec(value).map_err(|error| BlobError(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// The value again.
    ///
    /// # Errors
    /// If these are not the bytes of such a value.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, BlobError> {
        let (value, rest) =
            postcard::take_from_bytes(&self.0).map_err(|error| BlobError(error.to_string()))?;
        if rest.is_empty() {
            Ok(value)
        } else {
            Err(BlobError(format!("{} bytes too many", rest.len())))
        }
    }
}

/// The CRC-32 by which a journal tells bytes apart that it does not carry.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        let mut summary = serializer.serialize_struct("Blob", 2)?;
        summary.serialize_field("bytes", &self.0.len())?;
        summary.serialize_field("crc32", &format!("{:08x}", crc32(&self.0)))?;
        summary.end()
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}

struct BlobVisitor;

impl<'de> Visitor<'de> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
        Ok(Blob(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Blob, A::Error> {
        let mut blob = Vec::new();
        while let Some(byte) = bytes.next_element()? {
            blob.push(byte);
        }
        Ok(Blob(blob))
    }
}

/// A SHA-256. For people in hex.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 32]>::deserialize(deserializer).map(Self)
    }
}
