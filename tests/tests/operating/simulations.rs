//! The code of the benchmark `sim` on small workloads that are made here, and what it is to show. In logical time.

use std::fs;
use std::path::Path;
use std::slice;

use anyhow::{Context as _, Result, ensure};
use pointsman_tests::baseline::beside;
use pointsman_tests::fairness::Clients;
use pointsman_tests::lengths::Lengths;
use pointsman_tests::routers::compared;
use serde_json::{Value, json};

/// Writes a trace into a folder, and returns its path.
fn written(folder: &Path, lines: impl Iterator<Item = Value>) -> Result<String> {
    let path = folder.join("trace.jsonl");
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

#[test]
fn the_benchmark_of_routers_has_a_row_of_each_on_the_same_requests() -> Result<()> {
    let workload = "poisson:rate=20,requests=200,prompt=500,output=20,prefixes=9,prefix-tokens=300";
    let table = compared(&format!("{workload} --executors 2"))?;
    for name in [
        "defaults",
        "round-robin",
        "least-loaded",
        "sticky",
        "prefix-bound",
        "kv-cost",
        "kv-cost,prefill-scale=16000",
    ] {
        let mut rows = table.lines().map(str::split_whitespace);
        let row = rows.find_map(|mut row| (row.next() == Some(name)).then_some(row));
        let cells: Vec<&str> = row.with_context(|| table.clone())?.collect();
        // Of those served and refused.
        ensure!(cells.get(10..12) == Some(&["200", "0"][..]), "{table}");
    }
    Ok(())
}

/// Six hundred requests, more than are served as they come, of five tenants, each with answers of about one length.
fn of_tenants() -> impl Iterator<Item = Value> {
    const OUTPUTS: [u32; 5] = [10, 20, 40, 400, 600];
    (0..600_u32).map(|idx| {
        let tenant = idx * 37 % 5;
        json!({
            "timestamp": 30 * idx,
            "input_length": 100 + idx * 53 % 200,
            "output_length": OUTPUTS[tenant as usize] * (50 + idx * 211 % 101) / 100,
            "tenant": format!("tenant-{tenant}"),
        })
    })
}

#[test]
fn learnt_lengths_take_more_than_half_of_what_stated_ones_take_off_the_mean_wait() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let trace = written(folder.path(), of_tenants())?;
    for (wait_max, longest_ms) in [("24h", f64::INFINITY), ("40s", 40_000.0)] {
        let it = Lengths::over(slice::from_ref(&trace), wait_max)?;
        ensure!(it.stated.mean_ms < it.by_arrival.mean_ms, "{it:?}");
        ensure!(it.way() >= 0.5, "{it:?}");
        // Nobody starves: all are served, and within the bound.
        for waits in [it.by_arrival, it.learnt, it.stated] {
            ensure!(waits.unserved == 0 && waits.strikes == 0, "{it:?}");
            ensure!(waits.longest_ms <= longest_ms, "{it:?}");
        }
    }
    Ok(())
}

#[test]
fn the_benchmark_of_fairness_tells_what_a_flood_does_to_the_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let client = |client: u32| {
        json!({
            "client": client,
            "slots": [[0, 4.0, 1.0, "Gamma", 1.0, 0.25]],
            "input_tokens_q": [100, 300, 800],
            "output_tokens_q": [20, 60, 120],
        })
    };
    let path = written(folder.path(), (0..5).map(client))?;
    let simulated = |factor: u32| {
        let workload = format!("{path}:rate=20,lasting=12s,flood=4,flood-factor={factor}");
        Clients::simulated(&format!("{workload} --profile llm-d --executors 4"))
    };
    let alone = simulated(0)?;
    let none = simulated(0)?.beside(&alone)?;
    ensure!((none.median, none.worst) == (1.0, 1.0), "{none:?}");
    ensure!(none.requests == none.others, "{none:?}");
    let flood = simulated(10)?.beside(&alone)?;
    ensure!(flood.requests > 2 * flood.others, "{flood:?}");
    ensure!(flood.others_finished == flood.others, "{flood:?}");
    ensure!(
        1.0 < flood.median && flood.median <= flood.worst,
        "{flood:?}"
    );
    ensure!(flood.worst < 2.0, "{flood:?}");
    Ok(())
}

/// Of two replays in one setting each has the best of some figures. That of another router does not count.
#[test]
fn our_figures_are_met_or_missed_beside_the_best_of_each_column() -> Result<()> {
    let table = "\
trace,router,workers,arrival_speedup,kv_blocks,router_cfg,hit,ttft_mean,ttft_p95,goodput_n,n
conversation,round_robin,2,1.0,4096,default,1.0,0,0,60,60
conversation,kv_router,2,1.0,4096,default,0.5,90000,2,0,60
conversation,kv_router,2,1.0,4096,a: 1;b: 2,0.2,95000,1,0,60
";
    let workload = "poisson:rate=4,requests=60,prompt=600,output=20";
    let lines = beside(table, workload)?;
    let [line] = &lines[..] else {
        anyhow::bail!("{lines:?}");
    };
    ensure!(
        line.starts_with("| 2, ×1.0, 4096 | 0.0, 50.0: missed | "),
        "{line}"
    );
    let figures = line.split(" | ").filter_map(|it| it.split_once(", "));
    let said: Vec<&str> = figures.map(|(_, best)| best).skip(1).collect();
    let wanted = ["50.0: missed", "90000: met", "1: missed", "0.00: met"];
    ensure!(said == wanted, "{line}");
    ensure!(beside("trace,router\nconversation\n", workload).is_err());
    Ok(())
}
