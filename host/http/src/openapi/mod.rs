//! `/openapi.json`: the table of routes as an OpenAPI 3.1 document.
//!
//! Paths, methods, parameters, access and statuses come from the rows of the table; schemas of
//! answers from the types that write them, schemas of bodies from beside the code that reads them.
//! The document is the same on every server of a version.
//!
//! # Invariants
//! 1. `host/docs/openapi.json` in the repository is this document
//!    (`the_document_in_the_repository_is_the_one_that_is_served` in `host/server/tests/http`).
//! 2. Answers fit their schemas, and bodies that are accepted fit theirs: the clients of
//!    `host/server/tests/http` and of `tests` check all they see (`conformance`).

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;

use bytes::Bytes;
use hyper::StatusCode;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::answer::{HttpAnswer, HttpReply, JSON, Responses, reply, response};
use super::auth::RouteAccess;
use super::error::{ApiError, ErrorBody, STATUSES};
use super::router::Call;
use super::routes::{self, Route, RouteBody, RouteTable};

/// The answer of `/openapi.json`.
pub(super) struct Document(Bytes);

const DESCRIPTION: &str = "\
An OpenAI-compatible interface to models, with hints about scheduling, and what operators ask and \
order. Each `GET` also answers `HEAD`. Names in paths may have slashes, as they are or as `%2F`. In \
bodies `null` is as good as absent.";

const API_KEY: &str = "apiKey";
const ADMIN_KEY: &str = "adminKey";
/// The beginning of the names of responses that may be another server's.
const RELAYED: &str = "Relayed";
/// The description of what another server answers.
const OTHERS: &str = "The words of a server elsewhere.";

pub(super) async fn document(call: Call<'_>) -> Result<Document, ApiError> {
    Ok(Document(call.app.routes.document()))
}

/// The text of the document of `table`.
pub(super) fn text(table: &RouteTable) -> String {
    let mut document = make(table);
    // By name, in whatever order the schemas were made.
    document.sort_all_objects();
    format!("{document:#}\n")
}

/// Adds a schema to those that the document names, and refers to it.
pub fn named(schemas: &mut SchemaGenerator, name: &str, schema: Schema) -> Schema {
    let definitions = schemas.definitions_mut();
    definitions.insert(name.to_owned(), schema.to_value());
    Schema::new_ref(reference("schemas", name))
}

fn reference(kind: &str, name: &str) -> String {
    format!("#/components/{kind}/{name}")
}

fn make(table: &RouteTable) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings =
        settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let paths = table.paths().map(|rows| {
        let operations = rows.iter().map(|route| {
            let method = route.method.as_str().to_lowercase();
            (method, operation(route, &mut schemas))
        });
        (rows[0].path.to_owned(), Value::from_iter(operations))
    });
    let paths: Map<_, _> = paths.collect();
    let error = schemas.subschema_for::<ErrorBody>();
    let responses = STATUSES.into_iter().flat_map(|(status, about)| {
        let relayed = json!({"anyOf": [error, {"description": OTHERS}]});
        let own = error_response(about, error.as_value(), status);
        let relayed = error_response(about, &relayed, status);
        [(error_name(status), own), (relayed_name(status), relayed)]
    });
    let other = json!({"description": "The response of a server elsewhere."});
    let responses = responses.chain([(RELAYED.to_owned(), other)]);
    let rows = table.paths().flatten();
    let parameters = rows.flat_map(header_parameters);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Pointsman",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "The default address."}],
        "tags": Tag::ALL.map(|tag| json!({"name": tag.name(), "description": tag.about()})),
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": Map::from_iter(responses),
            "parameters": Map::from_iter(parameters),
            "securitySchemes": {
                API_KEY: bearer("A key of the configuration's `[[keys]]`, where there are any."),
                ADMIN_KEY: bearer(
                    "The configuration's `admin.key`, where there is one; for questions `admin.read-key` will do.",
                ),
            },
        },
    })
}

fn bearer(about: &str) -> Value {
    json!({"type": "http", "scheme": "bearer", "description": about})
}

fn error_name(status: u16) -> String {
    format!("Error{status}")
}

/// The name of an error's response that may also be another server's.
fn relayed_name(status: u16) -> String {
    format!("{RELAYED}{status}")
}

fn error_response(about: &str, error: &Value, status: u16) -> Value {
    let header = |about: &str, kind: &str| json!({"description": about, "schema": {"type": kind}});
    let mut headers = Map::new();
    if status == StatusCode::UNAUTHORIZED {
        let challenge = header("The way to give a key.", "string");
        headers.insert("WWW-Authenticate".to_owned(), challenge);
    }
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        let seconds = header(
            "Seconds after which to try again, where that may help.",
            "integer",
        );
        headers.insert("Retry-After".to_owned(), seconds);
    }
    let content = json!({"application/json": {"schema": error}});
    json!({"description": about, "headers": headers, "content": content})
}

fn operation(route: &Route, schemas: &mut SchemaGenerator) -> Value {
    let mut responses = route.function.responses(route.status, schemas);
    let named = if route.may_be_passed_on() {
        let other = json!({"$ref": reference("responses", RELAYED)});
        responses.insert("default".to_owned(), other);
        relayed_name
    } else {
        error_name
    };
    for status in failures(route) {
        let failure = json!({"$ref": reference("responses", &named(status))});
        responses.entry(status.to_string()).or_insert(failure);
    }
    let mut operation = json!({
        "operationId": route.name,
        "tags": [Tag::of(route.access).name()],
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses,
        "security": security(route.access),
    });
    if !route.description.is_empty() {
        operation["description"] = route.description.into();
    }
    let body = match route.body {
        RouteBody::None => None,
        RouteBody::Optional(schema) => Some((schema(schemas), false)),
        RouteBody::Required(schema) | RouteBody::Hinted { schema, .. } => {
            Some((schema(schemas), true))
        }
    };
    if let Some((schema, required)) = body {
        let content = json!({"application/json": {"schema": schema}});
        operation["requestBody"] = json!({"required": required, "content": content});
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    if let Some((_, name, _)) = routes::parts(route.path) {
        let schema = (route.parameter)();
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if let Some(query) = route.query {
        let schema = (query.schema)();
        parameters.push(json!({"name": query.name, "in": "query", "schema": schema}));
    }
    let headers = header_parameters(route).into_iter();
    parameters.extend(headers.map(|(name, _)| json!({"$ref": reference("parameters", &name)})));
    parameters
}

/// The headers that a route understands, by name, as parameters of the document.
fn header_parameters(route: &Route) -> Vec<(String, Value)> {
    match route.body {
        RouteBody::Hinted { headers, .. } => headers(),
        RouteBody::None | RouteBody::Optional(_) | RouteBody::Required(_) => Vec::new(),
    }
}

/// The statuses of a route's errors.
fn failures(route: &Route) -> Vec<u16> {
    let mut failures = route.failures.to_vec();
    failures.extend(match route.access {
        RouteAccess::Open => &[][..],
        RouteAccess::Metrics => &[401, 403, 503],
        RouteAccess::OperatorsPage => &[403, 503],
        RouteAccess::Clients | RouteAccess::Operators | RouteAccess::Orders => &[401, 403, 503],
    });
    failures.extend(match route.body {
        RouteBody::None => &[][..],
        RouteBody::Optional(_) | RouteBody::Required(_) | RouteBody::Hinted { .. } => {
            &[400, 408, 413, 415]
        }
    });
    if routes::parts(route.path).is_some() {
        failures.push(404);
    }
    if route.query.is_some() {
        failures.push(400);
    }
    failures
}

/// The keys that a route may ask for. A server without keys asks for none, hence the empty ones.
fn security(access: RouteAccess) -> Value {
    match access {
        RouteAccess::Open | RouteAccess::OperatorsPage => json!([]),
        RouteAccess::Clients => json!([{ API_KEY: [] }, {}]),
        RouteAccess::Metrics => json!([{ API_KEY: [] }, { ADMIN_KEY: [] }, {}]),
        RouteAccess::Operators | RouteAccess::Orders => json!([{ ADMIN_KEY: [] }, {}]),
    }
}

/// Groups of operations.
#[derive(Clone, Copy)]
enum Tag {
    OpenAi,
    Server,
    Operators,
}

// === impl Tag ===

impl Tag {
    const ALL: [Tag; 3] = [Tag::OpenAi, Tag::Server, Tag::Operators];

    fn of(access: RouteAccess) -> Self {
        match access {
            RouteAccess::Clients => Tag::OpenAi,
            RouteAccess::Open | RouteAccess::Metrics => Tag::Server,
            RouteAccess::OperatorsPage | RouteAccess::Operators | RouteAccess::Orders => {
                Tag::Operators
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Tag::OpenAi => "OpenAI",
            Tag::Server => "Server",
            Tag::Operators => "Operators",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Tag::OpenAi => "Completions and models, as OpenAI's clients ask for them.",
            Tag::Server => "The server's state, for load balancers and monitoring.",
            Tag::Operators => {
                "Questions and orders of operators: on loopback addresses, or where `[admin]` of the \
                 configuration has a key or a listener."
            }
        }
    }
}

// === impl Document ===

impl HttpAnswer for Document {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        reply(status, JSON, self.0)
    }

    fn responses(status: StatusCode, _: &mut SchemaGenerator) -> Responses {
        let schema = schemars::json_schema!({"type": "object"});
        Responses::from_iter([response(status, [(JSON, schema)])])
    }
}
