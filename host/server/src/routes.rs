//! The whole table of routes: the rows that each surface brings.

use pointsman_http::routes::{RouteTable, server_routes};

/// The table of all that can be asked for.
#[must_use]
pub fn table() -> RouteTable {
    let rows = [
        pointsman_openai::routes(),
        server_routes(),
        pointsman_admin::routes(),
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
        assert_eq!(Conformance::of(table()).check_table(), Ok(()));
    }

    #[test]
    fn the_path_tells_the_operation() {
        let table = Conformance::of(table());
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
