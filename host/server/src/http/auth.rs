//! Who asks: API keys and tenants, and who may see `/metrics`, `/admin` and `/monitor`.
//!
//! A key is hashed and compared with every known hash in constant time, so that neither the key
//! nor which key it was can be told from how long that took.
//!
//! # Invariants
//! 1. Where keys are configured nobody is a tenant without one
//!    (`tests::only_a_known_key_names_a_tenant`).
//! 2. Without an admin key `/admin` is closed unless only this machine can connect, or a listener was
//!    made for it (`tests::admin_needs_its_key_or_its_listener_or_loopback`).
//! 3. Where there is no admin key, a page from elsewhere that an operator's browser shows can neither
//!    read nor order anything (`tests::a_page_from_elsewhere_is_no_operator`).

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::error::ApiError;
use crate::config::{ApiKey, Config, DEFAULT_TENANT};

/// Who can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// This machine only.
    Loopback,
    /// Others as well.
    Network,
}

/// What a listener gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Everything there is.
    Everything,
    /// What is for clients; operators have a listener of their own.
    Clients,
    /// What is for operators.
    Operators,
}

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Door {
    pub(super) reach: Reach,
    pub(super) serves: Serves,
}

/// The keys there are.
#[derive(Debug)]
pub(super) struct Keyring {
    keys: Vec<ApiKey>,
    admin: Option<[u8; 32]>,
    metrics: Metrics,
}

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metrics {
    Everybody,
    Tenants,
}

// === impl Door ===

impl Door {
    pub(super) fn of(listener: SocketAddr, serves: Serves) -> Self {
        let reach = if listener.ip().is_loopback() {
            Reach::Loopback
        } else {
            Reach::Network
        };
        Self { reach, serves }
    }

    /// Whether completions and models are to be had here.
    pub(super) fn check_clients(self) -> Result<(), ApiError> {
        match self.serves {
            Serves::Everything | Serves::Clients => Ok(()),
            Serves::Operators => Err(ApiError::Forbidden(
                "this address is for operators; clients use the one of `listen` in the configuration",
            )),
        }
    }
}

// === impl Keyring ===

impl Keyring {
    pub(super) fn new(config: &Config) -> Self {
        let metrics = if config.http.metrics_public {
            Metrics::Everybody
        } else {
            Metrics::Tenants
        };
        Self {
            keys: config.keys.clone(),
            admin: config.admin.key.as_deref().map(hash),
            metrics,
        }
    }

    /// The tenant that asks.
    pub(super) fn tenant(&self, headers: &HeaderMap) -> Result<&str, ApiError> {
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

    /// Whether `/metrics` may be read: by everybody, or with a tenant's key or the admin key.
    pub(super) fn may_see_metrics(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        match self.metrics {
            Metrics::Everybody => Ok(()),
            Metrics::Tenants if self.is_admin(headers) => Ok(()),
            Metrics::Tenants => self.tenant(headers).map(drop),
        }
    }

    /// Whether `/admin` and `/monitor` are to be had at `door` at all.
    pub(super) fn opens_to_operators(&self, door: Door) -> Result<(), ApiError> {
        match (door.serves, self.admin, door.reach) {
            (Serves::Clients, ..) => Err(ApiError::Forbidden(
                "/admin and /monitor answer on the address of `admin.listen` in the configuration only",
            )),
            (Serves::Everything, None, Reach::Network) => Err(ApiError::Forbidden(
                "set `admin.key` or `admin.listen` in the configuration to use /admin and /monitor \
                 where others than this machine can connect",
            )),
            (Serves::Operators, ..)
            | (Serves::Everything, Some(_), _)
            | (Serves::Everything, None, Reach::Loopback) => Ok(()),
        }
    }

    /// Whether whoever asks may use `/admin` and read `/monitor/data`.
    pub(super) fn may_administer(&self, headers: &HeaderMap, door: Door) -> Result<(), ApiError> {
        self.opens_to_operators(door)?;
        match self.admin {
            Some(_) if self.is_admin(headers) => Ok(()),
            Some(_) => Err(ApiError::AdminUnauthorized),
            // Without a key nothing else tells an operator from a page that the operator's
            // browser shows.
            None => check_origin(headers, door.reach),
        }
    }

    fn is_admin(&self, headers: &HeaderMap) -> bool {
        self.admin.is_some_and(|admin| {
            bearer(headers).is_some_and(|key| bool::from(hash(key).ct_eq(&admin)))
        })
    }
}

/// Whether no page of another site asks: its browser says where the page is from, and a name that
/// was made to mean this machine is not one of its own.
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

    fn ring(keys: &[(&str, &str)], admin: Option<&str>, metrics: Metrics) -> Keyring {
        let key = |(key, tenant): &(&str, &str)| ApiKey {
            sha256: hash(key),
            tenant: (*tenant).to_owned(),
        };
        Keyring {
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
        let ring = ring(&[("one", "a"), ("two", "b")], None, Metrics::Everybody);
        assert_eq!(ring.tenant(&with("Bearer one")), Ok("a"));
        assert_eq!(ring.tenant(&with("bearer two")), Ok("b"));
        for unknown in [
            "Bearer three",
            "Bearer ",
            "Basic one",
            "one",
            "Bearer one two",
        ] {
            assert_eq!(
                ring.tenant(&with(unknown)),
                Err(ApiError::Unauthorized),
                "{unknown}"
            );
        }
        assert_eq!(ring.tenant(&HeaderMap::new()), Err(ApiError::Unauthorized));
    }

    #[test]
    fn without_keys_everybody_is_the_default_tenant() {
        let ring = ring(&[], None, Metrics::Everybody);
        assert_eq!(ring.tenant(&HeaderMap::new()), Ok(DEFAULT_TENANT));
        assert_eq!(ring.tenant(&with("Bearer whatever")), Ok(DEFAULT_TENANT));
    }

    fn door(reach: Reach, serves: Serves) -> Door {
        Door { reach, serves }
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
        let open = ring(&[("one", "a")], None, Metrics::Everybody);
        let locked = ring(&[("one", "a")], Some("root"), Metrics::Everybody);
        for reach in [Reach::Loopback, Reach::Network] {
            for serves in [Serves::Everything, Serves::Clients, Serves::Operators] {
                let door = door(reach, serves);
                let local = at("127.0.0.1:8080", None);
                let without = open.may_administer(&local, door);
                let (tenant, admin) = (with("Bearer one"), with("Bearer root"));
                let with_key = locked.may_administer(&admin, door);
                match (serves, reach) {
                    (Serves::Clients, _) => {
                        assert!(matches!(without, Err(ApiError::Forbidden(_))));
                        assert!(matches!(with_key, Err(ApiError::Forbidden(_))));
                    }
                    (Serves::Everything, Reach::Network) => {
                        assert!(matches!(without, Err(ApiError::Forbidden(_))));
                        assert_eq!(with_key, Ok(()));
                    }
                    (Serves::Everything, Reach::Loopback) | (Serves::Operators, _) => {
                        assert_eq!((without, with_key), (Ok(()), Ok(())));
                    }
                }
                if serves != Serves::Clients {
                    let other = locked.may_administer(&tenant, door);
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
        let open = ring(&[], None, Metrics::Everybody);
        let loopback = door(Reach::Loopback, Serves::Everything);
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
            let may = open.may_administer(&at(host, origin), loopback);
            assert_eq!(may.is_ok(), passes, "{host} {origin:?}");
        }
        // A listener of their own may well have a name.
        let own = door(Reach::Network, Serves::Operators);
        assert_eq!(
            open.may_administer(&at("ops.example:9090", None), own),
            Ok(())
        );
        let evil = at("ops.example:9090", Some("http://evil.example"));
        assert!(open.may_administer(&evil, own).is_err());
        // A page does not have the key.
        let locked = ring(&[], Some("root"), Metrics::Everybody);
        let mut keyed = with("Bearer root");
        keyed.insert(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert_eq!(locked.may_administer(&keyed, loopback), Ok(()));
    }

    #[test]
    fn an_address_for_operators_serves_no_clients() {
        assert!(
            door(Reach::Loopback, Serves::Operators)
                .check_clients()
                .is_err()
        );
        for serves in [Serves::Everything, Serves::Clients] {
            assert_eq!(door(Reach::Network, serves).check_clients(), Ok(()));
        }
    }

    #[test]
    fn metrics_are_for_those_the_configuration_says() {
        let nobody = HeaderMap::new();
        let public = ring(&[("one", "a")], Some("root"), Metrics::Everybody);
        assert_eq!(public.may_see_metrics(&nobody), Ok(()));
        let closed = ring(&[("one", "a")], Some("root"), Metrics::Tenants);
        assert_eq!(closed.may_see_metrics(&nobody), Err(ApiError::Unauthorized));
        assert_eq!(closed.may_see_metrics(&with("Bearer one")), Ok(()));
        assert_eq!(closed.may_see_metrics(&with("Bearer root")), Ok(()));
    }
}
