//! The errors in a GGUF file.

use std::io;

/// An error in a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be read.
    #[error("{file} cannot be read")]
    Read {
        /// The path of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not begin as a GGUF file does.
    #[error("{file} is no GGUF file; a model is a folder in Hugging Face's layout, or a GGUF file")]
    NotGguf {
        /// The path of the file.
        file: String,
    },
    /// The file ends before what it promises.
    #[error("{file} was cut short: {part} would go beyond its end; fetch it again")]
    CutShort {
        /// The path of the file.
        file: String,
        /// The part that is not there.
        part: String,
    },
    /// The file contradicts itself or the format.
    #[error("{file} is damaged: {why}; fetch it again")]
    Damaged {
        /// The path of the file.
        file: String,
        /// The contradiction.
        why: String,
    },
    /// A choice is not built.
    #[error("{file}: {field} `{value}` is not supported; {supported}")]
    Unsupported {
        /// The path of the file.
        file: String,
        /// The key of the metadata, or what it is about.
        field: String,
        /// The value in the file.
        value: String,
        /// The choices that are built, or what to do.
        supported: &'static str,
    },
    /// A key is missing, or has a value of another kind.
    #[error("{file} has no {kind} `{key}` in its metadata; convert the model again")]
    Key {
        /// The path of the file.
        file: String,
        /// The key.
        key: String,
        /// The kind of value that it must have.
        kind: &'static str,
    },
    /// The model needs a tensor that is not in the file.
    #[error("{file} has no tensor {tensor}; convert the model again")]
    TensorMissing {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor has not the shape that the metadata ask for.
    #[error(
        "{file}: tensor {tensor} has shape {found:?}, and the metadata ask for {expected:?}; convert \
         the model again"
    )]
    Shape {
        /// The path of the file.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// The tensor's shape, rows first.
        found: Vec<usize>,
        /// The shape that the metadata ask for.
        expected: Vec<usize>,
    },
}

impl GgufError {
    /// The error that the value of a field is not built, of which `supported` says what is.
    pub(super) fn unsupported<T>(
        file: &str,
        (field, value): (&str, String),
        supported: &'static str,
    ) -> Result<T, Self> {
        Err(Self::Unsupported {
            file: file.to_owned(),
            field: field.to_owned(),
            value,
            supported,
        })
    }
}
