//! Tests of access: keys, listeners, pages of other sites.

use std::sync::LazyLock;

use hyper::header::HeaderValue;

use super::*;

fn api_keys(keys: &[(&str, &str)], admin: Option<&str>, metrics: MetricsAccess) -> ApiKeys {
    let key = |(key, tenant): &(&str, &str)| ApiKey {
        sha256: hash(key),
        rights: Rights::of_tenant(tenant),
    };
    ApiKeys {
        metrics,
        ..ApiKeys::new(keys.iter().map(key).collect(), admin)
    }
}

impl ApiKeys {
    /// The tenant of a client.
    fn tenant(&self, visitor: Visitor<'_>) -> Result<&str, ApiError> {
        let holder = self.holder(visitor)?;
        Ok(&holder.rights().tenant)
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
    let anthropics = |key| {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static(key));
        headers
    };
    assert_eq!(keys.tenant(from_afar(&anthropics("two"))), Ok("b"));
    assert_eq!(
        keys.tenant(from_afar(&anthropics("three"))),
        Err(ApiError::Unauthorized)
    );
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
fn a_key_for_questions_gives_no_orders() {
    let keys = api_keys(&[("one", "a")], Some("root"), MetricsAccess::KeyHolders);
    let keys = keys.with_reader(Some("look"));
    let may = |key: &str, access| {
        let headers = with(&format!("Bearer {key}"));
        keys.admit(access, from_afar(&headers)).is_ok()
    };
    for access in [RouteAccess::Operators, RouteAccess::Metrics] {
        let admitted = ["root", "look", "other"].map(|key| may(key, access));
        assert_eq!(admitted, [true, true, false], "{access:?}");
    }
    let admitted = ["root", "look", "other"].map(|key| may(key, RouteAccess::Orders));
    assert_eq!(admitted, [true, false, false]);
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
                (&open, RouteAccess::Clients),
                (&open, RouteAccess::Metrics),
                (&private, RouteAccess::Metrics),
            ] {
                let may = keys.admit(access, visitor).is_ok();
                assert_eq!(may, passes, "{host} {origin:?} {reach:?} {access:?}");
            }
            assert!(open.admit(RouteAccess::Open, visitor).is_ok());
        }
    }
    // A page of an allowed origin is a client and no operator.
    let page = at("127.0.0.1:8080", Some("https://chat.example:8443"));
    let visitor = Visitor {
        listener: listener(Reach::Loopback, Audience::Everybody),
        headers: &page,
        origins: &origins,
    };
    for access in [
        RouteAccess::Operators,
        RouteAccess::Orders,
        RouteAccess::OperatorsPage,
    ] {
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
    let holder = locked.admit(RouteAccess::Clients, visitor).unwrap();
    assert_eq!(holder.rights().tenant, "a");
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
    // Clients need no key, and that is none.
    let keyless = api_keys(&[], Some("root"), MetricsAccess::KeyHolders);
    let keyless = keyless.with_reader(Some("look"));
    for refused in [&nobody, &with("Bearer other")] {
        assert_eq!(
            keyless.check_metrics(from_afar(refused)),
            Err(ApiError::AdminUnauthorized)
        );
    }
    for key in ["Bearer root", "Bearer look"] {
        assert_eq!(keyless.check_metrics(from_afar(&with(key))), Ok(()));
    }
}
