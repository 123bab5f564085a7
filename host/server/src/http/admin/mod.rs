//! What operators ask and order, at `/admin`.
//!
//! # Invariants
//! 1. Nothing here is answered before [`Keyring::may_administer`](super::auth::Keyring) has agreed
//!    (`router`).
//!
//! # Not here
//! Who is an operator (`auth`); what is shown of policies ([`policies_json`]).

mod decisions;
mod dumps;
mod executors;
mod orders;
mod route;
pub(super) mod show;

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::error::{ApiError, quoted};
use super::router::{json as reply, unescaped};
use super::{App, Reply};
use crate::driver::operator::{ExecutorChange, Operator};
use crate::reload::report::policies_json;
use orders::Ordered;

/// Something to ask or order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// What there is under `/admin`.
    Index,
    /// The policies, and what became of the policy folder.
    Policies,
    /// Something that shall become of policies.
    Policy(Ordered),
    /// The executors, or another one.
    Executors,
    /// One executor.
    Executor(String),
    /// Something an executor shall do.
    Order(String, ExecutorChange),
    /// Where a request would go.
    Route,
    /// How the newest requests were decided.
    Decisions,
    /// How one was.
    Decision(String),
    /// What faults of policies left behind.
    Dumps,
    /// What one left.
    Dump(String),
}

/// What there is.
const PATHS: &str = "GET /admin, GET /admin/policies, POST /admin/policies/NAME/mode, \
                     POST /admin/policies/NAME/promote, POST /admin/policies/NAME/rollback, \
                     POST /admin/bind, POST /admin/eject, \
                     POST /admin/quarantine/FINGERPRINT/release, GET and POST /admin/executors, \
                     GET and DELETE /admin/executors/NAME, POST /admin/executors/NAME/drain, \
                     POST /admin/executors/NAME/resume, POST /admin/route, \
                     GET /admin/decisions?last=N, GET /admin/decisions/ID, \
                     GET /admin/dumps, GET /admin/dumps/NUMBER";

/// A driver that takes longer than this over a question does not answer it.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Target ===

impl Target {
    /// What `path`, without `/admin`, means.
    pub(super) fn find(path: &str) -> Result<Self, ApiError> {
        if let Some(name) = path
            .strip_prefix("/executors/")
            .filter(|name| !name.is_empty())
        {
            return Ok(Self::of_executor(name));
        }
        if let Some(id) = path.strip_prefix("/decisions/").filter(|id| !id.is_empty()) {
            return Ok(Target::Decision(unescaped(id)));
        }
        if let Some(number) = path.strip_prefix("/dumps/").filter(|it| !it.is_empty()) {
            return Ok(Target::Dump(unescaped(number)));
        }
        if let Some(ordered) = Self::of_policies(path) {
            return Ok(Target::Policy(ordered));
        }
        match path {
            "" | "/" => Ok(Target::Index),
            "/policies" => Ok(Target::Policies),
            "/executors" => Ok(Target::Executors),
            "/route" => Ok(Target::Route),
            "/decisions" => Ok(Target::Decisions),
            "/dumps" => Ok(Target::Dumps),
            _ => Err(ApiError::UnknownPath {
                path: quoted(&format!("/admin{path}")),
                known: PATHS,
            }),
        }
    }

    fn of_policies(path: &str) -> Option<Ordered> {
        match path {
            "/bind" => return Some(Ordered::Bind),
            "/eject" => return Some(Ordered::Eject),
            _ => {}
        }
        if let Some(rest) = path.strip_prefix("/quarantine/") {
            let fingerprint = rest.strip_suffix("/release")?;
            return Some(Ordered::Release(unescaped(fingerprint)));
        }
        let (name, order) = path.strip_prefix("/policies/")?.rsplit_once('/')?;
        let name = unescaped(name);
        match order {
            "mode" => Some(Ordered::Mode(name)),
            "promote" => Some(Ordered::Promote(name)),
            "rollback" => Some(Ordered::Rollback(name)),
            _ => None,
        }
    }

    /// Names of executors have slashes; one that ends like an order is to be escaped.
    fn of_executor(rest: &str) -> Self {
        match rest.rsplit_once('/') {
            Some((name, "drain")) => Target::Order(unescaped(name), ExecutorChange::Drain),
            Some((name, "resume")) => Target::Order(unescaped(name), ExecutorChange::Resume),
            Some(_) | None => Target::Executor(unescaped(rest)),
        }
    }

    /// The methods it is for.
    pub(super) fn allow(&self) -> &'static str {
        match self {
            Target::Index
            | Target::Policies
            | Target::Decisions
            | Target::Decision(_)
            | Target::Dumps
            | Target::Dump(_) => "GET, HEAD",
            Target::Executors => "GET, HEAD, POST",
            Target::Executor(_) => "GET, HEAD, DELETE",
            Target::Policy(_) | Target::Order(..) | Target::Route => "POST",
        }
    }
}

/// Answers an operator.
pub(super) async fn answer(
    app: &App,
    target: Target,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    match target {
        Target::Index => {
            let paths: Vec<&str> = PATHS.split(", ").collect();
            Ok(reply(StatusCode::OK, &json!({ "paths": paths })))
        }
        Target::Policies => policies(app).await,
        Target::Policy(ordered) => orders::give(app, ordered, request).await,
        Target::Executors => executors::all_or_another(app, request).await,
        Target::Executor(name) => executors::one(app, &name, request.method()).await,
        Target::Order(name, change) => executors::change(app, &name, change).await,
        Target::Route => route::outlook(app, request).await,
        Target::Decisions => decisions::newest(app, request.uri().query()).await,
        Target::Decision(id) => decisions::one(app, &id).await,
        Target::Dumps => dumps::shown(app, None).await,
        Target::Dump(number) => dumps::shown(app, Some(&number)).await,
    }
}

async fn policies(app: &App) -> Result<Reply, ApiError> {
    Ok(reply(StatusCode::OK, &in_time(told(app)).await?))
}

/// All there is to know about policies; absent once the driver has ended.
pub(super) async fn told(app: &App) -> Option<Value> {
    let status = app.driver.policies().await?;
    let shadows = app.driver.operate(Operator::Shadows).await?;
    let report = app.watched.reconciler.borrow();
    let mut told = policies_json(&status, &report);
    if let Some(told) = told.as_object_mut() {
        let shadows = shadows.iter();
        let shadows = shadows.map(|shadow| show::shadow(shadow, &status));
        told.insert("shadows".to_owned(), shadows.collect());
    }
    Some(told)
}

/// What the driver answers, if it does.
pub(super) async fn in_time<T>(asked: impl Future<Output = Option<T>>) -> Result<T, ApiError> {
    match timeout(DRIVER_TIMEOUT, asked).await {
        Ok(answer) => answer.ok_or_else(ApiError::draining),
        Err(_elapsed) => {
            tracing::error!("the driver does not answer an operator");
            Err(ApiError::Internal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executors_name_may_have_slashes_escaped_or_not() {
        let name = || "cpu0/demo".to_owned();
        for (path, target) in [
            ("/executors/cpu0/demo", Target::Executor(name())),
            ("/executors/cpu0%2Fdemo", Target::Executor(name())),
            (
                "/executors/cpu0/demo/drain",
                Target::Order(name(), ExecutorChange::Drain),
            ),
            (
                "/executors/cpu0%2fdemo/resume",
                Target::Order(name(), ExecutorChange::Resume),
            ),
            (
                "/executors/a%2Fdrain",
                Target::Executor("a/drain".to_owned()),
            ),
            (
                "/policies/a%2Fb/mode",
                Target::Policy(Ordered::Mode("a/b".to_owned())),
            ),
            (
                "/policies/a/promote",
                Target::Policy(Ordered::Promote("a".to_owned())),
            ),
            (
                "/quarantine/12/release",
                Target::Policy(Ordered::Release("12".to_owned())),
            ),
            ("/decisions/cmpl-1", Target::Decision("cmpl-1".to_owned())),
        ] {
            assert_eq!(Target::find(path), Ok(target), "{path}");
        }
        assert!(Target::find("/executors/").is_err());
        assert!(Target::find("istrator").is_err());
    }
}
