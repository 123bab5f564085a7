//! Servers elsewhere, as operators describe them.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::uri::Scheme;
use http::{HeaderMap, Uri};
use pointsman_events::KvReport;

/// A server elsewhere, to be an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The executor's name; absent: host and port of the address.
    pub name: Option<String>,
    /// The server's address.
    pub url: ServerUrl,
    /// The software that the server runs; absent: found by asking.
    pub software: Option<ServerSoftware>,
    /// The key that the server asks for; absent: none.
    pub key: Option<ServerKey>,
    /// The certificates by which it is known, in PEM that can be read; absent: those of the system.
    pub ca: Option<Arc<[u8]>>,
    /// Headers that each request there has, in the place of the client's of that name.
    pub headers: HeaderMap,
    /// The models that it serves; empty: found by asking.
    pub models: Vec<String>,
    /// Most requests there at once; absent: as many as the server says, or its software usually takes.
    pub slots: Option<u32>,
    /// The names of its metrics, each in the place of its software's own.
    pub metrics: MetricNames,
    /// The time between two questions for health and load.
    pub poll: Duration,
    /// The longest time from a request to the first byte of its response.
    pub first_byte_timeout: Duration,
    /// The longest time between two pieces of a response.
    pub stall_timeout: Duration,
    /// The longest time in which a model is loaded, where the server takes orders to do so.
    pub load_timeout: Duration,
    /// The time after which a model that none of our requests wants is unloaded where the server takes
    /// orders; absent: never.
    pub unload_after: Option<Duration>,
    /// The part that it takes in streams that break off.
    pub broken_streams: BrokenStreams,
    /// The prompts that it keeps for later ones.
    pub prompt_cache: PromptCache,
}

/// The words of a server elsewhere about its answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAnswer {
    /// The answer's id; absent: the server gives none.
    pub id: Option<String>,
    /// The reasons why generation ended, of each choice whose reason is near the end of the answer.
    pub finish_reasons: Vec<String>,
}

/// The part that a server takes in streams of chats that break off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BrokenStreams {
    /// One that breaks off there ends.
    #[default]
    End,
    /// One that breaks off there goes on at another such server, and it goes on with those of others: it
    /// continues a message of the assistant.
    GoOn,
}

/// The prompts that a server keeps for later ones that begin alike. It does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptCache {
    /// The prompts that it was sent last, as far as is known.
    #[default]
    Assumed,
    /// None.
    Off,
}

/// The metrics of a server, in Prometheus' text form, as far as they are named. An empty name stands for a
/// metric that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricNames {
    /// The path of the metrics; absent: `/metrics`.
    pub path: Option<String>,
    /// A gauge: requests that run.
    pub running: Option<String>,
    /// A gauge: requests that wait.
    pub waiting: Option<String>,
    /// A gauge: the part of the KV cache that is in use, from 0 to 1.
    pub kv_usage: Option<String>,
    /// Any metric with the labels `block_size` (in tokens) and `num_gpu_blocks`.
    pub kv_info: Option<String>,
}

/// The capacity and the load of a server elsewhere. What is unknown is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    /// Requests that it runs at once.
    pub capacity: Option<u32>,
    /// Requests that run or wait there, ours and others'.
    pub present: Option<u32>,
    /// Tokens in a KV block.
    pub tokens_per_block: Option<u32>,
    /// Its KV blocks.
    pub kv: Option<KvReport>,
}

/// The software of a server elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSoftware {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// The server of llama.cpp, with one model or as a router of several.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// Another one with OpenAI's API.
    OpenAi,
}

/// The address of a server: scheme, host, port and possibly a path before all paths.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl(Uri);

/// A key that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey(String);

/// The reason why a text is no address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// It is no address at all.
    #[error("is no address; write http://HOST:PORT")]
    NoUrl,
    /// The scheme is missing or unknown.
    #[error("has to begin with http:// or https://")]
    Scheme,
    /// It has more than a path.
    #[error(
        "has a query, a fragment or a user; write http://HOST:PORT/PATH, and give a key by `key`"
    )]
    Parts,
}

/// All kinds of software with their names in the configuration.
pub const SOFTWARE: [(ServerSoftware, &str); 5] = [
    (ServerSoftware::Vllm, "vllm"),
    (ServerSoftware::Sglang, "sglang"),
    (ServerSoftware::LlamaCpp, "llama-cpp"),
    (ServerSoftware::Ollama, "ollama"),
    (ServerSoftware::OpenAi, "openai"),
];

/// The most headers of an operator's that a message has.
pub const HEADERS_MAX: usize = 32;

/// Times between two questions for health and load, in milliseconds: up to an hour.
pub const POLLS_MS: RangeInclusive<u32> = 50..=3_600_000;

/// Times for which a server, or a model there, is waited for or kept, in milliseconds: up to a day.
pub const WAITS_MS: RangeInclusive<u32> = 10..=86_400_000;

/// Headers that belong to a connection or to one message, which no operator can write.
const OF_A_MESSAGE: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The header in `line`, which is `name: value`; absent: it is none, or none that can be set. Its value is
/// shown nowhere, since it may be a key.
#[must_use]
pub fn header_of(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::try_from(name.trim()).ok()?;
    let mut value = HeaderValue::try_from(value.trim()).ok()?;
    value.set_sensitive(true);
    (!OF_A_MESSAGE.contains(&name)).then_some((name, value))
}

// === impl ServerConfig ===

impl ServerConfig {
    /// The server at `url` with nothing else said.
    #[must_use]
    pub fn new(url: ServerUrl) -> Self {
        Self {
            name: None,
            url,
            software: None,
            key: None,
            ca: None,
            headers: HeaderMap::new(),
            models: Vec::new(),
            slots: None,
            metrics: MetricNames::default(),
            poll: Duration::from_secs(2),
            first_byte_timeout: Duration::from_secs(600),
            stall_timeout: Duration::from_secs(120),
            load_timeout: Duration::from_secs(600),
            unload_after: None,
            broken_streams: BrokenStreams::default(),
            prompt_cache: PromptCache::default(),
        }
    }

    /// The executor's name.
    #[must_use]
    pub fn executor_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.url.authority())
    }
}

// === impl ServerSoftware ===

impl ServerSoftware {
    /// The name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let named = SOFTWARE.iter().find(|(software, _)| *software == self);
        named.map_or("", |(_, name)| name)
    }

    /// The metrics that such servers have; none has a name where they tell their load otherwise, or not at all.
    #[must_use]
    pub fn metric_names(self) -> MetricNames {
        let named = |name: &str| Some(name.to_owned());
        match self {
            ServerSoftware::Vllm => MetricNames {
                path: None,
                running: named("vllm:num_requests_running"),
                waiting: named("vllm:num_requests_waiting"),
                kv_usage: named("vllm:kv_cache_usage_perc"),
                kv_info: named("vllm:cache_config_info"),
            },
            ServerSoftware::Sglang
            | ServerSoftware::LlamaCpp
            | ServerSoftware::Ollama
            | ServerSoftware::OpenAi => MetricNames::default(),
        }
    }
}

// === impl MetricNames ===

impl MetricNames {
    /// The names with those of `other` where these have none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            path: self.path.or(other.path),
            running: self.running.or(other.running),
            waiting: self.waiting.or(other.waiting),
            kv_usage: self.kv_usage.or(other.kv_usage),
            kv_info: self.kv_info.or(other.kv_info),
        }
    }

    /// True if a metric has a name, wherever it is.
    #[must_use]
    pub fn has_any(&self) -> bool {
        let names = [&self.running, &self.waiting, &self.kv_usage, &self.kv_info];
        names.iter().any(|name| name.is_some())
    }
}

// === impl ServerLoad ===

impl ServerLoad {
    /// The report of a pool of `total` blocks of which `used` hold something; absent: there are none.
    #[must_use]
    pub fn kv_report(total: u32, used: u32) -> Option<KvReport> {
        (total > 0).then_some(KvReport {
            block_bytes: 0,
            blocks_total: total,
            blocks_free: total.saturating_sub(used),
            blocks_cached: 0,
            blocks_evicted_total: 0,
        })
    }

    /// The load with what `other` knows where this one does not.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            capacity: self.capacity.or(other.capacity),
            present: self.present.or(other.present),
            tokens_per_block: self.tokens_per_block.or(other.tokens_per_block),
            kv: self.kv.or(other.kv),
        }
    }
}

// === impl ServerUrl ===

impl ServerUrl {
    /// Host and port.
    #[must_use]
    pub fn authority(&self) -> String {
        let authority = self.0.authority().map(ToString::to_string);
        authority.unwrap_or_default()
    }

    /// Host and port, where the port may be the scheme's.
    #[must_use]
    pub fn host_and_port(&self) -> String {
        let host = self.0.host().unwrap_or_default();
        format!("{host}:{}", self.port())
    }

    /// The host, without the brackets of an address.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.0.host().unwrap_or_default();
        host.trim_matches(['[', ']'])
    }

    /// The port, which may be the scheme's.
    #[must_use]
    pub fn port(&self) -> u16 {
        let default = if self.is_encrypted() { 443 } else { 80 };
        self.0.port_u16().unwrap_or(default)
    }

    /// The same address at one of the addresses of its host.
    ///
    /// # Panics
    /// Never: an address and a path make an address of a server.
    #[must_use]
    pub fn at(&self, address: SocketAddr) -> Self {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        let url = format!("{scheme}://{address}{}", self.prefix());
        url.parse()
            .expect("an address and a path are an address of a server")
    }

    /// True for `https`.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }

    /// The path before all paths, without a slash at its end; often empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.0.path().trim_end_matches('/')
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        if text.contains('#') {
            return Err(ServerUrlError::Parts);
        }
        let uri: Uri = text
            .parse()
            .map_err(|_wrong: http::uri::InvalidUri| ServerUrlError::NoUrl)?;
        let Some(authority) = uri.authority() else {
            return Err(ServerUrlError::NoUrl);
        };
        if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
            return Err(ServerUrlError::Scheme);
        }
        if uri.query().is_some() || authority.as_str().contains('@') {
            return Err(ServerUrlError::Parts);
        }
        if authority.host().is_empty() {
            return Err(ServerUrlError::NoUrl);
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.prefix())
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl ServerKey ===

impl ServerKey {
    /// A key, as it is sent.
    #[must_use]
    pub fn new(key: String) -> Self {
        Self(key)
    }

    /// The key itself, for the server alone.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_path() {
        for (text, authority, prefix, shown) in [
            ("http://gpu1:8000", "gpu1:8000", "", "http://gpu1:8000"),
            ("http://gpu1:8000/", "gpu1:8000", "", "http://gpu1:8000"),
            (
                "https://api.example/v2/",
                "api.example",
                "/v2",
                "https://api.example/v2",
            ),
            ("http://[::1]:80", "[::1]:80", "", "http://[::1]:80"),
        ] {
            let url: ServerUrl = text.parse().unwrap();
            assert_eq!((&*url.authority(), url.prefix()), (authority, prefix));
            assert_eq!(url.to_string(), shown);
        }
        for (text, error) in [
            ("", ServerUrlError::NoUrl),
            ("gpu1", ServerUrlError::Scheme),
            ("gpu1:8000", ServerUrlError::Scheme),
            ("ftp://gpu1", ServerUrlError::Scheme),
            ("http://", ServerUrlError::NoUrl),
            ("http://gpu1/?a=b", ServerUrlError::Parts),
            ("http://gpu1/#a", ServerUrlError::Parts),
            ("http://user:secret@gpu1", ServerUrlError::Parts),
        ] {
            assert_eq!(text.parse::<ServerUrl>(), Err(error), "{text:?}");
        }
    }
}
