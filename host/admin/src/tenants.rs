//! Tenants as operators see them: their terms, what they use, and how much of their limits.

use pointsman_driver::operator::{Operator, TenantRow};
use pointsman_driver::quota::{LimitUse, LimitsUse};
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use pointsman_http::{App, Call};
use schemars::JsonSchema;
use serde::Serialize;

use super::in_time;

/// The tenants that are configured or have asked.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Tenants {
    tenants: Vec<TenantShape>,
}

/// A tenant, and what it uses.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tenant")]
pub(crate) struct TenantShape {
    name: String,
    /// Its share, relative to the others'.
    weight: u32,
    /// Tokens per minute that it is to have where others want some too, which is no limit; null: none are set.
    tokens_per_minute: Option<u64>,
    /// Requests that run, or wait at an executor.
    running: u32,
    /// Requests that wait in the host.
    waiting: u32,
    /// Tokens of prompts and answers since the server began.
    tokens_total: u64,
    limits: LimitsShape,
}

/// The limits of a tenant that no policy can lift; null: it has no such limit.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct LimitsShape {
    /// Requests in any minute.
    requests_per_minute: Option<LimitShape>,
    /// Tokens in any minute, with those that requests in hand may use.
    tokens_per_minute_max: Option<LimitShape>,
    /// Requests in hand at once.
    concurrent_max: Option<LimitShape>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct LimitShape {
    max: u64,
    used: u64,
}

pub(crate) async fn list(call: Call<'_>) -> Result<Json<Tenants>, ApiError> {
    let overview = in_time(call.app.driver.operate(Operator::Overview)).await?;
    Ok(Json(Tenants {
        tenants: shapes(call.app, overview.tenants),
    }))
}

/// The tenants with the use of their limits now.
pub(crate) fn shapes(app: &App, rows: Vec<TenantRow>) -> Vec<TenantShape> {
    let now = app.watched.clock.now();
    let rows = rows.into_iter().map(|row| {
        let used = app.watched.quotas.of(&row.name, now);
        TenantShape::new(row, used.unwrap_or_default())
    });
    rows.collect()
}

impl TenantShape {
    fn new(row: TenantRow, used: LimitsUse) -> Self {
        Self {
            name: row.name,
            weight: row.weight,
            tokens_per_minute: row.tokens_per_minute,
            running: row.running,
            waiting: row.waiting,
            tokens_total: row.tokens_total,
            limits: LimitsShape {
                requests_per_minute: used.requests.map(LimitShape::from),
                tokens_per_minute_max: used.tokens.map(LimitShape::from),
                concurrent_max: used.concurrent.map(LimitShape::from),
            },
        }
    }
}

impl From<LimitUse> for LimitShape {
    fn from(of: LimitUse) -> Self {
        Self {
            max: of.max,
            used: of.used,
        }
    }
}
