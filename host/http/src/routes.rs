//! The table of routes: everything that can be asked for, a row for each method of each path.
//!
//! Each surface brings its rows, and `pointsman-server` puts them together. `router` finds requests'
//! functions here. The `Allow` header, the text of 404, the labels of metrics, the checks of access and the
//! OpenAPI document (`openapi`) follow from the same rows: a new route is a row and its function.
//!
//! # Invariants
//! 1. Rows of one path stand together, have one label, and no two have the same method or name
//!    (`the_table_is_consistent`, in `host/server/src/routes.rs`).

use std::sync::OnceLock;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

use pointsman_driver::catalog::{Catalog, ExecutorEntry};
use pointsman_driver::spans::Operation;

use super::answer::RouteFunction;
use super::auth::RouteAccess;
use super::error::{ApiError, quoted};
use super::{openapi, probes};
use crate::route_function;

/// A method of a path, and the function that answers it.
#[derive(Debug)]
pub struct Route {
    pub(super) method: Method,
    /// The path: literal text, with at most one parameter in braces. A parameter takes one
    /// character or more, slashes too.
    pub(super) path: &'static str,
    /// The route's unique name, the `operationId` of the document.
    pub(super) name: &'static str,
    /// The path's name in metrics and logs.
    pub(super) label: &'static str,
    pub(super) access: RouteAccess,
    pub(super) function: RouteFunction,
    /// The status of an answer that is no error and has no status of its own.
    pub(super) status: StatusCode,
    pub(super) summary: &'static str,
    /// Details beyond the summary, in Markdown; may be empty.
    pub(super) description: &'static str,
    /// The schema of the path's parameter, if it has one.
    pub(super) parameter: fn() -> Value,
    pub(super) query: Option<Query>,
    pub(super) body: RouteBody,
    /// The operation that a request is in a trace.
    pub(super) operation: Operation,
    /// Statuses of errors beyond those that access, parameter and body bring along.
    pub(super) failures: &'static [u16],
}

/// An optional parameter in the query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) name: &'static str,
    /// A word for the value, in a list of paths.
    pub(super) placeholder: &'static str,
    pub(super) schema: fn() -> Value,
}

/// The body that a route takes.
#[derive(Clone, Copy, Debug)]
pub enum RouteBody {
    /// None.
    None,
    /// An object, or no body at all.
    Optional(SchemaFn),
    /// An object.
    Required(SchemaFn),
    /// The body of a completion, beside which headers may give hints about scheduling.
    Hinted {
        /// Describes the body.
        schema: SchemaFn,
        /// The headers by name, as parameters of the document.
        headers: fn() -> Vec<(String, Value)>,
    },
}

/// Describes a body, and adds the schemas it refers to.
pub type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// All that can be asked for.
#[derive(Debug)]
pub struct RouteTable {
    // Immutable.
    /// Rows of one path stand together.
    rows: Vec<Route>,
    /// The row of a path that is not in the table, for any method.
    unknown: Route,
    // Owned.
    /// The OpenAPI document, once it was asked for.
    document: OnceLock<Bytes>,
}

/// A path of the table, found by a request's path.
#[derive(Debug)]
pub(super) struct Resource<'a> {
    rows: &'a [Route],
    /// The text at the path's parameter, unescaped; empty where the path has none.
    pub(super) parameter: String,
}

/// The routes of the server itself: for load balancers, for monitoring, and the document.
#[must_use]
pub fn server_routes() -> Vec<Route> {
    vec![
        Route::get("/live", route_function!(probes::live))
            .named("checkLife", "live")
            .about(
                "Tells whether the host answers.",
                "Whether or not executors are up: one that does not is to be started again.",
            ),
        Route::get("/health", route_function!(probes::health))
            .named("checkHealth", "health")
            .about("Tells whether an executor is up.", ""),
        Route::get("/ready", route_function!(probes::ready))
            .named("checkReadiness", "ready")
            .about(
                "Tells whether models are loaded and policies in force.",
                "Not before, and not while the server shuts down.",
            ),
        Route::get("/metrics", route_function!(probes::metrics))
            .named("readMetrics", "metrics")
            .access(RouteAccess::Metrics)
            .about("Gives the metrics as OpenMetrics text.", ""),
        Route::get("/openapi.json", route_function!(openapi::document))
            .named("readDocument", "openapi")
            .about("Gives this document.", ""),
    ]
}

/// The text before a path's parameter, the parameter's name, and the text after it.
pub(super) fn parts(path: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = path.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// Replaces `%2F` by `/` and so on. Text that is no escape stays as it is.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn some_text() -> Value {
    json!({"type": "string", "minLength": 1})
}

// === impl RouteTable ===

impl RouteTable {
    /// The table of these rows. Paths that are in none of them go to `unknown` where a server elsewhere may know
    /// them.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = Route>, unknown: Route) -> Self {
        Self {
            rows: rows.into_iter().collect(),
            unknown,
            document: OnceLock::new(),
        }
    }

    /// The rows of each path.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[Route]> {
        self.rows.chunk_by(|one, next| one.path == next.path)
    }

    /// The routes below `/admin`, as a list of paths shows them.
    #[must_use]
    pub fn admin_paths(&self) -> Vec<String> {
        self.shown(Route::is_below_admin)
    }

    /// Finds the path of the table that has the most literal text in common with `path`.
    pub(super) fn find(&self, path: &str) -> Result<Resource<'_>, ApiError> {
        // All that lies below `/admin` begins with a slash after it.
        let path = if path == "/admin/" { "/admin" } else { path };
        let found = self.paths().filter_map(|rows| {
            let (parameter, literal) = rows[0].matches(path)?;
            Some((literal, rows, parameter))
        });
        match found.max_by_key(|(literal, ..)| *literal) {
            Some((_, rows, parameter)) => Ok(Resource {
                rows,
                parameter: unescaped(parameter),
            }),
            None => Err(ApiError::UnknownPath {
                path: quoted(path),
                known: self.known(path),
            }),
        }
    }

    /// The path of the table that is found for `path`. One that nobody here knows, and that is not for
    /// operators, is every method's where there are servers elsewhere that may know it. The targets of `OPTIONS *` and of
    /// `CONNECT` are no paths.
    pub(super) fn find_or_pass_on(
        &self,
        path: &str,
        catalog: &Catalog,
    ) -> Result<Resource<'_>, ApiError> {
        self.find(path).or_else(|error| {
            let is_for_operators = ["/admin", "/monitor"]
                .iter()
                .any(|own| path.starts_with(own));
            let is_path = path.starts_with('/') && !is_for_operators;
            if !is_path || !catalog.executors.iter().any(ExecutorEntry::is_remote) {
                return Err(error);
            }
            Ok(Resource {
                rows: std::slice::from_ref(&self.unknown),
                parameter: String::new(),
            })
        })
    }

    /// The OpenAPI document of the table.
    pub(super) fn document(&self) -> Bytes {
        let document = self.document.get_or_init(|| openapi::text(self).into());
        document.clone()
    }

    /// The paths that are named to a client whose path is none of them.
    fn known(&self, path: &str) -> String {
        if path.starts_with("/admin") {
            return self.admin_paths().join(", ");
        }
        let clients = self.shown(|route| !route.access.is_for_operators());
        let operators = self.shown(|route| {
            route.access.is_for_operators() && (!route.is_below_admin() || route.path == "/admin")
        });
        format!(
            "{}; for operators {}",
            clients.join(", "),
            operators.join(", ")
        )
    }

    /// Each path with its methods, of the rows that are `wanted`.
    fn shown(&self, wanted: impl Fn(&Route) -> bool) -> Vec<String> {
        let rows = self.paths().filter(|rows| rows.iter().any(&wanted));
        rows.map(|rows| {
            let methods: Vec<&str> = rows.iter().map(|route| route.method.as_str()).collect();
            let query = rows.iter().find_map(|route| route.query);
            let query = query.map(|query| format!("?{}={}", query.name, query.placeholder));
            let path = match parts(rows[0].path) {
                None => rows[0].path.to_owned(),
                Some((before, name, after)) => format!("{before}{}{after}", name.to_uppercase()),
            };
            let query = query.unwrap_or_default();
            format!("{} {path}{query}", methods.join(" and "))
        })
        .collect()
    }
}

// === impl Resource ===

impl<'a> Resource<'a> {
    /// The path's name in metrics and logs.
    pub(super) fn label(&self) -> &'static str {
        self.rows[0].label
    }

    /// The row of `method`; `HEAD` is answered as `GET` is, and hyper leaves out the body.
    pub(super) fn route(&self, method: &Method) -> Result<&'a Route, ApiError> {
        let method = if *method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let any = self.takes_any_method();
        let mut rows = self.rows.iter();
        let route = rows.find(|route| any || route.method == *method);
        route.ok_or_else(|| ApiError::MethodNotAllowed {
            allow: self.allow(),
        })
    }

    /// The operation that a request for the path is in a trace.
    pub(super) fn operation(&self) -> Operation {
        self.rows[0].operation
    }

    /// True for a path at which clients have models do something.
    pub(super) fn is_for_models(&self) -> bool {
        self.rows.iter().any(Route::may_be_passed_on)
    }

    /// True if a request with this method is an order.
    pub(super) fn is_order(&self, method: &Method) -> bool {
        let route = self.route(method);
        route.is_ok_and(|route| route.access == RouteAccess::Orders)
    }

    /// True if the path is for operators, and not for clients or anybody.
    pub(super) fn is_for_operators(&self) -> bool {
        self.rows[0].access.is_for_operators()
    }

    /// True for a path that nobody here knows: a server elsewhere may know it with any method.
    pub(super) fn takes_any_method(&self) -> bool {
        self.rows[0].path.is_empty()
    }

    /// The value of the header `Allow`.
    pub(super) fn allow(&self) -> String {
        let methods = self.rows.iter().map(|route| {
            if route.method == Method::GET {
                "GET, HEAD"
            } else {
                route.method.as_str()
            }
        });
        methods.collect::<Vec<_>>().join(", ")
    }
}

// === impl Route ===

impl Route {
    /// A row that gives what is at `path`.
    #[must_use]
    pub fn get(path: &'static str, function: RouteFunction) -> Self {
        Self::at(Method::GET, path, function)
    }

    /// A row that takes a body at `path`.
    #[must_use]
    pub fn post(path: &'static str, function: RouteFunction) -> Self {
        Self::at(Method::POST, path, function)
    }

    /// A row of any method.
    #[must_use]
    pub fn at(method: Method, path: &'static str, function: RouteFunction) -> Self {
        Self {
            method,
            path,
            name: "",
            label: "",
            access: RouteAccess::Open,
            function,
            status: StatusCode::OK,
            summary: "",
            description: "",
            parameter: some_text,
            query: None,
            body: RouteBody::None,
            operation: Operation::Other,
            failures: &[],
        }
    }

    /// Names the route in the document, and its path in metrics and logs.
    #[must_use]
    pub fn named(mut self, name: &'static str, label: &'static str) -> Self {
        self.name = name;
        self.label = label;
        self
    }

    /// Sets the rule by which requests are let in; anybody's are otherwise.
    #[must_use]
    pub fn access(mut self, access: RouteAccess) -> Self {
        self.access = access;
        self
    }

    /// Sets the texts of the document.
    #[must_use]
    pub fn about(mut self, summary: &'static str, description: &'static str) -> Self {
        self.summary = summary;
        self.description = description;
        self
    }

    /// Sets the body; there is none otherwise.
    #[must_use]
    pub fn takes(mut self, body: RouteBody) -> Self {
        self.body = body;
        self
    }

    /// Sets the operation that a request is in a trace.
    #[must_use]
    pub fn operation(mut self, operation: Operation) -> Self {
        self.operation = operation;
        self
    }

    /// Sets the schema of the path's parameter; it is some text otherwise.
    #[must_use]
    pub fn parameter(mut self, schema: fn() -> Value) -> Self {
        self.parameter = schema;
        self
    }

    /// Adds an optional parameter in the query.
    #[must_use]
    pub fn query(
        mut self,
        name: &'static str,
        placeholder: &'static str,
        schema: fn() -> Value,
    ) -> Self {
        self.query = Some(Query {
            name,
            placeholder,
            schema,
        });
        self
    }

    /// Sets the status of answers that have none of their own; 200 otherwise.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Sets statuses of errors beyond those that access, parameter and body bring along.
    #[must_use]
    pub fn fails(mut self, failures: &'static [u16]) -> Self {
        self.failures = failures;
        self
    }

    /// The text of `path` at the parameter, and the number of bytes of literal text; absent: `path`
    /// is not the route's.
    fn matches<'p>(&self, path: &'p str) -> Option<(&'p str, usize)> {
        match parts(self.path) {
            None => (path == self.path).then_some(("", path.len())),
            Some((before, _, after)) => {
                let parameter = path.strip_prefix(before)?.strip_suffix(after)?;
                (!parameter.is_empty()).then_some((parameter, before.len() + after.len()))
            }
        }
    }

    /// True if a server elsewhere may answer, in its own words.
    pub(super) fn may_be_passed_on(&self) -> bool {
        match self.body {
            RouteBody::Hinted { .. } => !self.access.is_for_operators(),
            RouteBody::None | RouteBody::Optional(_) | RouteBody::Required(_) => false,
        }
    }

    fn is_below_admin(&self) -> bool {
        self.path.starts_with("/admin")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with some paths of every kind.
    fn table() -> RouteTable {
        let row = |method: Method, path: &'static str| {
            Route::at(method, path, route_function!(probes::ready))
        };
        let get = |path| row(Method::GET, path);
        let post = |path| row(Method::POST, path);
        let rows = [
            post("/v1/completions"),
            get("/v1/models"),
            get("/v1/models/{name}"),
            get("/admin").access(RouteAccess::Operators),
            get("/admin/executors").access(RouteAccess::Operators),
            post("/admin/executors").access(RouteAccess::Orders),
            get("/admin/executors/{name}").access(RouteAccess::Operators),
            row(Method::DELETE, "/admin/executors/{name}").access(RouteAccess::Orders),
            post("/admin/executors/{name}/drain").access(RouteAccess::Orders),
            post("/admin/executors/{name}/resume").access(RouteAccess::Orders),
            post("/admin/policies/{name}/mode").access(RouteAccess::Orders),
            post("/admin/policies/{name}/promote").access(RouteAccess::Orders),
            get("/admin/decisions")
                .access(RouteAccess::Operators)
                .query("last", "N", some_text),
            get("/monitor").access(RouteAccess::OperatorsPage),
        ];
        RouteTable::new(rows, get(""))
    }

    #[test]
    fn a_name_in_a_path_may_have_slashes_escaped_or_not() {
        let table = table();
        let found = |path| {
            let resource = table.find(path).ok()?;
            Some((resource.rows[0].path, resource.parameter))
        };
        let executor = "/admin/executors/{name}";
        for (path, route, parameter) in [
            ("/v1/models/org/name", "/v1/models/{name}", "org/name"),
            ("/v1/models/org%2fname", "/v1/models/{name}", "org/name"),
            ("/admin/executors/cpu0/demo", executor, "cpu0/demo"),
            ("/admin/executors/cpu0%2Fdemo", executor, "cpu0/demo"),
            (
                "/admin/executors/cpu0/demo/drain",
                "/admin/executors/{name}/drain",
                "cpu0/demo",
            ),
            (
                "/admin/executors/cpu0%2fdemo/resume",
                "/admin/executors/{name}/resume",
                "cpu0/demo",
            ),
            // An executor whose name ends like an order is escaped.
            ("/admin/executors/a%2Fdrain", executor, "a/drain"),
            (
                "/admin/policies/a%2Fb/mode",
                "/admin/policies/{name}/mode",
                "a/b",
            ),
            (
                "/admin/policies/a/promote",
                "/admin/policies/{name}/promote",
                "a",
            ),
            ("/admin", "/admin", ""),
            ("/admin/", "/admin", ""),
        ] {
            assert_eq!(found(path), Some((route, parameter.to_owned())), "{path}");
        }
        for path in ["/v1/models/", "/admin/executors/", "/administrator", "/"] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn a_method_that_a_path_has_not_is_told_those_it_has() {
        let table = table();
        for (path, allow) in [
            ("/v1/completions", "POST"),
            ("/v1/models", "GET, HEAD"),
            ("/admin/executors", "GET, HEAD, POST"),
            ("/admin/executors/cpu0", "GET, HEAD, DELETE"),
            ("/admin/executors/cpu0/drain", "POST"),
        ] {
            let resource = table.find(path).unwrap();
            let allow = allow.to_owned();
            let refused = resource.route(&Method::PATCH).err();
            assert_eq!(
                refused,
                Some(ApiError::MethodNotAllowed { allow }),
                "{path}"
            );
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_told_those_that_are() {
        let table = table();
        let told = |path| table.find(path).err().unwrap().to_string();
        assert_eq!(
            told("/v1/images"),
            "there is no /v1/images; there are: POST /v1/completions, GET /v1/models, GET \
             /v1/models/NAME; for operators GET /admin, GET /monitor"
        );
        assert_eq!(
            told("/admin/executor"),
            "there is no /admin/executor; there are: GET /admin, GET and POST /admin/executors, GET \
             and DELETE /admin/executors/NAME, POST /admin/executors/NAME/drain, POST \
             /admin/executors/NAME/resume, POST /admin/policies/NAME/mode, POST \
             /admin/policies/NAME/promote, GET /admin/decisions?last=N"
        );
    }

    #[test]
    fn text_that_is_no_escape_stays_as_it_is() {
        assert_eq!(unescaped("100%"), "100%");
        assert_eq!(unescaped("%zz%4"), "%zz%4");
        assert_eq!(unescaped("%c3%a4"), "ä");
    }
}
