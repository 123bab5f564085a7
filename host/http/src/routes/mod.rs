//! The table of routes: everything that can be asked for, a row for each method of each path.
//!
//! `router` finds requests' functions here. The `Allow` header, the text of 404, the labels of
//! metrics, the checks of access and the OpenAPI document (`openapi`) follow from the same rows: a
//! new route is a row in `table` and its function.
//!
//! # Invariants
//! 1. Rows of one path stand together, have one label, and no two have the same method or name
//!    (`tests::the_table_is_consistent`).

mod table;

use hyper::{Method, StatusCode};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use pointsman_driver::catalog::{Catalog, ExecutorEntry};

use super::answer::Function;
use super::auth::Access;
use super::error::{ApiError, quoted};

/// A method of a path, and the function that answers it.
pub(super) struct Route {
    pub(super) method: Method,
    /// The path: literal text, with at most one parameter in braces. A parameter takes one
    /// character or more, slashes too.
    pub(super) path: &'static str,
    /// The route's unique name, the `operationId` of the document.
    pub(super) name: &'static str,
    /// The path's name in metrics and logs.
    pub(super) label: &'static str,
    pub(super) access: Access,
    pub(super) function: &'static dyn Function,
    /// The status of an answer that is no error and has no status of its own.
    pub(super) status: StatusCode,
    pub(super) summary: &'static str,
    /// Details beyond the summary, in Markdown; may be empty.
    pub(super) description: &'static str,
    /// The schema of the path's parameter, if it has one.
    pub(super) parameter: fn() -> Value,
    pub(super) query: Option<Query>,
    pub(super) body: Body,
    /// Statuses of errors beyond those that access, parameter and body bring along.
    pub(super) failures: &'static [u16],
}

/// An optional parameter in the query.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) name: &'static str,
    /// A word for the value, in a list of paths.
    pub(super) placeholder: &'static str,
    pub(super) schema: fn() -> Value,
}

/// The body that a route takes.
#[derive(Clone, Copy)]
pub(super) enum Body {
    None,
    /// An object, or no body at all.
    Optional(SchemaFn),
    Required(SchemaFn),
    /// The body of a completion, beside which headers may give hints about scheduling.
    Hinted(SchemaFn),
}

/// Describes a body, and adds the schemas it refers to.
pub(super) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

/// A path of the table, found by a request's path.
pub(super) struct Resource {
    rows: &'static [Route],
    /// The text at the path's parameter, unescaped; empty where the path has none.
    pub(super) parameter: String,
}

/// All rows of the table.
pub(super) fn all() -> &'static [Route] {
    table::TABLE
}

/// The routes below `/admin`, as a list of paths shows them.
pub(super) fn admin_paths() -> Vec<String> {
    shown(|route| route.is_below_admin())
}

/// The paths that are named to a client whose path is none of them.
fn known(path: &str) -> String {
    if path.starts_with("/admin") {
        return admin_paths().join(", ");
    }
    let clients = shown(|route| !route.access.is_for_operators());
    let operators = shown(|route| {
        route.access.is_for_operators() && (!route.is_below_admin() || route.path == "/admin")
    });
    format!(
        "{}; for operators {}",
        clients.join(", "),
        operators.join(", ")
    )
}

/// Each path with its methods, of the rows that are `wanted`.
fn shown(wanted: impl Fn(&Route) -> bool) -> Vec<String> {
    let rows = paths().filter(|rows| rows.iter().any(&wanted));
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

/// The rows of each path.
pub(super) fn paths() -> impl Iterator<Item = &'static [Route]> {
    all().chunk_by(|one, next| one.path == next.path)
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

// === impl Resource ===

impl Resource {
    /// Finds the path of the table that has the most literal text in common with `path`.
    pub(super) fn find(path: &str) -> Result<Self, ApiError> {
        // All that lies below `/admin` begins with a slash after it.
        let path = if path == "/admin/" { "/admin" } else { path };
        let found = paths().filter_map(|rows| {
            let (parameter, literal) = rows[0].matches(path)?;
            Some((literal, rows, parameter))
        });
        match found.max_by_key(|(literal, ..)| *literal) {
            Some((_, rows, parameter)) => Ok(Self {
                rows,
                parameter: unescaped(parameter),
            }),
            None => Err(ApiError::UnknownPath {
                path: quoted(path),
                known: known(path),
            }),
        }
    }

    /// The path of the table that is found for `path`. One that nobody here knows, and that is not for
    /// operators, is every method's where there are servers elsewhere that may know it.
    pub(super) fn find_or_pass_on(path: &str, catalog: &Catalog) -> Result<Self, ApiError> {
        Self::find(path).or_else(|error| {
            let is_for_operators = ["/admin", "/monitor"]
                .iter()
                .any(|own| path.starts_with(own));
            if is_for_operators || !catalog.executors.iter().any(ExecutorEntry::is_remote) {
                return Err(error);
            }
            Ok(Self {
                rows: table::UNKNOWN,
                parameter: String::new(),
            })
        })
    }

    /// The path's name in metrics and logs.
    pub(super) fn label(&self) -> &'static str {
        self.rows[0].label
    }

    /// The row of `method`; `HEAD` is answered as `GET` is, and hyper leaves out the body.
    pub(super) fn route(&self, method: &Method) -> Result<&'static Route, ApiError> {
        let method = if *method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let is_unknown = self.rows[0].path.is_empty();
        let mut rows = self.rows.iter();
        let route = rows.find(|route| is_unknown || route.method == *method);
        route.ok_or_else(|| ApiError::MethodNotAllowed {
            allow: self.allow(),
        })
    }

    /// True for a path at which clients have models do something.
    pub(super) fn is_for_models(&self) -> bool {
        self.rows.iter().any(Route::may_be_passed_on)
    }

    /// True if a request with this method is an order.
    pub(super) fn is_order(&self, method: &Method) -> bool {
        let route = self.route(method);
        route.is_ok_and(|route| route.access == Access::Orders)
    }

    /// True if the path is for operators, and not for clients or anybody.
    pub(super) fn is_for_operators(&self) -> bool {
        self.rows[0].access.is_for_operators()
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
            Body::Hinted(_) => !self.access.is_for_operators(),
            Body::None | Body::Optional(_) | Body::Required(_) => false,
        }
    }

    fn is_below_admin(&self) -> bool {
        self.path.starts_with("/admin")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The path of the table that is found for `path`, and the parameter.
    fn found(path: &str) -> Option<(&'static str, String)> {
        let resource = Resource::find(path).ok()?;
        Some((resource.rows[0].path, resource.parameter))
    }

    #[test]
    fn the_table_is_consistent() {
        let mut seen_paths = BTreeSet::new();
        let mut names = BTreeSet::new();
        for rows in paths() {
            let path = rows[0].path;
            assert!(seen_paths.insert(path), "rows of {path} stand apart");
            let methods: BTreeSet<&str> = rows.iter().map(|route| route.method.as_str()).collect();
            assert_eq!(methods.len(), rows.len(), "{path} has a method twice");
            for route in rows {
                assert_eq!(route.label, rows[0].label, "{path}");
                assert!(names.insert(route.name), "{} is there twice", route.name);
                assert!(
                    !route.summary.is_empty() && !route.name.is_empty(),
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn a_name_in_a_path_may_have_slashes_escaped_or_not() {
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
            (
                "/admin/quarantine/12/release",
                "/admin/quarantine/{fingerprint}/release",
                "12",
            ),
            ("/admin/decisions/cmpl-1", "/admin/decisions/{id}", "cmpl-1"),
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
    fn text_that_is_no_escape_stays_as_it_is() {
        assert_eq!(unescaped("100%"), "100%");
        assert_eq!(unescaped("%zz%4"), "%zz%4");
        assert_eq!(unescaped("%c3%a4"), "ä");
    }

    #[test]
    fn a_method_that_a_path_has_not_is_told_those_it_has() {
        for (path, allow) in [
            ("/v1/completions", "POST"),
            ("/v1/models", "GET, HEAD"),
            ("/admin/executors", "GET, HEAD, POST"),
            ("/admin/executors/cpu0", "GET, HEAD, DELETE"),
            ("/admin/executors/cpu0/drain", "POST"),
        ] {
            let resource = Resource::find(path).unwrap();
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
        let told = |path| Resource::find(path).err().unwrap().to_string();
        assert_eq!(
            told("/v1/images"),
            "there is no /v1/images; there are: POST /v1/chat/completions, POST \
             /v1/completions, POST /v1/responses, POST /v1/messages, POST /v1/embeddings, POST \
             /v1/rerank, POST /tokenize, POST /detokenize, GET /v1/models, GET /v1/models/NAME, GET /health, GET /ready, GET \
             /metrics, GET /openapi.json; for operators GET /admin, GET /monitor, GET /monitor/data"
        );
        let admin = told("/admin/executor");
        for part in [
            "there is no /admin/executor; there are: GET /admin, GET /admin/policies, ",
            "POST /admin/policies/NAME/mode, ",
            "GET and POST /admin/executors, GET and DELETE /admin/executors/NAME, ",
            "GET /admin/decisions?last=N, GET /admin/decisions/ID, ",
        ] {
            assert!(admin.contains(part), "{part} in {admin}");
        }
        assert!(!admin.contains("/health"), "{admin}");
    }
}
