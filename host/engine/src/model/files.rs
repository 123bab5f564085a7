//! The files of a model, by name: in a Hugging Face folder, or in the binary.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The place of a model's files.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A folder in Hugging Face's layout.
    Folder(PathBuf),
    /// The binary: names and contents.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// An error for a file that exists and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read", path.display())]
pub struct ModelFileError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl ModelFiles {
    /// Reads the file `name`; absent where it does not exist.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, ModelFileError> {
        match self {
            ModelFiles::Folder(folder) => {
                let path = folder.join(name);
                match pointsman_files::read(&path, u64::MAX) {
                    Ok(content) => Ok(Some(Cow::Owned(content))),
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    Err(source) => Err(ModelFileError { path, source }),
                }
            }
            ModelFiles::Embedded(files) => {
                let file = files.iter().find(|(known, _)| *known == name);
                Ok(file.map(|(_, content)| Cow::Borrowed(*content)))
            }
        }
    }

    /// Returns the name of the file `name` in errors.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        match self {
            ModelFiles::Folder(folder) => folder.join(name).display().to_string(),
            ModelFiles::Embedded(_) => format!("embedded {name}"),
        }
    }
}
