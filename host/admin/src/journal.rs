//! The state of the decision journal.

use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use schemars::JsonSchema;
use serde::Serialize;

/// The decision journal, since the server began.
#[derive(Serialize, JsonSchema)]
pub(crate) struct JournalReport {
    /// True: nothing is written, for `last_error`, until a file can be begun again.
    failing: bool,
    /// The last failure to write or remove a file.
    last_error: Option<String>,
    /// Failures to make, write or remove a file.
    errors: u64,
    /// Times that writing began to fail.
    outages: u64,
    /// Files begun.
    files: u64,
    bytes: u64,
    entries: JournalEntries,
}

/// Entries by what became of them.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct JournalEntries {
    written: u64,
    /// Dropped since the disk was too slow.
    dropped: u64,
    /// Lost since writing failed.
    lost: u64,
    /// Refused since they were too long.
    refused: u64,
    /// Cut off since their round was too long.
    cut: u64,
    /// Withheld since a log was too long: a replay misses nothing.
    withheld: u64,
}

pub(crate) async fn show(call: Call<'_>) -> Result<Json<JournalReport>, ApiError> {
    let stats = call.app.metrics.journal_stats().ok_or_else(|| {
        let why = "no journal is written; `[journal]` `folder` says where one would be";
        ApiError::Absent(why.to_owned())
    })?;
    Ok(Json(JournalReport {
        failing: stats.failing,
        last_error: stats.last_error,
        errors: stats.errors,
        outages: stats.outages,
        files: stats.files,
        bytes: stats.bytes,
        entries: JournalEntries {
            written: stats.written,
            dropped: stats.dropped,
            lost: stats.lost,
            refused: stats.refused,
            cut: stats.cut,
            withheld: stats.withheld,
        },
    }))
}
