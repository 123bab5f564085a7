//! Pages of other sites that may use the server from a browser: CORS, by configuration.
//!
//! A browser lets a page read answers, and send what is no plain form, only where the server names the
//! page's origin. [`Origins`] are those of the configuration. They count for clients' paths: the
//! interface for operators names no origin. What a server elsewhere says about pages is passed on to nobody.

use std::str::FromStr;

use http_body_util::{Either, Full};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};

use super::answer::HttpReply;
use super::routes::Resource;

/// The time for which a browser may remember an answer to its question, in seconds.
const MAX_AGE_SECS: u32 = 600;

/// An origin of pages, such as `https://chat.example`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin(String);

/// A text that is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an origin such as `https://chat.example`, without a path")]
pub struct NoOrigin;

/// The origins whose pages may use the server as clients do.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<PageOrigin>);

// === impl PageOrigin ===

impl FromStr for PageOrigin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let (scheme, rest) = text.split_once("://").ok_or(NoOrigin)?;
        let is_web = ["http", "https"].contains(&scheme);
        let authority: Authority = rest.parse().map_err(|_none| NoOrigin)?;
        if !is_web || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(NoOrigin);
        }
        Ok(Self(text.to_owned()))
    }
}

/// The host of an origin, with its port if that is not the scheme's own.
pub(super) fn authority(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, authority)| authority)
}

/// Removes what another server has said about pages, whose answer is passed on.
pub(super) fn remove_others(headers: &mut HeaderMap) {
    let names = headers.keys();
    let names = names.filter(|name| name.as_str().starts_with("access-control-"));
    for name in names.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

// === impl Origins ===

impl Origins {
    /// The origins that the configuration names.
    #[must_use]
    pub fn new(origins: Vec<PageOrigin>) -> Self {
        Self(origins)
    }

    /// True if pages of `origin` may use the server.
    pub(super) fn allow(&self, origin: &str) -> bool {
        self.0.iter().any(|own| own.0.eq_ignore_ascii_case(origin))
    }

    /// True if `host` is that of an origin: its owner is trusted with the name.
    pub(super) fn name(&self, host: &str) -> bool {
        let mut hosts = self.0.iter().filter_map(|own| authority(&own.0));
        hosts.any(|own| own.eq_ignore_ascii_case(host))
    }

    /// The origin of a request's page, if it is one of these.
    fn of<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        origin
            .to_str()
            .is_ok_and(|text| self.allow(text))
            .then_some(origin)
    }

    /// The headers of an answer to a client, which let the page that asked read it.
    pub(super) fn answer_headers(&self, asked: &HeaderMap) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if self.0.is_empty() {
            return headers;
        }
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = self.of(asked) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let all = HeaderValue::from_static("*");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, all);
        }
        headers
    }

    /// Answers a browser that asks whether a page may send a request to `resource`; absent: that is
    /// not asked, or it may not.
    pub(super) fn preflight<B>(
        &self,
        request: &Request<B>,
        resource: &Resource<'_>,
    ) -> Option<HttpReply> {
        let asked = request.headers();
        let method = asked.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let asks = *request.method() == Method::OPTIONS && !resource.is_for_operators();
        if !asks || self.of(asked).is_none() {
            return None;
        }
        let mut reply = Response::new(Either::Left(Full::default()));
        *reply.status_mut() = StatusCode::NO_CONTENT;
        let headers = reply.headers_mut();
        let methods = match resource.takes_any_method() {
            true => Ok(method.clone()),
            false => HeaderValue::try_from(resource.allow()),
        };
        let methods = methods.expect("methods can be a header's value");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let max_age = HeaderValue::from(MAX_AGE_SECS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, max_age);
        if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for text in ["https://chat.example", "http://[::1]:3000", "http://a"] {
            assert_eq!(text.parse(), Ok(PageOrigin(text.to_owned())));
        }
        for text in [
            "",
            "*",
            "null",
            "chat.example",
            "ftp://chat.example",
            "https://",
            "https://chat.example/",
            "https://me@chat.example",
        ] {
            assert_eq!(text.parse::<PageOrigin>(), Err(NoOrigin), "{text}");
        }
    }

    #[test]
    fn what_another_server_says_about_pages_is_removed_and_nothing_else() {
        let named = ["access-control-allow-origin", "vary", "content-type"];
        let named =
            named.map(|name| (HeaderName::from_static(name), HeaderValue::from_static("*")));
        let mut headers = HeaderMap::from_iter(named);
        headers.append(
            header::ACCESS_CONTROL_ALLOW_ORIGIN,
            HeaderValue::from_static("https://one.example"),
        );
        remove_others(&mut headers);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "vary"]);
    }

    #[test]
    fn only_pages_of_the_origins_may_read_answers() {
        let origins = Origins::new(vec!["https://chat.example".parse().unwrap()]);
        let asked = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            headers
        };
        let allowed = |origins: &Origins, origin| {
            let headers = origins.answer_headers(&asked(origin));
            let allowed = headers.get(header::ACCESS_CONTROL_ALLOW_ORIGIN);
            (allowed.cloned(), headers.contains_key(header::VARY))
        };
        let own = HeaderValue::from_static("https://chat.example");
        assert_eq!(allowed(&origins, "https://chat.example"), (Some(own), true));
        for other in ["https://evil.example", "http://chat.example", "null"] {
            assert_eq!(allowed(&origins, other), (None, true), "{other}");
        }
        let none = Origins::default();
        assert_eq!(allowed(&none, "https://chat.example"), (None, false));
    }
}
