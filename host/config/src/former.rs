//! Keys of earlier versions: each is refused with what to write in its place.

use pointsman_notation::{Time, TomlError, TomlProblem, TomlText};
use toml::{Table, Value};

use crate::error::{ConfigError, Place, Wrong};
use crate::file::File;

/// Keys that were numbers of seconds, each with the last name of the key that is a duration now.
const SECONDS: [(&str, &str); 3] = [
    ("core.retry-after-secs", "retry-after"),
    ("policies.compile.processor-seconds", "processor-time"),
    ("policies.compile.wall-seconds", "wall-time"),
];

/// The keys of the file.
pub(crate) fn parsed(source: &TomlText) -> Result<File, ConfigError> {
    source.parse().map_err(|error| told(source, error))
}

/// The error, or what to write in the place of a key of an earlier version.
pub(crate) fn told(source: &TomlText, error: TomlError) -> ConfigError {
    let TomlProblem::UnknownKey { key, .. } = &*error.problem else {
        return error.into();
    };
    if key == "journal.files-max" {
        return ConfigError::new(Place::At(error.location), Wrong::FilesMax);
    }
    let Some((key, now)) = SECONDS.iter().find(|(former, _)| former == key) else {
        return error.into();
    };
    let seconds = integer(source, key).and_then(|number| u64::try_from(number).ok());
    let wrong = Wrong::Seconds {
        key: (*key).to_owned(),
        now: (*now).to_owned(),
        time: Time::from_secs(seconds.unwrap_or(1)),
    };
    ConfigError::new(Place::At(error.location), wrong)
}

/// The number at the path of a key; absent: there is something else.
fn integer(source: &TomlText, key: &str) -> Option<i64> {
    let table: Table = source.parse().ok()?;
    let (tables, last) = key.rsplit_once('.')?;
    let inner = tables.split('.').try_fold(&table, |table, name| {
        table.get(name).and_then(Value::as_table)
    });
    inner?.get(last)?.as_integer()
}
