//! A run that goes on for as long as its caller has steps, and that is judged meanwhile.

use pointsman_core::{Author, Fact, Hook};

use super::history;
use super::judge::{Breach, Exercised};
use super::state::ScenarioRun;
use super::timeline::suffering;
use crate::properties::Property;
use crate::scenario::step::Step;

// === impl ScenarioRun: going on ===

impl ScenarioRun {
    /// The names of the executors that are attached.
    pub(crate) fn attached(&self) -> Vec<String> {
        let executors = self.world.machine.executor_ids();
        let names = executors.map(|id| self.executor_name(id).to_owned());
        names.collect()
    }

    /// The names of the requests that have no outcome.
    pub(crate) fn unended(&self) -> Vec<String> {
        let unended = self.world.unended();
        unended.map(|id| self.request_name(id).to_owned()).collect()
    }

    /// Does a step. False if it is impossible.
    pub(crate) fn does(&mut self, step: &Step) -> bool {
        let mut actions = step.action.iter();
        actions.all(|action| self.act(action).is_ok())
    }

    /// Judges what has happened since the last call. Returns the properties found broken.
    pub(crate) fn judge(&mut self) -> Vec<Breach> {
        let facts = &self.world.facts()[self.judged..];
        let found = facts.iter().filter_map(|stamped| {
            let against = self.against(&stamped.fact)?;
            Some((history::subject(&stamped.fact), against))
        });
        let found: Vec<_> = found.collect();
        self.judged = self.world.facts().len();
        let Some(judge) = &mut self.world.policies.sink.judge else {
            return Vec::new();
        };
        for (request, against) in found {
            judge.note_about(request, against);
        }
        judge.take_breaches()
    }

    /// The property that a fact shows broken, with a sentence that says how.
    fn against(&self, fact: &Fact) -> Option<(Property, String)> {
        if let Fact::Refused(author @ Author::Policy(_), hook, refusal) = fact {
            let sentence = self.refusal(*author, *hook, refusal);
            return Some((Property::NeverRefused, sentence));
        }
        if let Fact::Fault(_, fault) = fact {
            return Some((Property::NeverRefused, fault.headline().to_owned()));
        }
        if let Fact::Strike(clock, hook, request) = fact
            && self.is_to_blame(*hook)
        {
            let sentence = format!("`{}` {}", self.request_name(*request), suffering(*clock));
            return Some((Property::StarvesNobody, sentence));
        }
        None
    }

    /// True if a policy had a part in the decision at which a liveness clock ran out. A request
    /// without a place is counted under routing, but the order may have left it behind.
    fn is_to_blame(&self, hook: Hook) -> bool {
        let holds = |hook| self.world.policies.inner.holder(hook).is_some();
        holds(hook) || (hook == Hook::Routing && holds(Hook::Priority))
    }

    /// The questions so far, where properties are checked.
    pub(crate) fn exercised(&self) -> Exercised {
        let judge = self.world.policies.sink.judge.as_ref();
        judge.map_or_else(Exercised::default, |judge| judge.exercised().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pointsman_policy::PolicySource;

    use crate::run::{EVERY_ANSWER, RunError, begin};
    use crate::scenario::{PolicyBinding, Scenario, action_steps};

    #[test]
    fn what_is_about_a_request_that_could_not_arrive_is_impossible_too() {
        let text = "title = 'nobody attaches'\npolicy = {}\n[end]\nall-finished = true\n";
        let scenario = Scenario::parse(Path::new("a.toml"), text).expect("it is a scenario");
        let mut none = |_: &PolicyBinding| -> Result<PolicySource, RunError> {
            unreachable!("it binds no policy")
        };
        let mut run = begin(&scenario, &mut none, EVERY_ANSWER).expect("it begins");
        let mut does = |action: &str| {
            let steps = action_steps(&format!("[[step]]\n{action}\n")).expect("it is a step");
            run.does(&steps[0])
        };
        // Prompts in pieces need a device with blocks.
        assert!(!does("arrive = { name = 'a', prompt = 'c:8' }"));
        assert!(!does("cancel = 'a'"));
        assert!(!does("fail = { request = 'a' }"));
        assert!(does("arrive = { name = 'b', prompt = 8 }"));
        assert!(!does("cancel = ['a', 'b']"));
        assert!(does("cancel = 'b'"));
    }
}
