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

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

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
    pub(super) fn admit(
        &self,
        access: Access,
        listener: Listener,
        headers: &HeaderMap,
    ) -> Result<&str, ApiError> {
        match access {
            Access::Open => {}
            Access::Clients => {
                listener.check_clients()?;
                return self.tenant(headers);
            }
            Access::Metrics => self.check_metrics(headers)?,
            Access::OperatorsPage => self.check_operators_listener(listener)?,
            Access::Operators => self.check_operator(headers, listener)?,
        }
        Ok(DEFAULT_TENANT)
    }

    fn tenant(&self, headers: &HeaderMap) -> Result<&str, ApiError> {
        if self.keys.is_empty() {
            return Ok(DEFAULT_TENANT);
        }
        let offered = bearer(headers).map(hash).ok_or(ApiError::Unauthorized)?;
        let mut tenant = Err(ApiError::Unauthorized);
        for key in &self.keys {
            if bool::from(key.sha256.ct_eq(&offered)) {
                tenant = Ok(&*key.tenant);
            }
        }
        tenant
    }

    fn check_metrics(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        match self.metrics {
            MetricsAccess::Everybody => Ok(()),
            MetricsAccess::KeyHolders if self.is_admin(headers) => Ok(()),
            MetricsAccess::KeyHolders => self.tenant(headers).map(drop),
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

    fn check_operator(&self, headers: &HeaderMap, listener: Listener) -> Result<(), ApiError> {
        self.check_operators_listener(listener)?;
        match self.admin {
            Some(_) if self.is_admin(headers) => Ok(()),
            Some(_) => Err(ApiError::AdminUnauthorized),
            // Without a key nothing else tells an operator from a page that the operator's
            // browser shows.
            None => check_origin(headers, listener.reach),
        }
    }

    fn is_admin(&self, headers: &HeaderMap) -> bool {
        self.admin.is_some_and(|admin| {
            bearer(headers).is_some_and(|key| bool::from(hash(key).ct_eq(&admin)))
        })
    }
}

/// Refuses pages of other sites: a browser tells the site of a page, and a foreign name that was
/// made to mean this machine is none of this machine's own names.
fn check_origin(headers: &HeaderMap, reach: Reach) -> Result<(), ApiError> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let host = text(HOST).unwrap_or("");
    let own = text(ORIGIN).is_none_or(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    });
    if own && (reach == Reach::Network || names_this_machine(host)) {
        return Ok(());
    }
    Err(ApiError::Forbidden(
        "a page from elsewhere may not use /admin; ask at 127.0.0.1 or localhost, or set \
         `admin.key` in the configuration",
    ))
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
        assert_eq!(keys.tenant(&with("Bearer one")), Ok("a"));
        assert_eq!(keys.tenant(&with("bearer two")), Ok("b"));
        for unknown in [
            "Bearer three",
            "Bearer ",
            "Basic one",
            "one",
            "Bearer one two",
        ] {
            assert_eq!(
                keys.tenant(&with(unknown)),
                Err(ApiError::Unauthorized),
                "{unknown}"
            );
        }
        assert_eq!(keys.tenant(&HeaderMap::new()), Err(ApiError::Unauthorized));
    }

    #[test]
    fn without_keys_everybody_is_the_default_tenant() {
        let keys = api_keys(&[], None, MetricsAccess::Everybody);
        assert_eq!(keys.tenant(&HeaderMap::new()), Ok(DEFAULT_TENANT));
        assert_eq!(keys.tenant(&with("Bearer whatever")), Ok(DEFAULT_TENANT));
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
                let without = open.check_operator(&local, listener);
                let (tenant, admin) = (with("Bearer one"), with("Bearer root"));
                let with_key = locked.check_operator(&admin, listener);
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
                    let other = locked.check_operator(&tenant, listener);
                    assert_eq!(other, Err(ApiError::AdminUnauthorized));
                }
            }
        }
        assert_eq!(
            locked.tenant(&with("Bearer root")),
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
            let may = open.check_operator(&at(host, origin), loopback);
            assert_eq!(may.is_ok(), passes, "{host} {origin:?}");
        }
        // A listener of their own may well have a name.
        let own = listener(Reach::Network, Audience::Operators);
        assert_eq!(
            open.check_operator(&at("ops.example:9090", None), own),
            Ok(())
        );
        let evil = at("ops.example:9090", Some("http://evil.example"));
        assert!(open.check_operator(&evil, own).is_err());
        // A page does not have the key.
        let locked = api_keys(&[], Some("root"), MetricsAccess::Everybody);
        let mut keyed = with("Bearer root");
        keyed.insert(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert_eq!(locked.check_operator(&keyed, loopback), Ok(()));
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
        assert_eq!(public.check_metrics(&nobody), Ok(()));
        let closed = api_keys(&[("one", "a")], Some("root"), MetricsAccess::KeyHolders);
        assert_eq!(closed.check_metrics(&nobody), Err(ApiError::Unauthorized));
        assert_eq!(closed.check_metrics(&with("Bearer one")), Ok(()));
        assert_eq!(closed.check_metrics(&with("Bearer root")), Ok(()));
    }
}
