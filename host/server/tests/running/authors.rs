//! Authors of policies in JavaScript and Python, who are told what these throw and print, by commands and by a server.
//!
//! They are made by `policy new`, changed, and built in folders that are kept from one run of the tests to
//! the next, since a component of Python takes long.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::{Host, Start, cache, once};
use super::said::Said;

/// The most tokens of an answer with which a request makes the policies throw.
const THROWS: u32 = 77;

/// A change of a file: a text that is in it, and another in its place.
type Change<'a> = (&'a str, &'a str);

/// Runs `pointsman policy` in a folder.
fn policy(folder: &Path, line: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.arg("policy").args(line.split_whitespace());
    Said::of(command.current_dir(folder).env("XDG_CACHE_HOME", cache()))
}

/// The folder of the policy `mine`, in which `file` has been changed.
fn mine(language: &str, file: &str, changes: &[Change<'_>]) -> PathBuf {
    let fresh = tempfile::tempdir().unwrap();
    policy(fresh.path(), &format!("new mine --language {language}"))
        .says(0, &["mine: a policy for routing"]);
    let fresh = fresh.path().join("mine");
    let mut text = fs::read_to_string(fresh.join(file)).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from:?} is not in {file}");
        text = text.replacen(from, to, 1);
    }
    fs::write(fresh.join(file), text).unwrap();
    let kept = cache().with_file_name("languages").join(language);
    keep(&fresh, &kept);
    kept
}

/// Makes the files of one folder those of another, and leaves alone what is the same.
fn keep(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            keep(&from, &to);
        } else if fs::read(&from).unwrap() != fs::read(&to).unwrap_or_default() {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// The number of the line of a file that has these words.
fn line(folder: &Path, file: &str, words: &str) -> usize {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let line = text.lines().position(|line| line.contains(words));
    line.unwrap_or_else(|| panic!("{words:?} is not in {file}")) + 1
}

/// A scenario in which `mine` throws: the request is placed all the same, by the built-in rule.
fn throwing() -> String {
    format!(
        "title = 'it throws'
[policy.mine]
[[executor]]
name = 'gpu'
slots = 1
[[step]]
arrive = {{ name = 'one', output-max = {THROWS} }}
expect.placed = {{ one = 'gpu' }}
"
    )
}

/// Has a server ask the policy that throws, and returns the server with the fault as operators see it.
fn fault_of(folder: &Path) -> (Host, String, String) {
    let wasm = fs::read(folder.join("mine.wasm")).unwrap();
    // One fault is not the end of it.
    let host = Host::served(&Start {
        config: "[policies.probation]\nfaults-max = 5\n",
        files: &[("mine.wasm", &wasm)],
        // `policy check` has compiled it, which takes long.
        compiled: true,
        ..Start::default()
    });
    host.wait_for_policy("mine");
    let body = format!(r#"{{"model": "demo", "prompt": "Hello", "max_tokens": {THROWS}}}"#);
    let (status, _) = host.ask("POST", "/v1/completions", &body);
    assert_eq!(status, 200, "no request fails for a policy");
    let fault = once(|| {
        let status = host.policies();
        let mut policies = status["policies"].as_array().unwrap().iter();
        let mine = policies.find(|policy| policy["name"] == "mine").unwrap();
        let fault = &mine["running"]["fault_last"];
        fault.is_object().then(|| fault.clone())
    });
    let text = |key: &str| fault[key].as_str().unwrap().to_owned();
    let (line, trace) = (text("line"), text("trace"));
    (host, line, trace)
}

#[test]
fn what_javascript_throws_and_writes_to_the_console_is_told() {
    let file = "policy.js";
    let asked = "    console.log(\"asked about\", requests.length, { at: [1n] });\n    console.warn(new Map([[1, 2]]));\n";
    let throws = format!("  if (request?.outputTokensMax === {THROWS}) refuse(request);\n");
    let refuse = "function refuse(request) {\n  throw new TypeError(\"no such length\");\n}\n\n";
    let folder = mine(
        "javascript",
        file,
        &[
            ("const mirror", "console.log(\"loaded\");\nconst mirror"),
            (
                "    return requests.map",
                &format!("{asked}    return requests.map"),
            ),
            ("  const need =", &format!("{throws}  const need =")),
            (
                "// Where one request goes.",
                &format!("{refuse}// Where one request goes."),
            ),
        ],
    );
    let at = |words: &str| format!("at policy.js:{}", line(&folder, file, words));
    let (thrown, placed, mapped) = (
        at("throw new TypeError"),
        at(" refuse(request);"),
        at("return requests.map"),
    );
    policy(&folder, "check .").says(0, &["note: it logged: loaded\n", "good: a server takes it"]);
    let sentence = format!("mine threw TypeError {thrown}: no such length");
    fs::write(folder.join("throws.toml"), throwing()).unwrap();
    let said = policy(&folder, "test mine.wasm throws.toml");
    said.says(1, &[&sentence, "asked about 1 {\"at\":[\"1n\"]}"]);

    let (host, line, trace) = fault_of(&folder);
    assert_eq!(line, sentence);
    let stack = format!(
        "  in refuse {thrown}\n  in place {placed}\n  in <anonymous> {mapped}\n  in route {mapped}\n"
    );
    assert!(trace.starts_with(&stack), "{trace}");
    let logged = host.says("asked about 1");
    assert!(
        logged.contains("INFO") && logged.contains("policy says"),
        "{logged}"
    );
    let warned = host.says("[[1,2]]");
    assert!(warned.contains("WARN"), "{warned}");
    host.says(&sentence);
}

#[test]
fn what_python_raises_and_prints_is_told() {
    let file = "policy.py";
    let asked = "        print(\"asked about\", len(requests), end=\"\")\n        print(\"hint\", file=sys.stderr)\n";
    let throws = format!(
        "    if request and request.output_tokens_max == {THROWS}:\n        refuse(request)\n"
    );
    let refuse = "def refuse(request):\n    try:\n        return {}[request.output_tokens_max]\n    except KeyError as error:\n        raise ValueError(\"no such length\") from error\n\n\n";
    let folder = mine(
        "python",
        file,
        &[
            ("import json\n", "import json\nimport sys\n"),
            ("mirror = Mirror()", "print(\"loaded\")\nmirror = Mirror()"),
            (
                "        return [place",
                &format!("{asked}        return [place"),
            ),
            (
                "    if request is None",
                &format!("{throws}    if request is None"),
            ),
            ("def place(", &format!("{refuse}def place(")),
        ],
    );
    let at = |words: &str| format!("at policy.py:{}", line(&folder, file, words));
    let (raised, placed, asked) = (
        at("raise ValueError"),
        at("        refuse(request)"),
        at("return [place"),
    );
    policy(&folder, "check .").says(
        0,
        &[
            "./mine.wasm: ",
            "name      mine 0.1.0\n",
            "note: it logged: loaded\n",
            "good: a server takes it",
        ],
    );
    let sentence = format!("mine raised ValueError {raised}: no such length");
    let cause = format!("  caused by KeyError {}: {THROWS}", at("return {}["));
    fs::write(folder.join("throws.toml"), throwing()).unwrap();
    let said = policy(&folder, "test mine.wasm throws.toml");
    said.says(1, &[&sentence, &cause, "asked about 1"]);

    let (host, line, trace) = fault_of(&folder);
    assert_eq!(line, sentence);
    let stack =
        format!("  in refuse {raised}\n  in place {placed}\n  in Routing.route {asked}\n{cause}\n");
    assert!(trace.starts_with(&stack), "{trace}");
    let logged = host.says("asked about 1");
    assert!(
        logged.contains("INFO") && logged.contains("policy says"),
        "{logged}"
    );
    let warned = host.says("hint");
    assert!(warned.contains("WARN"), "{warned}");
    host.says(&sentence);
    told_by_the_build(&folder);
}

/// Breaks a copy of a policy in Python: what cannot be loaded is told as Python tells it.
fn told_by_the_build(folder: &Path) {
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    fs::create_dir(copy.join("build")).unwrap();
    symlink(folder.join("build/python"), copy.join("build/python")).unwrap();
    let good = fs::read_to_string(copy.join("policy.py")).unwrap();
    let last = format!("policy.py\", line {}", good.lines().count() + 1);
    for (text, parts) in [
        (format!("{good}def = 3\n"), [&last, "SyntaxError"]),
        (format!("{good}import nowhere\n"), [&last, "'nowhere'"]),
        (
            good.replace("class Routing", "class Rooting"),
            ["policy.py has no class Routing", "world.wit"],
        ),
    ] {
        fs::write(copy.join("policy.py"), text).unwrap();
        let said = policy(copy, "build .");
        said.says(1, &[". does not build\n"]);
        for part in parts {
            assert!(said.err.contains(part), "{part:?} not in\n{}", said.err);
        }
    }
}
