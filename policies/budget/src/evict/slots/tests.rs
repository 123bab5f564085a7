//! Slots for which sequences give way, and the tokens that this may cost.

use pointsman_sdk::Instance;
use pointsman_sdk::fixture::{
    SECOND, at, bounds, device, executor, load, request, sequence, tenant,
};
use pointsman_sdk::wire::preemption::{Cause, Shortage};
use pointsman_sdk::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Request, RequestClass, Sequence, Tenant,
};

const NEEDY: u64 = 100;
/// The time of the questions.
const NOW: u64 = 10 * SECOND;

/// A policy whose one executor has one slot, in which a throughput request of 1,000 tokens runs. The host
/// has served so many.
fn policy(settings: &str, served: u64, needy: Request) -> Box<dyn Instance> {
    let mut policy = crate::instance();
    policy
        .configure(settings, bounds())
        .expect("valid settings");
    let rows = vec![
        Change::Device(device(0)),
        Change::Executor(ExecutorInfo {
            slots_total: 1,
            ..executor(0)
        }),
        Change::Load(ExecutorLoad {
            slots_used: 1,
            ..load(0)
        }),
        Change::Tenant(Tenant {
            output_tokens_total: served,
            ..tenant(0)
        }),
        Change::Sequence(victim()),
        Change::Waiting(needy),
    ];
    policy.observe(NOW, Extent::Everything, rows);
    policy
}

fn critical() -> Request {
    Request {
        class: RequestClass::LatencyCritical,
        ..request(NEEDY)
    }
}

fn victim() -> Sequence {
    Sequence {
        prompt_tokens: 900,
        tokens_generated: 100,
        ..sequence(1, 0)
    }
}

fn gives_way(policy: &mut dyn Instance, now: u64) -> bool {
    let shortage = Shortage {
        cause: Cause::Slots,
        needy: NEEDY,
        executor: None,
        blocks: 1,
    };
    policy.evict(at(now), shortage).is_some()
}

/// Returns whether a slot is taken for this request under each value of `take-slots`.
fn takes(needy: &Request) -> [bool; 4] {
    ["never", "deadline", "critical", "urgent"].map(|value| {
        let settings = format!(r#"{{"take-slots": "{value}"}}"#);
        gives_way(&mut *policy(&settings, 1_000_000, needy.clone()), NOW)
    })
}

#[test]
fn a_slot_is_taken_for_whom_the_operator_says() {
    assert_eq!(takes(&critical()), [false, false, true, true]);
    let of_higher_priority = Request {
        priority: 1,
        ..request(NEEDY)
    };
    assert_eq!(takes(&of_higher_priority), [false, false, false, true]);
    // It came at 0, and half of its time is over at 10 s.
    let in_danger = Request {
        deadline: Some(2 * NOW),
        ..of_higher_priority.clone()
    };
    assert_eq!(takes(&in_danger), [false, true, true, true]);
    let not_yet = Request {
        deadline: Some(2 * NOW + 1),
        ..of_higher_priority
    };
    assert_eq!(takes(&not_yet), [false, false, false, true]);
}

#[test]
fn for_a_critical_request_only_throughput_work_gives_way() {
    let needy = Request {
        priority: 1,
        ..critical()
    };
    let mut policy = policy(r#"{"take-slots": "critical"}"#, 1_000_000, needy);
    let critical = Sequence {
        class: RequestClass::LatencyCritical,
        ..victim()
    };
    policy.observe(NOW, Extent::SinceLast, vec![Change::Sequence(critical)]);
    assert!(!gives_way(&mut *policy, NOW));
}

#[test]
fn what_is_computed_again_for_slots_is_a_part_of_what_is_served() {
    let settings = r#"{"take-slots": "urgent"}"#;
    // A thousand tokens are a twentieth of 20,000.
    assert!(!gives_way(&mut *policy(settings, 19_999, critical()), NOW));
    let mut policy = policy(settings, 20_000, critical());
    assert!(gives_way(&mut *policy, NOW));
    assert!(!gives_way(&mut *policy, NOW));
    // Two minutes later that is past. As many were served since as a minute's part makes up for.
    let served = Change::Tenant(Tenant {
        output_tokens_total: 60_000,
        ..tenant(0)
    });
    policy.observe(NOW + 120 * SECOND, Extent::SinceLast, vec![served]);
    assert!(gives_way(&mut *policy, NOW + 120 * SECOND));
    assert!(!gives_way(&mut *policy, NOW + 120 * SECOND));
}

#[test]
fn what_is_computed_again_for_slots_counts_after_a_reload() {
    let settings = r#"{"take-slots": "urgent"}"#;
    let mut before = policy(settings, 20_000, critical());
    assert!(gives_way(&mut *before, NOW));
    let after = |snapshot: Vec<u8>| {
        let mut after = policy(settings, 20_000, critical());
        assert_eq!(after.restore(snapshot), Ok(()));
        gives_way(&mut *after, NOW)
    };
    assert!(!after(before.snapshot()));
    assert!(after(policy(settings, 20_000, critical()).snapshot()));
}

#[test]
fn a_victim_that_is_moved_to_host_memory_costs_nothing() {
    let mut policy = policy(r#"{"take-slots": "urgent"}"#, 0, critical());
    assert!(!gives_way(&mut *policy, NOW));
    let rows = vec![
        Change::Device(Device {
            host_blocks_total: 100,
            host_blocks_free: 100,
            ..device(0)
        }),
        Change::Sequence(Sequence {
            swappable: true,
            ..victim()
        }),
    ];
    policy.observe(NOW, Extent::SinceLast, rows);
    assert!(gives_way(&mut *policy, NOW));
}
