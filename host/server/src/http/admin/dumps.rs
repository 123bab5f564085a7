//! What faults of policies left behind, in the state folder.

use std::fs;
use std::path::Path;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::super::error::{ApiError, quoted};
use super::super::router::json as reply;
use super::super::{App, Reply};
use crate::state;

/// The list, the newest first, or the dump of that number.
pub(super) async fn shown(app: &App, number: Option<&str>) -> Result<Reply, ApiError> {
    let folder = app.watched.reconciler.borrow().state.path.clone();
    let folder = folder.ok_or_else(|| {
        let why = "nothing is kept: this server has no state folder; give it `state-folder`";
        ApiError::Absent(why.to_owned())
    })?;
    let read = match number {
        None => spawn_blocking(move || Ok(list(&folder))).await,
        Some(number) => {
            let absent = || {
                let why = format!(
                    "there is no dump `{}`; GET /admin/dumps lists them",
                    quoted(number)
                );
                ApiError::Absent(why)
            };
            let number: u64 = number.parse().map_err(|_not_a_number| absent())?;
            let read = spawn_blocking(move || Ok(one(&folder, number))).await;
            read.map(|read: Result<Option<Value>, ApiError>| read?.ok_or_else(absent))
        }
    };
    let shown = read.map_err(|error| {
        tracing::error!(%error, "reading dumps panicked");
        ApiError::Internal
    })??;
    Ok(reply(StatusCode::OK, &shown))
}

fn list(folder: &Path) -> Value {
    let dumps = state::dumps(folder).unwrap_or_default();
    let dumps = dumps.into_iter().rev().filter_map(|(number, path)| {
        let mut dump = parsed(&path)?;
        let dump = dump.as_object_mut()?;
        // Of one fault alone: what is large.
        for key in ["asked", "mirror", "settings"] {
            dump.remove(key);
        }
        dump.insert("number".to_owned(), number.into());
        Some(Value::Object(std::mem::take(dump)))
    });
    json!({"folder": folder.to_string_lossy(), "dumps": dumps.collect::<Value>()})
}

fn one(folder: &Path, number: u64) -> Option<Value> {
    let dumps = state::dumps(folder).unwrap_or_default();
    let (_, path) = dumps.into_iter().find(|(its, _)| *its == number)?;
    parsed(&path)
}

/// A dump is the host's own; one that cannot be read is left out.
fn parsed(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
