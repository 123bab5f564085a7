//! `pointsman executors`, `route`, `decisions`, `explain` and `tenants`: questions of an operator to a
//! server that runs, by the binary.

use std::fs;

use pointsman_http::test_util::pem;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use super::host::Host;

/// The line of a listing that begins with these words.
fn line<'a>(listing: &'a str, words: &str) -> &'a str {
    let mut lines = listing.lines();
    let found = lines.find(|line| line.trim_start().starts_with(words));
    found.unwrap_or_else(|| panic!("{words}: {listing}"))
}

/// The words of a listing, each run of spaces as one.
fn words(listing: &str) -> String {
    listing.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn executors_are_listed_and_take_orders() {
    let host = Host::start("");
    host.complete("Hello");
    let said = host.command(&["executors"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let executor = words(line(&said.out, "cpu0/demo"));
    assert_eq!(executor, "cpu0/demo cpu0 up 0 of 8 0 0 1 demo");
    let said = host.command(&["executors", "drain", "cpu0/demo"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert!(said.out.contains("draining"), "{}", said.out);
    let said = host.command(&["executors", "resume", "cpu0/demo"]);
    assert!(line(&said.out, "cpu0/demo").contains("up"), "{}", said.out);
    let said = host.command(&["executors", "drain", "cpu1"]);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    let known = "there is no executor `cpu1`; there are: cpu0/demo\n";
    assert_eq!(said.out, known);
}

#[test]
fn a_route_is_told_with_its_reasons_before_a_request_takes_it() {
    let host = Host::start("");
    let said = host.command(&["route", "--model", "demo", "--prompt-tokens", "50"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let first = said.out.lines().next().unwrap();
    let expected = "a request of tenant default for demo (50 prompt tokens, up to 16 more) goes to cpu0/demo, \
                    by memory-aware: least KV pressure, then least load";
    assert_eq!(first, expected);
    assert!(words(line(&said.out, "cpu0/demo")).starts_with("cpu0/demo yes"));
    let said = host.command(&["route", "--model", "dmo"]);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    assert!(said.out.contains("there is no model `dmo`"), "{}", said.out);
}

#[test]
fn a_request_is_explained_step_by_step() {
    let host = Host::start("");
    let said = host.command(&["decisions"]);
    assert_eq!(said.out, "no request is remembered\n");
    host.complete("Hello");
    let said = host.command(&["decisions"]);
    let first = words(line(&said.out, "0 "));
    let expected = "0 default demo cpu0/demo memory-aware least KV pressure, then least load finished, 4 tokens";
    assert_eq!(first, expected);
    let said = host.command(&["explain", "0"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    for part in [
        "request 0 of tenant default for demo\n",
        "prompt tokens, up to 4 more; latency-critical, priority 0\n",
        "admission: budget says admit\n",
        "routing: memory-aware says place on cpu0/demo\n",
        "placed on cpu0/demo (slot) by memory-aware: least KV pressure, then least load\n",
        "started on cpu0/demo\n",
        "  finished, 4 tokens\n",
        "what memory-aware would say of it now\n",
    ] {
        assert!(said.out.contains(part), "{part} not in\n{}", said.out);
    }
    let said = host.command(&["explain", "83"]);
    assert_eq!(said.code, 1, "{} {}", said.out, said.err);
    let said = host.command(&["explain", "0", "--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(told["outcome"]["how"], "finished");
}

#[test]
fn tenants_are_shown_with_what_they_use_of_their_limits() {
    let limits = "[[tenants]]\nname = 'default'\nrequests-per-minute = 5\nconcurrent-max = 2";
    let host = Host::start(limits);
    host.complete("Hello");
    let said = host.command(&["tenants"]);
    let tenant = words(line(&said.out, "default"));
    assert!(tenant.starts_with("default 1 0 0 "), "{tenant}");
    assert!(tenant.ends_with(" 1 of 5 - 0 of 2"), "{tenant}");
}

#[test]
fn a_server_is_asked_by_host_and_port_alone() {
    let host = Host::start("");
    let address = host.url().trim_start_matches("http://").to_owned();
    let said = host.asked_at(&["executors"], &address);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert!(said.out.contains("cpu0/demo"), "{}", said.out);
}

#[test]
fn a_server_with_a_certificate_is_asked_by_https() {
    let folder = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = folder.path().join("certificate.pem");
    let key = folder.path().join("key.pem");
    fs::write(&certificate, pem("CERTIFICATE", cert.der())).unwrap();
    fs::write(&key, pem("PRIVATE KEY", &signing_key.serialize_der())).unwrap();
    let (certificate, key) = (certificate.display(), key.display());
    let host = Host::start(&format!(
        "[tls]\ncertificate = '{certificate}'\nkey = '{key}'"
    ));
    let url = host.url().replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://"), "{url}");
    let ca = certificate.to_string();
    let said = host.asked_at(&["executors", "--ca", &ca], &url);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    assert!(said.out.contains("cpu0/demo"), "{}", said.out);
    let said = host.asked_at(&["policy", "status", "--ca", &ca], &url);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    // Nobody that the system knows has signed it.
    let said = host.asked_at(&["executors"], &url);
    assert_eq!(said.code, 2, "{}", said.out);
    let said = host.asked_at(&["executors", "--ca", &key.to_string()], &url);
    assert!(
        said.err.contains("has no certificate in PEM"),
        "{}",
        said.err
    );
}
