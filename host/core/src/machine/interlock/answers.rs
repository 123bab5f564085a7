//! Checks of admissions, orders and budgets, and of the form of answers.

use std::collections::BTreeSet;

use pointsman_events::{Allotment, Config, DeviceId, Refusal, RefusalCause, RequestId, admission};

use super::super::count;
use super::super::ledger::{Budgets, Ledger};
use super::super::requests::Requests;

/// Checks that an answer has a verdict for each of `expected` requests.
pub(crate) fn check_count(expected: usize, got: usize) -> Result<(), Refusal> {
    if got == expected {
        return Ok(());
    }
    let cause = RefusalCause::WrongCount {
        expected: count(expected),
        got: count(got),
    };
    Err(cause.whole())
}

/// Checks what is to become of an arrival.
pub(crate) fn check_admission(
    requests: &Requests,
    config: &Config,
    id: RequestId,
    choice: admission::Choice,
) -> Result<(), RefusalCause> {
    use admission::Choice;
    match choice {
        Choice::Admit if requests.room(config) == 0 => Err(RefusalCause::QueueFull),
        Choice::Park if count(requests.parking().len()) >= config.parking_max => {
            Err(RefusalCause::ParkingFull)
        }
        Choice::Park if !requests[id].row.may_wait => Err(RefusalCause::MayNotWait),
        Choice::Displace(other) if !requests.queue().contains(&other.request) => {
            Err(RefusalCause::NotQueued)
        }
        // It came back into the queue past the bound, and so has no place to give.
        Choice::Displace(other)
            if requests[other.request].row.attempts > 0
                && count(requests.queue().len()) > config.queue_max =>
        {
            Err(RefusalCause::QueueFull)
        }
        Choice::Admit | Choice::Park | Choice::Shed(_) | Choice::Displace(_) => Ok(()),
    }
}

/// The `asked` requests, which are in order of arrival, in the order of an answer; the ones it left
/// out come after them, in order of arrival.
pub(crate) fn order(
    asked: &[RequestId],
    answer: Vec<RequestId>,
) -> (Vec<RequestId>, Result<(), Refusal>) {
    let (mut ordered, left, checked) = named(asked, answer);
    ordered.extend(left);
    (ordered, checked)
}

/// The `asked` requests that an answer names, in its order, and the ones that it left out. The
/// first fault of an answer stands for all, since more than was asked about cannot be in order.
pub(crate) fn named(
    asked: &[RequestId],
    answer: Vec<RequestId>,
) -> (Vec<RequestId>, BTreeSet<RequestId>, Result<(), Refusal>) {
    let mut left: BTreeSet<RequestId> = asked.iter().copied().collect();
    let mut named = Vec::with_capacity(asked.len());
    let mut checked = Ok(());
    for id in answer {
        if left.remove(&id) {
            named.push(id);
        } else if checked.is_ok() {
            let cause = match asked.binary_search(&id) {
                Ok(_) => RefusalCause::NamedTwice,
                Err(_) => RefusalCause::NotAsked,
            };
            checked = Err(cause.of(id));
        }
    }
    (named, left, checked)
}

/// Checks the budgets of a device: one for each executor named, and no more in all than there are.
pub(crate) fn check_budgets(
    ledger: &Ledger,
    (device, tokens_total): (DeviceId, u32),
    allotments: Vec<Allotment>,
) -> Result<Budgets, Refusal> {
    let executors = &ledger[device].executors;
    let mut budgets = Budgets::new();
    let mut sum: u64 = 0;
    for Allotment {
        executor,
        tokens_max,
    } in allotments
    {
        let refuse = |cause| Refusal {
            request: None,
            executor: Some(executor),
            cause,
        };
        if !executors.contains(&executor) {
            return Err(refuse(RefusalCause::UnknownExecutor));
        }
        if budgets.insert(executor, tokens_max).is_some() {
            return Err(refuse(RefusalCause::NamedTwice));
        }
        sum += u64::from(tokens_max);
    }
    if sum > u64::from(tokens_total) {
        let total = tokens_total;
        return Err(RefusalCause::OverTotal { sum, total }.whole());
    }
    Ok(budgets)
}
