//! Memory over many reloads: driven past the watcher, as fast as the reconciler goes.

use std::fs;

use crate::stage::{Stage, component, version};

/// Number of reloads before memory is looked at: caches fill, the allocator finds its size.
const WARM_UP: u32 = 100;
/// The most bytes by which memory may grow over any number of reloads. One leaked instance has at
/// least a megabyte of linear memory.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// Resident bytes of this process; absent: this system does not say.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// Reloads one of two versions in turn, with settings that go round too: each is started,
/// configured, restored, told the machine's rows and put in force; neither is compiled again. Every
/// tenth reload has new settings, and goes through the self-test.
fn reload(stage: &mut Stage, versions: &[Vec<u8>; 2], round: u32) {
    let bonus = if round.is_multiple_of(10) {
        1000 + round
    } else {
        round % 10
    };
    let wasm = &versions[round as usize % 2];
    stage.write("mine.wasm", wasm);
    stage.write("mine.toml", format!("[settings]\naffinity-bonus = {bonus}"));
    stage.settle();
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.settings["affinity-bonus"], bonus);
    assert!(!mine.held.is_empty());
}

fn check(reloads: u32) {
    let mut stage = Stage::small();
    let versions = [1, 2].map(|number| version(&component("aging"), number));
    for round in 0..WARM_UP {
        reload(&mut stage, &versions, round);
    }
    let Some(before) = resident() else {
        println!("this system does not say how much memory a process has");
        return;
    };
    for round in WARM_UP..WARM_UP + reloads {
        reload(&mut stage, &versions, round);
    }
    let after = resident().unwrap();
    let grown = after.saturating_sub(before);
    println!("{reloads} reloads: {before} bytes resident before, {after} after");
    assert!(grown <= GROWTH_BYTES_MAX, "{grown} bytes more");
    assert_eq!(stage.made(), 3, "the default and two versions");
    assert!(stage.statuses().len() <= 3);
}

#[test]
fn memory_stays_flat_over_five_hundred_reloads() {
    check(500);
}
