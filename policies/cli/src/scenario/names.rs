//! Names of a machine's things as a scenario has them, and values in TOML.

use std::time::Duration;

use pointsman_core::rows::NameKind;
use pointsman_core::{ExecutorId, Machine, Micros, RequestId};
use pointsman_notation::Time;

/// A text in TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A list of texts in TOML.
pub(super) fn listed(texts: impl IntoIterator<Item = String>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| quoted(&text)).collect();
    format!("[{}]", texts.join(", "))
}

/// A time in TOML.
pub(super) fn timed(time: Micros) -> String {
    quoted(&Time(Duration::from_micros(time.0)).to_string())
}

/// The name of a request, which has none in a journal.
pub(super) fn request(id: RequestId) -> String {
    format!("r{}", id.0)
}

/// The name of an executor.
pub(super) fn executor(machine: &Machine, id: ExecutorId) -> String {
    text(machine, NameKind::Executor, id.0)
}

/// The text behind an id; the id itself where there is none.
pub(super) fn text(machine: &Machine, kind: NameKind, id: u32) -> String {
    let name = machine.name(kind, id);
    name.map_or_else(|| format!("{id}"), ToOwned::to_owned)
}
