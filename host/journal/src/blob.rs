//! Bytes that a journal carries without reading them: [`Blob`], and the hash that names such bytes.

use std::fmt;

use serde::de::{DeserializeOwned, Error, SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value in serialised form that the journal does not read: a machine, a policy's snapshot.
///
/// Text for people and JSON show its length and checksum: megabytes in hex would bury the rest of a
/// line.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

/// A failure to turn a value into a blob, or a blob into a value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BlobError(String);

impl Blob {
    /// Serialises a value.
    ///
    /// # Errors
    /// If the value cannot be serialised.
    pub fn of(value: &impl Serialize) -> Result<Self, BlobError> {
        let bytes = postcard::to_allocvec(value).map_err(|error| BlobError(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// Deserialises the value.
    ///
    /// # Errors
    /// If the bytes are not exactly one value of type `T`.
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

/// The CRC-32 that stands in a journal for bytes which it does not carry.
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

/// A SHA-256, which people see as hex.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 32]>::deserialize(deserializer).map(Self)
    }
}
