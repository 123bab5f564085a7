//! A server and the service manager that started it, which is a socket here.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use tempfile::TempDir;

use super::host::{Host, Start, policy};
use super::starting::{self, BUSY};

/// The sign of life.
const SIGN: &str = "WATCHDOG=1\n";
/// The microseconds within which the manager wants signs of life.
const PATIENCE: &str = "300000";

/// A service manager that listens.
struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let longest = Some(Duration::from_secs(120));
        socket.set_read_timeout(longest).unwrap();
        Self { socket, folder }
    }

    fn address(&self) -> String {
        let path = self.folder.path().join("notify");
        path.to_str().unwrap().to_owned()
    }

    /// The next message.
    fn hears(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    /// The next message that is no sign of life.
    fn hears_news(&self) -> String {
        loop {
            let message = self.hears();
            if message != SIGN {
                return message;
            }
        }
    }
}

#[test]
fn a_service_manager_is_told_of_start_reload_and_stop_and_given_signs_of_life() {
    let manager = Manager::new();
    let address = manager.address();
    let host = Host::served(&Start {
        variables: &[("NOTIFY_SOCKET", &address), ("WATCHDOG_USEC", PATIENCE)],
        ..Start::default()
    });
    let ready = format!("READY=1\nSTATUS=serving on {}\n", host.url());
    assert_eq!(manager.hears_news(), ready);
    for _ in 0..3 {
        assert_eq!(manager.hears(), SIGN);
    }
    host.signal("HUP");
    let reloading = manager.hears_news();
    let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
    let since: u64 = since.unwrap().trim_end().parse().unwrap();
    assert!(since > 0, "{reloading}");
    assert_eq!(manager.hears_news(), ready);
    assert_eq!(manager.hears(), SIGN);
    assert!(host.terminate().success());
    // 30 s of `drain`, and 16 s for last words.
    let stopping =
        "STOPPING=1\nSTATUS=stopping: what is in hand goes on\nEXTEND_TIMEOUT_USEC=46000000\n";
    assert_eq!(manager.hears_news(), stopping);
}

#[test]
fn a_service_manager_is_not_told_that_a_server_is_ready_before_it_is() {
    let manager = Manager::new();
    let address = manager.address();
    let hostile = policy("test/hostile");
    let files = [("busy.toml", BUSY.as_bytes()), ("busy.wasm", &*hostile)];
    let host = Host::begun(&Start {
        variables: &[("NOTIFY_SOCKET", &address), ("WATCHDOG_USEC", PATIENCE)],
        ..starting::begin(&files)
    });
    let ready = host.get("/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(host.terminate().success());
    let first = manager.hears();
    assert!(first.starts_with("STOPPING=1\n"), "{first}");
}

#[test]
fn a_service_manager_that_wants_no_signs_of_life_gets_none() {
    let manager = Manager::new();
    let address = manager.address();
    let host = Host::served(&Start {
        variables: &[("NOTIFY_SOCKET", &address)],
        ..Start::default()
    });
    assert!(manager.hears().starts_with("READY=1\n"));
    assert!(host.terminate().success());
    assert!(manager.hears().starts_with("STOPPING=1\n"));
}
