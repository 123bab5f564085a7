//! The files of a model, by name: in a Hugging Face folder, in the binary, or made of a GGUF file or a seed.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
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
        source: std::io::Error,
    },
    /// The metadata of a GGUF file have something else in its place.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ModelFiles {
    /// The model at `path`: a GGUF file, a folder with one and nothing else of a model, or a folder in Hugging
    /// Face's layout, which may not be there.
    ///
    /// # Errors
    /// If there is a file that is no GGUF file, or is damaged.
    pub fn at(path: &Path) -> Result<Self, GgufError> {
        let only = || match path.join(CONFIG).exists() {
            true => None,
            false => only_gguf(path),
        };
        let file = path.is_file().then(|| path.to_owned()).or_else(only);
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

/// The GGUF file in a folder, if there is just one.
fn only_gguf(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let mut files = entries.filter(|path| path.extension().is_some_and(|it| it == "gguf"));
    let first = files.next()?;
    files.next().is_none().then_some(first)
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
