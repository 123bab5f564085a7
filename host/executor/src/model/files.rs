//! A model's files by name: in a Hugging Face folder, or in the binary.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Where a model's files are.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// In a folder.
    Folder(PathBuf),
    /// In the binary: name and content.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// A file that is there and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", path.display())]
pub struct ReadError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl ModelFiles {
    /// The content of the file `name`; absent where there is none.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ReadError> {
        match self {
            ModelFiles::Folder(folder) => {
                let path = folder.join(name);
                match fs::read(&path) {
                    Ok(content) => Ok(Some(Cow::Owned(content))),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(source) => Err(ReadError { path, source }),
                }
            }
            ModelFiles::Embedded(files) => {
                let file = files.iter().find(|(known, _)| *known == name);
                Ok(file.map(|(_, content)| Cow::Borrowed(*content)))
            }
        }
    }

    /// How errors name the file `name`.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        match self {
            ModelFiles::Folder(folder) => folder.join(name).display().to_string(),
            ModelFiles::Embedded(_) => format!("embedded {name}"),
        }
    }
}
