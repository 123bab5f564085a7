//! The rows of operators' paths in the table of routes. Rows of one path stand together.

use std::sync::Arc;

use http::{Method, StatusCode};
use pointsman_http::answer::RouteFunction;
use pointsman_http::routes::{Route, RouteBody};
use pointsman_http::{RouteAccess, route_function};
use pointsman_openai::hinted;

use super::{
    Desk, KeptExecutors, addition, decisions, devices, dumps, executors, journal, loads, models,
    monitor, orders, policies, route, tenants,
};

const ORDER: &str = "Answered with what is in force then.";

/// Failures of a question to the driver.
const DRIVER_FAILURES: &[u16] = &[500, 503];
const ORDER_FAILURES: &[u16] = &[409, 500, 503];

/// The routes of operators. Executors that they add and remove are kept and forgotten by `kept`.
#[must_use]
pub fn routes(kept: Arc<KeptExecutors>) -> Vec<Route> {
    let desk = Arc::new(Desk::new(kept));
    [policy_routes(), fleet_routes(&desk), request_routes(&desk)]
        .into_iter()
        .flatten()
        .collect()
}

/// The routes about policies.
fn policy_routes() -> Vec<Route> {
    vec![
        admin_get("/admin", route_function!(super::index))
            .named("listAdminPaths", "admin")
            .about("Lists the paths of questions and orders.", ""),
        admin_get("/admin/policies", route_function!(policies::list))
            .named("listPolicies", "admin")
            .about("Shows everything about policies.", "")
            .fails(DRIVER_FAILURES),
        order("/admin/policies/{name}/mode", route_function!(orders::mode))
            .named("setPolicyMode", "admin")
            .about("Sets how far a policy's answers count.", ORDER)
            .takes(RouteBody::Required(orders::mode_schema)),
        order(
            "/admin/policies/{name}/promote",
            route_function!(orders::promote),
        )
        .named("promotePolicy", "admin")
        .about("Gives a shadow or canary its hooks.", ORDER)
        .takes(RouteBody::Optional(orders::empty_schema)),
        order(
            "/admin/policies/{name}/rollback",
            route_function!(orders::rollback),
        )
        .named("rollBackPolicy", "admin")
        .about("Puts the version before in force again.", ORDER)
        .takes(RouteBody::Optional(orders::empty_schema)),
        order("/admin/bind", route_function!(orders::bind))
            .named("bindHook", "admin")
            .about("Binds a hook to a policy, or undoes that.", ORDER)
            .takes(RouteBody::Required(orders::bind_schema))
            .fails(&[404, 409, 500, 503]),
        order("/admin/eject", route_function!(orders::eject))
            .named("ejectHooks", "admin")
            .about("Gives hooks back to the embedded defaults.", ORDER)
            .takes(RouteBody::Optional(orders::eject_schema)),
        order(
            "/admin/quarantine/{fingerprint}/release",
            route_function!(orders::release),
        )
        .parameter(orders::fingerprint_schema)
        .named("releaseVersion", "admin")
        .about("Lets a version of a policy out of quarantine.", ORDER)
        .takes(RouteBody::Optional(orders::empty_schema)),
    ]
}

/// The routes about executors, devices, models and tenants.
fn fleet_routes(desk: &Arc<Desk>) -> Vec<Route> {
    vec![
        admin_get("/admin/executors", route_function!(executors::list))
            .named("listExecutors", "admin")
            .about("Lists the executors and devices.", "")
            .fails(DRIVER_FAILURES),
        order("/admin/executors", route_function!(executors::add, desk))
            .named("addExecutor", "admin")
            .about(
                "Adds an executor, and its model unless that is served already.",
                "Answered when the model is loaded. With `models` in place of `name` it serves several, \
                 all of them served already.",
            )
            .takes(RouteBody::Required(addition::addition_schema))
            .status(StatusCode::CREATED),
        admin_get("/admin/executors/{name}", route_function!(executors::one))
            .named("retrieveExecutor", "admin")
            .about("Shows an executor.", "")
            .fails(DRIVER_FAILURES),
        Route::at(Method::DELETE, "/admin/executors/{name}", route_function!(executors::remove, desk))
            .named("removeExecutor", "admin")
            .access(RouteAccess::Orders)
            .about(
                "Removes an executor, and its model unless others serve that.",
                "It takes nothing new, and goes when its last request has ended.",
            )
            .status(StatusCode::ACCEPTED)
            .fails(ORDER_FAILURES),
        order("/admin/executors/{name}/drain", route_function!(executors::drain, desk))
            .named("drainExecutor", "admin")
            .about("Has an executor take nothing new.", "Its requests go on."),
        order("/admin/executors/{name}/resume", route_function!(executors::resume, desk))
            .named("resumeExecutor", "admin")
            .about("Has a drained executor take requests again.", ""),
        order("/admin/executors/{name}/share-weight", route_function!(executors::share_weight, desk))
            .named("setExecutorShareWeight", "admin")
            .about("Gives an executor another share of its device's tokens.", "")
            .takes(RouteBody::Required(executors::share_weight_schema)),
        order("/admin/executors/{name}/load", route_function!(loads::load, desk))
            .named("tellExecutorLoad", "admin")
            .about(
                "Tells the load of a server elsewhere.",
                "It goes before what the server says when it is asked, for ten seconds; what is left out is \
                 asked for as ever. The answer shows the executor as it was before.",
            )
            .takes(RouteBody::Required(loads::load_schema)),
        admin_get("/admin/devices", route_function!(devices::list))
            .named("listDevices", "admin")
            .about("Lists the devices.", "")
            .fails(DRIVER_FAILURES),
        order("/admin/devices/{name}/tokens-per-step", route_function!(devices::tokens_per_step))
            .named("setDeviceTokensPerStep", "admin")
            .about("Sets the tokens that the engines of a device may schedule in a step.", "")
            .takes(RouteBody::Required(devices::tokens_per_step_schema)),
        admin_get("/admin/models", route_function!(models::list))
            .named("listServedModels", "admin")
            .about("Lists the models with their executors and requests.", "")
            .fails(DRIVER_FAILURES),
        order("/admin/models/{name}/running-max", route_function!(models::running_max))
            .named("setModelRunningMax", "admin")
            .about("Sets how many requests of a model may run at once.", "The limit stays with the name.")
            .takes(RouteBody::Required(models::running_max_schema)),
        admin_get("/admin/tenants", route_function!(tenants::list))
            .named("listTenants", "admin")
            .about("Lists the tenants with their terms, what they use, and how much of their limits.", "")
            .fails(DRIVER_FAILURES),
    ]
}

/// The routes about requests, what is left of them, and the monitor.
fn request_routes(desk: &Arc<Desk>) -> Vec<Route> {
    vec![
        order("/admin/route", route_function!(route::forecast, desk))
            .named("forecastRoute", "admin")
            .access(RouteAccess::Operators)
            .about(
                "Tells where a request would go and why, executor by executor.",
                "Nothing is changed. The body is that of a completion; `prompt_tokens` may stand in the \
                 place of the prompt.",
            )
            .takes(hinted(route::body_schema))
            .fails(&[404, 429, 500, 503]),
        admin_get("/admin/decisions", route_function!(decisions::list))
            .named("listDecisions", "admin")
            .about("Shows how the newest requests were decided.", "")
            .query("last", "N", decisions::last_schema)
            .fails(DRIVER_FAILURES),
        admin_get("/admin/decisions/{id}", route_function!(decisions::one, desk))
            .named("retrieveDecisions", "admin")
            .about(
                "Shows how a request was decided.",
                "`id` is the id of a completion, or the value of its header `x-pointsman-request`.",
            )
            .fails(DRIVER_FAILURES),
        admin_get("/admin/dumps", route_function!(dumps::list))
            .named("listDumps", "admin")
            .about("Lists what faults of policies left behind.", "")
            .fails(&[404, 500]),
        admin_get("/admin/dumps/{number}", route_function!(dumps::one))
            .named("retrieveDump", "admin")
            .about("Shows what a fault of a policy left behind.", "")
            .fails(&[500]),
        admin_get("/admin/journal", route_function!(journal::show))
            .named("showJournal", "admin")
            .about("Shows whether the decision journal is written.", "")
            .fails(&[404]),
        Route::get("/monitor", route_function!(monitor::page))
            .named("showMonitor", "monitor")
            .access(RouteAccess::OperatorsPage)
            .about("Gives a page that shows the state of the server, live.", ""),
        Route::get("/monitor/data", route_function!(monitor::data, desk))
            .named("readMonitorData", "monitor_data")
            .access(RouteAccess::Operators)
            .about("Gives the numbers of the monitor page.", "")
            .fails(DRIVER_FAILURES),
    ]
}

fn admin_get(path: &'static str, function: RouteFunction) -> Route {
    Route::get(path, function).access(RouteAccess::Operators)
}

fn order(path: &'static str, function: RouteFunction) -> Route {
    Route::post(path, function)
        .access(RouteAccess::Orders)
        .fails(ORDER_FAILURES)
}
