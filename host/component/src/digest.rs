//! The digests by which policies are known.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::component::COMPONENT_BYTES_MAX;

/// SHA-256 of a policy's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The texts of digests, as a regular expression for schemas.
    pub const PATTERN: &str = "^[0-9a-fA-F]{64}$";

    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 has 64 hexadecimal digits")]
pub struct NoDigest;

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| {
                digit
                    .to_digit(16)
                    .and_then(|digit| u8::try_from(digit).ok())
            })
            .collect::<Option<_>>()
            .ok_or(NoDigest)?;
        let (pairs, []) = digits.as_chunks() else {
            return Err(NoDigest);
        };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        bytes.try_into().map(Self).map_err(|_length| NoDigest)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = NoDigest;

    fn try_from(text: String) -> Result<Self, NoDigest> {
        text.parse()
    }
}

/// The bytes of the component at `path`; absent: there is none, or it has another digest.
#[must_use]
pub fn read_component(path: &Path, digest: Digest) -> Option<Vec<u8>> {
    let max = u64::try_from(COMPONENT_BYTES_MAX).unwrap_or(u64::MAX);
    let bytes = pointsman_files::read(path, max).ok()?;
    (Digest::of(&bytes) == digest).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of(b"text");
        let text = digest.to_string();
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(text.to_uppercase().parse(), Ok(digest));
        for text in [
            "",
            "12",
            &text[1..],
            &format!("{text}0"),
            &text.replace('a', "g"),
        ] {
            assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text:?}");
        }
    }
}
