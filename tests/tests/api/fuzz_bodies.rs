//! The bodies of the fuzz targets, with damaged samples: no bytes make one of them panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use fastrand::Rng;
use pointsman_model::test_util::gguf::{GgufFile, Kind, Meta};
use pointsman_model::test_util::models;
use pointsman_tests::fuzz::{self, Body};
use pointsman_tests::mutate::damaged;

/// Number of damaged inputs for each body that parses text or a journal.
const INPUTS: u64 = 1000;

const CHAT: &str = r#"{"model": "demo", "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "café \ud83d\ude00"}], "name": "ann"}],
    "temperature": 0.7, "top_p": 0.9, "seed": 7, "max_tokens": 20, "stop": ["\n", "end"],
    "stream": true, "stream_options": {"include_usage": true}, "n": 1,
    "pointsman": {"session": "s", "priority": -3, "class": "throughput", "deadline_ms": 5000,
        "labels": {"team": "red"}, "executors": ["cpu"], "may_wait": false, "group": 2}}"#;

const TOOLS: &str = r#"{"model": "demo", "messages": [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{\"a\": [1]}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "2"}],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": true}}],
    "tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": false}"#;

const TEXT: &str = r#"{"model": "demo", "prompt": "Once upon", "max_tokens": 5, "stop": "end"}"#;
const TOKENS: &str = r#"{"model": "demo", "prompt": [[1, 2, 3]], "temperature": 0, "seed": -1}"#;
const IGNORED: &str = r#"{"model": "demo", "prompt": "Once", "later": [1e999, "\ud800"]}"#;

const CONFIG: &str = r#"
[http]
body-max = "4MiB"
[cpu]
kv-memory = "64MiB"
[[keys]]
key = "a-key-of-visible-ascii"
tenant = "alice"
[[tenants]]
name = "alice"
weight = 3
tokens-per-minute = 60000
[admin]
listen = "127.0.0.1:9090"
decisions-max = 1024
[hints]
label-keys = ["team"]
priority-max = 100
[policies]
settle = "200ms"
[policies.bind]
routing = "memory-aware"
[policies.settings.aging]
affinity-bonus = 10
[policies.limits]
call-fuel = 20_000_000
[journal]
folder = "journal"
file-size = "32MiB"
[log]
format = "json"
filter = "warn,pointsman=debug"
"#;

const SIDECAR: &str = r#"
mode = "canary 10%"
sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
on-failure = { admission = "closed" }

[settings]
affinity-bonus = 200
names = ["a", { deep = [1, 2.5, 2026-01-01T00:00:00Z] }]

[limits]
call-fuel = 1_000_000
"#;

/// Reads a file of the repository.
fn file(path: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read(root.join(path)).unwrap()
}

/// Checks that each sample is understood, and that nothing made of the samples panics.
fn check(body: Body, samples: &[Vec<u8>], inputs: u64) {
    for sample in samples {
        let start = String::from_utf8_lossy(&sample[..sample.len().min(60)]);
        assert!(body(sample), "a sample is refused: {start}");
    }
    let mut refused = 0;
    for seed in 0..inputs {
        let mut rng = Rng::with_seed(seed);
        let sample = &samples[rng.usize(0..samples.len())];
        let other = &samples[rng.usize(0..samples.len())];
        refused += u64::from(!body(&damaged(&mut rng, sample, other)));
    }
    assert!(refused > inputs / 50, "only {refused} inputs were bad");
}

/// Checks that deep nesting is refused. A parser that recurses without a bound would overflow its
/// stack.
fn check_depth(body: Body, openings: &[&str]) {
    for opening in openings {
        assert!(!body(opening.repeat(100_000).as_bytes()), "{opening}");
        let nested = format!("x = {}", opening.repeat(100_000));
        assert!(!body(nested.as_bytes()), "x = {opening}");
    }
}

const JSON_OPENINGS: &[&str] = &["[", "{\"a\":", "{\"messages\":["];
const TOML_OPENINGS: &[&str] = &["[", "{a=", "a.", "[[a."];

#[test]
fn no_journal_makes_the_reader_panic() {
    let golden = file("host/journal/tests/journal/golden/v1.pmj");
    check(fuzz::journal, &[golden], INPUTS);
}

#[test]
fn no_gguf_file_makes_its_reader_panic() {
    let texts = |texts: &[&str]| Meta::Texts(texts.iter().map(|it| (*it).to_owned()).collect());
    let config = models::config(serde_json::json!({"num_hidden_layers": 1, "vocab_size": 5}));
    let tensors = models::tensors(&config, 0);
    let (plain, _) = GgufFile::of_model(&config, &tensors, Kind::F32);
    let kinds = ["gpt2", "llama"].map(|kind| {
        let file = plain
            .clone()
            .with("tokenizer.ggml.model", Meta::Text(kind.to_owned()))
            .with("tokenizer.ggml.pre", Meta::Text("llama-bpe".to_owned()))
            .with(
                "tokenizer.ggml.tokens",
                texts(&["<s>", "</s>", "a", "b", "ab"]),
            )
            .with(
                "tokenizer.ggml.scores",
                Meta::F32s(vec![0.0, 0.0, -1.0, -2.0, -0.5]),
            )
            .with("tokenizer.ggml.token_type", Meta::I32s(vec![3, 3, 1, 1, 4]))
            .with("tokenizer.ggml.merges", texts(&["a b"]))
            .with("tokenizer.ggml.bos_token_id", Meta::U32(0))
            .with("llama.rope.scaling.type", Meta::Text("yarn".to_owned()));
        file.bytes()
    });
    check(fuzz::gguf, &kinds, 10 * INPUTS);
}

#[test]
fn no_sidecar_makes_its_parser_panic() {
    let samples = [SIDECAR, "mode = \"shadow\"\n", ""].map(Into::into);
    check(fuzz::sidecar, &samples, INPUTS);
    check_depth(fuzz::sidecar, TOML_OPENINGS);
}

#[test]
fn no_configuration_makes_its_parser_panic() {
    let samples = [file("examples/pointsman.toml"), CONFIG.into()];
    check(fuzz::config, &samples, INPUTS);
    check_depth(fuzz::config, TOML_OPENINGS);
}

#[test]
fn no_scenario_makes_its_parser_panic() {
    let samples = [
        "examples/01-first-policy/scenarios/room.toml",
        "policies/prefix-bound/scenarios/bound.toml",
        "policies/aging/scenarios/crossover.toml",
        "policies/budget/scenarios/donor-must-cover-alone.toml",
    ];
    check(fuzz::scenario, &samples.map(file), INPUTS);
    check_depth(fuzz::scenario, TOML_OPENINGS);
}

#[test]
fn no_body_of_a_chat_completion_makes_its_parser_panic() {
    check(fuzz::chat, &[CHAT, TOOLS].map(Into::into), INPUTS);
    check_depth(fuzz::chat, JSON_OPENINGS);
}

#[test]
fn no_body_of_a_completion_makes_its_parser_panic() {
    let samples = [TEXT, TOKENS, IGNORED].map(Into::into);
    check(fuzz::completion, &samples, INPUTS);
    check_depth(fuzz::completion, JSON_OPENINGS);
}
