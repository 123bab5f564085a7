//! A server in a process of its own, as an operator starts it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use tempfile::TempDir;

use super::said::Said;

/// A server, its folders, and the reader of its log.
pub(crate) struct Host {
    folder: TempDir,
    process: Process,
}

/// The way in which a server is started.
#[derive(Clone, Copy, Default)]
pub(crate) struct Start<'a> {
    pub(crate) flags: &'a [&'a str],
    /// Lines of configuration.
    pub(crate) config: &'a str,
    /// Files in the policy folder.
    pub(crate) files: &'a [(&'a str, &'a [u8])],
    /// Variables of the environment.
    pub(crate) variables: &'a [(&'a str, &'a str)],
    /// True: it has the components compiled that commands have compiled before.
    pub(crate) compiled: bool,
}

/// A sign in the log that a server listens, before the address at which it does.
const LISTENS: &str = "listening on ";
/// A sign in the log that a server answers, before the address at which it does.
const ANSWERS: &str = "answering on ";
/// A sign in the log that a server serves.
const SERVES: &str = "serving on ";
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

struct Process {
    child: Child,
    log: Option<JoinHandle<()>>,
    url: String,
    /// The lines that the server logged before it served.
    begun: String,
    /// The lines since then. Locked to add one and to look for one.
    said: Arc<Mutex<String>>,
}

impl Host {
    /// Starts a server with a policy folder and these lines of configuration.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_as(&[], config)
    }

    /// The same, with these flags.
    pub(crate) fn start_as(flags: &[&str], config: &str) -> Self {
        Self::served(&Start {
            flags,
            config,
            ..Start::default()
        })
    }

    /// Starts a server, and returns once it serves.
    pub(crate) fn served(start: &Start<'_>) -> Self {
        Self::signed(start, SERVES)
    }

    /// Starts a server, and returns while the policies are still being made ready.
    pub(crate) fn begun(start: &Start<'_>) -> Self {
        Self::signed(start, ANSWERS)
    }

    /// Starts a server, and returns while its models are still being loaded.
    pub(crate) fn opened(start: &Start<'_>) -> Self {
        Self::signed(start, LISTENS)
    }

    fn signed(start: &Start<'_>, sign: &str) -> Self {
        let folder = policy_folder();
        for (name, bytes) in start.files {
            fs::write(folder.path().join("policies.d").join(name), bytes).unwrap();
        }
        if start.compiled {
            compile_as_commands_did(&folder.path().join("state"));
        }
        let process = Process::start(&folder, start, sign);
        Self { folder, process }
    }

    /// Kills the server, and starts it again over the same folders.
    pub(crate) fn restart(&mut self, config: &str) {
        self.process.kill();
        let start = Start {
            config,
            ..Start::default()
        };
        self.process = Process::start(&self.folder, &start, SERVES);
    }

    /// Lets the server have `bytes` of memory of its own above what it has now. One that wants more is
    /// ended.
    pub(crate) fn limit_memory(&self, bytes: u64) {
        let id = self.process.child.id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let mut lines = status.lines();
        let has = lines.find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let has: u64 = has.trim().trim_end_matches(" kB").parse().unwrap();
        let limit = Some((has << 10) + bytes);
        let limit = Rlimit {
            current: limit,
            maximum: limit,
        };
        let process = Pid::from_raw(i32::try_from(id).unwrap());
        prlimit(process, Resource::Data, limit).unwrap();
    }

    /// A connection to the server.
    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(self.process.url.trim_start_matches("http://")).unwrap()
    }

    /// The answer to a completion of `prompt`, head and body.
    pub(crate) fn complete(&self, prompt: &str) -> String {
        self.complete_with(prompt, "")
    }

    /// The same for a request with these lines in its head, each ended.
    pub(crate) fn complete_with(&self, prompt: &str, lines: &str) -> String {
        let body = format!(
            r#"{{"model": "demo", "prompt": "{prompt}", "max_tokens": 4, "ignore_eos": true}}"#
        );
        let mut socket = self.connect();
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             {lines}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Puts a file into the policy folder, as an operator does: whole or not at all.
    pub(crate) fn drop_in(&self, name: &str, bytes: &[u8]) {
        let beside = self.folder.path().join("unfinished");
        fs::write(&beside, bytes).unwrap();
        fs::rename(beside, self.folder.path().join("policies.d").join(name)).unwrap();
    }

    /// The names of all files in a folder of the server's, one after the other.
    pub(crate) fn files(&self, folder: &str) -> String {
        let entries = fs::read_dir(self.folder.path().join(folder));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap() + "\n")
            .collect()
    }

    /// The reason for which the policy `name` is refused, once it is.
    pub(crate) fn refusal(&self, name: &str) -> String {
        once(|| {
            let status = self.policies();
            let mut refused = status["refused"].as_array().unwrap().iter();
            let refused = refused.find(|refused| refused["name"] == name)?;
            Some(refused["why"].as_str().unwrap().to_owned())
        })
    }

    /// Waits until the policy `name` is in force.
    pub(crate) fn wait_for_policy(&self, name: &str) {
        self.wait_until(|status| {
            let mut policies = status["policies"].as_array().unwrap().iter();
            policies.any(|policy| policy["name"] == name)
        });
    }

    /// Waits until the state of the policies is so.
    pub(crate) fn wait_until(&self, is_so: impl Fn(&Value) -> bool) {
        once(|| is_so(&self.policies()).then_some(()));
    }

    /// The answer to a GET of `path`, head and body.
    pub(crate) fn get(&self, path: &str) -> String {
        let addr = self.process.url.trim_start_matches("http://");
        let mut socket = TcpStream::connect(addr).unwrap();
        write!(
            socket,
            "GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks something with this body, and returns the status and the JSON of the answer.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let addr = self.process.url.trim_start_matches("http://");
        let mut socket = self.connect();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    /// Begins a streamed completion, and returns its head and the connection, which keeps it running.
    pub(crate) fn stream(&self, body: &str) -> (String, BufReader<TcpStream>) {
        let mut socket = self.connect();
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        (head, reader)
    }

    /// The lines that the server logged before it served.
    pub(crate) fn log(&self) -> &str {
        &self.process.begun
    }

    /// The line with these words that the server logs after it serves, once it does.
    pub(crate) fn says(&self, words: &str) -> String {
        once(|| {
            let said = self.process.said.lock().unwrap();
            let mut lines = said.lines();
            lines.find(|line| line.contains(words)).map(str::to_owned)
        })
    }

    /// The path of a file in the folder of the server.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// The state of the journal, as the server shows it to operators.
    pub(crate) fn journal(&self) -> Value {
        let answer = self.get("/admin/journal");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Asks the server to stop, and waits until it has.
    pub(crate) fn terminate(self) -> ExitStatus {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until the server has ended.
    pub(crate) fn ended(mut self) -> ExitStatus {
        self.process.child.wait().unwrap()
    }

    /// The state of the policies, as the server shows it to operators.
    pub(crate) fn policies(&self) -> Value {
        let (status, policies) = self.ask("GET", "/admin/policies", "");
        assert_eq!(status, 200, "{policies}");
        policies
    }

    /// The same, as `pointsman policy status` shows it to programs.
    pub(crate) fn status(&self) -> Value {
        let said = self.policy(&["status", "--format", "json"]);
        assert_eq!(said.code, 0, "{}", said.err);
        serde_json::from_str(&said.out).unwrap()
    }

    /// Runs `pointsman policy` with these arguments, about this server.
    pub(crate) fn policy(&self, arguments: &[&str]) -> Said {
        self.policy_with(arguments, None)
    }

    pub(crate) fn policy_with(&self, arguments: &[&str], key: Option<&str>) -> Said {
        let arguments = [&["policy"], arguments].concat();
        self.run(&arguments, &self.process.url, key)
    }

    /// Runs `pointsman` with these arguments, about this server.
    pub(crate) fn command(&self, arguments: &[&str]) -> Said {
        self.asked_at(arguments, &self.process.url)
    }

    /// Runs `pointsman` with these arguments, about the server at an address.
    pub(crate) fn asked_at(&self, arguments: &[&str], address: &str) -> Said {
        self.run(arguments, address, None)
    }

    /// The address of the server.
    pub(crate) fn url(&self) -> &str {
        &self.process.url
    }

    fn run(&self, arguments: &[&str], address: &str, key: Option<&str>) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        command.args(arguments).args(["--server", address]);
        command.current_dir(self.folder.path());
        command.env_remove("POINTSMAN_ADMIN_KEY");
        command.env("XDG_CACHE_HOME", cache());
        if let Some(key) = key {
            command.env("POINTSMAN_ADMIN_KEY", key);
        }
        Said::of(&mut command)
    }
}

/// The first thing that `look` finds. Between two looks the processors are for what is waited for.
pub(crate) fn once<T>(look: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        thread::park_timeout(LOOK);
    }
}

/// The folder for what commands keep from one run of the tests to the next.
pub(crate) fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache")
}

/// Gives a server's folder of state the components that commands have compiled.
fn compile_as_commands_did(state: &Path) {
    let code = state.join("code");
    fs::create_dir_all(&code).unwrap();
    for folder in [state, &code] {
        // As the server makes them: it trusts no code that others could have written.
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    }
    for entry in fs::read_dir(cache().join("pointsman/code")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), code.join(entry.file_name())).unwrap();
    }
}

fn policy_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("policies.d")).unwrap();
    folder
}

/// The policy `name`, as it was built.
pub(crate) fn policy(name: &str) -> Vec<u8> {
    fs::read(pointsman_testkit::component::component_path(name)).unwrap()
}

impl Process {
    /// Starts a server, and returns once its log has `sign` and the address behind it.
    fn start(folder: &TempDir, start: &Start<'_>, sign: &str) -> Self {
        let config = start.config;
        let config = format!(
            "listen = '127.0.0.1:0'\nstate-folder = 'state'\n[policies]\n\
             folder = 'policies.d'\nsettle = '10ms'\npoll = '50ms'\n{config}"
        );
        fs::write(folder.path().join("pointsman.toml"), config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(["serve", "--config", "pointsman.toml"])
            .args(start.flags)
            .envs(start.variables.iter().copied())
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut begun) = (String::new(), String::new());
        let url = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended: {begun}");
            begun.push_str(&line);
            if let Some((_, rest)) = line.split_once(sign) {
                break rest.split([' ', '"', ',', '\n']).next().unwrap().to_owned();
            }
        };
        // Read on, lest it waits for room for its log.
        let said = Arc::new(Mutex::new(String::new()));
        let later = Arc::clone(&said);
        let log = thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                *later.lock().unwrap() += &(line + "\n");
            }
        });
        Self {
            child,
            log: Some(log),
            url,
            begun,
            said,
        }
    }

    fn kill(&mut self) {
        // It may have ended already.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
        if let Some(log) = self.log.take() {
            log.join().unwrap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
