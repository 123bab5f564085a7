//! A file that is several scenarios: one for each `[[case]]`, whose values stand where it names them.
//!
//! A text `"$NAME"` in the place of a value is a parameter, and each case gives a value for it. The value keeps
//! its own place in the file, so an error about it is told where it is written.
//!
//! # Invariants
//! 1. Every parameter is given by every case, and every value of a case is used (`tests`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use pointsman_notation::{TomlError, TomlText};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Name, did_you_mean};

#[cfg(test)]
mod tests;

/// The text of one scenario, not read yet.
pub(super) struct Case<'a> {
    /// Absent: the file is one scenario.
    pub(super) name: Option<Name>,
    pub(super) document: Spanned<DeTable<'a>>,
}

/// A `[[case]]` as it is written.
struct Row<'a> {
    name: Name,
    values: DeTable<'a>,
}

/// The scenarios of a file.
pub(super) fn of<'a>(
    source: &TomlText,
    mut document: Spanned<DeTable<'a>>,
) -> Result<Vec<Case<'a>>, TomlError> {
    let Some(written) = document.get_mut().remove("case") else {
        return Ok(vec![Case {
            name: None,
            document,
        }]);
    };
    let rows = rows(source, written)?;
    check(source, &parameters(document.get_ref()), &rows)?;
    let cases = rows.into_iter().map(|row| {
        let mut document = document.clone();
        put_all(document.get_mut(), &row.values);
        Case {
            name: Some(row.name),
            document,
        }
    });
    Ok(cases.collect())
}

fn rows<'a>(source: &TomlText, written: Spanned<DeValue<'a>>) -> Result<Vec<Row<'a>>, TomlError> {
    let at = written.span().start;
    let none = || source.error(at, "`case` is a list of tables: write each as `[[case]]`");
    let DeValue::Array(tables) = written.into_inner() else {
        return Err(none());
    };
    let mut rows: Vec<Row<'_>> = Vec::new();
    for table in tables {
        let at = table.span().start;
        let DeValue::Table(mut values) = table.into_inner() else {
            return Err(none());
        };
        let name = name(source, at, values.remove("name"))?;
        if rows.iter().any(|row| row.name == name) {
            let text = format!("another case is called `{}`", name.get_ref());
            return Err(source.error(name.span().start, text));
        }
        rows.push(Row { name, values });
    }
    if rows.is_empty() {
        return Err(none());
    }
    Ok(rows)
}

fn name(
    source: &TomlText,
    at: usize,
    written: Option<Spanned<DeValue<'_>>>,
) -> Result<Name, TomlError> {
    let Some(written) = written else {
        return Err(source.error(at, "a case needs a `name`, which its reports have"));
    };
    let span = written.span();
    match written.into_inner() {
        DeValue::String(name) if !name.is_empty() => Ok(Spanned::new(span, name.into_owned())),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => Err(source.error(span.start, "the name of a case is a text")),
    }
}

/// The parameters in a document, each with the first byte of its first place.
fn parameters(document: &DeTable<'_>) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut left: Vec<&Spanned<DeValue<'_>>> = document.values().collect();
    while let Some(value) = left.pop() {
        if let Some(name) = parameter(value.get_ref()) {
            let at = value.span().start;
            let first = found.entry(name.to_owned()).or_insert(at);
            *first = at.min(*first);
        }
        match value.get_ref() {
            DeValue::Array(items) => left.extend(items.iter()),
            DeValue::Table(table) => left.extend(table.values()),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
    }
    found
}

/// The name of the parameter that a value is.
fn parameter<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    value.as_str()?.strip_prefix('$')
}

/// Checks that each parameter is given by each case, and each value of a case is used.
fn check(
    source: &TomlText,
    parameters: &BTreeMap<String, usize>,
    rows: &[Row<'_>],
) -> Result<(), TomlError> {
    let keys = rows.iter().flat_map(|row| row.values.keys());
    let given: BTreeSet<&str> = keys.map(|key| key.get_ref().as_ref()).collect();
    for (name, at) in parameters {
        if !given.contains(name.as_str()) {
            let hint = did_you_mean(name, given.iter().copied());
            return Err(source.error(*at, format!("no case gives `{name}`{hint}")));
        }
    }
    for row in rows {
        for key in row.values.keys() {
            let name: &Cow<'_, str> = key.get_ref();
            if !parameters.contains_key(name.as_ref()) {
                let hint = did_you_mean(name, parameters.keys().map(String::as_str));
                let text =
                    format!("`{name}` is used nowhere: write \"${name}\" for the value{hint}");
                return Err(source.error(key.span().start, text));
            }
        }
        let mut names = parameters.keys();
        if let Some(name) = names.find(|name| !row.values.contains_key(name.as_str())) {
            let text = format!(
                "case `{}` gives no `{name}`, as others do",
                row.name.get_ref()
            );
            return Err(source.error(row.name.span().start, text));
        }
    }
    Ok(())
}

/// Puts values in the places of their parameters.
fn put_all<'a>(table: &mut DeTable<'a>, values: &DeTable<'a>) {
    for (_, value) in table.iter_mut() {
        put(value, values);
    }
}

fn put<'a>(value: &mut Spanned<DeValue<'a>>, values: &DeTable<'a>) {
    let given = parameter(value.get_ref()).and_then(|name| values.get(name));
    if let Some(given) = given {
        *value = given.clone();
        return;
    }
    match value.get_mut() {
        DeValue::Array(items) => items.iter_mut().for_each(|item| put(item, values)),
        DeValue::Table(table) => put_all(table, values),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}
