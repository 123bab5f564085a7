//! The gateways that are compared, each as a process of its own.

use std::fs;
use std::iter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::extras::free_address;

/// A gateway to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Pointsman,
    Nginx,
    Envoy,
    SglangRouter,
    /// LiteLLM's proxy.
    LiteLlm,
}

/// The gateways of LiteLLM's comparison: it takes milliseconds of a processor for a request, and writes what it passes on anew.
pub const BESIDE_LITELLM: [Peer; 2] = [Peer::Pointsman, Peer::LiteLlm];

/// The gateways that pass requests on as they are.
pub const PEERS: [Peer; 4] = [
    Peer::Pointsman,
    Peer::Nginx,
    Peer::Envoy,
    Peer::SglangRouter,
];

/// A gateway that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Gateway {
    pub peer: Peer,
    pub addr: SocketAddr,
    process: Child,
    _folder: TempDir,
}

/// A process of the system.
struct Process {
    pid: u32,
    parent: u32,
    /// The ticks on processors.
    ticks: u64,
    /// The pages in memory.
    pages: u64,
}

/// The time for a gateway to answer its first request.
const STARTS: Duration = Duration::from_secs(60);
/// The system's unit of time on processors: all Linux of today have this one.
const TICKS_PER_SECOND: u32 = 100;
/// The system's unit of memory, on x86-64.
const PAGE_BYTES: u64 = 4096;

// === impl Peer ===

impl Peer {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Peer::Pointsman => "pointsman",
            Peer::Nginx => "nginx",
            Peer::Envoy => "envoy",
            Peer::SglangRouter => "sglang-router",
            Peer::LiteLlm => "litellm",
        }
    }

    /// The program of the gateway; absent: it is not installed. `tools` has the virtual environments of
    /// those that come from PyPI, `built` Pointsman as packages have it.
    #[must_use]
    pub fn program(self, tools: &Path, built: &Path) -> Option<PathBuf> {
        let program = match self {
            Peer::Pointsman => built.join("pointsman"),
            Peer::Nginx => PathBuf::from("/usr/sbin/nginx"),
            Peer::Envoy => tools.join("envoy/bin/envoy"),
            Peer::SglangRouter => tools.join("sglang-router/bin/python"),
            Peer::LiteLlm => tools.join("litellm/bin/litellm"),
        };
        program.is_file().then_some(program)
    }

    /// Starts the gateway before the servers at `servers`, fit for so many streams at once.
    ///
    /// # Errors
    /// If it does not start, or does not answer in time.
    pub async fn start(
        self,
        program: &Path,
        servers: &[SocketAddr],
        streams: usize,
    ) -> Result<Gateway> {
        let folder = tempfile::tempdir()?;
        let addr = free_address()?;
        let mut command = self.command(program, folder.path(), (addr, servers), streams)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        let process = command.spawn().context(self.name())?;
        let gateway = Gateway {
            peer: self,
            addr,
            process,
            _folder: folder,
        };
        gateway.answers().await?;
        Ok(gateway)
    }

    fn command(
        self,
        program: &Path,
        folder: &Path,
        (addr, servers): (SocketAddr, &[SocketAddr]),
        streams: usize,
    ) -> Result<Command> {
        let mut command = Command::new(program);
        let config = folder.join("config");
        match self {
            Peer::Pointsman => {
                fs::write(&config, pointsman(servers, streams))?;
                command.args(["serve", "--log", "warn", "--listen", &addr.to_string()]);
                command.arg("--config").arg(&config);
                command.arg("--state").arg(folder);
            }
            Peer::Nginx => {
                fs::write(&config, nginx(folder, addr, servers))?;
                command.arg("-c").arg(&config).args(["-g", "daemon off;"]);
            }
            Peer::Envoy => {
                let config = folder.join("envoy.yaml");
                fs::write(&config, envoy(addr, servers))?;
                command.arg("-c").arg(&config);
                command.args(["--concurrency", "2", "--log-level", "error"]);
            }
            Peer::SglangRouter => {
                command.args([
                    "-m",
                    "sglang_router.launch_router",
                    "--policy",
                    "round_robin",
                ]);
                command.arg("--worker-urls");
                command.args(servers.iter().map(|server| format!("http://{server}")));
                command.args(["--host", "127.0.0.1", "--port", &addr.port().to_string()]);
                let metrics = free_address()?.port().to_string();
                command.args(["--prometheus-port", &metrics, "--log-level", "error"]);
            }
            Peer::LiteLlm => {
                let config = folder.join("litellm.yaml");
                fs::write(&config, litellm(servers))?;
                command.arg("--config").arg(&config);
                command.args(["--host", "127.0.0.1", "--port", &addr.port().to_string()]);
                command.args(["--num_workers", "2", "--telemetry", "False"]);
                // Prices of models come with the package.
                command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
            }
        }
        Ok(command)
    }
}

/// The servers, each with a slot for each stream.
fn pointsman(servers: &[SocketAddr], streams: usize) -> String {
    let limits = "[http]\nconnections-max = 20000\nrequests-max = 20000\n";
    let servers = servers.iter().map(|server| {
        let name = server.port();
        format!("[[backends]]\nname = 's{name}'\nurl = 'http://{server}'\nslots = {streams}\n")
    });
    iter::once(limits.to_owned()).chain(servers).collect()
}

fn nginx(folder: &Path, addr: SocketAddr, servers: &[SocketAddr]) -> String {
    let folder = folder.display();
    let servers = servers.iter().map(|server| format!("server {server}; "));
    let servers: String = servers.collect();
    format!(
        "worker_processes 2;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
         events {{ worker_connections 16384; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  \
         proxy_temp_path {folder}/proxy;\n  fastcgi_temp_path {folder}/f;\n  uwsgi_temp_path {folder}/u;\n  \
         scgi_temp_path {folder}/s;\n  client_max_body_size 16m;\n  client_body_buffer_size 1m;\n  \
         keepalive_requests 1000000;\n  tcp_nodelay on;\n  \
         upstream server {{ {servers}keepalive 256; keepalive_requests 1000000; }}\n  \
         server {{\n    listen {addr};\n    location / {{\n      proxy_pass http://server;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}

fn litellm(servers: &[SocketAddr]) -> String {
    let servers = servers.iter().map(|server| {
        format!(
            "- model_name: bench\n  litellm_params:\n    model: openai/bench\n    \
             api_base: http://{server}/v1\n    api_key: none\n"
        )
    });
    iter::once("model_list:\n".to_owned())
        .chain(servers)
        .collect()
}

fn envoy(addr: SocketAddr, servers: &[SocketAddr]) -> String {
    let address = |addr: SocketAddr| {
        format!(
            "{{socket_address: {{address: {}, port_value: {}}}}}",
            addr.ip(),
            addr.port()
        )
    };
    let endpoints = servers.iter().map(|server| {
        let address = address(*server);
        format!("{{endpoint: {{address: {address}}}}}")
    });
    format!(
        "static_resources:\n  listeners:\n  - address: {}\n    filter_chains:\n    - filters:\n      \
         - name: envoy.filters.network.http_connection_manager\n        typed_config:\n          \
         \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
         stat_prefix: bench\n          route_config:\n            virtual_hosts:\n            \
         - {{name: all, domains: [\"*\"], routes: [{{match: {{prefix: \"/\"}}, route: {{cluster: server, timeout: 0s}}}}]}}\n          \
         http_filters:\n          - name: envoy.filters.http.router\n            typed_config:\n              \
         \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\n  clusters:\n  \
         - name: server\n    type: STATIC\n    circuit_breakers: {{thresholds: [{{max_connections: 20000, \
         max_pending_requests: 20000, max_requests: 20000}}]}}\n    load_assignment:\n      cluster_name: server\n      \
         endpoints: [{{lb_endpoints: [{}]}}]\n",
        address(addr),
        endpoints.collect::<Vec<_>>().join(", ")
    )
}

// === impl Gateway ===

impl Gateway {
    /// Waits until a request is answered.
    async fn answers(&self) -> Result<()> {
        let load = super::Load {
            prompt_bytes: 10,
            chunks: 0,
            arrivals: super::Arrivals::Closed(1),
            requests: 1,
        };
        let tries = STARTS.as_millis() / 100;
        for _ in 0..tries {
            if super::measure(self.addr, load).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{} does not answer", self.peer.name())
    }

    /// The time on processors that the gateway has taken, its children included.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn cpu(&self) -> Result<Duration> {
        let ticks = self.family()?.iter().map(|process| process.ticks).sum();
        Ok(Duration::from_secs(ticks) / TICKS_PER_SECOND)
    }

    /// The bytes in memory that the gateway has, its children included.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn resident(&self) -> Result<u64> {
        let pages: u64 = self.family()?.iter().map(|process| process.pages).sum();
        Ok(pages * PAGE_BYTES)
    }

    /// The gateway's process and its children's.
    fn family(&self) -> Result<Vec<Process>> {
        let mut others = processes()?;
        let mut family: Vec<Process> = Vec::new();
        let mut known = vec![self.process.id()];
        while let Some(pid) = known.pop() {
            let is_next = |it: &Process| it.pid == pid || it.parent == pid;
            let (next, rest) = others.into_iter().partition::<Vec<_>, _>(is_next);
            known.extend(next.iter().map(|it| it.pid).filter(|it| *it != pid));
            family.extend(next);
            others = rest;
        }
        Ok(family)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Envoy and nginx end their children.
        let pid = self.process.id().to_string();
        drop(Command::new("kill").arg(pid).status());
        drop(self.process.wait());
    }
}

/// Every process.
fn processes() -> Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has just ended is left out.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let rest = stat.rsplit_once(')').context("no name")?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
        // By proc(5): the parent, time of the user and of the system, the resident set.
        let [parent, user, system, pages] = [1, 11, 12, 21].map(|at| number(at).unwrap_or(0));
        all.push(Process {
            pid,
            parent: u32::try_from(parent)?,
            ticks: user + system,
            pages,
        });
    }
    Ok(all)
}
