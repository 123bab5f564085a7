//! The way of requests along the executors that an answer names, without placing anything.

use std::collections::BTreeMap;

use pointsman_events::rows::RequestClass;
use pointsman_events::{ExecutorId, PlacedIn, RequestId, Walk};

use super::super::count;
use super::Books;
use super::place::check_place;

/// Room that earlier requests of the same answer would take.
#[derive(Default)]
struct Taken {
    slots: BTreeMap<ExecutorId, u32>,
    queued: BTreeMap<(ExecutorId, bool), u32>,
}

/// The ways of these requests, each along its executors. Of the room that those before it would take,
/// slots and places in queues are counted, blocks are not.
pub(crate) fn walks<'p>(
    books: Books<'_>,
    placements: impl Iterator<Item = (RequestId, &'p [ExecutorId])>,
) -> Vec<Walk> {
    let mut taken = Taken::default();
    let walks = placements.map(|(request, executors)| taken.walk(books, request, executors));
    walks.collect()
}

// === impl Taken ===

impl Taken {
    fn walk(&mut self, books: Books<'_>, request: RequestId, executors: &[ExecutorId]) -> Walk {
        let mut walk = Walk::default();
        // As many as there are, at most: the interlock refuses a longer list as a whole.
        if count(executors.len()) > books.ledger.attached() {
            return walk;
        }
        for id in executors {
            if self.seat(books, request, *id).is_some() {
                walk.to = Some(*id);
                break;
            }
            walk.passed.push(*id);
        }
        walk
    }

    /// Takes room for `request` on an executor, if there is any.
    fn seat(&mut self, books: Books<'_>, request: RequestId, id: ExecutorId) -> Option<()> {
        let Books { ledger, requests } = books;
        let (request, executor) = (requests.find(request)?, ledger.find(id)?);
        let into = check_place(ledger, request, executor).ok()?;
        let class = request.row.class;
        let slots = self.slots.entry(id).or_default();
        if into == PlacedIn::Slot && *slots < executor.slots_free() {
            *slots += 1;
            return Some(());
        }
        let is_critical = class == RequestClass::LatencyCritical;
        let queued = self.queued.entry((id, is_critical)).or_default();
        let left = executor
            .spec
            .queue_limit
            .saturating_sub(executor.queue.len(class));
        (*queued < left).then(|| *queued += 1)
    }
}

#[cfg(test)]
mod tests {
    use pointsman_events::{ExecutorSpec, Micros, NewRequest};

    use super::*;
    use crate::{Config, Input, Machine, fixture};

    const AT: Micros = Micros(7);

    #[test]
    fn each_request_goes_to_the_first_with_room_that_those_before_it_leave() {
        let mut machine = Machine::new(Config::default()).unwrap();
        let device = machine.handle(AT, Input::DeviceAttached(fixture::device_spec("cpu0")));
        let device = device.device().unwrap();
        for (name, slots_total, queue_limit) in [("a", 1, 0), ("b", 1, 1)] {
            let spec = ExecutorSpec {
                slots_total,
                queue_limit,
                ..fixture::executor_spec(name, device)
            };
            machine
                .handle(AT, Input::ExecutorAttached(spec))
                .executor()
                .unwrap();
        }
        let tenant = machine.intern(AT, "default");
        for _ in 0..4 {
            machine.handle(AT, Input::arrival(NewRequest::new(tenant, 6, 2)));
        }
        let [a, b, gone] = [0, 1, 9].map(ExecutorId);
        let wanted = [vec![gone, a], vec![a, b], vec![b], vec![b, a]];
        let wanted = (0..).map(RequestId).zip(&wanted);
        let walks = machine
            .view()
            .walks(wanted.map(|(request, executors)| (request, executors.as_slice())));
        let walk = |passed: &[ExecutorId], to| Walk {
            passed: passed.to_vec(),
            to,
        };
        let expected = [
            walk(&[gone], Some(a)),
            walk(&[a], Some(b)),
            // In its queue.
            walk(&[], Some(b)),
            walk(&[b, a], None),
        ];
        assert_eq!(walks, expected);
    }
}
