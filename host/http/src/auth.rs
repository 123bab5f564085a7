//! Access: listeners, API keys and their tenants, and the rule of each route.
//!
//! A key is hashed and compared with every known hash in constant time, so that the time taken
//! tells neither the key nor the one among the known keys that matched.
//!
//! # Invariants
//! 1. Where keys are configured nobody is a tenant without one
//!    (`tests::only_a_known_key_names_a_tenant`).
//! 2. The key for questions gives no orders (`tests::a_key_for_questions_gives_no_orders`). Without an
//!    admin key `/admin` is closed unless only this machine can connect, or a listener
//!    was made for it (`tests::admin_needs_its_key_or_its_listener_or_loopback`).
//! 3. Where there is no admin key, a page from elsewhere in an operator's browser can neither read
//!    nor order anything (`tests::a_page_from_elsewhere_is_no_operator`).
//! 4. Where only this machine can connect and no key is needed, such a page is no client either, nor
//!    does it read metrics, unless the configuration allows its origin
//!    (`tests::a_page_from_elsewhere_is_no_client_of_this_machine`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::cors::{Origins, authority};
use super::error::ApiError;
use super::rights::{KeyHolder, Rights};

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
pub enum RouteAccess {
    /// Anybody, at every listener.
    Open,
    /// Clients: with an API key where keys are configured, and not at the operators' listener.
    Clients,
    /// Anybody; with an API key or the admin key where `http.metrics-public` is false.
    Metrics,
    /// Anybody, where operators may come in: a page that asks for the admin key by itself.
    OperatorsPage,
    /// Operators who ask: with the admin key, or the one for questions, where there is one.
    Operators,
    /// Operators who give orders: with the admin key where there is one.
    Orders,
}

/// A client's key, and its rights.
#[derive(Clone)]
pub struct ApiKey {
    /// SHA-256 of the key: keys are compared, never kept.
    pub sha256: [u8; 32],
    /// The rights of the key.
    pub rights: Rights,
}

/// The keys of clients and of operators, and the access to `/metrics`.
#[derive(Debug)]
pub struct ApiKeys {
    keys: Vec<HeldKey>,
    /// The holder where no key is needed, or the route is not for clients.
    anybody: Arc<KeyHolder>,
    admin: Option<[u8; 32]>,
    /// The key of operators who may ask and give no orders.
    reader: Option<[u8; 32]>,
    metrics: MetricsAccess,
}

/// The operator that a request comes from, as far as its key tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperatorKey {
    /// The admin key.
    Admin,
    /// The key for questions.
    Reader,
    /// A key is needed, and this is none of them.
    Unknown,
    /// No key is needed.
    NotNeeded,
}

/// The hash of a key, with the key's holder.
#[derive(Debug)]
struct HeldKey {
    sha256: [u8; 32],
    holder: Arc<KeyHolder>,
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

// === impl RouteAccess ===

impl RouteAccess {
    /// True if the route is for operators, and not for clients or anybody.
    pub(super) fn is_for_operators(self) -> bool {
        match self {
            RouteAccess::Open | RouteAccess::Clients | RouteAccess::Metrics => false,
            RouteAccess::OperatorsPage | RouteAccess::Operators | RouteAccess::Orders => true,
        }
    }
}

// === impl OperatorKey ===

impl OperatorKey {
    /// The key's name in the configuration, or words in its place.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            OperatorKey::Admin => "admin.key",
            OperatorKey::Reader => "admin.read-key",
            OperatorKey::Unknown => "nobody known",
            OperatorKey::NotNeeded => "anybody",
        }
    }
}

// === impl ApiKey ===

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

// === impl ApiKeys ===

impl ApiKeys {
    /// The keys of clients and of operators. Without clients' keys everybody is the tenant
    /// [`DEFAULT_TENANT`].
    #[must_use]
    pub fn new(keys: Vec<ApiKey>, admin: Option<&str>) -> Self {
        let keys = keys.into_iter().map(|key| HeldKey {
            sha256: key.sha256,
            holder: Arc::new(KeyHolder::new(key.rights)),
        });
        Self {
            keys: keys.collect(),
            anybody: Arc::new(KeyHolder::new(Rights::of_tenant(DEFAULT_TENANT))),
            admin: admin.map(hash),
            reader: None,
            metrics: MetricsAccess::Everybody,
        }
    }

    /// The same keys, with one for operators who may ask and give no orders.
    #[must_use]
    pub fn with_reader(self, key: Option<&str>) -> Self {
        let reader = key.map(hash);
        Self { reader, ..self }
    }

    /// The same keys, with `/metrics` for holders of a key only, if there are any keys.
    #[must_use]
    pub fn with_private_metrics(self) -> Self {
        let metrics = MetricsAccess::KeyHolders;
        Self { metrics, ..self }
    }

    /// Lets a request in by the rule of its route. Returns the holder of its key; anybody where the
    /// route is not for clients.
    pub(super) fn admit(
        &self,
        access: RouteAccess,
        visitor: Visitor<'_>,
    ) -> Result<&Arc<KeyHolder>, ApiError> {
        match access {
            RouteAccess::Open => {}
            RouteAccess::Clients => {
                visitor.listener.check_clients()?;
                return self.holder(visitor);
            }
            RouteAccess::Metrics => self.check_metrics(visitor)?,
            RouteAccess::OperatorsPage => self.check_operators_page(visitor)?,
            RouteAccess::Operators => self.check_operator(visitor)?,
            RouteAccess::Orders => self.check_orders(visitor)?,
        }
        Ok(&self.anybody)
    }

    fn holder(&self, visitor: Visitor<'_>) -> Result<&Arc<KeyHolder>, ApiError> {
        if self.keys.is_empty() {
            return visitor.check_client().map(|()| &self.anybody);
        }
        let offered = bearer(visitor.headers).or_else(|| anthropics(visitor.headers));
        let offered = offered.map(hash).ok_or(ApiError::Unauthorized)?;
        let mut holder = Err(ApiError::Unauthorized);
        for key in &self.keys {
            if bool::from(key.sha256.ct_eq(&offered)) {
                holder = Ok(&key.holder);
            }
        }
        holder
    }

    fn check_metrics(&self, visitor: Visitor<'_>) -> Result<(), ApiError> {
        match self.metrics {
            MetricsAccess::Everybody => visitor.check_client(),
            MetricsAccess::KeyHolders => match self.operator(visitor.headers) {
                OperatorKey::Admin | OperatorKey::Reader => Ok(()),
                // Without clients' keys everybody is a client, and nobody holds a key by that.
                OperatorKey::Unknown if self.keys.is_empty() => Err(ApiError::AdminUnauthorized),
                OperatorKey::Unknown | OperatorKey::NotNeeded => self.holder(visitor).map(drop),
            },
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
        match self.operator(visitor.headers) {
            OperatorKey::Admin | OperatorKey::Reader => Ok(()),
            OperatorKey::Unknown => Err(ApiError::AdminUnauthorized),
            OperatorKey::NotNeeded => visitor.check_operator(),
        }
    }

    fn check_orders(&self, visitor: Visitor<'_>) -> Result<(), ApiError> {
        self.check_operator(visitor)?;
        match self.operator(visitor.headers) {
            OperatorKey::Reader => Err(ApiError::Forbidden(
                "the key `admin.read-key` may ask and give no orders; those take `admin.key`",
            )),
            OperatorKey::Admin | OperatorKey::Unknown | OperatorKey::NotNeeded => Ok(()),
        }
    }

    /// The operator that a request comes from.
    pub(super) fn operator(&self, headers: &HeaderMap) -> OperatorKey {
        let Some(admin) = self.admin else {
            return OperatorKey::NotNeeded;
        };
        let Some(offered) = bearer(headers).map(hash) else {
            return OperatorKey::Unknown;
        };
        let is = |key: &[u8; 32]| bool::from(key.ct_eq(&offered));
        let (is_admin, is_reader) = (is(&admin), self.reader.as_ref().is_some_and(is));
        match (is_admin, is_reader) {
            (true, _) => OperatorKey::Admin,
            (false, true) => OperatorKey::Reader,
            (false, false) => OperatorKey::Unknown,
        }
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

/// The key as clients of Anthropic's API send it.
fn anthropics(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-api-key")?.to_str().ok().map(str::trim)
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests;
