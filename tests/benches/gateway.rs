//! `cargo xtask bench gateway`: what Pointsman costs before another server, and what others cost.
//!
//! Rounds go from one gateway to the next, so that all see the same machine. With `--quick`: fewer requests;
//! with `--idle`: only what idle streams cost; with `--servers`: only what many servers cost; with `--litellm`: only the requests a second
//! beside LiteLLM's proxy.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_tests::gateway::peers::{BESIDE_LITELLM, Gateway, PEERS, Peer};
use pointsman_tests::gateway::{Arrivals, Load, Measured, StampServer, idle, measure};
use pointsman_tests::serving::target;

/// A load with its name.
const LOADS: [(&str, Load); 8] = [
    ("1 KB, 1 stream", load(1 << 10, 8, Arrivals::Closed(1), 300)),
    (
        "1 KB, 64 streams",
        load(1 << 10, 8, Arrivals::Closed(64), 3000),
    ),
    (
        "1 KB, 64 whole",
        load(1 << 10, 0, Arrivals::Closed(64), 12_000),
    ),
    (
        "1 KB, 300/s streams",
        load(1 << 10, 8, Arrivals::Open(300), 1500),
    ),
    (
        "220 KB, 1 stream",
        load(220 << 10, 8, Arrivals::Closed(1), 200),
    ),
    (
        "220 KB, 64 streams",
        load(220 << 10, 8, Arrivals::Closed(64), 2000),
    ),
    (
        "220 KB, 64 whole",
        load(220 << 10, 0, Arrivals::Closed(64), 2000),
    ),
    (
        "220 KB, 200/s streams",
        load(220 << 10, 8, Arrivals::Open(200), 1000),
    ),
];
/// The load beside LiteLLM's proxy.
const LITELLM_LOADS: [(&str, Load); 1] = [(
    "1 KB, 64 whole",
    load(1 << 10, 0, Arrivals::Closed(64), 3000),
)];
const ROUNDS: usize = 3;
/// The most streams of a load in a closed loop, with room for an open one that lags behind.
const STREAMS: usize = 1000;
/// Each takes two file descriptors of the gateway, of which a process often has 20,000.
const IDLE_STREAMS: usize = 9_900;
/// The servers of a large fleet.
const SERVERS: usize = 1_000;
/// The time for which gateways are watched.
const IDLE: Duration = Duration::from_secs(20);

const fn load(prompt_bytes: usize, chunks: usize, arrivals: Arrivals, requests: usize) -> Load {
    Load {
        prompt_bytes,
        chunks,
        arrivals,
        requests,
    }
}

/// The figures of one gateway under one load.
#[derive(Default)]
struct Row {
    measured: Measured,
    cpu: Duration,
    requests: usize,
}

fn main() -> Result<()> {
    let has = |wanted: &str| std::env::args().any(|arg| arg == wanted);
    let part = if has("--quick") { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if has("--litellm") {
            return compare(&BESIDE_LITELLM, &LITELLM_LOADS, part).await;
        }
        if has("--servers") {
            return fleet(part).await;
        }
        if !has("--idle") {
            compare(&PEERS, &LOADS, part).await?;
        }
        rest(part).await
    })
}

/// Shows what idle streams cost, one gateway after the other.
async fn rest(part: usize) -> Result<()> {
    let server = StampServer::start().await?;
    let count = IDLE_STREAMS / part;
    println!(
        "\n{count} idle streams{:>20} {:>12} {:>12}",
        "MB", "KB each", "CPU %"
    );
    for gateway in gateways(&PEERS, &[server.addr()], count).await? {
        let cost = match idle::measure(&gateway, count, IDLE).await {
            Ok(cost) => cost,
            Err(error) => {
                println!("{:<20} {error:#}", gateway.peer.name());
                continue;
            }
        };
        let (before, after) = cost.resident;
        println!(
            "{:<20} {:>15} {:>12} {:>12.2}",
            gateway.peer.name(),
            format!("{} -> {}", before >> 20, after >> 20),
            (after.saturating_sub(before) >> 10) / count as u64,
            percent(cost.cpu),
        );
    }
    Ok(())
}

/// Shows what many servers cost that nobody asks anything of: each gateway looks after them in its way.
async fn fleet(part: usize) -> Result<()> {
    let mut servers = Vec::new();
    for _ in 0..SERVERS / part {
        servers.push(StampServer::start().await?);
    }
    let addresses: Vec<SocketAddr> = servers.iter().map(StampServer::addr).collect();
    let count = addresses.len();
    println!("\n{count} servers{:>20} {:>12}", "MB", "CPU %");
    for gateway in gateways(&PEERS, &addresses, 1).await? {
        // Until all are found.
        tokio::time::sleep(IDLE).await;
        let cost = idle::measure(&gateway, 0, IDLE).await?;
        println!(
            "{:<20} {:>10} {:>12.2}",
            gateway.peer.name(),
            cost.resident.1 >> 20,
            percent(cost.cpu),
        );
    }
    Ok(())
}

/// The part of a processor that was taken while idle.
fn percent(cpu: Duration) -> f64 {
    100.0 * cpu.as_secs_f64() / IDLE.as_secs_f64()
}

/// Compares gateways under each load, with one part in `part` of its requests.
async fn compare(peers: &[Peer], loads: &[(&str, Load)], part: usize) -> Result<()> {
    let server = StampServer::start().await?;
    let gateways = gateways(peers, &[server.addr()], STREAMS).await?;
    println!(
        "Microseconds, p50 / p99. First: to the first byte. Chunk: a chunk's way. Gap: the longest between"
    );
    println!(
        "two chunks of a stream, which the server writes every 3000. CPU: of the gateway, per request."
    );
    for (name, load) in loads {
        let mut rows: Vec<Row> = (0..=gateways.len()).map(|_| Row::default()).collect();
        let load = Load {
            requests: (load.requests / ROUNDS / part).max(1),
            ..*load
        };
        for _ in 0..ROUNDS {
            for (row, gateway) in rows
                .iter_mut()
                .zip([None].into_iter().chain(gateways.iter().map(Some)))
            {
                row.take(gateway, server.addr(), load).await?;
            }
        }
        println!(
            "\n{name}\n{:<14} {:>15} {:>15} {:>8} {:>9} {:>6}",
            "", "first", "chunk", "gap", "req/s", "CPU"
        );
        let names = [None].into_iter().chain(gateways.iter().map(Some));
        for (row, gateway) in rows.iter().zip(names) {
            row.print(gateway.map_or("direct", |gateway| gateway.peer.name()));
        }
    }
    Ok(())
}

/// The gateways of `peers` that are installed, each before these servers and fit for so many streams at once.
async fn gateways(peers: &[Peer], servers: &[SocketAddr], streams: usize) -> Result<Vec<Gateway>> {
    let (tools, built) = (target().join("peers"), target().join("packaged"));
    let mut gateways = Vec::new();
    for peer in peers {
        match peer.program(&tools, &built) {
            Some(program) => gateways.push(peer.start(&program, servers, streams).await?),
            None => println!("{} is not installed, and left out", peer.name()),
        }
    }
    Ok(gateways)
}

// === impl Row ===

impl Row {
    /// Measures a round.
    async fn take(
        &mut self,
        gateway: Option<&Gateway>,
        server: SocketAddr,
        load: Load,
    ) -> Result<()> {
        let cpu = || gateway.map_or(Ok(Duration::ZERO), Gateway::cpu);
        let addr = gateway.map_or(server, |gateway| gateway.addr);
        let before = cpu()?;
        let measured = measure(addr, load).await;
        let measured = measured.with_context(|| gateway.map_or("direct", |it| it.peer.name()))?;
        self.cpu += cpu()? - before;
        self.requests += load.requests;
        self.measured.add(measured);
        Ok(())
    }

    fn print(&self, name: &str) {
        let Measured {
            first,
            chunks,
            gap_max,
            elapsed,
        } = &self.measured;
        let both = |times: &[u64]| format!("{} / {}", quantile(times, 500), quantile(times, 990));
        let rate =
            f64::from(u32::try_from(self.requests).unwrap_or(u32::MAX)) / elapsed.as_secs_f64();
        let cpu = self.cpu.as_micros() / self.requests.max(1) as u128;
        println!(
            "{name:<14} {:>15} {:>15} {gap_max:>8} {rate:>9.0} {cpu:>6}",
            both(first),
            both(chunks)
        );
    }
}

/// The value below which so many thousandths of all lie; 0 of none.
fn quantile(times: &[u64], permille: usize) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * permille / 1000).copied().unwrap_or(0)
}
