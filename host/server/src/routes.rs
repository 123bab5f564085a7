//! The whole table of routes: the rows that each surface brings.

use std::sync::Arc;

use pointsman_admin::KeptExecutors;
use pointsman_http::routes::{RouteTable, server_routes};

/// The table of all that can be asked for. Executors that operators add are kept by `kept`.
#[must_use]
pub fn table(kept: Arc<KeptExecutors>) -> RouteTable {
    let rows = [
        pointsman_openai::routes(),
        server_routes(),
        pointsman_admin::routes(kept),
    ];
    RouteTable::new(rows.into_iter().flatten(), pointsman_openai::passed_on())
}

#[cfg(test)]
mod tests {
    use pointsman_driver::spans::Operation;
    use pointsman_http::openapi::conformance::Conformance;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        assert_eq!(Conformance::of(table(Arc::default())).check_table(), Ok(()));
    }

    #[test]
    fn the_path_tells_the_operation() {
        let table = Conformance::of(table(Arc::default()));
        for (path, expected) in [
            ("/v1/chat/completions", Operation::Chat),
            ("/v1/completions", Operation::TextCompletion),
            ("/v1/messages", Operation::Chat),
            ("/v1/responses", Operation::Chat),
            ("/v1/embeddings", Operation::Embeddings),
            ("/v1/rerank", Operation::Rerank),
            ("/tokenize", Operation::Tokenize),
            ("/detokenize", Operation::Detokenize),
            ("/v1/models", Operation::Other),
        ] {
            assert_eq!(table.operation_in_trace(path), Some(expected), "{path}");
        }
        assert_eq!(table.operation_in_trace("/v1/audio/speech"), None);
    }
}
