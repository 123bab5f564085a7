//! The rows of OpenAI's API in the table of routes. Rows of one path stand together.

use pointsman_driver::spans::Operation;
use pointsman_http::answer::RouteFunction;
use pointsman_http::routes::{Route, RouteBody, SchemaFn};
use pointsman_http::{RouteAccess, route_function};

use super::document::{chat_body, text_body};
use super::{elsewhere, embeddings, hints, models};

const COMPLETION: &str = "Hints about scheduling stand in the headers `x-pointsman-*`, or in the body's `pointsman`; \
     given in both places they have to be the same. Fields that would change the answer and are not \
     built are refused by name, other unknown fields are ignored. A failure after the first token of \
     a stream is an event with an `error`, and the stream ends without `[DONE]`.";
const EMBEDDINGS: &str = "The hidden state after the last token of each input, put to length 1, where an engine of this \
     host serves the model; each input is a request of its own. A model that only servers elsewhere serve is embedded by \
     one of them, to which the body goes as it is, but for the hints. Fields that would change the answer and are not \
     built are refused by name.";
const ELSEWHERE: &str =
    "Passed on to a server elsewhere that serves the model, and answered in its words.";

const COMPLETION_FAILURES: &[u16] = &[404, 429, 500, 502, 503];

/// The routes of OpenAI's API, and of others that servers elsewhere have.
#[must_use]
pub fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", route_function!(super::chat))
            .named("createChatCompletion", "chat_completions")
            .access(RouteAccess::Clients)
            .about("Answers a conversation, whole or streamed.", COMPLETION)
            .takes(hinted(chat_body))
            .fails(COMPLETION_FAILURES)
            .operation(Operation::Chat),
        Route::post("/v1/completions", route_function!(super::text))
            .named("createCompletion", "completions")
            .access(RouteAccess::Clients)
            .about(
                "Continues one prompt or several, whole or streamed.",
                COMPLETION,
            )
            .takes(hinted(text_body))
            .fails(COMPLETION_FAILURES)
            .operation(Operation::TextCompletion),
        passed("/v1/responses", route_function!(elsewhere::answers))
            .named("createResponse", "responses")
            .about("Answers in the form of OpenAI's responses.", ELSEWHERE)
            .operation(Operation::Chat),
        passed("/v1/messages", route_function!(elsewhere::answers))
            .named("createMessage", "messages")
            .about("Answers in the form of Anthropic's messages.", ELSEWHERE)
            .operation(Operation::Chat),
        Route::post("/v1/embeddings", route_function!(embeddings::embed))
            .named("createEmbedding", "embeddings")
            .access(RouteAccess::Clients)
            .about("Embeds texts.", EMBEDDINGS)
            .takes(hinted(embeddings::body_schema))
            .fails(COMPLETION_FAILURES)
            .operation(Operation::Embeddings),
        passed("/v1/rerank", route_function!(elsewhere::numbers))
            .named("rerank", "rerank")
            .about("Ranks documents by a query.", ELSEWHERE)
            .operation(Operation::Rerank),
        passed("/tokenize", route_function!(elsewhere::numbers))
            .named("tokenize", "tokenize")
            .about("Gives the tokens of a text.", ELSEWHERE)
            .operation(Operation::Tokenize),
        passed("/detokenize", route_function!(elsewhere::numbers))
            .named("detokenize", "detokenize")
            .about("Gives the text of tokens.", ELSEWHERE)
            .operation(Operation::Detokenize),
        Route::get("/v1/models", route_function!(models::list))
            .named("listModels", "models")
            .access(RouteAccess::Clients)
            .about("Lists the models.", ""),
        Route::get("/v1/models/{name}", route_function!(models::one))
            .named("retrieveModel", "models")
            .access(RouteAccess::Clients)
            .about("Shows a model.", ""),
    ]
}

/// The row of a path that nobody here knows, for any method.
#[must_use]
pub fn passed_on() -> Route {
    passed("", route_function!(elsewhere::numbers))
        .named("passOn", "passed_on")
        .about("Passes a request on to a server elsewhere.", ELSEWHERE)
}

/// A body beside which headers may give hints.
#[must_use]
pub fn hinted(schema: SchemaFn) -> RouteBody {
    RouteBody::Hinted {
        schema,
        headers: hints::header_parameters,
    }
}

fn passed(path: &'static str, function: RouteFunction) -> Route {
    Route::post(path, function)
        .access(RouteAccess::Clients)
        .takes(hinted(elsewhere::body_schema))
        .fails(COMPLETION_FAILURES)
}
