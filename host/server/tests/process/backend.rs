//! A server before another one, both as processes.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::{Process, rest};

/// The answer to `GET path`.
fn get(process: &Process, path: &str) -> String {
    let mut socket = TcpStream::connect(&process.addr).unwrap();
    let head = "host: localhost\r\nconnection: close\r\n\r\n";
    write!(socket, "GET {path} HTTP/1.1\r\n{head}").unwrap();
    rest(socket)
}

/// Waits until the models of the server behind it are known.
fn wait_for_models(front: &Process) {
    while !get(front, "/v1/models").contains("\"demo\"") {
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// The certificates of a machine that has none, in `folder`, by the variables that name them.
fn no_certificates(folder: &Path) -> [(&'static str, PathBuf); 2] {
    let (file, certificates) = (folder.join("empty.pem"), folder.join("empty"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&certificates).unwrap();
    [("SSL_CERT_FILE", file), ("SSL_CERT_DIR", certificates)]
}

#[test]
fn a_server_before_another_is_told_its_address_and_nothing_else() {
    let behind = Process::start(&[]);
    let url = format!("http://{}", behind.addr);
    let front = Process::start(&["--backend", &url]);
    wait_for_models(&front);
    let answer = rest(front.chat(2));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let placed = format!("x-pointsman-executor: {}\r\n", behind.addr);
    assert!(answer.contains(&placed), "{answer}");
    let executors = get(&front, "/admin/executors");
    assert!(executors.contains("\"executors_total\":1,"), "{executors}");
    for process in [front, behind] {
        process.signal("TERM");
        let (status, said) = process.end();
        assert!(status.success(), "{said}");
    }
}

#[test]
fn a_machine_without_certificates_serves_what_needs_none() {
    let behind = Process::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    let tables = format!(
        "[[backends]]\nname = 'plain'\nurl = 'http://{}'\n\
         [[backends]]\nname = 'secured'\nurl = 'https://{0}'\n\
         [telemetry]\notlp-endpoint = 'http://{0}'\n",
        behind.addr
    );
    fs::write(&config, tables).unwrap();
    let args = ["--config", config.to_str().unwrap()];
    let nothing = no_certificates(folder.path());
    let nothing = nothing.each_ref().map(|(name, path)| (*name, &**path));
    let front = Process::start_with(&args, &nothing);
    wait_for_models(&front);
    let answer = rest(front.chat(2));
    assert!(
        answer.contains("x-pointsman-executor: plain\r\n"),
        "{answer}"
    );
    let said = front.first_lines.concat();
    let warning = "this machine has no certificates: servers at https:// need a `ca-file`, \
                   and a collector at https:// cannot be reached";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    for process in [front, behind] {
        process.signal("TERM");
        let (status, said) = process.end();
        assert!(status.success(), "{said}");
    }
}

#[test]
fn a_machine_without_certificates_serves_a_model_of_the_hub_that_the_cache_has() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, commit) = (folder.path().join("hub"), "0123".repeat(10));
    let model = cache.join("models--org--tiny");
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), &commit).unwrap();
    fs::create_dir(model.join("snapshots")).unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo-model");
    symlink(demo, model.join("snapshots").join(&commit)).unwrap();
    let nothing = no_certificates(folder.path());
    for (hub, why) in [
        (
            "https://127.0.0.1:1",
            "the certificates of this machine cannot be read",
        ),
        (
            "http://127.0.0.1:1",
            "the hub at http://127.0.0.1:1 cannot be reached",
        ),
    ] {
        let [file, certificates] = nothing.each_ref().map(|(name, path)| (*name, &**path));
        let variables = [
            file,
            certificates,
            ("HF_HUB_CACHE", &*cache),
            ("HF_ENDPOINT", Path::new(hub)),
            ("HF_HUB_OFFLINE", Path::new("0")),
        ];
        let process = Process::start_with(&["--model", "demo=org/tiny"], &variables);
        let said = process.first_lines.concat();
        assert!(said.contains(why), "{said}");
        let answer = rest(process.chat(2));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        process.signal("TERM");
        let (status, said) = process.end();
        assert!(status.success(), "{said}");
    }
}

#[test]
fn a_server_that_does_not_list_its_models_is_in_the_log_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    fs::write(&config, "[[keys]]\nkey = 'theirs'\n").unwrap();
    let behind = Process::start(&["--config", config.to_str().unwrap()]);
    let url = format!("http://{}", behind.addr);
    let mut front = Process::start(&["--backend", &url]);
    let words = "/v1/models answers 401 Unauthorized: its `key` is missing";
    let is_told = front.first_lines.iter().any(|line| line.contains(words));
    if !is_told {
        front.wait_for_line(words);
    }
    for process in [front, behind] {
        process.signal("TERM");
        let (status, said) = process.end();
        assert!(status.success(), "{said}");
    }
}
