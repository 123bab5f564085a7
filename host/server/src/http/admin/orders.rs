//! Orders about policies, carried out by the reconciler.

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use pointsman_core::{Hook, HookSet};
use pointsman_policy::{Digest, Mode};

use super::super::error::{ApiError, quoted};
use super::super::fields::Fields;
use super::super::router::json as reply;
use super::super::{App, Reply, body};
use super::{in_time, told};
use crate::driver_port::eject;
use crate::reload::order::{Order, OrderError};

/// An order as its path says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) enum Ordered {
    /// A hook is a policy's.
    Bind,
    /// How far a policy's answers count.
    Mode(String),
    /// A shadow or canary gets its hooks.
    Promote(String),
    /// The version before is in force again.
    Rollback(String),
    /// Hooks are the embedded defaults'.
    Eject,
    /// A version may leave the quarantine.
    Release(String),
}

/// Has it carried out; what is in force then.
pub(super) async fn give(
    app: &App,
    ordered: Ordered,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    let body = body::read(request, &app.http).await?;
    let mut fields = if body.is_empty() {
        Fields::parse(b"{}")?
    } else {
        Fields::parse(&body)?
    };
    let order = understood(ordered, &mut fields)?;
    if let Some(unknown) = fields.left().next() {
        let message = format!("there is no `{}` in this order", quoted(unknown));
        return Err(ApiError::field(quoted(unknown), message));
    }
    tracing::info!(?order, "operator's order");
    let orders = &app.watched.orders;
    let carried = match order {
        Order::Eject { hooks } => eject(&app.driver, orders, hooks).await.map(|_is_noted| ()),
        order @ (Order::Bind { .. }
        | Order::Mode { .. }
        | Order::Promote { .. }
        | Order::Rollback { .. }
        | Order::Release { .. }) => orders.order(order).await,
    };
    carried.map_err(refused)?;
    Ok(reply(StatusCode::OK, &in_time(told(app)).await?))
}

fn understood(ordered: Ordered, fields: &mut Fields) -> Result<Order, ApiError> {
    Ok(match ordered {
        Ordered::Bind => Order::Bind {
            hook: hook(
                "hook",
                &fields.require::<String>("hook", "the name of a hook")?,
            )?,
            policy: fields.take_as("policy", "the name of a policy", |_: &String| true)?,
        },
        Ordered::Mode(policy) => {
            let mode: String = fields.require("mode", "a mode")?;
            let mode: Mode = mode
                .parse()
                .map_err(|error| ApiError::field("mode", format!("`mode`: {error}")))?;
            Order::Mode { policy, mode }
        }
        Ordered::Promote(policy) => Order::Promote { policy },
        Ordered::Rollback(policy) => Order::Rollback { policy },
        Ordered::Eject => {
            let names: Option<Vec<String>> =
                fields.take_as("hooks", "a list of names of hooks", |_| true)?;
            let hooks = match names {
                Some(names) => names
                    .iter()
                    .map(|name| hook("hooks", name))
                    .collect::<Result<HookSet, _>>()?,
                None => Hook::ALL.into_iter().collect(),
            };
            Order::Eject { hooks }
        }
        Ordered::Release(fingerprint) => {
            let known: Result<Digest, _> = fingerprint.parse();
            let fingerprint = known.map_err(|error| {
                ApiError::field(
                    "fingerprint",
                    format!("`{}`: {error}", quoted(&fingerprint)),
                )
            })?;
            Order::Release { fingerprint }
        }
    })
}

fn hook(param: &'static str, name: &str) -> Result<Hook, ApiError> {
    Hook::named(name).ok_or_else(|| {
        let known = Hook::ALL.map(Hook::as_str).join(", ");
        let message = format!("there is no hook `{}`; there are: {known}", quoted(name));
        ApiError::field(param, message)
    })
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
        OrderError::Ended => ApiError::draining(),
    }
}
