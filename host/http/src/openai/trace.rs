//! The part of a request in a trace, as its path and its headers tell it.

use hyper::HeaderMap;
use pointsman_driver::spans::{Operation, TraceOrigin};
use pointsman_executor::trace::TraceHeaders;

use super::passing::Passage;
use crate::App;
use crate::settings::Tracing;

/// The part of a request in a trace; absent: nobody is told of traces.
pub(super) fn origin(
    app: &App,
    passage: &Passage,
    headers: &HeaderMap,
) -> Option<Box<TraceOrigin>> {
    match app.settings.traces {
        Tracing::Off => None,
        Tracing::On => Some(Box::new(TraceOrigin {
            operation: operation(passage.path()),
            parent: TraceHeaders::read(headers),
        })),
    }
}

/// The operation at a path with its query.
fn operation(path: &str) -> Operation {
    match path.split('?').next().unwrap_or_default() {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => Operation::Chat,
        "/v1/completions" => Operation::TextCompletion,
        "/v1/embeddings" => Operation::Embeddings,
        "/v1/rerank" => Operation::Rerank,
        "/tokenize" => Operation::Tokenize,
        "/detokenize" => Operation::Detokenize,
        _ => Operation::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_tells_the_operation() {
        for (path, expected) in [
            ("/v1/chat/completions", Operation::Chat),
            ("/v1/completions?a=b", Operation::TextCompletion),
            ("/v1/messages", Operation::Chat),
            ("/v1/embeddings", Operation::Embeddings),
            ("/v1/audio/speech", Operation::Other),
            ("", Operation::Other),
        ] {
            assert_eq!(operation(path), expected, "{path}");
        }
    }
}
