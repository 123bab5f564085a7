//! The comparison of expectations with what happened.

mod costs;
mod relations;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pointsman_core::rows::SequenceState;
use pointsman_core::{
    EvictHow, ExecutorId, ExpiredWhy, Fact, Outcome, RefusedWhy, RequestId, Stamped,
};

use super::failure::ScenarioNames;
use super::history;
use super::state::ScenarioRun;
use crate::scenario::count::Count;
use crate::scenario::expect::{Expect, Expiry, Fair};
use crate::scenario::units::shown;
use crate::scenario::{Name, Scenario};

/// An expectation that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    /// The expectation and what happened instead, in one line.
    text: String,
    /// Requests that the expectation is about.
    pub(super) about: Vec<RequestId>,
    /// Lines that show why.
    pub(super) evidence: Vec<String>,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The expectations of a step that are not met.
pub(super) fn step(run: &ScenarioRun, expect: &Expect) -> Vec<Miss> {
    let mut check = Check {
        run,
        misses: Vec::new(),
    };
    check.places(expect);
    check.relations(expect);
    check.queue(expect);
    check.holds(expect);
    check.outcomes(expect);
    check.preemption(expect);
    check.budgets(expect);
    check.tenants(expect);
    check.reasons(expect);
    check.costs(expect);
    let counts = [
        ("refusals", expect.refusals),
        ("strikes", expect.strikes),
        ("faults", expect.faults),
    ];
    for (key, expected) in counts {
        if let Some(expected) = expected {
            check.count(key, expected);
        }
    }
    check.misses
}

/// The properties that were found broken since the last look.
pub(super) fn properties(run: &mut ScenarioRun) -> Vec<Miss> {
    let breaches = run.judge();
    let misses = breaches.into_iter().map(|breach| Miss {
        text: format!(
            "it is not so that it {}: {}",
            breach.property.sentence(),
            breach.summary
        ),
        evidence: breach.lines(&ScenarioNames(run)),
        about: breach.about(),
    });
    misses.collect()
}

/// The expectations at the end that are not met.
pub(super) fn end(run: &ScenarioRun, scenario: &Scenario) -> Vec<Miss> {
    let end = &scenario.end;
    let mut check = Check {
        run,
        misses: Vec::new(),
    };
    for (key, expected) in [
        ("refusals", end.refusals),
        ("strikes", end.strikes),
        ("faults", end.faults),
    ] {
        if let Count::Exactly(expected) = expected {
            check.count(key, expected);
        }
    }
    if let Count::Exactly(expected) = end.refused {
        check.refused(scenario, expected);
    }
    let all = (0..).map(RequestId).zip(&run.requests);
    for (id, name) in all.filter(|_| end.all_finished) {
        let finished = matches!(run.world.outcome(id), Some(Outcome::Finished { .. }));
        if !finished {
            let got = run.whereabouts(id);
            check.miss("all-finished", format!("`{name}` finished"), got, vec![id]);
        }
    }
    if let Some(max) = end.max_wait {
        let waits = history::longest_waits(run.world.facts(), run.world.now());
        for (id, wait) in waits.into_iter().filter(|(_, wait)| shown(*wait) > max) {
            let name = run.request_name(id);
            let expected = format!("`{name}` to wait at most {max}");
            check.miss("max-wait", expected, shown(wait).to_string(), vec![id]);
        }
    }
    check.misses
}

type IsWanted = fn(Outcome) -> bool;

struct Check<'a> {
    run: &'a ScenarioRun,
    misses: Vec<Miss>,
}

// === impl Check ===

impl Check<'_> {
    fn miss(&mut self, key: &'static str, expected: String, got: String, about: Vec<RequestId>) {
        self.misses.push(Miss {
            text: format!("{key}: expected {expected}, got {got}"),
            about,
            evidence: Vec::new(),
        });
    }

    /// Compares one request with its expectation.
    fn one(&mut self, key: &'static str, name: &Name, expected: &str, got: &str) {
        if expected != got {
            let id = self.run.request(name);
            let expected = format!("`{}` {expected}", name.get_ref());
            self.miss(key, expected, got.to_owned(), vec![id]);
        }
    }

    /// Compares a complete list of requests, in order.
    fn list(&mut self, key: &'static str, of: &str, expected: &[Name], got: &[RequestId]) {
        let wanted: Vec<RequestId> = expected.iter().map(|name| self.run.request(name)).collect();
        if wanted == got {
            return;
        }
        let shown = |ids: &[RequestId]| {
            let names: Vec<&str> = ids.iter().map(|id| self.run.request_name(*id)).collect();
            format!("{of}[{}]", names.join(", "))
        };
        let (expected, got) = (shown(&wanted), shown(got));
        self.miss(key, expected, got, wanted);
    }

    fn facts_since_mark(&self) -> &[Stamped] {
        &self.run.world.facts()[self.run.mark.facts..]
    }

    // === Places of requests ===

    fn places(&mut self, expect: &Expect) {
        let run = self.run;
        for (request, executor) in &expect.placed {
            let id = run.request(request);
            let got = match history::placed_on(run.world.facts(), id) {
                Some(on) => format!("on {}", run.executor_name(on)),
                None => run.whereabouts(id),
            };
            self.one(
                "placed",
                request,
                &format!("on {}", executor.get_ref()),
                &got,
            );
        }
        if let Some(expected) = &expect.placements {
            let facts = self.facts_since_mark().iter();
            let placed = facts.filter_map(|stamped| {
                if let Fact::Placed { request, .. } = stamped.fact {
                    Some(request)
                } else {
                    None
                }
            });
            let placed: Vec<RequestId> = placed.collect();
            self.list("placements", "", expected, &placed);
        }
        for (executor, expected) in &expect.running {
            let got = self.sequences(run.executor(executor), SequenceState::Running);
            self.list(
                "running",
                &format!("on {} ", executor.get_ref()),
                expected,
                &got,
            );
        }
        for (executor, expected) in &expect.queued_on {
            let got = self.sequences(run.executor(executor), SequenceState::Queued);
            self.list(
                "queued-on",
                &format!("{} ", executor.get_ref()),
                expected,
                &got,
            );
        }
    }

    fn sequences(&self, executor: ExecutorId, wanted: SequenceState) -> Vec<RequestId> {
        let snapshot = self.run.world.machine.executor_snapshot(executor);
        let sequences = snapshot.map(|snapshot| snapshot.sequences);
        let sequences = sequences.unwrap_or_default().into_iter();
        sequences
            .filter(|(_, state)| *state == wanted)
            .map(|(id, _)| id)
            .collect()
    }

    fn queue(&mut self, expect: &Expect) {
        let run = self.run;
        let queue = run.world.machine.queue_snapshot();
        if let Some(expected) = &expect.waiting {
            self.list("waiting", "", expected, &queue.queued);
        }
        if let Some(expected) = &expect.parked {
            self.list("parked", "", expected, &queue.parked);
        }
        for (request, executor) in &expect.reserved {
            let id = run.request(request);
            let kept = queue.reserved.iter().find(|(other, _)| *other == id);
            let got = match kept {
                Some((_, on)) => format!("has room kept on {}", run.executor_name(*on)),
                None => run.whereabouts(id),
            };
            let expected = format!("has room kept on {}", executor.get_ref());
            self.one("reserved", request, &expected, &got);
        }
    }

    fn holds(&mut self, expect: &Expect) {
        let run = self.run;
        for request in &expect.held {
            let id = run.request(request);
            if history::held(run.world.facts(), id).is_none() {
                self.one("held", request, "held", &run.whereabouts(id));
            }
        }
        for (request, until) in &expect.held_until {
            let got = run.whereabouts(run.request(request));
            let expected = format!("waiting, held until {until}");
            self.one("held-until", request, &expected, &got);
        }
    }

    // === Outcomes ===

    fn outcomes(&mut self, expect: &Expect) {
        let lists: [(&'static str, &[Name], IsWanted); 6] = [
            ("finished", &expect.finished, |outcome| {
                matches!(outcome, Outcome::Finished { .. })
            }),
            ("given-up", &expect.given_up, |outcome| {
                outcome == Outcome::Refused(RefusedWhy::GaveUp)
            }),
            ("never-fits", &expect.never_fits, |outcome| {
                matches!(outcome, Outcome::Refused(RefusedWhy::NeverFits { .. }))
            }),
            ("unserved", &expect.unserved, |outcome| {
                matches!(outcome, Outcome::Refused(RefusedWhy::Unserved { .. }))
            }),
            ("cancelled", &expect.cancelled, |outcome| {
                outcome == Outcome::Cancelled
            }),
            ("failed", &expect.failed, |outcome| {
                matches!(outcome, Outcome::Failed(_))
            }),
        ];
        for (key, names, wanted) in lists {
            for name in names {
                let id = self.run.request(name);
                if !self.run.world.outcome(id).is_some_and(wanted) {
                    self.one(key, name, key, &self.run.whereabouts(id));
                }
            }
        }
        for (name, time) in &expect.expired {
            let why = match time {
                Expiry::Deadline => ExpiredWhy::Deadline,
                Expiry::Wait => ExpiredWhy::Wait,
            };
            self.outcome("expired", name, Outcome::Expired(why));
        }
        for (name, output_tokens) in &expect.output {
            let output_tokens = *output_tokens;
            self.outcome("output", name, Outcome::Finished { output_tokens });
        }
        for (name, retry_after) in &expect.refused {
            let retry_after = *retry_after;
            let why = RefusedWhy::NoRoom { retry_after };
            self.outcome("refused", name, Outcome::Refused(why));
        }
        for (name, retry_after) in &expect.displaced {
            let retry_after = *retry_after;
            let why = RefusedWhy::Displaced { retry_after };
            self.outcome("displaced", name, Outcome::Refused(why));
        }
    }

    fn outcome(&mut self, key: &'static str, name: &Name, expected: Outcome) {
        let got = self.run.whereabouts(self.run.request(name));
        self.one(key, name, &super::timeline::outcome_words(&expected), &got);
    }

    // === Preemption and budgets ===

    fn preemption(&mut self, expect: &Expect) {
        let run = self.run;
        let facts = self.facts_since_mark().iter();
        let evicted = facts.filter_map(|stamped| {
            if let Fact::Evicted { victim, how, .. } = stamped.fact {
                Some((victim, how))
            } else {
                None
            }
        });
        let evicted: Vec<(RequestId, EvictHow)> = evicted.collect();
        let victims: Vec<RequestId> = evicted.iter().map(|(id, _)| *id).collect();
        let swapped = evicted.iter().filter(|(_, how)| *how == EvictHow::Swap);
        let swapped: Vec<RequestId> = swapped.map(|(id, _)| *id).collect();
        let lists = [
            ("victims", &expect.victims, victims),
            ("swapped", &expect.swapped, swapped),
        ];
        for (key, expected, got) in lists {
            if let Some(expected) = expected {
                self.list(key, "", expected, &got);
            }
        }
        for (victim, needy) in &expect.evicted_for {
            let id = run.request(victim);
            let got = match history::evicted_for(run.world.facts(), id) {
                Some(needy) => format!("evicted for {}", run.request_name(needy)),
                None => run.whereabouts(id),
            };
            let expected = format!("evicted for {}", needy.get_ref());
            self.one("evicted-for", victim, &expected, &got);
        }
    }

    fn budgets(&mut self, expect: &Expect) {
        let run = self.run;
        let allotted = |id: ExecutorId| {
            let snapshot = run.world.machine.executor_snapshot(id);
            snapshot
                .and_then(|snapshot| snapshot.tokens_max)
                .map(u64::from)
        };
        let expected = expect.allotted.iter();
        let expected = expected.map(|(name, tokens)| (name, u64::from(*tokens)));
        self.numbers("allotted", &expected.collect(), &allotted);
        for (executor, expected) in &expect.arranged {
            let snapshot = run.world.machine.executor_snapshot(run.executor(executor));
            let got = snapshot.map(|snapshot| snapshot.arrangement.first);
            let of = format!("{} ", executor.get_ref());
            self.list("arranged", &of, expected, &got.unwrap_or_default());
        }
        let prefill_max = |id: ExecutorId| {
            let snapshot = run.world.machine.executor_snapshot(id)?;
            snapshot.arrangement.prefill_max.map(u64::from)
        };
        let expected = expect.prefill_max.iter();
        let expected = expected.map(|(name, tokens)| (name, u64::from(*tokens)));
        self.numbers("prefill-max", &expected.collect(), &prefill_max);
        let scheduled = |id: ExecutorId| {
            let before = run.mark.tokens.get(&id).copied().unwrap_or(0);
            let engine = run.world.engine(id)?;
            engine.tokens_total().checked_sub(before)
        };
        let expected = expect.tokens.iter();
        let expected = expected.map(|(name, tokens)| (name, *tokens));
        self.numbers("tokens", &expected.collect(), &scheduled);
    }

    fn tenants(&mut self, expect: &Expect) {
        let run = self.run;
        for (name, expected) in &expect.served {
            let got = run.served(name).tokens;
            if got != *expected {
                let expected = format!("{} {expected}", name.get_ref());
                self.miss("served", expected, got.to_string(), Vec::new());
            }
        }
        let Some(Fair { tenants, within }) = &expect.fair else {
            return;
        };
        let shares: Vec<u64> = tenants
            .iter()
            .map(|name| run.served(name))
            .map(|served| served.tokens / u64::from(served.weight.max(1)))
            .collect();
        let (least, most) = (shares.iter().min(), shares.iter().max());
        if most
            .zip(least)
            .is_some_and(|(most, least)| most - least > *within)
        {
            let shown = tenants.iter().zip(&shares);
            let shown = shown.map(|(name, share)| format!("{} {share}", name.get_ref()));
            let got = shown.collect::<Vec<_>>().join(", ");
            let expected = format!("tokens by weight within {within} of each other");
            self.miss("fair", expected, got, Vec::new());
        }
    }

    /// Compares one number for each executor.
    fn numbers(
        &mut self,
        key: &'static str,
        expected: &BTreeMap<&Name, u64>,
        of: &dyn Fn(ExecutorId) -> Option<u64>,
    ) {
        for (name, expected) in expected {
            let got = of(self.run.executor(name));
            if got != Some(*expected) {
                let got = got.map_or("none".to_owned(), |got| got.to_string());
                self.miss(
                    key,
                    format!("{} {expected}", name.get_ref()),
                    got,
                    Vec::new(),
                );
            }
        }
    }

    // === Reasons ===

    fn reasons(&mut self, expect: &Expect) {
        let run = self.run;
        let newest = |name| history::newest_decision(run.world.facts(), run.request(name));
        for (name, expected) in &expect.reasons {
            let got = newest(name).map(|by| run.reason(by)).unwrap_or_default();
            self.one(
                "reasons",
                name,
                &format!("for \"{expected}\""),
                &format!("for \"{got}\""),
            );
        }
        for (name, expected) in &expect.decided_by {
            let got = newest(name).map_or("nobody", |by| run.author(by.author));
            self.one(
                "decided-by",
                name,
                &format!("by {expected}"),
                &format!("by {got}"),
            );
        }
    }

    /// The requests that were refused and of which no `expect` says so.
    fn refused(&mut self, scenario: &Scenario, expected: usize) {
        let run = self.run;
        let told: BTreeSet<&str> = scenario.refusals_told().collect();
        let all = (0..).map(RequestId).zip(&run.requests);
        let refused = all.filter(|(id, name)| {
            let is_refused = matches!(
                run.world.outcome(*id),
                Some(Outcome::Refused(_) | Outcome::Expired(_))
            );
            is_refused && !told.contains(name.as_str())
        });
        let refused: Vec<RequestId> = refused.map(|(id, _)| id).collect();
        if refused.len() != expected {
            let each = refused
                .iter()
                .map(|id| format!("`{}` {}", run.request_name(*id), run.whereabouts(*id)));
            let got = match refused.len() {
                0 => "none".to_owned(),
                count => format!("{count}: {}", each.collect::<Vec<_>>().join(", ")),
            };
            let expected = format!("{expected} refused that no `expect` names");
            self.miss("refused", expected, got, refused);
        }
    }

    /// The number of such events since the start.
    fn count(&mut self, key: &'static str, expected: usize) {
        let counts = |fact: &Fact| match key {
            "refusals" => matches!(fact, Fact::Refused(..)),
            "strikes" => matches!(fact, Fact::Strike(..)),
            _ => matches!(fact, Fact::Fault(..)),
        };
        let run = self.run;
        let facts = run.world.facts().iter().map(|stamped| &stamped.fact);
        let counted: Vec<&Fact> = facts.filter(|fact| counts(fact)).collect();
        if counted.len() != expected {
            let about = counted
                .iter()
                .filter_map(|fact| history::subject(fact))
                .collect();
            self.miss(key, expected.to_string(), counted.len().to_string(), about);
        }
    }
}
