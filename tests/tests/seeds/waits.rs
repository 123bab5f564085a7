//! Waits for a place, as the facts of a run tell them. A request in the queue of an executor has a place.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pointsman_core::{Fact, Input, Micros, Recorder, RequestId, Round, Stamped};

/// A recorder of waits, and a handle to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Rc<RefCell<Waited>>);

#[derive(Debug, Default)]
struct Waited {
    /// The requests without a place, each with the time since which it has none.
    since: BTreeMap<RequestId, Micros>,
    /// The longest stay without a place, and the request that had it.
    longest: Option<(Micros, RequestId)>,
}

impl Waits {
    /// Checks that no request was without a place for longer than `most`, from its arrival or its return on.
    pub(crate) fn check(&self, most: Micros) -> Result<(), String> {
        match self.0.borrow().longest {
            Some((waited, id)) if waited > most => {
                Err(format!("request {id} was without a place for {waited} us"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Waited {
    fn end(&mut self, request: RequestId, now: Micros) {
        if let Some(since) = self.since.remove(&request) {
            let waited = (now.since(since), request);
            self.longest = self.longest.max(Some(waited));
        }
    }
}

impl Recorder for Waits {
    fn input(&mut self, _: Micros, _: &Input) {}

    fn round(&mut self, _: Micros, _: Round) {}

    fn fact(&mut self, stamped: &Stamped) {
        let mut waited = self.0.borrow_mut();
        if let Fact::Arrived { request, .. } | Fact::Requeued(request, _) = &stamped.fact {
            waited.since.insert(*request, stamped.now);
        } else if let Fact::Placed { request, .. } | Fact::Ended(request, _) = &stamped.fact {
            waited.end(*request, stamped.now);
        }
    }
}
