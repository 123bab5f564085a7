//! The decisions of a round, as the expectations of a scenario.

use std::fmt::Write;

use pointsman_core::{
    Arrangement, Author, Decided as By, EvictHow, ExpiredWhy, Fact, Machine, Micros, Outcome,
    RefusedWhy, RequestId, Round, Stamped,
};
use pointsman_journal::PolicyRecord;

use super::names::{executor, listed, quoted, request, timed};
use super::told::Told;

/// The decisions of a round.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Keys of an `expect` whose values are tables, each with its entries.
    tables: Vec<(&'static str, Vec<String>)>,
    /// Keys whose values are lists of requests.
    lists: Vec<(&'static str, Vec<RequestId>)>,
    /// Holds that end at a time.
    holds: Vec<(RequestId, Micros)>,
    reasons: Vec<(RequestId, By)>,
    refusals: usize,
    strikes: usize,
    faults: usize,
}

// === impl Decided ===

impl Decided {
    /// The decisions among the facts of a round.
    pub(super) fn of(machine: &Machine, round: Round, facts: &[Stamped]) -> Self {
        let mut decided = Self::default();
        for stamped in facts.iter().filter(|stamped| stamped.round == round) {
            decided.hear(machine, &stamped.fact);
        }
        decided.queues(machine, facts);
        decided
    }

    /// True if nothing was decided that a scenario could expect.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.lists.is_empty() && self.holds.is_empty()
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only some of the facts are decisions"
    )]
    fn hear(&mut self, machine: &Machine, fact: &Fact) {
        match fact {
            Fact::Placed {
                request,
                executor: on,
                by,
                ..
            } => {
                self.entry(
                    "placed",
                    request_is(*request, quoted(&executor(machine, *on))),
                );
                self.item("placements", *request);
                self.reasons.push((*request, *by));
            }
            Fact::Held(request, until, by) => {
                match until {
                    Some(until) => self.holds.push((*request, *until)),
                    None => self.item("held", *request),
                }
                self.reasons.push((*request, *by));
            }
            Fact::TurnedAway(request, by) => self.reasons.push((*request, *by)),
            Fact::Ended(request, outcome) => self.ended(*request, *outcome),
            Fact::Evicted {
                victim,
                needy,
                how,
                by,
                ..
            } => {
                self.item("victims", *victim);
                if *how == EvictHow::Swap {
                    self.item("swapped", *victim);
                }
                self.entry("evicted-for", request_is(*victim, quoted(&request(*needy))));
                self.reasons.push((*victim, *by));
            }
            Fact::Reserved(request, on) => {
                self.entry(
                    "reserved",
                    request_is(*request, quoted(&executor(machine, *on))),
                );
            }
            Fact::Allotted {
                executor: on,
                tokens_max,
                ..
            } => {
                let on = quoted(&executor(machine, *on));
                self.entry("allotted", format!("{on} = {tokens_max}"));
            }
            Fact::Arranged {
                executor: on,
                arrangement,
                ..
            } => self.arranged(&quoted(&executor(machine, *on)), arrangement),
            Fact::Refused(..) => self.refusals += 1,
            Fact::Strike(..) => self.strikes += 1,
            Fact::Fault(..) => self.faults += 1,
            _ => {}
        }
    }

    fn ended(&mut self, ended: RequestId, outcome: Outcome) {
        match outcome {
            Outcome::Refused(RefusedWhy::NoRoom { retry_after }) => {
                self.entry("refused", request_is(ended, retry_after));
            }
            Outcome::Refused(RefusedWhy::Displaced { retry_after }) => {
                self.entry("displaced", request_is(ended, retry_after));
            }
            Outcome::Refused(RefusedWhy::GaveUp) => self.item("given-up", ended),
            Outcome::Refused(RefusedWhy::NeverFits { .. }) => self.item("never-fits", ended),
            Outcome::Refused(RefusedWhy::Unserved { .. }) => self.item("unserved", ended),
            Outcome::Expired(ExpiredWhy::Deadline) => {
                self.entry("expired", request_is(ended, quoted("deadline")));
            }
            Outcome::Expired(ExpiredWhy::Wait) => {
                self.entry("expired", request_is(ended, quoted("wait")));
            }
            // Nobody can be asked for these: they come from outside, or no policy answers at all.
            Outcome::Refused(RefusedWhy::Closed { .. })
            | Outcome::Finished { .. }
            | Outcome::Cancelled
            | Outcome::Failed(_) => {}
        }
    }

    fn arranged(&mut self, on: &str, arrangement: &Arrangement) {
        let first = listed(arrangement.first.iter().map(|id| request(*id)));
        self.entry("arranged", format!("{on} = {first}"));
        if let Some(tokens) = arrangement.prefill_max {
            self.entry("prefill-max", format!("{on} = {tokens}"));
        }
    }

    /// Notes who is in the queue and outside it, where the round let somebody in.
    fn queues(&mut self, machine: &Machine, facts: &[Stamped]) {
        let queue = machine.queue_snapshot();
        let is_there = |there: &[RequestId], id: &RequestId| there.contains(id);
        let waits = facts.iter().any(
            |stamped| matches!(&stamped.fact, Fact::Admitted(id, _) if is_there(&queue.queued, id)),
        );
        let parks = facts.iter().any(
            |stamped| matches!(&stamped.fact, Fact::Parked(id, _) if is_there(&queue.parked, id)),
        );
        if waits {
            self.lists.push(("waiting", queue.queued));
        }
        if parks {
            self.lists.push(("parked", queue.parked));
        }
    }

    fn entry(&mut self, key: &'static str, entry: String) {
        match self.tables.iter_mut().find(|table| table.0 == key) {
            Some((_, entries)) => entries.push(entry),
            None => self.tables.push((key, vec![entry])),
        }
    }

    fn item(&mut self, key: &'static str, id: RequestId) {
        match self.lists.iter_mut().find(|list| list.0 == key) {
            Some((_, ids)) => ids.push(id),
            None => self.lists.push((key, vec![id])),
        }
    }

    /// The expectations of the last step, and the end.
    pub(super) fn text(&self, told: &Told, policies: &[PolicyRecord]) -> String {
        let mut text = String::new();
        self.write(&mut text, told, policies)
            .expect("a text takes all that is written to it");
        text
    }

    fn write(&self, to: &mut String, told: &Told, policies: &[PolicyRecord]) -> std::fmt::Result {
        for (id, by) in &self.reasons {
            let (author, reason) = said(policies, *by);
            writeln!(to, "# {}: {author}{reason}", request(*id))?;
        }
        for (key, entries) in &self.tables {
            writeln!(to, "expect.{key} = {{ {} }}", entries.join(", "))?;
        }
        let is_told = |list: &&(&str, Vec<RequestId>)| list.0 != "placements" || list.1.len() > 1;
        for (key, ids) in self.lists.iter().filter(is_told) {
            let ids = listed(ids.iter().map(|id| request(*id)));
            writeln!(to, "expect.{key} = {ids}")?;
        }
        if !self.holds.is_empty() {
            let holds = self.holds.iter();
            let holds = holds.map(|(id, until)| request_is(*id, timed(told.clock(*until))));
            let holds: Vec<String> = holds.collect();
            writeln!(to, "expect.held-until = {{ {} }}", holds.join(", "))?;
        }
        let counts = [
            ("refusals", self.refusals),
            ("strikes", self.strikes),
            ("faults", self.faults),
        ];
        let told: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
        if !told.is_empty() {
            writeln!(to, "\n[end]")?;
        }
        for (key, count) in told {
            writeln!(to, "{key} = {count}")?;
        }
        Ok(())
    }
}

fn request_is(id: RequestId, value: impl std::fmt::Display) -> String {
    format!("{} = {value}", request(id))
}

/// The author of a decision, and the reason, after a colon.
fn said(policies: &[PolicyRecord], by: By) -> (String, String) {
    let Author::Policy(number) = by.author else {
        return ("the built-in rule".to_owned(), String::new());
    };
    let record = policies.iter().find(|record| record.number == number);
    let Some(record) = record else {
        return ("a policy behind another".to_owned(), String::new());
    };
    let reason = record.reasons.get(usize::from(by.reason));
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    (record.name.clone(), reason.replace('\n', " "))
}
