//! Who asks: API keys and tenants, and who may see `/metrics` and `/admin`.
//!
//! A key is hashed and compared with every known hash in constant time, so that neither the key
//! nor which key it was can be told from how long that took.
//!
//! # Invariants
//! 1. Where keys are configured nobody is a tenant without one
//!    (`tests::only_a_known_key_names_a_tenant`).
//! 2. Without an admin key `/admin` is closed unless only this machine can connect
//!    (`tests::admin_needs_its_key_or_loopback`).

use std::net::SocketAddr;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
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

// === impl Reach ===

impl Reach {
    pub(super) fn of(listener: SocketAddr) -> Self {
        if listener.ip().is_loopback() {
            Reach::Loopback
        } else {
            Reach::Network
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
            admin: config.admin_key.as_deref().map(hash),
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

    /// Whether `/admin` may be used.
    pub(super) fn may_administer(&self, headers: &HeaderMap, reach: Reach) -> Result<(), ApiError> {
        match (self.admin, reach) {
            (Some(_), _) if self.is_admin(headers) => Ok(()),
            (Some(_), _) => Err(ApiError::Unauthorized),
            (None, Reach::Loopback) => Ok(()),
            (None, Reach::Network) => Err(ApiError::Forbidden(
                "set `admin-key` in the configuration to use /admin on an address that others reach",
            )),
        }
    }

    fn is_admin(&self, headers: &HeaderMap) -> bool {
        self.admin.is_some_and(|admin| {
            bearer(headers).is_some_and(|key| bool::from(hash(key).ct_eq(&admin)))
        })
    }
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

    #[test]
    fn admin_needs_its_key_or_loopback() {
        let open = ring(&[("one", "a")], None, Metrics::Everybody);
        let nobody = HeaderMap::new();
        assert_eq!(open.may_administer(&nobody, Reach::Loopback), Ok(()));
        assert!(matches!(
            open.may_administer(&with("Bearer one"), Reach::Network),
            Err(ApiError::Forbidden(_))
        ));
        let locked = ring(&[("one", "a")], Some("root"), Metrics::Everybody);
        for reach in [Reach::Loopback, Reach::Network] {
            assert_eq!(
                locked.may_administer(&with("Bearer one"), reach),
                Err(ApiError::Unauthorized)
            );
            assert_eq!(locked.may_administer(&with("Bearer root"), reach), Ok(()));
        }
        assert_eq!(
            locked.tenant(&with("Bearer root")),
            Err(ApiError::Unauthorized)
        );
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
