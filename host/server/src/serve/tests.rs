//! Tests of the end of a server of which a part has failed.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_listener_has_ended_without_being_told_to_stops_with_an_error() {
    let mut config = Config::of_text("").unwrap();
    config.listen = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(config).await.unwrap();
    // As if it had panicked.
    server.http.abort();
    let error = server.stop().await.unwrap_err();
    assert_eq!(error.to_string(), "HTTP panicked");
}
