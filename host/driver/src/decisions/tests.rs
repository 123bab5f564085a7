//! The decision log: its content, order and size.

use std::mem::size_of;

use pointsman_core::PlacedIn;

use super::*;

const AT: Micros = Micros(1);

fn stamped(round: u64, fact: Fact) -> Stamped {
    Stamped {
        now: AT,
        round: Round(round),
        fact,
    }
}

fn arrive(decisions: &mut DecisionLog, number: u64) {
    decisions.arrived(ArrivedRequest {
        ticket: TicketId(number),
        request: RequestId(number),
        tenant: "default",
        model: Some("demo"),
        row: None,
    });
}

fn nobody() -> PolicyHost {
    PolicyHost::new(pointsman_policy::Patience::default())
}

#[test]
fn the_oldest_go_first() {
    let mut decisions = DecisionLog::new(2);
    for number in 0..3 {
        arrive(&mut decisions, number);
    }
    assert!(decisions.of(TicketId(0)).is_none());
    let newest: Vec<u64> = decisions
        .newest(9)
        .iter()
        .map(|trace| trace.ticket.0)
        .collect();
    assert_eq!(newest, [2, 1]);
    assert_eq!(decisions.newest(1).len(), 1);
}

#[test]
fn with_no_room_nothing_is_remembered() {
    let mut decisions = DecisionLog::new(0);
    arrive(&mut decisions, 0);
    let fact = Fact::Admitted(RequestId(0), Decided::BUILT_IN);
    decisions.fact(&stamped(1, fact), &nobody());
    assert!(decisions.newest(9).is_empty());
}

#[test]
fn what_repeats_is_counted_and_past_the_bound_the_middle_goes() {
    let (mut decisions, host) = (DecisionLog::new(1), nobody());
    arrive(&mut decisions, 0);
    let request = RequestId(0);
    decisions.fact(&stamped(1, Fact::Unparked(request)), &host);
    for round in 2..5 {
        let held = Fact::Held(request, None, Decided::BUILT_IN);
        decisions.fact(&stamped(round, held), &host);
    }
    let trace = decisions.of(TicketId(0)).unwrap();
    let times: Vec<u32> = trace.steps.iter().map(|step| step.times).collect();
    assert_eq!((times, trace.steps[1].round), (vec![1, 3], Round(4)));
    for executor in 0..100 {
        let placed = Fact::Placed {
            request,
            executor: ExecutorId(executor),
            into: PlacedIn::Slot,
            by: Decided::BUILT_IN,
        };
        decisions.fact(&stamped(9, placed), &host);
    }
    let trace = decisions.of(TicketId(0)).unwrap();
    assert_eq!((trace.steps.len(), trace.forgotten), (STEPS_MAX, 70));
    assert_eq!(trace.steps[0].event, TraceEvent::Unparked);
    let last = TraceEvent::Placed(
        ExecutorId(99),
        PlacedIn::Slot,
        DecidedBy {
            author: None,
            reason: 0,
        },
    );
    assert_eq!(trace.steps[STEPS_MAX - 1].event, last);
}

#[test]
fn a_case_is_small() {
    let lists = size_of::<Cached>() + 8 * 16 + NAMED_MAX * (4 + 8);
    let step = size_of::<TraceStep>() + size_of::<TracedQuestion>() + lists;
    let row = size_of::<Request>() + ALLOWED_MAX * 4 + 16 * 4;
    let trace = size_of::<Trace>() + 2 * 4 * TEXT_CHARS_MAX;
    // A question is at most every other step.
    let most = trace
        + row
        + STEPS_MAX * size_of::<TraceStep>()
        + STEPS_MAX / 2 * (step - size_of::<TraceStep>());
    assert!(most <= 12 << 10, "{most}");
}
