//! Memory over many swaps, in a process of its own, so that only this test is measured.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pointsman_component::PolicyEngine;
use pointsman_core::{Author, Hook, Micros};
use pointsman_policy::{Patience, PolicyHost, start};
use pointsman_tests::trial::{add, guest, hooks, routers, serve, world};

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() << 10
}

/// Tests memory over 10,000 swaps. An instance touches about 57 KB, so a leak of one in thirty
/// would show.
#[test]
fn memory_stays_flat_over_ten_thousand_swaps() {
    let engine = PolicyEngine::new().unwrap();
    let source = guest(&engine, "{}");
    let mut host = PolicyHost::new(Patience::default());
    let routing = hooks(&[Hook::Routing]);
    let mut policy = add(&mut host, source.clone());
    host.bind(Micros(0), policy, routing).unwrap();
    let mut world = world(host);
    let mut after_thousand = 0;
    for n in 1..=10_000_u32 {
        let now = world.now();
        let host = &mut world.policies;
        let new = host.add(start(source.clone()).unwrap()).unwrap();
        host.swap(now, policy, new).unwrap();
        policy = new;
        while host.poll_event().is_some() {}
        drop(host.poll_retired());
        if n % 100 == 0 {
            serve(&mut world, 1);
        }
        if n == 1000 {
            after_thousand = resident();
        }
    }
    let grown = resident().saturating_sub(after_thousand);
    assert!(grown < 16 << 20, "grown by {grown} bytes");
    assert_eq!(
        world.policies.numbers().count(),
        2,
        "it and the one behind it"
    );
    let last = routers(world.facts()).pop();
    assert_eq!(last.map(|(_, author)| author), Some(Author::Policy(policy)));
}
