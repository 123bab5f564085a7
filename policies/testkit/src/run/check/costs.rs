//! Expectations of costs, as the policy that routes explained them.

use std::cmp::Ordering;

use pointsman_component::Candidate;
use pointsman_core::{ExecutorId, RequestId};

use super::Check;
use crate::scenario::Name;
use crate::scenario::cost::Cost;
use crate::scenario::expect::Expect;

// === impl Check: costs ===

impl Check<'_> {
    pub(super) fn costs(&mut self, expect: &Expect) {
        for (request, on) in &expect.cost {
            let id = self.run.request(request);
            if self.run.world.policies.sink.candidates(id).is_none() {
                let got =
                    "no explanation: no policy that exports `explanation` was asked where it goes";
                self.miss_cost(request, "explained", got.to_owned());
                continue;
            }
            for (executor, expected) in on {
                self.cost(request, executor, expected.get_ref());
            }
        }
    }

    fn cost(&mut self, request: &Name, executor: &Name, expected: &Cost) {
        let id = self.run.request(request);
        let on = executor.get_ref();
        let got = self.candidate(id, self.run.executor(executor));
        let own = in_words(got);
        match expected {
            Cost::NoPlace if got.is_some_and(|it| !it.eligible) => {}
            Cost::NoPlace => self.miss_cost(request, &format!("to have no place on {on}"), own),
            Cost::Exactly(cost) if able(got) == Some(*cost) => {}
            Cost::Exactly(cost) => {
                self.miss_cost(request, &format!("to cost {cost} on {on}"), own);
            }
            Cost::Than(ordering, than) => {
                let other = self.candidate(id, self.run.executors[than]);
                let both = able(got).zip(able(other));
                if both.map(|(own, other)| own.cmp(&other)) == Some(*ordering) {
                    return;
                }
                let how = match ordering {
                    Ordering::Less => format!("less on {on} than on {than}"),
                    Ordering::Equal => format!("as much on {on} as on {than}"),
                    Ordering::Greater => format!("more on {on} than on {than}"),
                };
                let got = format!("{own} and {}", in_words(other));
                self.miss_cost(request, &format!("to cost {how}"), got);
            }
        }
    }

    /// An executor as it was explained for a request.
    fn candidate(&self, request: RequestId, executor: ExecutorId) -> Option<&Candidate> {
        let candidates = self.run.world.policies.sink.candidates(request);
        candidates?.iter().find(|it| it.executor == executor)
    }

    fn miss_cost(&mut self, request: &Name, expected: &str, got: String) {
        let id = self.run.request(request);
        let expected = format!("`{}` {expected}", request.get_ref());
        self.miss("cost", expected, got, vec![id]);
    }
}

/// The cost on an executor that can take the request.
fn able(candidate: Option<&Candidate>) -> Option<i64> {
    Some(candidate.filter(|it| it.eligible)?.cost)
}

fn in_words(candidate: Option<&Candidate>) -> String {
    match candidate {
        Some(Candidate {
            eligible: true,
            cost,
            ..
        }) => cost.to_string(),
        Some(Candidate { note, .. }) => format!("no place ({note})"),
        None => "nothing".to_owned(),
    }
}
