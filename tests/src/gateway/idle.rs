//! Streams that have begun and say nothing more: what they cost a gateway.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::task::JoinSet;

use super::Connection;
use super::peers::Gateway;

/// Streams that are opened at once.
const OPENED_AT_ONCE: usize = 64;

/// The cost of idle streams.
#[derive(Clone, Copy, Debug)]
pub struct IdleCost {
    /// Bytes in memory without the streams, and with them.
    pub resident: (u64, u64),
    /// The time on processors while they were idle.
    pub cpu: Duration,
}

/// Opens `count` streams through a gateway, and watches it do nothing for `watched`.
///
/// # Errors
/// If a stream does not begin, or the system does not tell.
pub async fn measure(gateway: &Gateway, count: usize, watched: Duration) -> Result<IdleCost> {
    let before = gateway.resident()?;
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        let mut opening = JoinSet::new();
        for _ in 0..OPENED_AT_ONCE.min(count - streams.len()) {
            opening.spawn(open(gateway.addr));
        }
        while let Some(opened) = opening.join_next().await {
            let number = streams.len();
            let opened = opened?.with_context(|| format!("stream {number} did not begin"));
            streams.push(opened?);
        }
    }
    let begun = gateway.cpu()?;
    tokio::time::sleep(watched).await;
    Ok(IdleCost {
        resident: (before, gateway.resident()?),
        cpu: gateway.cpu()? - begun,
    })
}

/// A stream with its first chunk read, after which the server says nothing.
async fn open(addr: SocketAddr) -> Result<(Connection, Incoming)> {
    let body = json!({
        "model": "bench",
        "stream": true,
        "idle": true,
        "messages": [{"role": "user", "content": "word"}],
    });
    let mut connection = Connection::open(addr).await?;
    let mut stream = connection.send(body.to_string().into()).await?;
    stream.frame().await.context("no chunk")??;
    Ok((connection, stream))
}
