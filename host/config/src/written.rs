//! The keys that a configuration file has, to tell which of them a later edition changes.

use std::collections::BTreeSet;
use std::fmt;

use pointsman_notation::{TomlError, TomlText};
use toml::{Table, Value};

/// The keys of a file with their values, which may be secret: nothing prints them.
#[derive(Clone, Default)]
pub struct WrittenKeys(Table);

// === impl WrittenKeys ===

impl WrittenKeys {
    /// The keys of a file.
    pub(crate) fn of(source: &TomlText) -> Result<Self, TomlError> {
        source.parse().map(Self)
    }

    /// The paths of the keys that differ in `later`, such as `http.body-max`. Tables that are written
    /// `[[like this]]` are one key.
    #[must_use]
    pub fn changed(&self, later: &Self) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        differences("", &self.0, &later.0, &mut changed);
        changed
    }
}

impl fmt::Debug for WrittenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrittenKeys")
    }
}

/// Collects the paths below `path` of keys that differ between two tables.
fn differences(path: &str, one: &Table, other: &Table, into: &mut BTreeSet<String>) {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let path = format!("{path}{key}");
        let none = Table::new();
        match (one.get(key), other.get(key)) {
            (one, other) if one == other => {}
            (Some(Value::Table(one)), Some(Value::Table(other))) => {
                differences(&format!("{path}."), one, other, into);
            }
            (Some(Value::Table(one)), None) => differences(&format!("{path}."), one, &none, into),
            (None, Some(Value::Table(other))) => {
                differences(&format!("{path}."), &none, other, into);
            }
            (_, _) => {
                into.insert(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn keys(text: &str) -> WrittenKeys {
        WrittenKeys::of(&TomlText::new(Path::new(""), text)).unwrap()
    }

    #[test]
    fn keys_that_differ_are_named_by_their_paths() {
        let before =
            "listen = '1'\n[http]\nbody-max = '1MiB'\n[[keys]]\nkey = 'a'\n[log]\nfilter = 'info'";
        for (after, changed) in [
            (before, vec![]),
            ("", vec!["http.body-max", "keys", "listen", "log.filter"]),
            (
                "listen = '2'\n[http]\nbody-max = '1MiB'\nread-timeout = '1s'\n[[keys]]\nkey = 'b'\n\
                 [log]\nfilter = 'info'",
                vec!["http.read-timeout", "keys", "listen"],
            ),
        ] {
            let found = keys(before).changed(&keys(after));
            assert_eq!(found.iter().collect::<Vec<_>>(), changed, "{after}");
        }
    }
}
