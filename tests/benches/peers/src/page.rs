//! The page of results.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Figures;

const HEAD: &str = "# `cargo xtask bench peers`\n";

const TAIL: &str = include_str!("page.md");

/// Writes `tests/benches/results/peers.md`, with the date and the commit.
pub(crate) fn write(table: &[(u64, Vec<Figures>)]) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/peers.md");
    let (date, commit) = (
        said("date", &["-u", "+%F"])?,
        said("git", &["rev-parse", "--short=9", "HEAD"])?,
    );
    let mut page = format!("{HEAD}\n{date}, commit {commit}, two shared x86-64 cores, Rust 1.95. ");
    page.push_str("Microseconds of one decision, p50 / p99. Compare within a column;\nthe machine is noisy.\n\n");
    page.push_str("| |");
    for (workers, _) in table {
        write!(page, " {workers} workers |")?;
    }
    page.push_str("\n|---|");
    page.push_str(&"--:|".repeat(table.len()));
    page.push('\n');
    let names = table.first().map_or(&[][..], |(_, figures)| figures);
    for (at, row) in names.iter().enumerate() {
        write!(page, "| {} |", row.name)?;
        for (_, figures) in table {
            write!(page, " {:.1} / {:.1} |", figures[at].p50, figures[at].p99)?;
        }
        page.push('\n');
    }
    page.push('\n');
    page.push_str(TAIL);
    std::fs::write(&path, page).with_context(|| path.display().to_string())
}

/// The output of a command.
fn said(command: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(command)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .with_context(|| command.to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
