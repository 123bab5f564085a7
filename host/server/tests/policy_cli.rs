//! `pointsman policy` as its users have it: the binary, in a folder that is in no workspace.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests; a panic there is a failed test, and who skips one says so"
)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for policies, and what is said in it.
struct Place {
    folder: tempfile::TempDir,
}

/// How a command ended.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs `pointsman policy`, with what cargo builds kept from one run of the tests to the next.
    fn policy<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-cli");
        let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .arg("policy")
            .args(arguments)
            .current_dir(self.folder.path())
            .env("CARGO_TARGET_DIR", kept)
            .env("CARGO_NET_OFFLINE", "true")
            // Those of the build that runs this test are none of the policy's.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn say(&self, line: &str) -> Said {
        self.policy(line.split_whitespace())
    }
}

impl Said {
    #[track_caller]
    fn ended(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        if code == 2 { &self.err } else { &self.out }
    }

    #[track_caller]
    fn says(&self, code: i32, parts: &[&str]) {
        let text = self.ended(code);
        for part in parts {
            assert!(text.contains(part), "{part:?} not in\n{text}");
        }
    }
}

/// Whether the Rust compiler on this machine has the library for policies. Where `cargo xtask`
/// compiles the shipped ones with Debian's compiler instead, it has not.
fn can_build() -> bool {
    let said = Command::new("rustc")
        .args(["--print", "target-libdir", "--target"])
        .arg("wasm32-unknown-unknown")
        .output()
        .unwrap();
    let libraries = String::from_utf8(said.stdout).unwrap();
    let can = said.status.success() && Path::new(libraries.trim()).is_dir();
    if !can {
        println!("skipped: rustc has no wasm32-unknown-unknown on this machine");
    }
    can
}

const EVERY_HOOK: &str =
    "new mine --hooks admission,priority,routing,preemption,budget,explanation";

/// A scenario that passes, and binds none but a default policy.
const OTHER: &str = "title = 'one is placed'
[policy.memory-aware]
[[executor]]
name = 'gpu'
slots = 1
[[step]]
arrive = { name = 'one' }
expect.placed = { one = 'gpu' }
";

#[test]
fn a_new_policy_builds_is_good_passes_its_scenarios_and_is_measured() {
    if !can_build() {
        return;
    }
    let place = Place::new();
    place
        .say(EVERY_HOOK)
        .says(0, &["cd mine && pointsman policy build"]);
    let manifest = fs::read_to_string(place.path("mine/Cargo.toml")).unwrap();
    place.write(
        "mine/Cargo.toml",
        manifest
            .replace("# authors", "authors")
            .replace("# license", "license"),
    );

    place.say("build mine").says(0, &["mine/mine.wasm: "]);

    place.say("inspect mine/mine.wasm").says(
        0,
        &[
            "imports      pointsman:scheduling/log@0.1.0\n",
            "exports      pointsman:scheduling/admission@0.1.0\n",
            "pointsman:scheduling/explanation@0.1.0\n",
            "name         mine\n",
            "version      0.1.0\n",
            "authors      Your Name <you@example.com>\n",
            "licenses     Apache-2.0\n",
            "source       none\n",
        ],
    );

    place.say("check mine/mine.wasm").says(
        0,
        &[
            "decides  admission, priority, routing, preemption, budget\n",
            "name     mine 0.1.0\n",
            "reasons  the queue has room\n",
            "feeds    waiting\n           sequences\n",
            "KiB of the 65,536 KiB it may have\n",
            "good: a server takes it\n",
        ],
    );
    settings_are_checked(&place);
    scenarios_are_run(&place);

    let bench = place.say("bench mine/mine.wasm --executors 1,100 --questions 20");
    bench.says(
        0,
        &[
            "memory-aware (default)",
            "aging (default)",
            "budget (default)",
        ],
    );
    // A head, and each hook with each size for both.
    assert_eq!(bench.out.lines().count(), 1 + 5 * 2 * 2, "{}", bench.out);
}

fn settings_are_checked(place: &Place) {
    place.write("good.toml", "[limits]\nmemory-bytes = 4_194_304\n");
    place
        .say("check mine/mine.wasm --settings good.toml")
        .says(0, &["KiB of the 4,096 KiB it may have"]);
    place.write("unknown.toml", "[settings]\nbonus = 3\n");
    place
        .say("check mine/mine.wasm --settings unknown.toml")
        .says(
            1,
            &[
                "does not start: settings refused: ",
                "bonus",
                "to fix it: change what `--settings` names",
            ],
        );
    place.write("broken.toml", "[settings]\nbonus = \n");
    place
        .say("check mine/mine.wasm --settings broken.toml")
        .says(2, &["broken.toml:2:9: "]);
}

fn scenarios_are_run(place: &Place) {
    place
        .say("test mine/mine.wasm mine/scenarios")
        .says(0, &["5 passed"]);

    let failing = fs::read_to_string(place.path("mine/scenarios/routing.toml")).unwrap();
    let failing = failing.replace("expect.waiting = [\"d\"]", "expect.waiting = []");
    place.write("failing.toml", &failing);
    place
        .say("test mine/mine.wasm mine/scenarios failing.toml")
        .says(1, &["5 passed, 1 failed", "waiting: expected [], got [d]"]);

    place
        .say("test mine/mine.wasm failing.toml --format junit")
        .says(1, &["<failure", "<testsuite"]);
    place
        .say("test mine/mine.wasm mine/scenarios --format json --output report.json")
        .says(0, &["5 passed"]);
    let report = fs::read_to_string(place.path("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report.is_object(), "{report}");

    place.write("malformed.toml", failing.replace("[[step]]", "[[stpe]]"));
    place
        .say("test mine/mine.wasm malformed.toml")
        .says(1, &["1 broken", "malformed.toml:14:3: ", "stpe"]);
    place.write("other.toml", OTHER);
    place.say("test mine/mine.wasm other.toml").says(
        1,
        &["it is not about this policy: bind it with [policy.mine]"],
    );
}

#[test]
fn what_is_no_policy_is_explained_by_every_command() {
    let place = Place::new();
    place.write("text.wasm", "hello");
    place.write("module.wasm", b"\0asm\x01\0\0\0");
    place.write("empty.wasm", b"\0asm\x0d\0\x01\0");
    place.write("scenario.toml", "");
    for (command, more) in [("check", ""), ("bench", ""), ("test", "scenario.toml")] {
        let say = |file: &str| place.say(&format!("{command} {file} {more}"));
        say("text.wasm").says(1, &["text.wasm", "not a WebAssembly file", "to fix it: "]);
        say("module.wasm").says(1, &["a core module, not a component"]);
        say("empty.wasm").says(1, &["does not export pointsman:scheduling/lifecycle"]);
        say("none.wasm").says(2, &["none.wasm cannot be read"]);
        say(".").says(2, &[". is a folder: name the .wasm file"]);
    }
    place
        .say("inspect text.wasm")
        .says(1, &["5 bytes", "not a WebAssembly file"]);
    place
        .say("inspect empty.wasm")
        .says(0, &["imports      none", "exports      none"]);
}

#[test]
fn what_cannot_be_made_or_built_is_explained() {
    let place = Place::new();
    place
        .say("new Mine")
        .says(2, &["a name is of lower-case letters"]);
    place
        .say("new mine --hooks explanation")
        .says(2, &["explanation is no decision"]);
    place
        .say("build .")
        .says(2, &["has no Cargo.toml: `pointsman policy new NAME`"]);
    place.say("build nowhere").says(2, &["no folder nowhere"]);
    place.say("new other --dir here").ended(0);
    place
        .say("new other --dir here")
        .says(2, &["here is there and not empty"]);

    if !can_build() {
        return;
    }
    let library = place.path("here/src/lib.rs");
    let good = fs::read_to_string(&library).unwrap();
    fs::write(&library, good.replace("export!(Decisions: routing);", "")).unwrap();
    place.say("build here").says(
        1,
        &[
            "here makes no policy: ",
            "to fix it: with the SDK, `export!",
        ],
    );
    fs::write(&library, "nonsense").unwrap();
    let said = place.say("build here");
    said.says(1, &["here does not build"]);
    assert!(said.err.contains("src/lib.rs:1"), "{}", said.err);
    assert!(!place.path("here/other.wasm").exists());
}
