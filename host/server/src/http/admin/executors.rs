//! Executors: which there are, another one, and none any more.

use std::path::{Path, PathBuf};

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::super::error::{ApiError, quoted};
use super::super::fields::Fields;
use super::super::router::json as reply;
use super::super::{App, Reply, body};
use super::{in_time, show};
use crate::config::{ModelConfig, ModelSource, SLOTS_MAX, WEIGHTS};
use crate::driver::operator::{ChangeRefused, ExecutorChange, ExecutorRow, Operator};
use crate::fleet::{AddError, Addition};

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 128;

pub(super) async fn all_or_another(
    app: &App,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    if request.method() != Method::POST {
        return all(app).await;
    }
    let body = body::read(request, &app.http).await?;
    let addition = addition(Fields::parse(&body)?)?;
    app.check_serving()?;
    match app.fleet.clone().add(addition).await {
        Ok(row) => Ok(reply(StatusCode::CREATED, &shown(app, &row))),
        Err(error @ AddError::Load(_)) => Err(ApiError::field("path", error.to_string())),
        Err(error @ (AddError::OtherModel(_) | AddError::Refused(_))) => {
            Err(ApiError::Conflict(error.to_string()))
        }
        Err(AddError::Ended) => Err(ApiError::draining()),
    }
}

async fn all(app: &App) -> Result<Reply, ApiError> {
    let overview = in_time(app.driver.operate(Operator::Overview)).await?;
    let executors = overview.executors.iter();
    let devices = overview.devices.iter();
    Ok(reply(
        StatusCode::OK,
        &json!({
            "executors": executors.map(|row| shown(app, row)).collect::<Value>(),
            "executors_total": overview.executors_total,
            "devices": devices.map(show::device).collect::<Value>(),
            "load": show::load(&overview.load),
        }),
    ))
}

/// One executor, or its end.
pub(super) async fn one(app: &App, name: &str, method: &Method) -> Result<Reply, ApiError> {
    if method == Method::DELETE {
        return change(app, name, ExecutorChange::Remove).await;
    }
    let overview = in_time(app.driver.operate(Operator::Overview)).await?;
    let mut rows = overview.executors.iter();
    match rows.find(|row| row.name == name) {
        Some(row) => Ok(reply(StatusCode::OK, &shown(app, row))),
        None => Err(ApiError::Absent(format!(
            "there is no executor `{}`; GET /admin/executors lists them",
            quoted(name)
        ))),
    }
}

/// A removal is under way when it is answered: 202.
pub(super) async fn change(
    app: &App,
    name: &str,
    change: ExecutorChange,
) -> Result<Reply, ApiError> {
    let status = match change {
        ExecutorChange::Drain | ExecutorChange::Resume => StatusCode::OK,
        ExecutorChange::Remove => StatusCode::ACCEPTED,
    };
    match in_time(app.fleet.change(name, change)).await? {
        Ok(row) => Ok(reply(status, &shown(app, &row))),
        Err(error @ ChangeRefused::Unknown { .. }) => Err(ApiError::Absent(error.to_string())),
        Err(error @ (ChangeRefused::Leaves(_) | ChangeRefused::Ended(_))) => {
            Err(ApiError::Conflict(error.to_string()))
        }
    }
}

fn shown(app: &App, row: &ExecutorRow) -> Value {
    let catalog = app.catalog();
    let mut engines = catalog.engines.iter();
    let engine = engines.find(|(name, _)| *name == row.name);
    show::executor(row, engine.map(|(_, stats)| &**stats))
}

/// The table `[[models]]` of the configuration as JSON, and a name for the executor.
fn addition(mut fields: Fields) -> Result<Addition, ApiError> {
    let name: String = fields.require("name", "the name of a model")?;
    let name = plain("name", name)?;
    let folder: Option<String> = fields.take_as("path", "an absolute path", |path: &String| {
        Path::new(path).is_absolute()
    })?;
    let source = folder.map_or(ModelSource::Embedded, |folder| {
        ModelSource::Folder(PathBuf::from(folder))
    });
    let default = ModelConfig::new(&name, source);
    let slots = format!("an integer from 1 to {SLOTS_MAX}");
    let slots = fields.take_as("slots", &slots, |slots| (1..=SLOTS_MAX).contains(slots))?;
    let weight = format!("an integer from {} to {}", WEIGHTS.start(), WEIGHTS.end());
    let weight = fields.take_as("share-weight", &weight, |weight| WEIGHTS.contains(weight))?;
    let executor: Option<String> = fields.take_as("executor", "a name", |_| true)?;
    let executor = executor.map(|name| plain("executor", name)).transpose()?;
    if let Some(unknown) = fields.left().next() {
        let message = format!(
            "there is no `{}`; there are: name, path, slots, share-weight, executor",
            quoted(unknown)
        );
        return Err(ApiError::field(quoted(unknown), message));
    }
    Ok(Addition {
        model: ModelConfig {
            slots: slots.unwrap_or(default.slots),
            share_weight: weight.unwrap_or(default.share_weight),
            ..default
        },
        executor,
    })
}

fn plain(param: &'static str, name: String) -> Result<String, ApiError> {
    let is_plain = !name.chars().any(char::is_control) && name.trim() == name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
        let message = format!(
            "`{param}` has to be a name of 1 to {NAME_BYTES_MAX} bytes, without control characters \
             and outer spaces"
        );
        return Err(ApiError::field(param, message));
    }
    Ok(name)
}
