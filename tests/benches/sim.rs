//! `cargo xtask bench sim`: what the shipped routing policies do to latency, as `pointsman simulate`
//! tells it.
//!
//! Prints a page of tables, or writes it with `--write`. With `--traces FOLDER`: the public traces too, under the names that
//! they are published with. With `--requests N`: the first N requests of each workload alone.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use pointsman_tests::baseline::beside;
use pointsman_tests::fairness::Clients;
use pointsman_tests::lengths::{Lengths, NONE_KEPT, QUEUE_MAX};
use pointsman_tests::overload::{
    FullFleet, MODELS, ModelChanges, PATIENT, SINGLE_MODEL_FLEET, goodput, routed_by,
};
use pointsman_tests::routers::compared;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../host/sim/RESULTS.md");
const CONVERSATION: &str = "conversation_trace.jsonl";
const SERVEGEN: &str = "servegen.jsonl";
const BASELINE: &str = "dynamo_replay_baseline.csv";
const PROFILES: [&str; 3] = ["polynomial", "smg", "llm-d"];
/// Numbers of executors, and by how much arrivals are sped up.
const LOADS: [(u32, u32); 4] = [(4, 1), (4, 2), (8, 1), (8, 2)];
/// The bound on waiting where waits are measured: a day.
const WAIT_MAX: &str = "24h";

/// The rest of the first paragraph.
const HEADING: &str = "\
Made by `cargo xtask bench sim -- --traces FOLDER --write`; FOLDER has `conversation_trace.jsonl`, which is
Mooncake's, `servegen.jsonl`, clients of ServeGen's, and `dynamo_replay_baseline.csv`, replays of Dynamo's. The policies are the components that ship. Time is logical, so the figures are the same
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
completions, and with lengths that clients state (`--lengths hinted`). Then the part of the way from the first to the third, the longest wait of the
first two, and of all three the requests that were not served, and strikes: bounds on waiting that ran out under the policies.
";

/// The rest of the paragraph, after the bounds of the runs.
const LENGTHS_ALIKE: &str = "\
So everybody waits, and the means are of the same requests; no slots are kept free for anybody; and the delay that `shortest-first` gives to long work, a
twentieth of `--wait-max` at most, is not cut short. Queues of the conversation are up to two minutes long, and each one's mean moves by some percent
with any change: the row is the mean of five, at speed-ups from 1.3 to 1.7.

| workload | by arrival | learnt | stated | of the way | longest | not served | strikes |
|---|---|---|---|---|---|---|---|
";

const BESIDE: &str = "
## Beside Dynamo's router

The default policies on Mooncake's conversation trace (`pointsman simulate conversation_trace.jsonl --profile polynomial --executors N --speed-up X --kv-blocks B`),
and the best that any row of `dynamo_replay_baseline.csv` has in the same setting with Dynamo's KV router, whatever its settings, for each number on its
own. A number is met where ours is as good. Times in ms; those replays refuse nobody.

| executors, arrivals, KV blocks | hit % | TTFT mean | TTFT p95 | good % | refused here |
|---|---|---|---|---|---|
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

impl Args {
    /// The words for the first requests alone.
    fn few(&self) -> String {
        let few = self.requests.map(|n| format!(" --requests {n}"));
        few.unwrap_or_default()
    }
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
    let table = folder.join(BASELINE);
    if table.exists() {
        let table = fs::read_to_string(table)?;
        out.write_all(BESIDE.as_bytes())?;
        for line in beside(&table, &format!("{path}{}", args.few()))? {
            writeln!(out, "{line}")?;
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
        "`pointsman simulate {MODELS} --policy budget.wasm{PATIENT} --fleet FILE`, \
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
        let simulated = |factor: u32| {
            let workload = format!("{clients}:rate=60,lasting=2min,flood=19,flood-factor={factor}");
            let few = args.few();
            let fleet = format!("--profile {profile} --executors 4");
            Clients::simulated(&format!("{workload} {fleet}{few}"))
        };
        let alone = simulated(0)?;
        for factor in [20, 60] {
            let it = simulated(factor)?.beside(&alone)?;
            writeln!(
                out,
                "| `{profile}` | {factor} | {} | {} of {} | {:.2} | {:.2} |",
                it.requests, it.others_finished, it.others, it.median, it.worst
            )?;
        }
    }
    Ok(())
}

/// Prints how near learnt lengths of answers come to stated ones.
fn lengths(out: &mut dyn Write, folder: &Path) -> Result<()> {
    out.write_all(LENGTHS.as_bytes())?;
    writeln!(
        out,
        "All runs have `--wait-max {WAIT_MAX} --queue-max {QUEUE_MAX}`, `budget{PATIENT}` and `memory-aware{NONE_KEPT}`."
    )?;
    out.write_all(LENGTHS_ALIKE.as_bytes())?;
    let clients = [format!("{SERVEGEN}:rate=150,lasting=30s")];
    let talks = ["1.3", "1.4", "1.5", "1.6", "1.7"];
    let talks = talks.map(|times| format!("{CONVERSATION} --requests 3000 --speed-up {times}"));
    let several = format!("{CONVERSATION} --requests 3000 --speed-up …");
    for (name, workloads) in [(&clients[0], &clients[..]), (&several, &talks[..])] {
        let paths = workloads.iter().map(|it| folder.join(it));
        let paths: Vec<String> = paths.map(|it| it.display().to_string()).collect();
        let it = Lengths::over(&paths, WAIT_MAX)?;
        let all = [it.by_arrival, it.learnt, it.stated];
        let unserved = listed(all.map(|it| it.unserved));
        let strikes = listed(all.map(|it| it.strikes));
        writeln!(
            out,
            "| `{name}` | {:.0} ms | {:.0} ms | {:.0} ms | {:.0} % | {:.0}, {:.0} ms | {unserved} | {strikes} |",
            it.by_arrival.mean_ms,
            it.learnt.mean_ms,
            it.stated.mean_ms,
            100.0 * it.way(),
            it.by_arrival.longest_ms,
            it.learnt.longest_ms,
        )?;
    }
    Ok(())
}

/// Counts as a table shows them.
fn listed(counts: [u64; 3]) -> String {
    counts.map(|count| count.to_string()).join(", ")
}

/// Makes one simulation, and prints its command, with the workload as `shown`, and its table.
fn measure(out: &mut dyn Write, args: &Args, [workload, shown, bounds]: [&str; 3]) -> Result<()> {
    let few = args.few();
    writeln!(
        out,
        "\n```text\n$ pointsman simulate {shown}{bounds}{few} --compare …"
    )?;
    let table = compared(&format!("{workload}{bounds}{few}"))?;
    write!(out, "{}", table.replace(workload, shown))?;
    writeln!(out, "```")?;
    Ok(())
}
