//! Orders about policies, carried out by the reconciler.
//!
//! The answer to each order shows the policies in force then, as `GET /admin/policies` does.

use pointsman_component::Digest;
use pointsman_core::{Hook, HookSet};
use pointsman_driver::port::eject as eject_hooks;
use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, closed_object};
use pointsman_http::openapi::named;
use pointsman_http::{App, Call, RequestBody};
use pointsman_lifecycle::order::{Order, OrderError};
use pointsman_policy::Mode;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use super::in_time;
use super::policies::{PolicyListing, listing};

/// An order as it came.
struct Received<'a> {
    app: &'a App,
    /// The text in the path.
    named: String,
    body: RequestBody,
}

type Answered = Result<Json<PolicyListing>, ApiError>;

/// Binds a hook to a policy, or undoes that.
pub(crate) async fn bind(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let mut fields = order.fields()?;
    let name: String = fields.require("hook", "the name of a hook")?;
    let hook = hook("hook", &name)?;
    let policy = fields.take_as("policy", "the name of a policy", |_: &String| true)?;
    carry_out(order.app, fields, Order::Bind { hook, policy }).await
}

pub(crate) fn bind_schema(schemas: &mut SchemaGenerator) -> Schema {
    let policy = "By default none: the hook's holder is as if nothing had been ordered.";
    let properties = vec![
        ("hook", hook_schema()),
        ("policy", json!({"type": "string", "description": policy})),
    ];
    named(schemas, "BindRequest", closed_object(&["hook"], properties))
}

/// Sets the mode of a policy: the part that its answers have in decisions.
pub(crate) async fn mode(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let mut fields = order.fields()?;
    let policy = order.named.clone();
    let mode: String = fields.require("mode", "a mode")?;
    let mode: Result<Mode, _> = mode.parse();
    let mode = mode.map_err(|error| ApiError::field("mode", format!("`mode`: {error}")))?;
    carry_out(order.app, fields, Order::Mode { policy, mode }).await
}

pub(crate) fn mode_schema(schemas: &mut SchemaGenerator) -> Schema {
    let about = "`enforce`, `shadow`, or `canary N%`: a share of the tenants, or with `of sessions` or `of requests` of those.";
    let mode = json!({"type": "string", "description": about, "pattern": Mode::PATTERN});
    let properties = vec![("mode", mode)];
    named(schemas, "ModeRequest", closed_object(&["mode"], properties))
}

/// Gives a shadow or canary its hooks.
pub(crate) async fn promote(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let policy = order.named.clone();
    carry_out(order.app, order.fields()?, Order::Promote { policy }).await
}

/// Puts the version before in force again.
pub(crate) async fn rollback(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let policy = order.named.clone();
    carry_out(order.app, order.fields()?, Order::Rollback { policy }).await
}

/// Lets a version out of quarantine.
pub(crate) async fn release(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let text = &order.named;
    let fingerprint: Result<Digest, _> = text.parse();
    let fingerprint = fingerprint
        .map_err(|error| ApiError::field("fingerprint", format!("`{}`: {error}", quoted(text))))?;
    carry_out(order.app, order.fields()?, Order::Release { fingerprint }).await
}

/// The schema of the text in the path of [`release`].
pub(crate) fn fingerprint_schema() -> serde_json::Value {
    json!({"type": "string", "minLength": 1, "pattern": Digest::PATTERN})
}

/// The schema of the empty body, for orders whose path says everything.
pub(crate) fn empty_schema(_: &mut SchemaGenerator) -> Schema {
    closed_object(&[], Vec::new())
}

/// Gives hooks back to the embedded defaults.
pub(crate) async fn eject(call: Call<'_>) -> Answered {
    let order = read(call).await?;
    let mut fields = order.fields()?;
    let names: Option<Vec<String>> =
        fields.take_as("hooks", "a list of names of hooks", |_| true)?;
    let hooks = match names {
        Some(names) => names
            .iter()
            .map(|name| hook("hooks", name))
            .collect::<Result<HookSet, _>>()?,
        None => Hook::ALL.into_iter().collect(),
    };
    carry_out(order.app, fields, Order::Eject { hooks }).await
}

pub(crate) fn eject_schema(schemas: &mut SchemaGenerator) -> Schema {
    let hooks = json_schema!({
        "description": "By default all.",
        "type": "array", "items": hook_schema(),
    });
    let properties = vec![("hooks", hooks.to_value())];
    named(schemas, "EjectRequest", closed_object(&[], properties))
}

/// Reads an order.
async fn read(call: Call<'_>) -> Result<Received<'_>, ApiError> {
    Ok(Received {
        app: call.app,
        named: call.parameter.clone(),
        body: call.body().await?,
    })
}

impl Received<'_> {
    /// The fields of the body, which may be empty.
    fn fields(&self) -> Result<Fields<'_>, ApiError> {
        if self.body.is_empty() {
            return Ok(Fields::none(str::to_owned));
        }
        Fields::parse(&self.body)
    }
}

/// Has `order` carried out, if no field of its body is left.
async fn carry_out(app: &App, fields: Fields<'_>, order: Order) -> Answered {
    if let Some(unknown) = fields.left().next() {
        let message = format!("there is no `{}` in this order", quoted(unknown));
        return Err(ApiError::field(quoted(unknown), message));
    }
    let orders = &app.watched.orders;
    let carried = match order {
        Order::Eject { hooks } => eject_hooks(&app.driver, orders, hooks)
            .await
            .map(|_is_noted| ()),
        order @ (Order::Bind { .. }
        | Order::Mode { .. }
        | Order::Promote { .. }
        | Order::Rollback { .. }
        | Order::Release { .. }) => orders.order(order).await,
    };
    carried.map_err(refused)?;
    in_time(listing(app)).await.map(Json)
}

fn hook(param: &'static str, name: &str) -> Result<Hook, ApiError> {
    Hook::named(name).ok_or_else(|| {
        let known = Hook::ALL.map(Hook::as_str).join(", ");
        let message = format!("there is no hook `{}`; there are: {known}", quoted(name));
        ApiError::field(param, message)
    })
}

fn hook_schema() -> serde_json::Value {
    json!({"type": "string", "enum": Hook::ALL.map(Hook::as_str)})
}

fn refused(error: OrderError) -> ApiError {
    match error {
        OrderError::NoPolicy(_) | OrderError::NotQuarantined(_) => {
            ApiError::Absent(error.to_string())
        }
        OrderError::NotExported { .. }
        | OrderError::NotEnforced { .. }
        | OrderError::InForce(_)
        | OrderError::NoCanary(_)
        | OrderError::Embedded(_)
        | OrderError::Idle(_)
        | OrderError::Failed { .. } => ApiError::Conflict(error.to_string()),
        OrderError::HostEnded => ApiError::draining(),
    }
}
