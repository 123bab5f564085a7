//! Devices: their list, and the tokens that their engines may schedule in a step.

use std::sync::Arc;

use pointsman_driver::operator::{DeviceRefused, DeviceRow, Operator};
use pointsman_driver::provider::TOKENS_PER_STEP as RANGE;
use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, closed_object, integer};
use pointsman_http::openapi::named;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use super::in_time;

/// The devices.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceList {
    devices: Vec<DeviceShape>,
}

/// A device with its KV blocks.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Device")]
pub(crate) struct DeviceShape {
    name: String,
    /// Tokens that all its engines together may schedule in a step; null: each sets a number of its
    /// own.
    tokens_per_step: Option<u32>,
    /// Null: a server elsewhere, which does not tell.
    block_bytes: Option<u64>,
    /// Null, as the next two: a server elsewhere that tells nothing of blocks.
    blocks_total: Option<u32>,
    /// Blocks that hold nothing.
    blocks_free: Option<u32>,
    /// Blocks that are free on demand and hold a prefix.
    blocks_cached: Option<u32>,
    /// Blocks of host memory, to which what evicted sequences hold can be moved.
    host_blocks_total: u32,
    /// Blocks of host memory that hold nothing.
    host_blocks_free: u32,
}

const TOKENS_PER_STEP: &str = "tokens-per-step";

pub(crate) async fn list(call: Call<'_>) -> Result<Json<DeviceList>, ApiError> {
    let overview = in_time(call.app.driver.operate(Operator::Overview)).await?;
    let devices = overview.devices.iter().map(DeviceShape::from).collect();
    Ok(Json(DeviceList { devices }))
}

/// Sets the tokens that the engines of a device may schedule in a step.
pub(crate) async fn tokens_per_step(call: Call<'_>) -> Result<Json<DeviceShape>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let mut fields = Fields::parse(&body)?;
    let tokens = fields.take_integer(TOKENS_PER_STEP, &RANGE)?;
    let tokens = tokens.ok_or(ApiError::Missing(TOKENS_PER_STEP))?;
    fields.none_left(&[TOKENS_PER_STEP])?;
    let order = |answer| Operator::TokensPerStep(name, tokens, answer);
    match in_time(app.driver.operate(order)).await? {
        Ok(row) => Ok(Json(DeviceShape::from(&row))),
        Err(error @ DeviceRefused::Unknown { .. }) => Err(ApiError::Absent(error.to_string())),
        Err(error @ DeviceRefused::Machine(_)) => Err(ApiError::Conflict(error.to_string())),
    }
}

/// The schema of the body of [`tokens_per_step`].
pub(crate) fn tokens_per_step_schema(schemas: &mut SchemaGenerator) -> Schema {
    let tokens = integer("At least the slots of the device's executors.", &RANGE);
    let body = closed_object(&[TOKENS_PER_STEP], vec![(TOKENS_PER_STEP, tokens)]);
    named(schemas, "TokensPerStepRequest", body)
}

impl From<&DeviceRow> for DeviceShape {
    fn from(row: &DeviceRow) -> Self {
        Self {
            name: row.name.clone(),
            tokens_per_step: row.tokens_per_step,
            block_bytes: row.blocks.and_then(|blocks| blocks.bytes),
            blocks_total: row.blocks.map(|blocks| blocks.total),
            blocks_free: row.blocks.map(|blocks| blocks.free),
            blocks_cached: row.blocks.map(|blocks| blocks.cached),
            host_blocks_total: row.host_blocks_total,
            host_blocks_free: row.host_blocks_free,
        }
    }
}
