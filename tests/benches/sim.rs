//! `cargo xtask bench sim`: what the shipped routing policies do to latency, as `pointsman simulate`
//! tells it.
//!
//! Prints a page of tables, or writes it with `--write`. With `--traces FOLDER`: the public traces too, under the names that
//! they are published with. With `--requests N`: the first N requests of each workload alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use pointsman_server::embedded;
use pointsman_sim::numbers::float_len;
use pointsman_testkit::component::component_path;
use pointsman_tests::overload::{
    FullFleet, MODELS, ModelChanges, SINGLE_MODEL_FLEET, goodput, routed_by,
};
use pointsman_tests::simulated;
use serde_json::Value;

/// Policies that route otherwise than the default: round robin, and Dynamo's formula with its own
/// weights and with those that served it best on the conversation trace.
const ROUTERS: [&str; 6] = [
    "round-robin",
    "least-loaded",
    "sticky",
    "prefix-bound",
    "kv-cost",
    "kv-cost,prefill-scale=16000",
];
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../host/sim/RESULTS.md");
const CONVERSATION: &str = "conversation_trace.jsonl";
const SERVEGEN: &str = "servegen.jsonl";
const PROFILES: [&str; 3] = ["polynomial", "smg", "llm-d"];
/// Numbers of executors, and by how much arrivals are sped up.
const LOADS: [(u32, u32); 4] = [(4, 1), (4, 2), (8, 1), (8, 2)];

/// The rest of the first paragraph.
const HEADING: &str = "\
Made by `cargo xtask bench sim -- --traces FOLDER --write`; FOLDER has `conversation_trace.jsonl`, which is
Mooncake's, and `servegen.jsonl`, clients of ServeGen's. The policies are the components that ship. Time is logical, so the figures are the same
on every machine.";

const OVERLOAD: &str = "
## More requests than can be served

`pointsman simulate poisson:rate=R,requests=100R,prompt=1000,output=200 --profile llm-d --executors 4 --policy budget.wasm…`; good are
requests with a TTFT within 2 s and 25 ms between tokens.

| R a second | settings of `budget` | good a second |
|---|---|---|
";

const FULL_FLEET: &str = "
## Latency-critical requests at a full fleet

Four executors of `measured`, 900 requests of the class `throughput` in the first second, and a latency-critical one of 200 tokens each
0.3 s from the third on, of another tenant. TTFT is theirs; tokens are everybody's. The last row is the defaults.

| `share-reserve` of `memory-aware` | `take-slots` of `budget` | TTFT mean | p95 | tokens/s | gave way |
|---|---|---|---|---|---|
";

const MODEL_CHANGES: &str = "\
| order | models loaded in another's place | TTFT mean | p95 |
|---|---|---|---|
";

const FAIRNESS: &str = "
## A client of ServeGen's that floods

`pointsman simulate servegen.jsonl:rate=60,lasting=2min,flood=19,flood-factor=N --profile PROFILE`, four executors, the default policies.
N = 0: the client is not there. The others' p95 of TTFT with it, as a multiple of that without; of those with 20 requests or more. With `smg`
the flood is more than the fleet can prefill, and p95 without it is 16 ms.

| profile | N | requests | of the others finished | median client | worst client |
|---|---|---|---|---|---|
";

const LENGTHS: &str = "
## Lengths of answers that nobody states

Mean wait with four executors of `llm-d`: in order of arrival (`shortest-first,wait-per-token=0s`), with lengths that `shortest-first` learns from
completions, and with lengths that clients state (`--lengths hinted`). Then the part of the way from the first to the third, and the longest wait of the
first two. Strikes are requests that the host placed because they had waited too long. No slots are kept free (`share-reserve=0`), so that the order
alone decides who waits. Queues of the conversation are up to a minute long, and each one's mean moves by some percent with any change: the row
is the mean of five, at speed-ups from 1.3 to 1.7.

| workload | by arrival | learnt | stated | of the way | longest | strikes |
|---|---|---|---|---|---|---|
";

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    /// Folder with the public traces
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Simulate the first N requests of each workload alone
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Write the page to a file, by default host/sim/RESULTS.md
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = RESULTS)]
    write: Option<PathBuf>,
    /// Given by Cargo to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let Some(path) = &args.write else {
        return page(&mut stdout(), &args);
    };
    let mut text = Vec::new();
    page(&mut text, &args)?;
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Prints the whole page.
fn page(out: &mut dyn Write, args: &Args) -> Result<()> {
    heading(out)?;
    for (heading, workload, bounds) in generated() {
        writeln!(out, "\n## {heading}")?;
        measure(out, args, [&workload, &workload, bounds])?;
    }
    overload(out)?;
    full_fleet(out)?;
    model_changes(out)?;
    match &args.traces {
        Some(folder) => traces(out, args, folder),
        None => Ok(()),
    }
}

/// Prints what the page is, and of which commit.
fn heading(out: &mut dyn Write) -> Result<()> {
    let mut git = Command::new("git");
    let told = git.args(["log", "-1", "--format=%h of %cs"]).output()?;
    let commit = String::from_utf8(told.stdout)?;
    writeln!(out, "# What simulations found\n")?;
    writeln!(out, "Commit {}. {HEADING}", commit.trim())?;
    Ok(())
}

/// Prints what was found with the public traces in a folder.
fn traces(out: &mut dyn Write, args: &Args, folder: &Path) -> Result<()> {
    let clients = folder.join(SERVEGEN);
    if clients.exists() {
        fairness(out, args, &clients.display().to_string())?;
        lengths(out, folder)?;
    }
    let path = folder.join(CONVERSATION).display().to_string();
    for profile in PROFILES {
        writeln!(
            out,
            "\n## Mooncake's conversation trace, profile `{profile}`"
        )?;
        for (executors, times) in LOADS {
            let bounds = format!(" --profile {profile} --executors {executors} --speed-up {times}");
            measure(out, args, [&path, CONVERSATION, &bounds])?;
        }
    }
    Ok(())
}

/// Workloads that need no trace: the heading, the workload, and further arguments.
fn generated() -> [(&'static str, String, &'static str); 3] {
    [
        (
            "Prompts that share their beginnings",
            "poisson:rate=20,requests=6000,prompt=3000,output=150,prefixes=60,prefix-tokens=2000"
                .to_owned(),
            " --executors 8",
        ),
        (
            "Sessions of agents",
            "agents:sessions=300,rate=0.5,turns=8".to_owned(),
            " --executors 8",
        ),
        (
            "A tenant that floods",
            "flood:rate=12,requests=6000,prompt=1500,output=200,tenants=8,flood-from=60s,flood-lasting=120s,flood-factor=20"
                .to_owned(),
            " --executors 8",
        ),
    ]
}

/// Prints what is served in good time at the capacity of a fleet, and at two and three times as many requests.
fn overload(out: &mut dyn Write) -> Result<()> {
    out.write_all(OVERLOAD.as_bytes())?;
    for (rate, settings) in [
        (11, ""),
        (22, ""),
        (33, ""),
        (33, ",surge-wait-max=24h"),
        (33, ",surge-wait-max=24h,wait-max=500ms"),
    ] {
        let good = goodput(rate, settings)?;
        writeln!(out, "| {rate} | {} | {good:.2} |", named(settings))?;
    }
    Ok(())
}

/// Prints how often models change, and how long requests wait for that.
fn model_changes(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n## Ten models on four executors that hold one\n")?;
    writeln!(
        out,
        "`pointsman simulate {MODELS} --policy budget.wasm,wait-max=24h,surge-wait-max=24h --fleet FILE`, \
         seeds 0 to 3: no order is helped by requests that are refused. FILE is\n"
    )?;
    writeln!(out, "```toml\n{SINGLE_MODEL_FLEET}```\n")?;
    out.write_all(MODEL_CHANGES.as_bytes())?;
    for (of, words) in [
        (
            "strictly in order of arrival",
            routed_by("test/in-order", ""),
        ),
        ("the built-in rule", "--built-in".to_owned()),
        (
            "`model-tenure=0`",
            routed_by("memory-aware", ",model-tenure=0"),
        ),
        ("the defaults", routed_by("memory-aware", "")),
    ] {
        let (mut swaps, mut mean, mut p95) = (0, 0.0, 0.0);
        for seed in 0..4 {
            let it = ModelChanges::simulated(&format!("--seed {seed} {words}"))?;
            swaps += it.swaps;
            mean += it.ttft_mean_ms / 4000.0;
            p95 += it.ttft_p95_ms / 4000.0;
        }
        writeln!(out, "| {of} | {swaps} | {mean:.1} s | {p95:.1} s |")?;
    }
    Ok(())
}

/// Prints how soon urgent requests begin where throughput work has taken all slots, and what that costs it.
fn full_fleet(out: &mut dyn Write) -> Result<()> {
    out.write_all(FULL_FLEET.as_bytes())?;
    row(out, ["alone", ""], FullFleet::solo()?)?;
    for (share_reserve, take_slots) in [(0, "never"), (0, "critical"), (200, "deadline")] {
        let it = FullFleet::beside_bulk(share_reserve, take_slots)?;
        row(out, [&share_reserve.to_string(), take_slots], it)?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, [reserve, takes]: [&str; 2], it: FullFleet) -> Result<()> {
    let FullFleet {
        ttft_mean_ms,
        ttft_p95_ms,
        tokens_per_s,
        evicted,
    } = it;
    writeln!(
        out,
        "| {reserve} | {takes} | {ttft_mean_ms:.1} ms | {ttft_p95_ms:.1} ms | {tokens_per_s:.0} | {evicted} |"
    )?;
    Ok(())
}

/// Settings as a table shows them.
fn named(settings: &str) -> String {
    match settings.strip_prefix(',') {
        Some(settings) => format!("`{}`", settings.replace(',', "`, `")),
        None => "the defaults".to_owned(),
    }
}

/// Simulates ServeGen's clients with and without one that floods, and prints what that does to the others.
fn fairness(out: &mut dyn Write, args: &Args, clients: &str) -> Result<()> {
    out.write_all(FAIRNESS.as_bytes())?;
    for profile in ["llm-d", "polynomial", "smg"] {
        let clients = format!("{clients}:rate=60,lasting=2min,flood=19");
        let simulated = |factor: u32| {
            let flags = format!("flood-factor={factor} --profile {profile} --executors 4");
            Clients::simulated(args, &format!("{clients},{flags}"))
        };
        let alone = simulated(0)?;
        for factor in [20, 60] {
            print_flood(out, profile, factor, [&alone, &simulated(factor)?])?;
        }
    }
    Ok(())
}

/// Prints what a flood does to the clients that are there without it, too.
fn print_flood(
    out: &mut dyn Write,
    profile: &str,
    factor: u32,
    [alone, flooded]: [&Clients; 2],
) -> Result<()> {
    let mut ratios: Vec<f64> = alone
        .ttft_p95
        .iter()
        .filter_map(|(name, alone)| Some(flooded.ttft_p95.get(name)? / alone))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let others = || {
        flooded
            .finished
            .iter()
            .filter(|(name, _)| alone.ttft_p95.contains_key(*name))
    };
    let finished: u64 = others().map(|(_, [finished, _])| finished).sum();
    let requests: u64 = others().map(|(_, [_, requests])| requests).sum();
    let all: u64 = flooded
        .finished
        .values()
        .map(|[_, requests]| requests)
        .sum();
    let median = ratios
        .get(ratios.len() / 2)
        .context("no client with enough requests")?;
    let worst = ratios.last().context("no client with enough requests")?;
    writeln!(
        out,
        "| `{profile}` | {factor} | {all} | {finished} of {requests} | {median:.2} | {worst:.2} |"
    )?;
    Ok(())
}

/// Prints how near learnt lengths of answers come to stated ones.
fn lengths(out: &mut dyn Write, folder: &Path) -> Result<()> {
    out.write_all(LENGTHS.as_bytes())?;
    let flood = ["rate=150,lasting=30s"].map(|keys| format!("{SERVEGEN}:{keys}"));
    let talks = ["1.3", "1.4", "1.5", "1.6", "1.7"];
    let talks = talks.map(|times| format!("{CONVERSATION} --requests 3000 --speed-up {times}"));
    let several = format!("{CONVERSATION} --requests 3000 --speed-up …");
    for (name, workloads) in [(&flood[0], &flood[..]), (&several, &talks)] {
        let by_arrival = Waits::over(folder, workloads, "unknown", ",wait-per-token=0s")?;
        let learnt = Waits::over(folder, workloads, "unknown", "")?;
        let stated = Waits::over(folder, workloads, "hinted", "")?;
        let way = (by_arrival.mean - learnt.mean) / (by_arrival.mean - stated.mean);
        writeln!(
            out,
            "| `{name}` | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} % | {:.0}, {:.0} ms | {} |",
            by_arrival.mean,
            learnt.mean,
            stated.mean,
            100.0 * way,
            by_arrival.longest,
            learnt.longest,
            learnt.strikes,
        )?;
    }
    Ok(())
}

/// Waits for a first place in runs with `shortest-first`.
#[derive(Debug, Default)]
struct Waits {
    /// The mean of the runs' means, in milliseconds.
    mean: f64,
    /// The longest of all, in milliseconds.
    longest: f64,
    strikes: u64,
}

impl Waits {
    /// Simulates each of the workloads with these settings.
    fn over(folder: &Path, workloads: &[String], lengths: &str, settings: &str) -> Result<Self> {
        let mut waits = Self::default();
        for workload in workloads {
            let report = waited(&folder.join(workload), lengths, settings)?;
            let number = |key: &str| report["wait_ms"][key].as_f64().context("no wait");
            waits.mean += number("mean")? / float_len(workloads.len());
            waits.longest = waits.longest.max(number("max")?);
            waits.strikes += report["strikes"].as_u64().context("no strikes")?;
        }
        Ok(waits)
    }
}

/// The report of a simulation with `shortest-first` and these settings.
fn waited(workload: &Path, lengths: &str, settings: &str) -> Result<Value> {
    let [order, router] =
        ["shortest-first", "memory-aware"].map(|name| component_path(name).display().to_string());
    let words = format!(
        "{} --profile llm-d --executors 4 --wait-max 24h --lengths {lengths} --policy {order}{settings} \
         --policy {router},share-reserve=0",
        workload.display()
    );
    let defaults = embedded::policies().context("the policies are not embedded")?;
    let mut report = simulated::json(words.split_whitespace(), defaults)?;
    Ok(report["contenders"][0]["runs"][0]["report"].take())
}

/// The ends of each client's requests, and how soon they began.
#[derive(Debug, Default)]
struct Clients {
    /// The p95 of TTFT, in milliseconds, of clients with enough requests to have one.
    ttft_p95: BTreeMap<String, f64>,
    /// Requests that finished, and all.
    finished: BTreeMap<String, [u64; 2]>,
}

impl Clients {
    fn simulated(args: &Args, workload: &str) -> Result<Self> {
        const REQUESTS_MIN: u64 = 20;
        let few = args.requests.map(|n| format!(" --requests {n}"));
        let words = format!("{workload}{}", few.unwrap_or_default());
        let defaults = embedded::policies().context("the policies are not embedded")?;
        let report = simulated::json(words.split_whitespace(), defaults)?;
        let tenants = &report["contenders"][0]["runs"][0]["report"]["tenants"];
        let mut clients = Self::default();
        for tenant in tenants.as_array().context("no tenants")? {
            let name = tenant["name"].as_str().context("no name")?;
            let count = |key: &str| tenant[key].as_u64().context("no count");
            let [finished, requests] = [count("finished")?, count("requests")?];
            clients
                .finished
                .insert(name.to_owned(), [finished, requests]);
            if requests >= REQUESTS_MIN {
                let p95 = tenant["ttft_ms"]["p95"].as_f64().context("no p95")?;
                clients.ttft_p95.insert(name.to_owned(), p95);
            }
        }
        Ok(clients)
    }
}

/// Makes one simulation, and prints its command, with the workload as `shown`, and its table.
fn measure(out: &mut dyn Write, args: &Args, [workload, shown, bounds]: [&str; 3]) -> Result<()> {
    let few = args.requests.map(|n| format!(" --requests {n}"));
    let few = few.unwrap_or_default();
    let routers = ROUTERS.map(|router| {
        let (name, settings) = router.split_once(',').unwrap_or((router, ""));
        let path = component_path(name).display().to_string();
        if settings.is_empty() {
            path
        } else {
            format!("{path},{settings}")
        }
    });
    writeln!(
        out,
        "\n```text\n$ pointsman simulate {shown}{bounds}{few} --compare …"
    )?;
    let words = format!("{workload}{bounds}{few} --compare");
    let routers = routers.iter().map(String::as_str);
    let defaults = embedded::policies().context("the policies are not embedded")?;
    let table = simulated::said(words.split_whitespace().chain(routers), defaults)?;
    write!(out, "{}", table.replace(workload, shown))?;
    writeln!(out, "```")?;
    Ok(())
}
