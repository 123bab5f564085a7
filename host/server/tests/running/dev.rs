//! `pointsman policy dev`: a policy that changes while a server asks it as a shadow.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::host::{Host, once, policy};
use super::scenario::one_is_placed;

/// `policy dev`, with what it has said.
struct Dev {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// A policy that something else builds.
const FILE: [&str; 2] = ["mine.wasm", "scenarios"];
/// A policy that is built.
const FOLDER: [&str; 1] = ["."];
const MANIFEST: &str = "[project]\nname = 'mine'\n";

impl Dev {
    /// Starts the command in a folder, about the policy that the arguments name.
    fn start(named: &[&str], folder: &Path, host: &Host) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        command
            .args(["policy", "dev"])
            .args(named)
            .args(["--server", host.url()])
            .args(["--for", "1ms", "--every", "100ms", "--policies"])
            .arg(host.path("policies.d"))
            .current_dir(folder)
            .env_remove("POINTSMAN_ADMIN_KEY")
            .env("XDG_CACHE_HOME", super::host::cache())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on to a line with these words.
    fn says(&mut self, words: &str) -> String {
        let mut said = String::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if line.contains(words) {
                return line;
            }
            said.push_str(&line);
            said.push('\n');
        }
        panic!("{words:?} is not said in\n{said}");
    }

    /// Ends the command, which takes its shadow out.
    #[track_caller]
    fn stop(mut self, shadow: &str) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let last = self.lines.by_ref().map(Result::unwrap).last();
        let expected = format!("stopped; {shadow} is out of the server again");
        assert_eq!(last, Some(expected));
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// Makes a file another one, in one step. What is hidden is no source.
fn replace(folder: &Path, file: &str, bytes: impl AsRef<[u8]>) {
    fs::write(folder.join(".draft"), bytes).unwrap();
    fs::rename(folder.join(".draft"), folder.join(file)).unwrap();
}

/// Makes `mine.wasm` another policy, in one step as `policy build` does.
fn build(folder: &Path, bytes: &[u8]) {
    replace(folder, "mine.wasm", bytes);
}

/// Makes a folder the one of a policy that something else builds, with a scenario.
fn built(folder: &Path) {
    fs::create_dir(folder.join("scenarios")).unwrap();
    fs::write(folder.join("scenarios/one.toml"), one_is_placed("mine")).unwrap();
    build(folder, &policy("least-loaded"));
}

/// Makes a folder the one of the policy `mine` in Python, whose toolchain makes a shipped policy of it.
fn in_python(folder: &Path) {
    const PYTHON: &str = "build/python/bin/python";
    fs::create_dir_all(folder.join("build/python/bin")).unwrap();
    fs::create_dir(folder.join("scenarios")).unwrap();
    let scenario = one_is_placed("least-loaded");
    for (file, text) in [
        ("pyproject.toml", MANIFEST),
        ("policy.py", "# Nobody runs it.\n"),
        ("world.wit", "world policy {}\n"),
        ("requirements.txt", "a-toolchain\n"),
        ("build/python/requirements.txt", "a-toolchain\n"),
        // It has the toolchain, and runs it.
        (PYTHON, "#!/bin/sh\ntest $1 = -I || exec /bin/sh \"$@\"\n"),
        (
            "build/python/bin/componentize-py",
            "/bin/cp build/made.wasm build/component.wasm\n",
        ),
        ("scenarios/one.toml", scenario.as_str()),
    ] {
        fs::write(folder.join(file), text).unwrap();
    }
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.join(PYTHON), mode).unwrap();
    fs::write(folder.join("build/made.wasm"), policy("least-loaded")).unwrap();
}

/// The digest and mode of the shadow in the server; absent: there is none.
fn shadow(host: &Host) -> Option<(String, String)> {
    let status = host.policies();
    let mut policies = status["policies"].as_array().unwrap().iter();
    let found = policies.find(|policy| policy["name"] == "mine-dev")?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    Some((text("digest"), text("mode")))
}

#[test]
fn what_is_good_is_a_shadow_and_what_is_not_leaves_the_one_that_runs() {
    let host = Host::start("");
    let work = tempfile::tempdir().unwrap();
    let folder = work.path();
    let scenario = one_is_placed("mine");
    fs::create_dir(folder.join("scenarios")).unwrap();
    fs::write(folder.join("scenarios/one.toml"), &scenario).unwrap();
    build(folder, &policy("least-loaded"));

    let mut dev = Dev::start(&FILE, folder, &host);
    dev.says("shadow: the server asks mine-dev (");
    let (first, mode) = shadow(&host).unwrap();
    assert_eq!(mode, "shadow");
    // The server may be another user's.
    for file in ["mine-dev.wasm", "mine-dev.toml"] {
        let landed = fs::metadata(host.path("policies.d").join(file)).unwrap();
        assert_eq!(landed.permissions().mode() & 0o777, 0o644, "{file}");
    }
    host.complete("Hello");
    let agrees = dev.says("agrees with");
    assert_eq!(
        agrees,
        "mine-dev: routing agrees with memory-aware in 100.0 % of 1"
    );

    // What is no policy, and what fails a scenario, changes nothing there.
    build(folder, b"half of it");
    dev.says("no policy: not a WebAssembly file");
    dev.says("mine-dev stays in the server as it is");
    let impossible = scenario.replace("slots = 1", "slots = 1\nhealth = 'draining'");
    fs::write(folder.join("scenarios/one.toml"), impossible).unwrap();
    build(folder, &policy("round-robin"));
    dev.says("placed: expected `one` on gpu");
    dev.says("mine-dev stays in the server as it is");
    assert_eq!(shadow(&host).unwrap().0, first);

    // What is good again is another version.
    fs::write(folder.join("scenarios/one.toml"), &scenario).unwrap();
    dev.says("shadow: the server asks mine-dev (");
    let (second, mode) = shadow(&host).unwrap();
    assert_eq!(mode, "shadow");
    assert_ne!(second, first);
    host.complete("Hello");
    dev.says("mine-dev: routing agrees with memory-aware in 100.0 % of 1");

    dev.stop("mine-dev");
    assert!(
        !host.files("policies.d").contains("mine-dev"),
        "{}",
        host.files("policies.d")
    );
    once(|| shadow(&host).is_none().then_some(()));
}

#[test]
fn half_a_manifest_and_a_source_that_is_away_leave_the_shadow_and_end_nothing() {
    let host = Host::start("");
    let work = tempfile::tempdir().unwrap();
    let folder = work.path();
    in_python(folder);
    let mut dev = Dev::start(&FOLDER, folder, &host);
    dev.says("shadow: the server asks mine-dev (");
    let (first, _) = shadow(&host).unwrap();

    replace(folder, "pyproject.toml", "[project\n");
    dev.says("./pyproject.toml: ");
    dev.says("mine-dev stays in the server as it is");
    fs::remove_file(folder.join("policy.py")).unwrap();
    replace(folder, "pyproject.toml", MANIFEST);
    dev.says("./policy.py is not there");
    dev.says("mine-dev stays in the server as it is");
    assert_eq!(shadow(&host).unwrap().0, first);

    replace(
        folder,
        "pyproject.toml",
        format!("{MANIFEST}version = '2'\n"),
    );
    replace(folder, "policy.py", "# It is back.\n");
    dev.says("shadow: the server asks mine-dev (");
    assert_ne!(shadow(&host).unwrap().0, first);
    dev.stop("mine-dev");
}

#[test]
fn a_policy_folder_that_is_away_is_told_and_ends_nothing() {
    let host = Host::start("");
    let work = tempfile::tempdir().unwrap();
    let folder = work.path();
    built(folder);
    let mut dev = Dev::start(&FILE, folder, &host);
    dev.says("shadow: the server asks mine-dev (");
    let (first, _) = shadow(&host).unwrap();

    let (here, away) = (host.path("policies.d"), host.path("away"));
    fs::rename(&here, &away).unwrap();
    build(folder, &policy("round-robin"));
    dev.says("mine-dev.toml not written");
    assert_eq!(shadow(&host).unwrap().0, first);
    fs::rename(&away, &here).unwrap();
    build(folder, &policy("round-robin"));
    dev.says("shadow: the server asks mine-dev (");
    assert_ne!(shadow(&host).unwrap().0, first);
    dev.stop("mine-dev");
}

#[test]
fn a_policy_that_is_renamed_leaves_no_shadow_of_its_old_name() {
    let host = Host::start("");
    let work = tempfile::tempdir().unwrap();
    let folder = work.path();
    in_python(folder);
    let mut dev = Dev::start(&FOLDER, folder, &host);
    dev.says("shadow: the server asks mine-dev (");

    replace(folder, "pyproject.toml", "[project]\nname = 'other'\n");
    dev.says("shadow: the server asks other-dev (");
    let files = host.files("policies.d");
    assert!(files.contains("other-dev.wasm"), "{files}");
    assert!(!files.contains("mine-dev"), "{files}");
    dev.stop("other-dev");
    let files = host.files("policies.d");
    assert!(!files.contains("-dev"), "{files}");
}

#[test]
fn an_old_refusal_is_no_answer_to_what_is_new() {
    let host = Host::start("[policies.limits]\nlog-lines = 16\n");
    let work = tempfile::tempdir().unwrap();
    let folder = work.path();
    built(folder);
    let settings = |log_lines: u32| {
        let text = format!("[limits]\nlog-lines = {log_lines}\n");
        replace(folder, "mine.toml", text);
    };
    settings(32);
    let named = [&FILE[..], &["--settings", "mine.toml"]].concat();
    let mut dev = Dev::start(&named, folder, &host);
    let refusal = dev.says("the server ");
    let expected = "the server refuses mine-dev: ";
    assert!(refusal.starts_with(expected), "{refusal}");
    // The same code with other settings: the old refusal is about this digest, too.
    settings(8);
    let answer = dev.says("the server ");
    let expected = "shadow: the server asks mine-dev (";
    assert!(answer.starts_with(expected), "{answer}");
    dev.stop("mine-dev");
}

#[test]
fn a_shadow_of_another_is_not_touched() {
    let host = Host::start("");
    let work = tempfile::tempdir().unwrap();
    fs::create_dir(work.path().join("scenarios")).unwrap();
    fs::write(
        work.path().join("scenarios/one.toml"),
        one_is_placed("mine"),
    )
    .unwrap();
    build(work.path(), &policy("least-loaded"));
    host.drop_in("mine-dev.toml", b"mode = 'shadow'\n");
    let ends = |folder: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        let arguments = [
            "policy",
            "dev",
            "mine.wasm",
            "scenarios",
            "--for",
            "1ms",
            "--server",
        ];
        command.args(arguments).arg(host.url()).args(folder);
        let ended = command.current_dir(work.path()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    let policies = host.path("policies.d");
    // Without `--policies` it is the folder that the server names, wherever that was started.
    for named in [&["--policies", policies.to_str().unwrap()][..], &[]] {
        let error = ends(named);
        let expected = "mine-dev.toml is there already: another `policy dev` runs, or was killed";
        assert!(error.contains(expected), "{error}");
    }
    let error = ends(&["--policies", "nowhere"]);
    assert!(
        error.contains("there is no folder nowhere on this machine"),
        "{error}"
    );
    assert!(host.files("policies.d").contains("mine-dev.toml"));
}
