//! The hub's HTTP interface, as far as it takes to fetch a model.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{self, HeaderName};
use http::response::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use pointsman_notation::HubModel;
use pointsman_notation::Secret;
use pointsman_remote::client::{CallError, Connections, Download, Trust};
use serde::Deserialize;
use tokio::time;
use tracing::warn;

use super::cache::{Cache, Part};
use super::{HubError, HubSettings, is_plain};
use crate::progress::{Done, Progress};

/// The longest time without a byte.
const PATIENCE: Duration = Duration::from_secs(30);
/// Attempts without a single byte more, after which nothing more is tried.
const ATTEMPTS_MAX: u32 = 5;
/// The wait before the second attempt that brought nothing. The one after it is twice as long, and so on.
const PAUSE: Duration = Duration::from_secs(1);
/// The waits after which a hub that is busy is asked again for something small.
const BUSY_PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
/// Addresses that lead to others, one after the other.
const REDIRECTS_MAX: u32 = 8;
/// Characters of a commit, and of a SHA-256.
const COMMIT_DIGITS: usize = 40;
const SHA256_DIGITS: usize = 64;
/// The most characters of what names a content.
const TAG_CHARS_MAX: usize = 128;

const LINKED_TAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const AGENT: &str = concat!("pointsman/", env!("CARGO_PKG_VERSION"));

/// A client for one model.
pub(super) struct HubClient {
    connections: Connections,
    model: HubModel,
    endpoint: String,
    token: Option<Secret>,
    cache: PathBuf,
}

/// The files of a revision.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: BTreeSet<String>,
}

/// A file, as the hub describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeaders {
    /// The name of its content: the SHA-256 of a large file, and of a small one what git calls it.
    pub(super) tag: String,
    pub(super) bytes: u64,
}

#[derive(Deserialize)]
struct ListingBody {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The end of an attempt to fetch a file.
enum Attempt {
    Done,
    /// It broke off, and can be gone on with.
    Broken(String),
}

impl HubClient {
    pub(super) fn new(model: &HubModel, hub: &HubSettings) -> Result<Self, HubError> {
        Ok(Self {
            connections: connections(&hub.endpoint).map_err(HubError::Certificates)?,
            cache: Cache::of(model, hub)?.folder().to_owned(),
            model: model.clone(),
            endpoint: hub.endpoint.trim_end_matches('/').to_owned(),
            token: hub.token(),
        })
    }

    pub(super) fn model(&self) -> &HubModel {
        &self.model
    }

    /// The files of the model's revision.
    pub(super) async fn listing(&self) -> Result<Listing, HubError> {
        let (repo, revision) = (&self.model.repo, encoded(&self.model.revision, ""));
        let path = format!("/api/models/{repo}/revision/{revision}");
        let mut answer = patiently(|| self.follow(Method::GET, &path, None)).await?;
        self.check(&answer.head, &path)?;
        let mut json = Vec::new();
        while let Some(bytes) = answer
            .next()
            .await
            .map_err(|error| self.unreachable(&error))?
        {
            if json.len() + bytes.len() > pointsman_remote::client::ANSWER_BYTES_MAX {
                return Err(self.answers(&path, "a list without end"));
            }
            json.extend_from_slice(&bytes);
        }
        let body: Option<ListingBody> = serde_json::from_slice(&json).ok();
        let body = body.filter(|body| is_commit(&body.sha));
        let body = body.ok_or_else(|| self.answers(&path, "no list of files"))?;
        let names = body.siblings.into_iter().map(|sibling| sibling.rfilename);
        Ok(Listing {
            commit: body.sha,
            files: names.filter(|name| is_plain(name)).collect(),
        })
    }

    /// A file of a commit.
    pub(super) async fn about(&self, commit: &str, name: &str) -> Result<FileHeaders, HubError> {
        let path = self.path(commit, name);
        let mut at = format!("{}{path}", self.endpoint);
        for _ in 0..REDIRECTS_MAX {
            let answer = patiently(|| self.send(Method::HEAD, &at, None)).await?;
            let head = answer.head;
            let elsewhere = self.elsewhere(&head, &at)?;
            match elsewhere.filter(|next| origin(next) == origin(&at)) {
                // To another place on the hub, which knows more.
                Some(next) if !head.headers.contains_key(LINKED_TAG) => at = next,
                // From elsewhere it comes, and this is what it is.
                Some(_) | None => {
                    if !head.status.is_redirection() {
                        self.check(&head, &path)?;
                    }
                    let about = about(&head.headers);
                    return about.ok_or_else(|| self.answers(&path, "neither size nor tag"));
                }
            }
        }
        Err(self.answers(&path, "redirects without end"))
    }

    /// Fetches what is missing of a file, and checks all of it.
    pub(super) async fn fetch(
        &self,
        (commit, name, about): (&str, &str, &FileHeaders),
        part: &mut Part,
        mut progress: Progress,
    ) -> Result<(), HubError> {
        let path = self.path(commit, name);
        let is_checked = about.tag.len() == SHA256_DIGITS;
        if !is_checked {
            // Nobody could tell what of it is right.
            part.clear()?;
        }
        let mut was_there = part.bytes() > 0;
        loop {
            self.complete((name, &path, about), part, &mut progress)
                .await?;
            let found = part.sha256();
            if !is_checked || found == about.tag.to_lowercase() {
                return Ok(());
            }
            part.clear()?;
            // Another tool may have left something else there.
            if !std::mem::take(&mut was_there) {
                let what = format!("its SHA-256 is {found}, and not {}", about.tag);
                return Err(self.damaged(name, what));
            }
        }
    }

    /// Fetches what is missing of a file, in as many attempts as bring something.
    async fn complete(
        &self,
        (name, path, about): (&str, &str, &FileHeaders),
        part: &mut Part,
        progress: &mut Progress,
    ) -> Result<(), HubError> {
        let mut in_vain = 0;
        loop {
            let before = part.bytes();
            let attempt = self.attempt(path, about, (&mut *part, &mut *progress));
            let Attempt::Broken(why) = attempt.await? else {
                return Ok(());
            };
            in_vain = if part.bytes() > before {
                0
            } else {
                in_vain + 1
            };
            if in_vain == ATTEMPTS_MAX {
                return Err(self.out_of_reach(why));
            }
            warn!(
                file = name,
                why, "the download broke off, and is gone on with"
            );
            if let Some(times) = in_vain.checked_sub(1) {
                time::sleep(PAUSE * 2_u32.pow(times)).await;
            }
        }
    }

    async fn attempt(
        &self,
        path: &str,
        about: &FileHeaders,
        (part, progress): (&mut Part, &mut Progress),
    ) -> Result<Attempt, HubError> {
        if part.bytes() > about.bytes {
            part.clear()?;
        }
        if part.bytes() == about.bytes {
            return Ok(Attempt::Done);
        }
        let from = Some(part.bytes()).filter(|bytes| *bytes > 0);
        let mut answer = match self.follow(Method::GET, path, from).await {
            Ok(answer) => answer,
            Err(HubError::Unreachable { why, .. }) => return Ok(Attempt::Broken(why)),
            Err(error) => return Err(error),
        };
        match answer.head.status {
            StatusCode::PARTIAL_CONTENT if continues(&answer.head, part.bytes()) => {}
            StatusCode::OK => part.clear()?,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                part.clear()?;
                return Ok(Attempt::Broken("it has another part to give".to_owned()));
            }
            status if is_busy(status) => return Ok(Attempt::Broken(format!("status {status}"))),
            _ => {
                self.check(&answer.head, path)?;
                return Err(self.answers(path, &format!("status {}", answer.head.status)));
            }
        }
        loop {
            match answer.next().await {
                Ok(Some(bytes)) => part.append(&bytes)?,
                Ok(None) if part.bytes() == about.bytes => return Ok(Attempt::Done),
                Ok(None) => return Ok(Attempt::Broken("it ended too early".to_owned())),
                Err(error) => return Ok(Attempt::Broken(error.to_string())),
            }
            if part.bytes() > about.bytes {
                part.clear()?;
                let what = format!("it has more than its {} bytes", about.bytes);
                return Err(self.damaged(path, what));
            }
            progress.advance(Done::Fetched(part.bytes()));
        }
    }

    /// Sends a request, and follows redirects to wherever they lead.
    async fn follow(
        &self,
        method: Method,
        path: &str,
        from: Option<u64>,
    ) -> Result<Download, HubError> {
        let mut at = format!("{}{path}", self.endpoint);
        for _ in 0..REDIRECTS_MAX {
            let answer = self.send(method.clone(), &at, from).await?;
            match self.elsewhere(&answer.head, &at)? {
                Some(next) => at = next,
                None => return Ok(answer),
            }
        }
        Err(self.answers(path, "redirects without end"))
    }

    async fn send(
        &self,
        method: Method,
        at: &str,
        from: Option<u64>,
    ) -> Result<Download, HubError> {
        let mut request = Request::builder()
            .method(method)
            .uri(at)
            .header(header::USER_AGENT, AGENT)
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(from) = from {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let of_hub = origin(at) == origin(&self.endpoint);
        if let Some(token) = self.token.as_deref().filter(|_| of_hub) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(());
        let request = request.map_err(|error| self.answers(at, &error.to_string()))?;
        let answer = self.connections.download(request, PATIENCE).await;
        answer.map_err(|error| self.unreachable(&error))
    }

    /// The address that an answer leads to; absent: it leads nowhere else.
    fn elsewhere(&self, head: &Parts, at: &str) -> Result<Option<String>, HubError> {
        let location = head.headers.get(header::LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        let Some(location) = location.filter(|_| head.status.is_redirection()) else {
            return Ok(None);
        };
        let next = match location.starts_with('/') && !location.starts_with("//") {
            true => format!("{}{location}", origin(at)),
            false => location.to_owned(),
        };
        let is_secured = next.starts_with("https://");
        let was_secured = at.starts_with("https://");
        match is_secured || (next.starts_with("http://") && !was_secured) {
            true => Ok(Some(next)),
            false => Err(self.answers(at, "a redirect to an address that is not secured")),
        }
    }

    /// Refuses an answer that is none.
    fn check(&self, head: &Parts, path: &str) -> Result<(), HubError> {
        let (endpoint, repo) = (self.endpoint.clone(), self.model.repo.clone());
        let code = head.headers.get(ERROR_CODE);
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or("");
        match (head.status, code) {
            (status, _) if status.is_success() => Ok(()),
            (status, _) if is_busy(status) => Err(self.out_of_reach(format!("status {status}"))),
            (_, "GatedRepo") | (StatusCode::FORBIDDEN, _) => {
                Err(HubError::Gated { endpoint, repo })
            }
            (_, "RevisionNotFound") => Err(HubError::NoRevision {
                endpoint,
                revision: self.model.revision.clone(),
                repo,
            }),
            (StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED, _) => Err(HubError::NoModel {
                model: self.model.to_string(),
                endpoint,
                repo,
            }),
            (status, _) => Err(self.answers(path, &format!("status {status}"))),
        }
    }

    /// The path of a file of a commit.
    fn path(&self, commit: &str, name: &str) -> String {
        format!(
            "/{}/resolve/{commit}/{}",
            self.model.repo,
            encoded(name, "/")
        )
    }

    fn answers(&self, path: &str, what: &str) -> HubError {
        HubError::Answer {
            endpoint: self.endpoint.clone(),
            path: path.to_owned(),
            what: what.to_owned(),
        }
    }

    fn damaged(&self, file: &str, what: String) -> HubError {
        HubError::Damaged {
            model: self.model.to_string(),
            file: file.to_owned(),
            what,
        }
    }

    fn unreachable(&self, error: &CallError) -> HubError {
        self.out_of_reach(error.to_string())
    }

    fn out_of_reach(&self, why: String) -> HubError {
        HubError::Unreachable {
            model: self.model.to_string(),
            endpoint: self.endpoint.clone(),
            why,
            cache: self.cache.clone(),
        }
    }
}

/// Connections to the hub. One at `http://` shows no certificate, so that a machine without any can use it.
fn connections(endpoint: &str) -> io::Result<Connections> {
    match Connections::new() {
        Err(_unread) if endpoint.starts_with("http://") => Connections::trusting(Trust::Nobody),
        connections => connections,
    }
}

/// Returns true for the status of a hub that may give its answer later: it is as good as out of reach.
fn is_busy(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Asks for something small, and again where the hub is busy. Its last answer may be that it still is.
async fn patiently<F>(ask: impl Fn() -> F) -> Result<Download, HubError>
where
    F: Future<Output = Result<Download, HubError>>,
{
    for pause in BUSY_PAUSES {
        let answer = ask().await?;
        if !is_busy(answer.head.status) {
            return Ok(answer);
        }
        time::sleep(pause).await;
    }
    ask().await
}

/// Returns true for what git calls a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.chars().all(|char| char.is_ascii_hexdigit())
}

/// The description of a file in the headers about it.
fn about(headers: &HeaderMap) -> Option<FileHeaders> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let tag = text(LINKED_TAG).or_else(|| text(header::ETAG))?;
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    let is_known = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
    let is_name = (1..=TAG_CHARS_MAX).contains(&tag.len()) && tag.chars().all(is_known);
    let bytes = text(LINKED_SIZE).or_else(|| text(header::CONTENT_LENGTH))?;
    Some(FileHeaders {
        tag: is_name.then(|| tag.to_owned())?,
        bytes: bytes.parse().ok()?,
    })
}

/// Returns true if an answer goes on where so many bytes end.
fn continues(head: &Parts, bytes: u64) -> bool {
    let range = head.headers.get(header::CONTENT_RANGE);
    let range = range.and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {bytes}-")))
}

/// Scheme, host and port of an address.
fn origin(at: &str) -> &str {
    let host = at.find("://").map_or(0, |scheme| scheme + 3);
    let path = at[host..].find('/').map_or(at.len(), |path| host + path);
    &at[..path]
}

/// A part of a path, with what may not stand there in hexadecimal digits.
fn encoded(text: &str, kept: &str) -> String {
    let mut path = String::new();
    for byte in text.bytes() {
        let char = char::from(byte);
        if char.is_ascii_alphanumeric() || "-_.~".contains(char) || kept.contains(char) {
            path.push(char);
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}
