//! Access: listeners, API keys and their tenants, and the rule of each route.
//!
//! A key is hashed and compared with every known hash in constant time, so that the time taken
//! tells neither the key nor the one among the known keys that matched.
//!
//! # Invariants
//! 1. Where keys are configured nobody is a tenant without one
//!    (`tests::only_a_known_key_names_a_tenant`).
//! 2. Without an admin key `/admin` is closed unless only this machine can connect, or a listener
//!    was made for it (`tests::admin_needs_its_key_or_its_listener_or_loopback`).
//! 3. Where there is no admin key, a page from elsewhere in an operator's browser can neither read
//!    nor order anything (`tests::a_page_from_elsewhere_is_no_operator`).
//! 4. Where only this machine can connect and no key is needed, such a page is no client either, nor
//!    does it read metrics, unless the configuration allows its origin
//!    (`tests::a_page_from_elsewhere_is_no_client_of_this_machine`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::cors::{Origins, authority};
use super::error::ApiError;

/// The tenant of clients that need no key, and of keys that name none.
pub const DEFAULT_TENANT: &str = "default";

/// The clients and operators that a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The listener is for clients and operators.
    Everybody,
    /// The listener is for clients; operators have a listener of their own.
    Clients,
    /// The listener is for operators only.
    Operators,
}

/// The machines that can connect to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only this machine can connect.
    Loopback,
    /// Other machines can connect as well.
    Network,
}

/// The listener that a request came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    reach: Reach,
    audience: Audience,
}

/// A request's sender, as far as no key tells who that is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visitor<'a> {
    pub(super) listener: Listener,
    pub(super) headers: &'a HeaderMap,
    /// The origins of pages that may be clients.
    pub(super) origins: &'a Origins,
}

/// The rule by which a route lets requests in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Anybody, at every listener.
    Open,
    /// Clients: with an API key where keys are configured, and not at the operators' listener.
    Clients,
    /// Anybody; with an API key or the admin key where `http.metrics-public` is false.
    Metrics,
    /// Anybody, where operators may come in: a page that asks for the admin key by itself.
    OperatorsPage,
    /// Operators: with the admin key where there is one.
    Operators,
}

/// A client's key, and the tenant that it belongs to.
#[derive(Clone)]
pub struct ApiKey {
    /// SHA-256 of the key: keys are compared, never kept.
    pub sha256: [u8; 32],
    /// The name of a tenant in the configuration.
    pub tenant: String,
}

/// The keys of clients and of operators, and the access to `/metrics`.
#[derive(Debug)]
pub struct ApiKeys {
    keys: Vec<ApiKey>,
    admin: Option<[u8; 32]>,
    metrics: MetricsAccess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricsAccess {
    Everybody,
    KeyHolders,
}

// === impl Listener ===

impl Listener {
    pub(super) fn new(addr: SocketAddr, audience: Audience) -> Self {
        let reach = if addr.ip().is_loopback() {
            Reach::Loopback
        } else {
            Reach::Network
        };
        Self { reach, audience }
    }

    fn check_clients(self) -> Result<(), ApiError> {
        match self.audience {
            Audience::Everybody | Audience::Clients => Ok(()),
            Audience::Operators => Err(ApiError::Forbidden(
                "this address is for operators; clients use the one of `listen` in the configuration",
            )),
        }
    }
}

// === impl Access ===

impl Access {
    /// True if the route is for operators, and not for clients or anybody.
    pub(super) fn is_for_operators(self) -> bool {
        match self {
            Access::Open | Access::Clients | Access::Metrics => false,
            Access::OperatorsPage | Access::Operators => true,
        }
    }
}

// === impl ApiKey ===

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("tenant", &self.tenant)
            .finish_non_exhaustive()
    }
}

// === impl ApiKeys ===

impl ApiKeys {
    /// The keys of clients and of operators. Without clients' keys everybody is the tenant
    /// [`DEFAULT_TENANT`].
    #[must_use]
    pub fn new(keys: Vec<ApiKey>, admin: Option<&str>) -> Self {
        Self {
            keys,
            admin: admin.map(hash),
            metrics: MetricsAccess::Everybody,
        }
    }

    /// The same keys, with `/metrics` for holders of a key only.
    #[must_use]
    pub fn with_private_metrics(self) -> Self {
        let metrics = MetricsAccess::KeyHolders;
        Self { metrics, ..self }
    }

    /// Lets a request in by the rule of its route. Returns its tenant; the default one where the
    /// route is not for clients.
    pub(super) fn admit(&self, access: Access, visitor: Visitor<'_>) -> Result<&str, ApiError> {
        match access {
            Access::Open => {}
            Access::Clients => {
                visitor.listener.check_clients()?;
                return self.tenant(visitor);
            }
            Access::Metrics => self.check_metrics(visitor)?,
            Access::OperatorsPage => self.check_operators_page(visitor)?,
            Access::Operators => self.check_operator(visitor)?,
        }
        Ok(DEFAULT_TENANT)
    }

    fn tenant(&self, visitor: Visitor<'_>) -> Result<&str, ApiError> {
        if self.keys.is_empty() {
            return visitor.check_client().map(|()| DEFAULT_TENANT);
        }
        let offered = bearer(visitor.headers)
            .map(hash)
            .ok_or(ApiError::Unauthorized)?;
        let mut tenant = Err(ApiError::Unauthorized);
        for key in &self.keys {
            if bool::from(key.sha256.ct_eq(&offered)) {
                tenant = Ok(&*key.tenant);
            }
        }
        tenant
    }

    fn check_metrics(&self, visitor: Visitor<'_>) -> Result<(), ApiError> {
        match self.metrics {
            MetricsAccess::Everybody => visitor.check_client(),
            MetricsAccess::KeyHolders if self.is_admin(visitor.headers) => Ok(()),
            MetricsAccess::KeyHolders => self.tenant(visitor).map(drop),
        }
    }

    /// The page asks for the admin key by itself, where there is one.
    fn check_operators_page(&self, visitor: Visitor<'_>) -> Result<(), ApiError> {
        self.check_operators_listener(visitor.listener)?;
        match self.admin {
            Some(_) => Ok(()),
            None => visitor.check_operator(),
        }
    }

    /// Refuses a request at a listener that gives operators no access at all.
    fn check_operators_listener(&self, listener: Listener) -> Result<(), ApiError> {
        match (listener.audience, self.admin, listener.reach) {
            (Audience::Clients, ..) => Err(ApiError::Forbidden(
                "/admin and /monitor answer on the address of `admin.listen` in the configuration only",
            )),
            (Audience::Everybody, None, Reach::Network) => Err(ApiError::Forbidden(
                "set `admin.key` or `admin.listen` in the configuration to use /admin and /monitor \
                 where others than this machine can connect",
            )),
            (Audience::Operators, ..)
            | (Audience::Everybody, Some(_), _)
            | (Audience::Everybody, None, Reach::Loopback) => Ok(()),
        }
    }

    fn check_operator(&self, visitor: Visitor<'_>) -> Result<(), ApiError> {
        self.check_operators_listener(visitor.listener)?;
        match self.admin {
            Some(_) if self.is_admin(visitor.headers) => Ok(()),
            Some(_) => Err(ApiError::AdminUnauthorized),
            None => visitor.check_operator(),
        }
    }

    fn is_admin(&self, headers: &HeaderMap) -> bool {
        self.admin.is_some_and(|admin| {
            bearer(headers).is_some_and(|key| bool::from(hash(key).ct_eq(&admin)))
        })
    }
}

// === impl Visitor ===

impl Visitor<'_> {
    /// Refuses pages of other sites where there is no admin key: nothing else tells an operator from
    /// a page that the operator's browser shows.
    fn check_operator(self) -> Result<(), ApiError> {
        if self.comes_from_here(&Origins::default()) {
            return Ok(());
        }
        Err(ApiError::Forbidden(
            "a page from elsewhere may not use /admin and /monitor; ask at 127.0.0.1 or localhost, \
             or set `admin.key` in the configuration",
        ))
    }

    /// Refuses pages of other sites where no key is needed and only this machine can connect: they
    /// could not come there but by way of a browser.
    fn check_client(self) -> Result<(), ApiError> {
        match self.listener.reach {
            Reach::Network => Ok(()),
            Reach::Loopback if self.comes_from_here(self.origins) => Ok(()),
            Reach::Loopback => Err(ApiError::Forbidden(
                "a page from elsewhere may not use this server; ask at 127.0.0.1 or localhost, or \
                 configure `[[keys]]`, or the page's origin in `http.cors-origins`",
            )),
        }
    }

    /// True unless a page of another site asks: a browser tells the site of a page, and a foreign
    /// name that was made to mean this machine is none of this machine's own names.
    fn comes_from_here(self, origins: &Origins) -> bool {
        let text = |name: HeaderName| self.headers.get(name).map(|v| v.to_str().unwrap_or(""));
        let host = text(HOST).unwrap_or("");
        let is_own = |origin: &str| authority(origin).is_some_and(|o| o.eq_ignore_ascii_case(host));
        let page_is_known = text(ORIGIN).is_none_or(|page| is_own(page) || origins.allow(page));
        let host_is_known =
            self.listener.reach == Reach::Network || names_this_machine(host) || origins.name(host);
        page_is_known && host_is_known
    }
}

fn names_this_machine(host: &str) -> bool {
    let authority = host.parse::<Authority>();
    authority.is_ok_and(|authority| {
        let name = authority.host();
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || literal.parse::<IpAddr>().is_ok()
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use hyper::header::HeaderValue;

    use super::*;

    fn api_keys(keys: &[(&str, &str)], admin: Option<&str>, metrics: MetricsAccess) -> ApiKeys {
        let key = |(key, tenant): &(&str, &str)| ApiKey {
            sha256: hash(key),
            tenant: (*tenant).to_owned(),
        };
        ApiKeys {
            keys: keys.iter().map(key).collect(),
            admin: admin.map(hash),
            metrics,
        }
    }

    static NONE: LazyLock<Origins> = LazyLock::new(Origins::default);

    fn visitor(headers: &HeaderMap, listener: Listener) -> Visitor<'_> {
        Visitor {
            listener,
            headers,
            origins: &NONE,
        }
    }

    /// A request that other machines could have made.
    fn from_afar(headers: &HeaderMap) -> Visitor<'_> {
        visitor(headers, listener(Reach::Network, Audience::Everybody))
    }

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
        headers
    }

    #[test]
    fn only_a_known_key_names_a_tenant() {
        let keys = api_keys(
            &[("one", "a"), ("two", "b")],
            None,
            MetricsAccess::Everybody,
        );
        assert_eq!(keys.tenant(from_afar(&with("Bearer one"))), Ok("a"));
        assert_eq!(keys.tenant(from_afar(&with("bearer two"))), Ok("b"));
        for unknown in [
            "Bearer three",
            "Bearer ",
            "Basic one",
            "one",
            "Bearer one two",
        ] {
            assert_eq!(
                keys.tenant(from_afar(&with(unknown))),
                Err(ApiError::Unauthorized),
                "{unknown}"
            );
        }
        assert_eq!(
            keys.tenant(from_afar(&HeaderMap::new())),
            Err(ApiError::Unauthorized)
        );
    }

    #[test]
    fn without_keys_everybody_is_the_default_tenant() {
        let keys = api_keys(&[], None, MetricsAccess::Everybody);
        assert_eq!(
            keys.tenant(from_afar(&HeaderMap::new())),
            Ok(DEFAULT_TENANT)
        );
        assert_eq!(
            keys.tenant(from_afar(&with("Bearer whatever"))),
            Ok(DEFAULT_TENANT)
        );
    }

    fn listener(reach: Reach, audience: Audience) -> Listener {
        Listener { reach, audience }
    }

    fn at(host: &'static str, origin: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
        }
        headers
    }

    #[test]
    fn admin_needs_its_key_or_its_listener_or_loopback() {
        let open = api_keys(&[("one", "a")], None, MetricsAccess::Everybody);
        let locked = api_keys(&[("one", "a")], Some("root"), MetricsAccess::Everybody);
        for reach in [Reach::Loopback, Reach::Network] {
            for audience in [Audience::Everybody, Audience::Clients, Audience::Operators] {
                let listener = listener(reach, audience);
                let local = at("127.0.0.1:8080", None);
                let without = open.check_operator(visitor(&local, listener));
                let (tenant, admin) = (with("Bearer one"), with("Bearer root"));
                let with_key = locked.check_operator(visitor(&admin, listener));
                match (audience, reach) {
                    (Audience::Clients, _) => {
                        assert!(matches!(without, Err(ApiError::Forbidden(_))));
                        assert!(matches!(with_key, Err(ApiError::Forbidden(_))));
                    }
                    (Audience::Everybody, Reach::Network) => {
                        assert!(matches!(without, Err(ApiError::Forbidden(_))));
                        assert_eq!(with_key, Ok(()));
                    }
                    (Audience::Everybody, Reach::Loopback) | (Audience::Operators, _) => {
                        assert_eq!((without, with_key), (Ok(()), Ok(())));
                    }
                }
                if audience != Audience::Clients {
                    let other = locked.check_operator(visitor(&tenant, listener));
                    assert_eq!(other, Err(ApiError::AdminUnauthorized));
                }
            }
        }
        assert_eq!(
            locked.tenant(from_afar(&with("Bearer root"))),
            Err(ApiError::Unauthorized)
        );
    }

    #[test]
    fn a_page_from_elsewhere_is_no_operator() {
        let open = api_keys(&[], None, MetricsAccess::Everybody);
        let loopback = listener(Reach::Loopback, Audience::Everybody);
        for (host, origin, passes) in [
            ("127.0.0.1:8080", None, true),
            ("localhost:8080", Some("http://localhost:8080"), true),
            ("[::1]:8080", Some("http://[::1]:8080"), true),
            ("127.0.0.1:8080", Some("http://evil.example"), false),
            ("127.0.0.1:8080", Some("http://127.0.0.1:9999"), false),
            ("127.0.0.1:8080", Some("null"), false),
            // A name of the page's site, made to mean this machine.
            ("evil.example:8080", None, false),
            ("evil.example:8080", Some("http://evil.example:8080"), false),
            ("", None, false),
        ] {
            let headers = at(host, origin);
            let visitor = visitor(&headers, loopback);
            assert_eq!(
                open.check_operator(visitor).is_ok(),
                passes,
                "{host} {origin:?}"
            );
            let page = open.check_operators_page(visitor);
            assert_eq!(page.is_ok(), passes, "{host} {origin:?}");
        }
        // A listener of their own may well have a name.
        let own = listener(Reach::Network, Audience::Operators);
        assert_eq!(
            open.check_operator(visitor(&at("ops.example:9090", None), own)),
            Ok(())
        );
        let evil = at("ops.example:9090", Some("http://evil.example"));
        assert!(open.check_operator(visitor(&evil, own)).is_err());
        // A page does not have the key.
        let locked = api_keys(&[], Some("root"), MetricsAccess::Everybody);
        let mut keyed = with("Bearer root");
        keyed.insert(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert_eq!(locked.check_operator(visitor(&keyed, loopback)), Ok(()));
    }

    #[test]
    fn a_page_from_elsewhere_is_no_client_of_this_machine() {
        let open = api_keys(&[], None, MetricsAccess::Everybody);
        let private = api_keys(&[], None, MetricsAccess::KeyHolders);
        let origins = Origins::new(vec!["https://chat.example:8443".parse().unwrap()]);
        for (host, origin, passes) in [
            ("127.0.0.1:8080", None, true),
            ("localhost:8080", Some("http://localhost:8080"), true),
            ("127.0.0.1:8080", Some("https://chat.example:8443"), true),
            ("chat.example:8443", None, true),
            ("127.0.0.1:8080", Some("https://evil.example"), false),
            ("127.0.0.1:8080", Some("null"), false),
            ("evil.example:8080", None, false),
            ("evil.example:8080", Some("http://evil.example:8080"), false),
            ("", None, false),
        ] {
            let headers = at(host, origin);
            for reach in [Reach::Loopback, Reach::Network] {
                let visitor = Visitor {
                    listener: listener(reach, Audience::Everybody),
                    headers: &headers,
                    origins: &origins,
                };
                // Whoever reaches an address of the network may ask.
                let passes = passes || reach == Reach::Network;
                for (keys, access) in [
                    (&open, Access::Clients),
                    (&open, Access::Metrics),
                    (&private, Access::Metrics),
                ] {
                    let may = keys.admit(access, visitor).is_ok();
                    assert_eq!(may, passes, "{host} {origin:?} {reach:?} {access:?}");
                }
                assert!(open.admit(Access::Open, visitor).is_ok());
            }
        }
        // A page of an allowed origin is a client and no operator.
        let page = at("127.0.0.1:8080", Some("https://chat.example:8443"));
        let visitor = Visitor {
            listener: listener(Reach::Loopback, Audience::Everybody),
            headers: &page,
            origins: &origins,
        };
        for access in [Access::Operators, Access::OperatorsPage] {
            assert!(open.admit(access, visitor).is_err());
        }
        // A page does not have a key.
        let locked = api_keys(&[("one", "a")], None, MetricsAccess::Everybody);
        let mut keyed = with("Bearer one");
        keyed.insert(ORIGIN, HeaderValue::from_static("http://evil.example"));
        let visitor = Visitor {
            headers: &keyed,
            ..visitor
        };
        assert_eq!(locked.admit(Access::Clients, visitor), Ok("a"));
    }

    #[test]
    fn an_address_for_operators_serves_no_clients() {
        assert!(
            listener(Reach::Loopback, Audience::Operators)
                .check_clients()
                .is_err()
        );
        for audience in [Audience::Everybody, Audience::Clients] {
            assert_eq!(listener(Reach::Network, audience).check_clients(), Ok(()));
        }
    }

    #[test]
    fn metrics_are_for_those_the_configuration_says() {
        let nobody = HeaderMap::new();
        let public = api_keys(&[("one", "a")], Some("root"), MetricsAccess::Everybody);
        assert_eq!(public.check_metrics(from_afar(&nobody)), Ok(()));
        let closed = api_keys(&[("one", "a")], Some("root"), MetricsAccess::KeyHolders);
        assert_eq!(
            closed.check_metrics(from_afar(&nobody)),
            Err(ApiError::Unauthorized)
        );
        assert_eq!(closed.check_metrics(from_afar(&with("Bearer one"))), Ok(()));
        assert_eq!(
            closed.check_metrics(from_afar(&with("Bearer root"))),
            Ok(())
        );
    }
}
