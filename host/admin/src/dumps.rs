//! Dumps that faults of policies left in the state folder.

use std::path::{Path, PathBuf};

use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::{App, Call};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

/// The dumps of a state folder.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DumpList {
    folder: String,
    /// The newest first, without what is large in them.
    dumps: Vec<Listed>,
}

/// One dump: the JSON of its file.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Dump(Map<String, Value>);

/// A dump without its large fields, with its number.
#[derive(Serialize)]
#[serde(transparent)]
struct Listed(Map<String, Value>);

/// Fields of a dump that a list leaves out.
const LARGE: [&str; 4] = ["asked", "mirror", "settings", "trace"];

pub(crate) async fn list(call: Call<'_>) -> Result<Json<DumpList>, ApiError> {
    let folder = folder(call.app)?;
    read(move || listed(&folder)).await.map(Json)
}

pub(crate) async fn one(call: Call<'_>) -> Result<Json<Dump>, ApiError> {
    let folder = folder(call.app)?;
    let absent = || {
        let number = quoted(&call.parameter);
        let why = format!("there is no dump `{number}`; GET /admin/dumps lists them");
        ApiError::Absent(why)
    };
    let number: u64 = call.parameter.parse().map_err(|_not_a_number| absent())?;
    let dump = read(move || found(&folder, number)).await?;
    dump.map(Json).ok_or_else(absent)
}

fn folder(app: &App) -> Result<PathBuf, ApiError> {
    let folder = app.watched.reconciler.borrow().state.path.clone();
    folder.ok_or_else(|| {
        let why = "nothing is kept: this server has no state folder; give it `state-folder`";
        ApiError::Absent(why.to_owned())
    })
}

async fn read<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    spawn_blocking(read).await.map_err(|error| {
        tracing::error!(%error, "reading dumps panicked");
        ApiError::Internal
    })
}

fn listed(folder: &Path) -> DumpList {
    let dumps = pointsman_state::dumps(folder).unwrap_or_default();
    let dumps = dumps.into_iter().rev().filter_map(|(number, path)| {
        let Dump(mut dump) = parsed(&path)?;
        dump.retain(|field, _| !LARGE.contains(&field.as_str()));
        dump.insert("number".to_owned(), number.into());
        Some(Listed(dump))
    });
    DumpList {
        folder: folder.to_string_lossy().into_owned(),
        dumps: dumps.collect(),
    }
}

fn found(folder: &Path, number: u64) -> Option<Dump> {
    let dumps = pointsman_state::dumps(folder).unwrap_or_default();
    let (_, path) = dumps.into_iter().find(|(its, _)| *its == number)?;
    parsed(&path)
}

/// The most bytes of a dump that is shown.
const DUMP_BYTES_MAX: u64 = 64 << 20;

/// Reads a dump of the host's own making; one that cannot be read is left out.
fn parsed(path: &Path) -> Option<Dump> {
    serde_json::from_slice(&pointsman_files::read(path, DUMP_BYTES_MAX).ok()?)
        .ok()
        .map(Dump)
}

// === The document ===

/// The fields of [`pointsman_policy::FaultDump`], which writes the files.
fn properties() -> Value {
    json!({
        "at": {"type": "integer", "description": "Microseconds on the host's clock."},
        "round": {"type": ["integer", "null"]},
        "policy": {"type": "integer", "description": "The policy's number."},
        "name": {"type": "string"},
        "version": {"type": "string"},
        "digest": {"type": "string", "description": "Of the policy's code."},
        "fingerprint": {"type": "string", "description": "Of the policy's code and settings."},
        "settings": {"type": "string", "description": "A JSON object, as text."},
        "generation": {"type": "integer", "description": "Number of the instance, from 1."},
        "asked": {"type": ["object", "string"], "description": "The question, or `snapshot`."},
        "mirror": {"type": ["object", "null"]},
        "kind": {"type": "string"},
        "detail": {"type": "string", "description": "What happened in one line, and below it the policy's functions in which it did."},
        "trace": {"type": "string", "description": "Every frame of the backtrace, a line each; empty: there is none."},
    })
}

impl JsonSchema for Dump {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FaultDump".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "properties": properties()})
    }
}

impl JsonSchema for Listed {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ListedDump".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut properties = properties();
        if let Some(properties) = properties.as_object_mut() {
            properties.retain(|field, _| !LARGE.contains(&field.as_str()));
            properties.insert("number".to_owned(), json!({"type": "integer"}));
        }
        json_schema!({"type": "object", "required": ["number"], "properties": properties})
    }
}
