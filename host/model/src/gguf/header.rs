//! The head of a GGUF file: its metadata and the directory of its tensors.
//!
//! # Bounds
//! Nothing is allocated because the file says so: a length is held against the bytes that are left, and
//! memory grows with what was read. A head has at most [`HEAD_BYTES_MAX`] bytes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Read as _};

use super::error::GgufError;
use super::types::TensorType;

/// The most bytes of metadata and directory. Large vocabularies with their merges have about 10 MiB.
const HEAD_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of a text in the metadata.
const TEXT_BYTES_MAX: u64 = 16 << 20;
/// The most keys of the metadata, and the most tensors.
const ENTRIES_MAX: u64 = 1 << 16;
/// The most dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;

const MAGIC: [u8; 4] = *b"GGUF";
/// The key of the metadata that says on which multiples of bytes tensors begin.
const ALIGNMENT: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u64 = 32;

/// The head of a file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, TensorInfo>,
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    /// Whole numbers are exact up to 2^53.
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

/// A tensor in the file.
#[derive(Debug)]
pub(super) struct TensorInfo {
    /// Sizes, rows first: the file has them the other way round.
    pub(super) shape: Vec<usize>,
    pub(super) kind: TensorType,
    /// The place of its bytes, from the beginning of the file.
    pub(super) offset: u64,
    /// The number of its bytes; 0 for a type that is not built.
    pub(super) bytes: u64,
}

impl Header {
    /// Reads the head of a file of `length` bytes.
    pub(super) fn read(file: &str, length: u64, content: impl BufRead) -> Result<Self, GgufError> {
        let mut reader = Reader {
            file,
            left: length.min(HEAD_BYTES_MAX),
            is_capped: length > HEAD_BYTES_MAX,
            at: 0,
            content,
        };
        reader.check_version()?;
        let tensors = reader.count("tensors")?;
        let keys = reader.count("keys")?;
        let metadata = reader.metadata(keys)?;
        reader.check_not_split(&metadata)?;
        let alignment = reader.alignment(&metadata)?;
        let mut tensors = reader.directory(tensors)?;
        let data = reader.at.next_multiple_of(alignment);
        for (name, tensor) in &mut tensors {
            let begins = data.saturating_add(tensor.offset);
            if !tensor.offset.is_multiple_of(alignment) {
                let why =
                    format!("tensor {name} does not begin at a multiple of {alignment} bytes");
                return Err(reader.damaged(why));
            }
            if begins.saturating_add(tensor.bytes) > length {
                return Err(reader.cut_short(format!("tensor {name}")));
            }
            tensor.offset = begins;
        }
        Ok(Self { metadata, tensors })
    }
}

/// The rest of the head.
struct Reader<'a, R> {
    file: &'a str,
    /// Bytes that are left.
    left: u64,
    /// True if the file has more bytes than a head may have.
    is_capped: bool,
    /// Bytes that were read.
    at: u64,
    content: R,
}

impl<R: BufRead> Reader<'_, R> {
    fn check_version(&mut self) -> Result<(), GgufError> {
        let not_gguf = || GgufError::NotGguf {
            file: self.file.to_owned(),
        };
        if self.left < 8 {
            return Err(not_gguf());
        }
        let magic: [u8; 4] = self.bytes("its first bytes")?;
        if magic != MAGIC {
            return Err(GgufError::NotGguf {
                file: self.file.to_owned(),
            });
        }
        match self.u32("its version")? {
            2 | 3 => Ok(()),
            version if matches!(version.swap_bytes(), 1..=3) => self.unsupported(
                "byte order",
                "big-endian".to_owned(),
                "little-endian is: convert the model again",
            ),
            version => self.unsupported(
                "GGUF version",
                version.to_string(),
                "2 and 3 are: convert the model again",
            ),
        }
    }

    fn check_not_split(&self, metadata: &BTreeMap<String, Value>) -> Result<(), GgufError> {
        match metadata.get("split.count") {
            Some(Value::Integer(parts)) if *parts > 1 => self.unsupported(
                "split.count",
                parts.to_string(),
                "a model in one file is: join the parts with `llama-gguf-split --merge`",
            ),
            _ => Ok(()),
        }
    }

    fn alignment(&self, metadata: &BTreeMap<String, Value>) -> Result<u64, GgufError> {
        let Some(given) = metadata.get(ALIGNMENT) else {
            return Ok(ALIGNMENT_DEFAULT);
        };
        let alignment = match given {
            Value::Integer(given) => u32::try_from(*given).ok().filter(|it| it.is_power_of_two()),
            Value::Float(_)
            | Value::Bool(_)
            | Value::Text(_)
            | Value::Numbers(_)
            | Value::Texts(_) => None,
        };
        let alignment = alignment.map(u64::from);
        alignment.ok_or_else(|| self.damaged(format!("{ALIGNMENT} is no power of two")))
    }

    fn metadata(&mut self, keys: u64) -> Result<BTreeMap<String, Value>, GgufError> {
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let key = self.text("a key")?;
            let kind = self.u32(&key)?;
            let value = self.value(&key, kind)?;
            if metadata.contains_key(&key) {
                return Err(self.damaged(format!("key {key} is there twice")));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn directory(&mut self, count: u64) -> Result<BTreeMap<String, TensorInfo>, GgufError> {
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let name = self.text("the name of a tensor")?;
            let tensor = self.tensor(&name)?;
            if tensors.contains_key(&name) {
                return Err(self.damaged(format!("tensor {name} is there twice")));
            }
            tensors.insert(name, tensor);
        }
        Ok(tensors)
    }

    fn tensor(&mut self, name: &str) -> Result<TensorInfo, GgufError> {
        let dimensions = self.u32(name)?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(self.damaged(format!("tensor {name} has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64(name)?;
            let size = usize::try_from(size).ok().filter(|size| *size > 0);
            shape.push(size.ok_or_else(|| self.damaged(format!("tensor {name} has no size")))?);
        }
        shape.reverse();
        let kind = TensorType(self.u32(name)?);
        let bytes = match kind.encoding() {
            Some(encoding) => encoding.bytes_of(&shape),
            None => Some(0),
        };
        let bytes = bytes.ok_or_else(|| {
            self.damaged(format!(
                "tensor {name} of type {kind} cannot have shape {shape:?}"
            ))
        })?;
        Ok(TensorInfo {
            shape,
            kind,
            offset: self.u64(name)?,
            bytes,
        })
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value, GgufError> {
        Ok(match kind {
            0..=5 | 10 | 11 => Value::Integer(self.integer(key, kind)?),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.bytes(key)?))),
            7 => Value::Bool(self.bytes::<1>(key)? != [0]),
            8 => Value::Text(self.text(key)?),
            9 => self.array(key)?,
            12 => Value::Float(f64::from_le_bytes(self.bytes(key)?)),
            other => return Err(self.damaged(format!("key {key} has a value of kind {other}"))),
        })
    }

    fn array(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        match kind {
            8 => {
                let mut texts = Vec::new();
                for _ in 0..count {
                    texts.push(self.text(key)?);
                }
                Ok(Value::Texts(texts))
            }
            9 => self.unsupported(
                key,
                "a list of lists".to_owned(),
                "lists of numbers and of texts are",
            ),
            _ => {
                let mut numbers = Vec::new();
                for _ in 0..count {
                    numbers.push(self.number(key, kind)?);
                }
                Ok(Value::Numbers(numbers))
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "said at `Value::Numbers`")]
    fn number(&mut self, key: &str, kind: u32) -> Result<f64, GgufError> {
        match self.value(key, kind)? {
            Value::Integer(number) => Ok(number as f64),
            Value::Float(number) => Ok(number),
            Value::Bool(it) => Ok(f64::from(u8::from(it))),
            Value::Text(_) | Value::Numbers(_) | Value::Texts(_) => {
                Err(self.damaged(format!("list {key} has no numbers")))
            }
        }
    }

    fn integer(&mut self, key: &str, kind: u32) -> Result<i128, GgufError> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.bytes(key)?).into(),
            1 => i8::from_le_bytes(self.bytes(key)?).into(),
            2 => u16::from_le_bytes(self.bytes(key)?).into(),
            3 => i16::from_le_bytes(self.bytes(key)?).into(),
            4 => u32::from_le_bytes(self.bytes(key)?).into(),
            5 => i32::from_le_bytes(self.bytes(key)?).into(),
            10 => u64::from_le_bytes(self.bytes(key)?).into(),
            _ => i64::from_le_bytes(self.bytes(key)?).into(),
        })
    }

    fn count(&mut self, of: &str) -> Result<u64, GgufError> {
        let count = self.u64(&format!("the number of its {of}"))?;
        if count <= ENTRIES_MAX {
            return Ok(count);
        }
        Err(self.damaged(format!("it claims {count} {of}")))
    }

    fn text(&mut self, part: &str) -> Result<String, GgufError> {
        let length = self.u64(part)?;
        if length > self.left {
            return Err(self.cut_short(part.to_owned()));
        }
        if length > TEXT_BYTES_MAX {
            return Err(self.damaged(format!("{part} has {length} bytes")));
        }
        let mut bytes = Vec::new();
        let read = self.content.by_ref().take(length).read_to_end(&mut bytes);
        let read = read.map_err(|source| self.unread(source))?;
        if u64::try_from(read) != Ok(length) {
            return Err(self.cut_short(part.to_owned()));
        }
        self.count_read(length);
        String::from_utf8(bytes).map_err(|_bytes| self.damaged(format!("{part} is not UTF-8")))
    }

    fn u32(&mut self, part: &str) -> Result<u32, GgufError> {
        self.bytes(part).map(u32::from_le_bytes)
    }

    fn u64(&mut self, part: &str) -> Result<u64, GgufError> {
        self.bytes(part).map(u64::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self, part: &str) -> Result<[u8; N], GgufError> {
        if (N as u64) > self.left {
            return Err(self.cut_short(part.to_owned()));
        }
        let mut bytes = [0; N];
        match self.content.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(self.cut_short(part.to_owned()));
            }
            Err(source) => return Err(self.unread(source)),
        }
        self.count_read(N as u64);
        Ok(bytes)
    }

    fn count_read(&mut self, bytes: u64) {
        self.left -= bytes;
        self.at += bytes;
    }

    fn cut_short(&self, part: String) -> GgufError {
        if self.is_capped && self.left < TEXT_BYTES_MAX {
            return self.damaged(format!("its head has more than {HEAD_BYTES_MAX} bytes"));
        }
        let file = self.file.to_owned();
        GgufError::CutShort { file, part }
    }

    fn damaged(&self, why: String) -> GgufError {
        let file = self.file.to_owned();
        GgufError::Damaged { file, why }
    }

    fn unread(&self, source: io::Error) -> GgufError {
        let file = self.file.to_owned();
        GgufError::Read { file, source }
    }

    fn unsupported<T>(
        &self,
        field: &str,
        value: String,
        supported: &'static str,
    ) -> Result<T, GgufError> {
        GgufError::unsupported(self.file, (field, value), supported)
    }
}
