//! Expectations that leave open which executor it is.

use pointsman_core::{ExecutorId, Fact};

use super::super::history;
use super::Check;
use crate::scenario::Name;
use crate::scenario::expect::Expect;

// === impl Check: relations ===

impl Check<'_> {
    pub(super) fn relations(&mut self, expect: &Expect) {
        for (request, executors) in &expect.placed_among {
            let on = self.executor_of(request);
            if !on.is_some_and(|on| self.is_among(on, executors)) {
                self.place(
                    "placed-among",
                    request,
                    &format!("on one of {}", listed(executors)),
                );
            }
        }
        for (request, executors) in &expect.placed_off {
            let on = self.executor_of(request);
            if on.is_some_and(|on| self.is_among(on, executors)) {
                self.place(
                    "placed-off",
                    request,
                    &format!("on none of {}", listed(executors)),
                );
            }
        }
        for (request, other) in &expect.placed_with {
            let (on, others) = (self.executor_of(request), self.executor_of(other));
            if on.is_none() || on != others {
                let where_it_is = self.got_place(other);
                let expected = format!("with `{}`, which is {where_it_is}", other.get_ref());
                self.place("placed-with", request, &expected);
            }
        }
        for (executor, expected) in &expect.placed_count {
            let id = self.run.executor(executor);
            let placed = self.facts_since_mark().iter();
            let placed = placed.filter(
                |stamped| matches!(stamped.fact, Fact::Placed { executor, .. } if executor == id),
            );
            let got = placed.count();
            if got != *expected {
                let expected = format!("{expected} on {}", executor.get_ref());
                self.miss("placed-count", expected, got.to_string(), Vec::new());
            }
        }
    }

    /// The executor of a request's newest placement.
    fn executor_of(&self, request: &Name) -> Option<ExecutorId> {
        let run = self.run;
        history::placed_on(run.world.facts(), run.request(request))
    }

    fn is_among(&self, on: ExecutorId, executors: &[Name]) -> bool {
        executors.iter().any(|name| self.run.executor(name) == on)
    }

    /// The place of a request, in words.
    fn got_place(&self, request: &Name) -> String {
        match self.executor_of(request) {
            Some(on) => format!("on {}", self.run.executor_name(on)),
            None => self.run.whereabouts(self.run.request(request)),
        }
    }

    /// Notes that a request is not where it is expected.
    fn place(&mut self, key: &'static str, request: &Name, expected: &str) {
        let (id, got) = (self.run.request(request), self.got_place(request));
        let expected = format!("`{}` {expected}", request.get_ref());
        self.miss(key, expected, got, vec![id]);
    }
}

fn listed(executors: &[Name]) -> String {
    let names: Vec<&str> = executors
        .iter()
        .map(|name| name.get_ref().as_str())
        .collect();
    format!("[{}]", names.join(", "))
}
