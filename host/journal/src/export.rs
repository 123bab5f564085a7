//! Entries as text: [`json_line`] for programs, [`text_line`] for people.

use std::path::Path;

use pointsman_events::{Author, Hook, PolicyFault};
use serde::Serialize;

use crate::entry::Entry;
use crate::reader::Located;

#[derive(Serialize)]
struct Line<'a> {
    file: Option<&'a str>,
    offset: u64,
    entry: &'a Entry<'static>,
}

/// Writes an entry as one line of JSON, with the name of its file and its offset, under the names
/// of the Rust types. Blobs are shown by length and checksum.
///
/// # Errors
/// If an entry contains something that JSON cannot express.
pub fn json_line(located: &Located) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Line {
        file: Path::new(located.file.as_ref())
            .file_name()
            .and_then(|name| name.to_str()),
        offset: located.offset,
        entry: &located.entry,
    })
}

/// Writes an entry as one line of text for people, of at most 300 bytes.
#[must_use]
pub fn text_line(entry: &Entry<'_>) -> String {
    const MAX: usize = 300;
    let mut line = match entry {
        Entry::Header(header) => format!("header {}", json(header)),
        Entry::Input { now, input } => format!("{now} input {}", json(input)),
        Entry::Round { now, round } => format!("{now} decide, after round {round}"),
        Entry::Decision(it) => format!(
            "  {} by {}, generation {}, fuel {}: {} about requests {}{}",
            it.hook.as_str(),
            author(it.answer.author),
            it.generation,
            it.fuel,
            json(&it.answer.value),
            json(&it.requests),
            faults(it.hook, &it.answer.faults),
        ),
        Entry::Bound(bound) => format!("{} bound {}", bound.now, json(&bound.roster.chains)),
        Entry::Fact(it) => format!("  {} round {} fact {}", it.now, it.round, json(&it.fact)),
        Entry::PolicyEvent(it) => {
            format!("{} policy {} {}: {}", it.now, it.policy, it.what, it.detail)
        }
        Entry::Keyframe(it) => format!("{} keyframe after round {}", it.now, it.round),
        Entry::Gap(gap) => format!("gap: {} entries are missing", gap.dropped),
        Entry::Briefed(it) => format!(
            "{} briefed {} up to {}",
            it.now,
            json(&it.needs.decided()),
            it.told
        ),
        Entry::Restarted(it) => {
            format!(
                "  policy {} restarted as generation {}",
                it.policy, it.generation
            )
        }
        Entry::Saved(it) => format!("{} policy {} saved {} bytes", it.now, it.policy, it.bytes),
    };
    if line.len() > MAX {
        line.truncate(line.floor_char_boundary(MAX));
        line.push('…');
    }
    line
}

/// A value of an entry in one line, under the names of the Rust types as [`json_line`] has them.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn author(author: Author) -> String {
    match author {
        Author::BuiltIn => "the built-in rule".to_owned(),
        Author::Policy(number) => format!("policy {number}"),
    }
}

fn faults(hook: Hook, faults: &[PolicyFault]) -> String {
    let faults = faults.iter();
    let faults: Vec<String> = faults
        .map(|it| {
            format!(
                "; policy {} faulted at {}: {}",
                it.policy,
                hook.as_str(),
                it.kind.as_str()
            )
        })
        .collect();
    faults.concat()
}
