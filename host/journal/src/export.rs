//! Entries as JSON, one to a line.

use std::path::Path;

use serde::Serialize;

use crate::entry::Entry;
use crate::reader::Located;

#[derive(Serialize)]
struct Line<'a> {
    file: Option<&'a str>,
    offset: u64,
    entry: &'a Entry<'static>,
}

/// An entry as one line of JSON, with its file's name and its offset, under the names of the
/// types it is made of. Blobs are told by length and checksum.
///
/// # Errors
/// If an entry has something in it that JSON cannot say.
pub fn json_line(located: &Located) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Line {
        file: Path::new(located.file.as_ref())
            .file_name()
            .and_then(|name| name.to_str()),
        offset: located.offset,
        entry: &located.entry,
    })
}
