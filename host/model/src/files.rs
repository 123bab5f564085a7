//! The files of a model, by name: in a Hugging Face folder, in the binary, or made of a GGUF file or a seed.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pointsman_text::{TextFiles, UnreadFile};

use super::dummy::Dummy;
use super::gguf::{Gguf, GgufError};

const CONFIG: &str = "config.json";
/// Files that may be put beside a GGUF file, and count in the place of what its metadata say.
const BESIDE_GGUF: [&str; 4] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// The place of a model's files.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A folder in Hugging Face's layout.
    Folder(PathBuf),
    /// The binary: names and contents.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// A GGUF file, whose metadata have what other models have files for.
    Gguf(Arc<Gguf>),
    /// A `config.json`, for which weights are made.
    Dummy(Dummy),
}

/// An error for a file that exists and cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileError {
    /// The system does not let it be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The metadata of a GGUF file have something else in its place.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// An error for a path at which there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelPathError {
    /// There is nothing.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// There is a folder with several GGUF files, of which one has to be named.
    #[error(
        "{} has no config.json, and several GGUF files: name one of them; there are: {files}",
        folder.display()
    )]
    SeveralGguf {
        /// The path of the folder.
        folder: PathBuf,
        /// The names of the files.
        files: String,
    },
    /// There is a file that is no GGUF file, or is damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// A file of weights, of which parts are read when they are needed.
#[derive(Debug)]
pub(crate) struct WeightsFile {
    /// The path, for errors.
    name: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Disk(File),
    Binary(&'static [u8]),
}

impl WeightsFile {
    /// An open file.
    pub(super) fn on_disk(name: String, file: File) -> Self {
        Self {
            name,
            content: Content::Disk(file),
        }
    }

    /// The path, for errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The number of bytes that the file has now.
    pub(super) fn length(&self) -> io::Result<u64> {
        match &self.content {
            Content::Disk(file) => Ok(file.metadata()?.len()),
            Content::Binary(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads all of `out` from a place on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Disk(file) => file.read_exact_at(out, offset),
            Content::Binary(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = bytes.get(start..).and_then(|rest| rest.get(..out.len()));
                out.copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

impl ModelFiles {
    /// The model at `path`: a GGUF file, a folder with one and nothing else of a model, or a folder in Hugging
    /// Face's layout, whose files may not be there.
    ///
    /// # Errors
    /// If there is nothing, or a file that is no GGUF file, or is damaged, or several of them.
    pub fn at(path: &Path) -> Result<Self, ModelPathError> {
        if matches!(path.try_exists(), Ok(false)) {
            let path = path.to_owned();
            return Err(ModelPathError::Missing { path });
        }
        let file = match path.is_file() {
            true => Some(path.to_owned()),
            false => gguf_in(path)?,
        };
        match file {
            Some(file) => Ok(Self::Gguf(Arc::new(Gguf::open(&file)?))),
            None => Ok(Self::Folder(path.to_owned())),
        }
    }

    /// Reads the file `name`; absent where it does not exist.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelFileError> {
        match self {
            ModelFiles::Folder(folder) => read(folder.join(name)),
            ModelFiles::Embedded(files) => {
                let file = files.iter().find(|(known, _)| *known == name);
                Ok(file.map(|(_, content)| Cow::Borrowed(*content)))
            }
            ModelFiles::Gguf(gguf) => match beside(gguf, name) {
                Some(path) => read(path),
                None => Ok(gguf.json(name)?.map(Cow::Owned)),
            },
            ModelFiles::Dummy(dummy) => match dummy.path(name) {
                Some(path) => read(path),
                None => Ok(Dummy::made(name).map(Cow::Owned)),
            },
        }
    }

    /// Opens the file `name` of weights; absent where it does not exist.
    pub(super) fn weights(&self, name: &str) -> Result<Option<WeightsFile>, ModelFileError> {
        let content = match self {
            ModelFiles::Folder(folder) => opened(folder.join(name))?.map(Content::Disk),
            ModelFiles::Embedded(_) => match self.read(name)? {
                Some(Cow::Borrowed(content)) => Some(Content::Binary(content)),
                Some(Cow::Owned(_)) | None => None,
            },
            ModelFiles::Gguf(_) | ModelFiles::Dummy(_) => None,
        };
        let name = self.describe(name);
        Ok(content.map(|content| WeightsFile { name, content }))
    }

    /// Returns the name of the file `name` in errors.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        match self {
            ModelFiles::Folder(folder) => folder.join(name).display().to_string(),
            ModelFiles::Embedded(_) => format!("embedded {name}"),
            ModelFiles::Gguf(gguf) => match beside(gguf, name) {
                Some(path) => path.display().to_string(),
                None => format!("{name} from the metadata of {}", gguf.path().display()),
            },
            ModelFiles::Dummy(dummy) => match dummy.path(name) {
                Some(path) => path.display().to_string(),
                None => format!("{name} of a dummy"),
            },
        }
    }
}

impl TextFiles for ModelFiles {
    fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, UnreadFile> {
        Ok(ModelFiles::read(self, name)?)
    }

    fn describe(&self, name: &str) -> String {
        ModelFiles::describe(self, name)
    }
}

/// The GGUF file in a folder that has no configuration. Beside it there may be one for images, which does not count.
fn gguf_in(folder: &Path) -> Result<Option<PathBuf>, ModelPathError> {
    if folder.join(CONFIG).exists() {
        return Ok(None);
    }
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let is_model = |path: &PathBuf| {
        let is_gguf = path.extension().is_some_and(|it| it == "gguf");
        is_gguf && !name(path).to_lowercase().contains("mmproj")
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths.filter(is_model).collect();
    files.sort();
    match files.as_slice() {
        [] => Ok(None),
        [file] => Ok(Some(file.clone())),
        several => Err(ModelPathError::SeveralGguf {
            folder: folder.to_owned(),
            files: several.iter().map(name).collect::<Vec<_>>().join(", "),
        }),
    }
}

fn opened(path: PathBuf) -> Result<Option<File>, ModelFileError> {
    match pointsman_files::open(&path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelFileError::Read { path, source }),
    }
}

fn read(path: PathBuf) -> Result<Option<Cow<'static, [u8]>>, ModelFileError> {
    match pointsman_files::read(&path, u64::MAX) {
        Ok(content) => Ok(Some(Cow::Owned(content))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelFileError::Read { path, source }),
    }
}

/// The path of the file `name` beside a GGUF file, if it is there and counts.
fn beside(gguf: &Gguf, name: &str) -> Option<PathBuf> {
    let path = gguf.path().with_file_name(name);
    (BESIDE_GGUF.contains(&name) && path.exists()).then_some(path)
}
