//! Limits and faults, provoked in real components.

use pointsman_interface::{Hook, RequestId, Round, RowKind, fixture};

use super::*;
use crate::engine::PolicyEngine;
use crate::fixture::Guest;
use crate::instance::LogLevel;

const AT: Moment = Moment {
    now: Micros(5),
    round: Round(1),
};

const BOUNDS: Bounds = Bounds {
    queue_max: 8,
    parking_max: 8,
    batch_max: 4,
    attempts_max: 2,
    overtaken_max: 3,
    wait_max: Micros(1000),
    unplaced_max: Micros(1000),
    held_max: Micros(1000),
};

fn instance(guest: Guest, limits: Limits) -> WasmInstance {
    let engine = PolicyEngine::new().unwrap();
    WasmInstance::new(&guest.load(&engine), limits).unwrap()
}

fn orders(order: &'static str) -> Guest {
    Guest {
        order,
        ..Guest::default()
    }
}

fn order(instance: &mut WasmInstance, requests: &[RequestId]) -> Result<Vec<RequestId>, Fault> {
    let ids: Vec<u64> = requests.iter().map(|id| id.0).collect();
    let reply = instance.ask(AT, &Question::Priority(fixture::asked(&ids).into()))?;
    Ok(reply.priority().unwrap())
}

/// The fault with which an `order` with this body ends under `limits`.
fn ends(order: &'static str, limits: Limits) -> FaultKind {
    let mut instance = instance(orders(order), limits);
    self::order(&mut instance, &[RequestId(1)])
        .unwrap_err()
        .kind
}

#[test]
fn describes_configures_and_answers() {
    let mut instance = instance(Guest::default(), Limits::default());
    let description = instance.describe().unwrap();
    assert_eq!(
        (description.name.as_str(), description.version.as_str()),
        ("test", "1.0")
    );
    let needs = description.needs.of(Hook::Priority);
    assert!(needs.contains(RowKind::Waiting) && !needs.contains(RowKind::Sequence));
    assert_eq!(description.state_version, 1);
    assert_eq!(instance.configure("{}", &BOUNDS), Ok(Ok(())));
    instance
        .observe(Micros(1), Extent::Everything, &[])
        .unwrap();
    let requests = [RequestId(3), RequestId(1)];
    assert_eq!(order(&mut instance, &requests), Ok(requests.to_vec()));
    assert_eq!(instance.snapshot(), Ok(Vec::new()));
    assert_eq!(instance.restore(&[1, 2]), Ok(Ok(())));
    assert_eq!(instance.hooks(), HookSet::from_iter([Hook::Priority]));
    assert!(!instance.explains());
}

#[test]
fn fuel_is_counted_and_the_same_each_time() {
    let mut instance = instance(Guest::default(), Limits::default());
    order(&mut instance, &[RequestId(1)]).unwrap();
    let first = instance.last_fuel();
    order(&mut instance, &[RequestId(1)]).unwrap();
    assert_eq!(instance.last_fuel(), first);
    assert!(first.is_some_and(|fuel| fuel > 0));
}

#[test]
fn a_trap_is_told_from_a_want_of_fuel_memory_and_room_for_results() {
    let small = Limits {
        call_fuel: 100_000,
        ..Limits::default()
    };
    assert_eq!(ends("unreachable", Limits::default()), FaultKind::Trap);
    assert_eq!(ends("(loop (br 0)) unreachable", small), FaultKind::Fuel);
    let hungry = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
        unreachable";
    assert_eq!(ends(hungry, Limits::default()), FaultKind::Memory);
    let wordy = "(drop (memory.grow (i32.const 200))) (i32.store (i32.const 1304)
        (i32.const 1000000)) (i32.const 1300)";
    assert_eq!(ends(wordy, Limits::default()), FaultKind::Oversize);
    let wild = "(i32.store (i32.const 1304) (i32.const 100000)) (i32.const 1300)";
    assert_eq!(ends(wild, Limits::default()), FaultKind::Trap);
}

/// An `order` that takes `rounds` times forty square roots, each of the one before: a unit of fuel
/// apiece, and the time of a dozen instructions on any processor.
fn roots(rounds: u32) -> &'static str {
    let roots = "(f64.sqrt) ".repeat(40);
    format!(
        "(local $root f64) (local $left i32) (local.set $left (i32.const {rounds}))
        (loop
            (f64.mul (f64.const 1e300) (local.get $root)) (f64.const 2) f64.add
            {roots} (local.set $root)
            (local.set $left (i32.sub (local.get $left) (i32.const 1)))
            (br_if 0 (local.get $left)))
        (i32.store (i32.const 1304) (i32.const 0)) (i32.const 1300)"
    )
    .leak()
}

/// Limits with much fuel, and a nanosecond for a unit of it.
fn impatient() -> Limits {
    Limits {
        call_fuel: 1_000_000_000,
        call_fuel_max: 1_000_000_000,
        fuel_nanos: 1,
        memory_bytes: 1 << 30,
        ..Limits::default()
    }
}

#[test]
fn work_that_fuel_does_not_price_meets_the_deadline() {
    let limits = Limits {
        call_fuel: 200_000_000,
        call_fuel_max: 200_000_000,
        ..impatient()
    };
    assert_eq!(ends(roots(u32::MAX), limits), FaultKind::Deadline);
}

#[test]
fn a_line_costs_fuel_by_its_length_kept_or_not() {
    const LINES: &str = "(drop (memory.grow (i32.const 40)))
        (call $log (i32.const 0) (i32.const 2048) (i32.const 7))
        (call $log (i32.const 0) (i32.const 2048) (i32.const 1000007)) (i32.const 1300)";
    let limits = |call_fuel| Limits {
        log_lines: 1,
        call_fuel,
        row_fuel: 1,
        ..Limits::default()
    };
    let mut rich = instance(orders(LINES), limits(1_100_000));
    assert_eq!(order(&mut rich, &[]), Ok(Vec::new()));
    let fuel = rich.last_fuel().unwrap();
    assert!((1_000_414..1_001_000).contains(&fuel), "{fuel}");
    assert_eq!(ends(LINES, limits(1_000_000)), FaultKind::Fuel);
}

#[test]
fn a_result_costs_fuel_by_its_elements() {
    const LONG: &str = "(drop (memory.grow (i32.const 40)))
        (i32.store (i32.const 1300) (i32.const 2048))
        (i32.store (i32.const 1304) (i32.const 10000)) (i32.const 1300)";
    let limits = |call_fuel| Limits {
        call_fuel,
        row_fuel: 1,
        ..Limits::default()
    };
    let mut rich = instance(orders(LONG), limits(500_000));
    assert_eq!(order(&mut rich, &[]).unwrap().len(), 10_000);
    let fuel = rich.last_fuel().unwrap();
    assert!((400_000..401_000).contains(&fuel), "{fuel}");
    assert_eq!(ends(LONG, limits(400_000)), FaultKind::Fuel);
}

#[test]
fn a_guest_that_is_slow_for_its_fuel_is_watched_and_then_ended() {
    let mut instance = instance(orders(roots(2_000_000)), impatient());
    assert_eq!(order(&mut instance, &[]), Ok(Vec::new()));
    // The clock that raises the suspicion may be late on a busy machine, which only delays it.
    let fault = (0..10).find_map(|_| order(&mut instance, &[]).err());
    let fault = fault.expect("the guest takes several times what its fuel is worth");
    assert_eq!(fault.kind, FaultKind::Deadline);
    assert!(
        fault.to_string().contains("ms of processor time"),
        "{fault}"
    );
}

#[test]
fn answers_nothing_after_a_fault() {
    let mut instance = instance(orders("unreachable"), Limits::default());
    let first = order(&mut instance, &[]).unwrap_err();
    assert_eq!(
        first.to_string(),
        "the policy trapped at priority: wasm `unreachable` instruction executed"
    );
    let second = instance.describe().unwrap_err();
    assert!(second.to_string().contains("faulted before"), "{second}");
}

#[test]
fn memory_is_bounded_over_all_growths_and_at_the_start() {
    let engine = PolicyEngine::new().unwrap();
    let limits = Limits {
        memory_bytes: 65_535,
        ..Limits::default()
    };
    let fault = WasmInstance::new(&Guest::default().load(&engine), limits).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Start);
}

#[test]
fn the_log_keeps_a_bounded_number_of_short_lines() {
    const THRICE: &str = "(call $log (i32.const 2) (i32.const 2048) (i32.const 7))
        (call $log (i32.const 0) (i32.const 2048) (i32.const 2))
        (call $log (i32.const 1) (i32.const 2048) (i32.const 2))
        (i32.const 1300)";
    let limits = Limits {
        log_lines: 2,
        log_line_bytes: 4,
        ..Limits::default()
    };
    let mut instance = instance(orders(THRICE), limits);
    order(&mut instance, &[]).unwrap();
    let mut lines = Vec::new();
    assert_eq!(instance.take_log(&mut lines), 1);
    let line = |level, message: &str| LogLine {
        level,
        message: message.to_owned(),
    };
    assert_eq!(
        lines,
        [line(LogLevel::Warn, "test"), line(LogLevel::Debug, "te")]
    );
    assert_eq!(instance.take_log(&mut lines), 0);
}

#[test]
fn more_rows_give_more_fuel() {
    // The loop takes about 300 units for each request, far more than an empty call.
    let busy = "(local $i i32) (local.set $i (i32.mul (local.get 3) (i32.const 50)))
        (loop (local.set $i (i32.sub (local.get $i) (i32.const 1)))
            (br_if 0 (i32.gt_s (local.get $i) (i32.const 0)))) (i32.const 1300)";
    let requests: Vec<RequestId> = (0..1000).map(RequestId).collect();
    let limits = |row_fuel| Limits {
        call_fuel: 10_000,
        row_fuel,
        ..Limits::default()
    };
    let mut fed = instance(orders(busy), limits(1000));
    assert_eq!(order(&mut fed, &requests), Ok(Vec::new()));
    let mut starved = instance(orders(busy), limits(1));
    assert_eq!(
        order(&mut starved, &requests).unwrap_err().kind,
        FaultKind::Fuel
    );
}
