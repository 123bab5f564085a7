//! Hints in headers and bodies, well and badly written.

use http::header::HeaderName;
use serde_json::json;

use super::*;

/// Two executors on devices of their own, of which the second one alone serves the model `b`.
fn executors() -> [ExecutorEntry; 2] {
    let executor = |name: &str, kind, models: &[&str]| ExecutorEntry {
        name: name.to_owned(),
        device: format!("device-of-{name}"),
        kind,
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        tokens_per_block: None,
    };
    [
        executor("cpu0", ExecutorKind::Cpu, &["a"]),
        executor("cpu1", ExecutorKind::Remote, &["a", "b"]),
    ]
}

fn parse_with(headers: &[(&str, &str)], body: Value) -> Result<Hints, ApiError> {
    parse_for("a", headers, body)
}

/// Reads the hints of a request for `model`.
fn parse_for(model: &str, headers: &[(&str, &str)], body: Value) -> Result<Hints, ApiError> {
    let claims = Claims {
        priority_max: 10,
        ..Claims::default()
    };
    parse_of((claims, model), headers, body)
}

/// Reads the hints of a request for a model, of a client that may claim so much.
fn parse_of(
    (claims, model): (Claims, &str),
    headers: &[(&str, &str)],
    body: Value,
) -> Result<Hints, ApiError> {
    let label_keys = ["team", "env"].map(str::to_owned);
    let executors = executors();
    let rules = Rules {
        priority_min: -10,
        priority: 0,
        claims,
        label_keys: &label_keys,
        executors: &executors,
        model: Some(model),
        tenant: "acme",
    };
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        map.append(name, HeaderValue::from_str(value).unwrap());
    }
    let body = (!body.is_null()).then(|| to_raw_value(&body).unwrap());
    parse(&map, body.as_deref(), rules)
}

fn refused(headers: &[(&str, &str)], body: Value) -> (String, String) {
    match parse_with(headers, body) {
        Err(ApiError::Field { param, message }) => (param, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn headers_and_body_mean_the_same() {
    let headers = [
        ("x-pointsman-session", "s-1"),
        ("x-pointsman-priority", "-3"),
        ("x-pointsman-class", "throughput"),
        ("x-pointsman-deadline-ms", "1500"),
        ("x-pointsman-expected-tokens", "40"),
        ("x-pointsman-labels", "team=a, env=prod"),
        ("x-pointsman-executors", "cpu1, cpu0, cpu1"),
        ("x-pointsman-device", "device-of-cpu1"),
        ("x-pointsman-kind", "remote"),
        ("x-pointsman-may-wait", "false"),
        ("x-pointsman-head-start-ms", "20"),
        ("x-pointsman-group", "2"),
    ];
    let body = json!({
        "session": "s-1",
        "priority": -3,
        "class": "throughput",
        "deadline_ms": 1500,
        "expected_tokens": 40,
        "labels": {"env": "prod", "team": "a"},
        "executors": ["cpu1", "cpu0", "cpu1"],
        "device": "device-of-cpu1",
        "kind": "remote",
        "may_wait": false,
        "head_start_ms": 20,
        "group": 2,
    });
    let expected = Hints {
        session: Some(session_key("acme", "s-1")),
        conversation: Vec::new(),
        follows: None,
        follows_own: None,
        priority: -3,
        class: RequestClass::Throughput,
        head_start: Micros(20_000),
        deadline: Some(Micros(1_500_000)),
        output_tokens_expected: Some(40),
        labels: vec!["env=prod".to_owned(), "team=a".to_owned()],
        allowed: Some(vec!["cpu1".to_owned()]),
        unless_followed: None,
        group: Some(2),
        may_wait: false,
    };
    for (headers, body) in [
        (&headers[..], Value::Null),
        (&[][..], body.clone()),
        (&headers[..], body),
    ] {
        assert_eq!(parse_with(headers, body), Ok(expected.clone()));
    }
}

#[test]
fn nothing_said_is_the_default() {
    assert_eq!(parse_with(&[], Value::Null), Ok(Hints::default()));
    assert_eq!(parse_with(&[], json!({})), Ok(Hints::default()));
    assert_eq!(
        parse_with(&[("authorization", "Bearer x")], json!({"session": null})),
        Ok(Hints::default())
    );
}

#[test]
fn a_hint_out_of_bounds_is_refused_by_name() {
    for (hint, wanted) in [
        (
            json!({"session": ""}),
            "`pointsman.session` has to be a text of 1 to 256 characters, not the text ``",
        ),
        (
            json!({"priority": 11}),
            "`pointsman.priority` has to be an integer from -10 to 10, not 11",
        ),
        (
            json!({"priority": i64::MIN}),
            "`pointsman.priority` has to be an integer from -10 to 10, not -9223372036854775808",
        ),
        (
            json!({"priority": "high"}),
            "`pointsman.priority` has to be an integer from -10 to 10, not the text `high`",
        ),
        (
            json!({"class": "batch"}),
            "`pointsman.class` has to be `latency-critical` or `throughput`, not the text `batch`",
        ),
        (
            json!({"deadline_ms": 0}),
            "`pointsman.deadline_ms` has to be an integer of milliseconds from 1 to 86400000, not 0",
        ),
        (
            json!({"head_start_ms": 60_001}),
            "`pointsman.head_start_ms` has to be an integer of milliseconds from 0 to 60000, not 60001",
        ),
        (
            json!({"expected_tokens": 0}),
            "`pointsman.expected_tokens` has to be an integer of at least 1, not 0",
        ),
        (
            json!({"labels": {"team": "x".repeat(65)}}),
            "`pointsman.labels` has to be up to 16 keys, each with a text of 1 to 64 characters, not an object",
        ),
        (
            json!({"labels": {"user": "x"}}),
            "there is no label key `user`; there are: team, env",
        ),
        (
            json!({"executors": []}),
            "`pointsman.executors` has to be a list of at least one name, not an empty list",
        ),
        (
            json!({"executors": ["gpu0"]}),
            "there is no executor `gpu0`; there are: cpu0, cpu1",
        ),
        (
            json!({"may_wait": "no"}),
            "`pointsman.may_wait` has to be true or false, not the text `no`",
        ),
        (
            json!({"group": -1}),
            "`pointsman.group` has to be an integer of at least 0, not -1",
        ),
    ] {
        let (param, message) = refused(&[], hint);
        assert_eq!(message, wanted);
        assert!(param.starts_with("pointsman."), "{param}");
    }
}

#[test]
fn hints_about_executors_leave_those_that_are_all_they_say() {
    for (hints, allowed) in [
        (json!({}), None),
        (
            json!({"executors": ["cpu1", "cpu0"]}),
            Some(vec!["cpu0", "cpu1"]),
        ),
        (json!({"device": "device-of-cpu0"}), Some(vec!["cpu0"])),
        (json!({"kind": "remote"}), Some(vec!["cpu1"])),
        (
            json!({"kind": "cpu", "device": "device-of-cpu0"}),
            Some(vec!["cpu0"]),
        ),
    ] {
        let parsed = parse_with(&[], hints.clone()).unwrap().allowed;
        let allowed = allowed.map(|names| names.into_iter().map(str::to_owned).collect());
        assert_eq!(parsed, allowed, "{hints}");
    }
    for (model, hints, wanted) in [
        (
            "a",
            json!({"device": "cpu0"}),
            "there is no device with an executor `cpu0`; there are: device-of-cpu0, device-of-cpu1",
        ),
        (
            "a",
            json!({"kind": "gpu"}),
            "`pointsman.kind` has to be `cpu`, `cuda`, `remote` or `simulated`, not the text `gpu`",
        ),
        (
            "a",
            json!({"kind": "cuda"}),
            "there is no executor of the kind `cuda`; there are: cpu, remote",
        ),
        (
            "a",
            json!({"kind": "cpu", "device": "device-of-cpu1"}),
            "no executor is all that the hints say",
        ),
        (
            "b",
            json!({"kind": "cpu"}),
            "no executor that the hints allow serves the model `b`; they allow: cpu0",
        ),
    ] {
        match parse_for(model, &[], hints.clone()) {
            Err(ApiError::Field { message, .. }) => assert_eq!(message, wanted, "{hints}"),
            other => panic!("{hints}: {other:?}"),
        }
    }
}

#[test]
fn hints_in_a_body_are_an_object_of_bounded_size() {
    let (param, message) = refused(&[], json!("urgent"));
    assert_eq!(param, "pointsman");
    assert_eq!(
        message,
        "`pointsman` has to be an object, not the text `urgent`"
    );
    let (_, message) = refused(&[], json!({"session": "x".repeat(BYTES_MAX)}));
    assert_eq!(
        message,
        "`pointsman` has to be an object of at most 64 KiB, not an object"
    );
}

#[test]
fn a_header_is_refused_under_its_own_name() {
    for (header, value, wanted) in [
        (
            "x-pointsman-priority",
            "soon",
            "`x-pointsman-priority` has to be an integer from -10 to 10, not the text `soon`",
        ),
        (
            "x-pointsman-deadline-ms",
            "1.5",
            "`x-pointsman-deadline-ms` has to be an integer of milliseconds from 1 to 86400000, not 1.5",
        ),
        (
            "x-pointsman-labels",
            "team",
            "`x-pointsman-labels` has to be `key=value,key=value`, not the text `team`",
        ),
        (
            "x-pointsman-session",
            "ä",
            "the header `x-pointsman-session` is not ASCII",
        ),
    ] {
        let (param, message) = refused(&[(header, value)], Value::Null);
        assert_eq!(message, wanted);
        assert_eq!(param, header);
    }
    let twice = [("x-pointsman-priority", "1"), ("x-pointsman-priority", "1")];
    let (_, message) = refused(&twice, Value::Null);
    assert_eq!(message, "the header `x-pointsman-priority` is given twice");
}

#[test]
fn a_misspelt_hint_is_refused_with_the_one_meant() {
    let (param, message) = refused(&[], json!({"prioritty": 1}));
    assert_eq!(param, "pointsman.prioritty");
    assert_eq!(
        message,
        "there is no hint `pointsman.prioritty`; did you mean `pointsman.priority`?"
    );
    let (param, message) = refused(&[("x-pointsman-dead-line-ms", "1")], Value::Null);
    assert_eq!(param, "x-pointsman-dead-line-ms");
    assert_eq!(
        message,
        "there is no hint `x-pointsman-dead-line-ms`; did you mean `x-pointsman-deadline-ms`?"
    );
    let (_, message) = refused(&[], json!({"zzz": 1}));
    assert!(
        message.starts_with("there is no hint `pointsman.zzz`; there are: pointsman.session, "),
        "{message}"
    );
}

#[test]
fn header_and_body_that_differ_are_refused() {
    let (param, message) = refused(&[("x-pointsman-priority", "1")], json!({"priority": 2}));
    assert_eq!(param, "pointsman.priority");
    assert_eq!(
        message,
        "the hint `priority` differs between header and body"
    );
}

#[test]
fn a_session_has_the_same_key_in_every_process_and_another_for_each_tenant() {
    assert_eq!(
        session_key("default", "s"),
        SessionKey(0xdf55_6c6e_e02d_b500)
    );
    assert_ne!(session_key("a", "s"), session_key("b", "s"));
    assert_ne!(session_key("a", "bs"), session_key("ab", "s"));
}

#[test]
fn a_tenant_claims_no_more_urgency_than_it_may() {
    let bulk = Claims {
        priority_max: -2,
        class_max: RequestClass::Throughput,
        head_start_max: Duration::from_secs(1),
    };
    let said = |body| match parse_of((bulk, "a"), &[], body) {
        Err(ApiError::Field { param, message }) => (param, message),
        other => panic!("{other:?}"),
    };
    for (hint, value, wanted) in [
        ("priority", json!(-1), "an integer from -10 to -2"),
        ("class", json!("latency-critical"), "`throughput`"),
        (
            "head_start_ms",
            json!(1001),
            "an integer of milliseconds from 0 to 1000",
        ),
    ] {
        let (param, message) = said(json!({hint: value}));
        assert_eq!(param, format!("pointsman.{hint}"));
        assert!(message.contains(wanted), "{message}");
    }
    let claimed = |hints: Hints| (hints.priority, hints.class);
    let unclaimed = parse_of((bulk, "a"), &[], json!({})).map(claimed);
    assert_eq!(unclaimed, Ok((-2, RequestClass::Throughput)));
    let within = json!({"priority": -3, "class": "throughput", "head_start_ms": 1000});
    let within = parse_of((bulk, "a"), &[], within).map(claimed);
    assert_eq!(within, Ok((-3, RequestClass::Throughput)));
}
