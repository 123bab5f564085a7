//! `pointsman simulate` with the default policies' components, on small workloads.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use clap::Parser;
use pointsman_testkit::component::component_path;
use serde_json::Value;

use super::*;

/// The command line of the test.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: SimulateArgs,
}

static DEFAULTS: LazyLock<Vec<EmbeddedPolicy>> = LazyLock::new(|| {
    let policy = |name| EmbeddedPolicy {
        name,
        wasm: fs::read(component_path(name)).unwrap().leak(),
        code: None,
    };
    ["aging", "memory-aware", "budget"].map(policy).to_vec()
});

fn said(line: &str) -> Result<String> {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    let line = Line::try_parse_from(words)?;
    let mut out = Vec::new();
    simulate(&line.args, &DEFAULTS, &mut out)?;
    Ok(String::from_utf8(out)?)
}

const SMALL: &str =
    "poisson:rate=30,requests=120,prompt=600,output=20,prefixes=4,prefix-tokens=256";

#[test]
fn the_defaults_serve_a_small_workload_and_the_output_is_the_same_each_time() {
    let line = format!("{SMALL} --executors 2 --format json --failures losses=3s,lasting=500ms");
    let text = said(&line).unwrap();
    assert_eq!(text, said(&line).unwrap());
    let json: Value = serde_json::from_str(&text).unwrap();
    let report = &json["contenders"][0]["runs"][0]["report"];
    assert_eq!(json["contenders"][0]["policies"], "defaults");
    assert_eq!(report["requests"], 120);
    assert!(report["finished"].as_u64().unwrap() > 100, "{report}");
    assert!(report["hit_rate"].as_f64().unwrap() > 0.1, "{report}");
    assert_eq!(report["faults"], 0);
    assert_eq!(report["refused_answers"], 0);
}

/// An output whose reader has left.
struct Unread;

impl Write for Unread {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_leaves_is_told_from_other_errors_in_each_form() {
    for format in ["table", "json"] {
        let line = format!("simulate {SMALL} --format {format}");
        let line = Line::try_parse_from(line.split_whitespace()).unwrap();
        let error = simulate(&line.args, &DEFAULTS, &mut Unread).unwrap_err();
        let kind = error.downcast_ref().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::BrokenPipe), "{format}: {error}");
    }
}

#[test]
fn policies_are_compared_with_the_defaults_over_several_seeds() {
    let router = component_path("round-robin");
    let slots = format!("{},balance=slots", component_path("memory-aware").display());
    let line = format!(
        "{SMALL} --executors 3 --seeds 3 --compare {} {slots}",
        router.display()
    );
    let text = said(&line).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("poisson:rate=30"), "{text}");
    assert!(lines[0].contains("120 requests"), "{text}");
    for (line, label) in
        lines[2..]
            .iter()
            .zip(["defaults", "round-robin", "memory-aware,balance=slots"])
    {
        assert!(line.starts_with(label) && line.contains('±'), "{text}");
    }
    assert_eq!(lines.len(), 5, "{text}");
}

#[test]
fn sessions_spread_over_idle_executors_and_go_back_to_theirs() {
    let router = component_path("memory-aware");
    let router = router.display();
    let line = format!(
        "agents:sessions=20,rate=4,turns=4,shared-tokens=512,group-tokens=512 --executors 4 \
         --format json --policy {router},device-credit=0 \
         --compare {router},device-credit=0,session-preference=false"
    );
    let json: Value = serde_json::from_str(&said(&line).unwrap()).unwrap();
    let report = |contender: usize| &json["contenders"][contender]["runs"][0]["report"];
    for executor in report(0)["executors"].as_array().unwrap() {
        assert!(executor["requests"].as_u64() > Some(4), "{executor}");
    }
    let hit = |contender| report(contender)["hit_rate"].as_f64().unwrap();
    assert!(hit(0) > hit(1) + 0.1, "{} and {}", hit(0), hit(1));
}

#[test]
fn a_path_with_a_comma_is_a_path_where_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let router = folder.path().join("a,b.wasm");
    fs::copy(component_path("round-robin"), &router).unwrap();
    let text = said(&format!("{SMALL} --compare {}", router.display())).unwrap();
    assert!(text.contains("\na,b "), "{text}");
}

#[test]
fn a_workload_is_read_from_a_pipe() {
    let (reader, mut writer) = io::pipe().unwrap();
    let line = r#"{"timestamp":1,"input_length":1,"output_length":1}"#;
    writeln!(writer, "{line}").unwrap();
    drop(writer);
    let text = said(&format!("/dev/fd/{} --built-in", reader.as_raw_fd())).unwrap();
    assert!(text.contains(": 1 requests "), "{text}");
}

#[test]
fn the_built_in_rule_can_be_simulated_alone_on_engines_of_the_host() {
    let line = format!("{SMALL} --built-in --profile measured --kv-blocks 2048 --max-tokens 100");
    let text = said(&line).unwrap();
    assert!(text.contains("\nbuilt-in "), "{text}");
}

#[test]
fn what_is_of_no_use_is_refused_with_what_would_be() {
    let refused = |line: &str| format!("{:#}", said(line).unwrap_err());
    assert!(refused("poisson:rats=1").contains("did you mean `rate`?"));
    assert!(refused("poisson --profile fast").contains("the profiles are polynomial"));
    for (flag, why) in [
        ("--failures failing=2", "failing must be from 0 to 1, not 2"),
        (
            "--failures leaving=nan",
            "leaving must be from 0 to 1, not NaN",
        ),
        (
            "--failures slow-factor=0.3",
            "slow-factor must be from 1 to 1000000, not 0.3",
        ),
        (
            "--failures slow-factor=1e9",
            "slow-factor must be from 1 to 1000000, not 1000000000",
        ),
        (
            "--speed-up nan",
            "--speed-up must be from 0.000001 to 1000000, not NaN",
        ),
        (
            "--speed-up 1e-9",
            "--speed-up must be from 0.000001 to 1000000, not 0.000000001",
        ),
        (
            "--kv-blocks 4294967295",
            "kv-blocks must be from 1 to 16777216, not 4294967295",
        ),
    ] {
        let said = refused(&format!("poisson {flag}"));
        assert!(said.contains(why), "{said}");
    }
    assert!(refused("poisson --wait-max 5").contains("a time such as"));
    assert!(refused("poisson --policy nowhere.wasm").contains("nowhere.wasm cannot be read"));
    let folder = tempfile::tempdir().unwrap();
    let fleet = folder.path().join("fleet.toml");
    fs::write(&fleet, "[[executors]]\nprofile = 'smg'\n").unwrap();
    let fleet = format!("poisson:requests=1 --built-in --fleet {}", fleet.display());
    said(&fleet).unwrap();
    for flag in ["--profile llm-d", "--kv host", "--models-max 1"] {
        let why = refused(&format!("{fleet} {flag}"));
        let part = "--fleet says all about its executors: leave out --profile, --kv and all else";
        assert!(why.contains(part), "{flag}: {why}");
    }
    let unknown = format!(
        "poisson --policy {},credit=1",
        component_path("kv-cost").display()
    );
    assert!(
        refused(&unknown).contains("credit"),
        "{}",
        refused(&unknown)
    );
}

// === The page ===

/// Checks that every element of a page is closed, in order.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in page.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "a stray > in {text:?}");
        let name = tag.split_whitespace().next().unwrap_or_default();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{piece}"),
            None if tag.ends_with('/') || name == "!doctype" => {}
            None => open.push(name),
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_page_has_the_runs_of_each_policy_and_text_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("<b>.wasm");
    fs::copy(component_path("round-robin"), &named).unwrap();
    let page = |name: &str| {
        let file = folder.path().join(name);
        let line = format!(
            "{SMALL} --executors 2 --compare {} --html {}",
            named.display(),
            file.display()
        );
        let text = said(&line).unwrap();
        assert!(
            text.contains("\n<b> "),
            "the table is written as well: {text}"
        );
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "it is to be shown to others");
        fs::read_to_string(file).unwrap()
    };
    let one = page("one.html");
    assert_eq!(one, page("other.html"));
    assert_well_formed(&one);
    assert!(!one.contains("<b>") && one.contains("&lt;b&gt;"));
    for title in ["TTFT", "ITL", "Queue", "Running", "KV use", "Fairness"] {
        let (_, chart) = one.split_once(&format!("<figcaption>{title} ")).unwrap();
        let (chart, _) = chart.split_once("</figure>").unwrap();
        for policies in ["defaults", "&lt;b&gt;"] {
            let line = chart.split_once(&format!("data-policies=\"{policies}\" d=\"M"));
            assert!(line.is_some(), "{title} of {policies}");
        }
    }
    for elsewhere in [
        "<script", "<link", "<img", "http:", "https:", "url(", "@import",
    ] {
        assert!(!one.contains(elsewhere), "{elsewhere}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_with_its_place() {
    // Before anything is looked at that takes time.
    let why = said("nothing.jsonl --html /nowhere/page.html").unwrap_err();
    assert!(
        format!("{why:#}").starts_with("--html /nowhere/page.html: "),
        "{why:#}"
    );
}
