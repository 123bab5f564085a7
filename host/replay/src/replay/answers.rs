//! Answers of a journal, given to a machine once the policies have said the same.

use std::collections::VecDeque;

use pointsman_core::{Answer, Asked, Hook, Policies, Reply, RequestId, View};
use pointsman_journal::{Decision, Restarted, Saved};

use super::recorded::RecordedPolicies;
use super::{Context, Mismatch};

/// An entry of the journal between the beginning of a round and its first fact.
#[derive(Debug)]
pub(super) enum ScriptEntry {
    Decision(Decision<'static>),
    Restarted(Restarted),
    Saved(Saved),
}

/// Entries with their offsets in the journal.
pub(super) type Script = VecDeque<(u64, ScriptEntry)>;

/// The way in which a script ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With the last question.
    Whole,
    /// Anywhere: the journal was cut off.
    CutOff,
}

/// Policies that answer a machine from a script.
pub(super) struct ScriptedAnswers<'a, 'c> {
    script: Script,
    end: End,
    policies: &'a mut RecordedPolicies,
    context: &'a mut Context<'c>,
    /// Offset of the decision that is being made.
    at: Option<u64>,
    /// The first thing that came out otherwise. Nothing after it is looked at.
    wrong: Option<Mismatch>,
}

impl<'a, 'c> ScriptedAnswers<'a, 'c> {
    pub(super) fn new(
        script: Script,
        end: End,
        policies: &'a mut RecordedPolicies,
        context: &'a mut Context<'c>,
    ) -> Self {
        Self {
            script,
            end,
            policies,
            context,
            at: None,
            wrong: None,
        }
    }

    /// The rest of the script.
    ///
    /// # Errors
    /// The first thing that came out otherwise, with the offset of its decision.
    pub(super) fn finish(self) -> Result<Script, (Option<u64>, Mismatch)> {
        match self.wrong {
            None => Ok(self.script),
            Some(mismatch) => Err((self.at, mismatch)),
        }
    }

    /// The recorded decision that answers a question; absent: the journal was cut off before it.
    fn next(&mut self, asked: &Asked<'_>) -> Result<Option<Decision<'static>>, Mismatch> {
        let is_replayed = self.context.what_if.is_none();
        while let Some((offset, scripted)) = self.script.pop_front() {
            self.at = Some(offset);
            match scripted {
                ScriptEntry::Restarted(restarted) if is_replayed => {
                    self.policies.restart(asked.at.now, restarted);
                }
                ScriptEntry::Saved(saved) if is_replayed => {
                    self.policies.save(&saved, self.context.tally)?;
                }
                ScriptEntry::Restarted(_) | ScriptEntry::Saved(_) => {}
                ScriptEntry::Decision(decision) => {
                    let question = (asked.question.hook(), asked.question.requests());
                    let recorded = (decision.hook, decision.requests.clone().into_owned());
                    if question != recorded {
                        return Err(Mismatch::new("what was asked", recorded, question));
                    }
                    return Ok(Some(decision));
                }
            }
        }
        match self.end {
            End::CutOff => Ok(None),
            End::Whole => {
                let recorded = "nothing more";
                Err(Mismatch::new("what was asked", recorded, &asked.question))
            }
        }
    }

    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer<Reply>, Mismatch> {
        let Some(decision) = self.next(asked)? else {
            return Ok(Answer::unbound());
        };
        let Context { what_if, tally, .. } = &mut *self.context;
        tally.decisions += 1;
        match what_if {
            None => self.policies.answer(asked, &decision, tally)?,
            Some(what_if) => what_if.answer(asked, &decision),
        }
        Ok(decision.answer.into_owned())
    }
}

impl Policies for ScriptedAnswers<'_, '_> {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        if self.wrong.is_some() {
            return Answer::unbound();
        }
        self.answer(asked).unwrap_or_else(|mismatch| {
            self.wrong = Some(mismatch);
            Answer::unbound()
        })
    }

    /// As many together as when it was recorded.
    fn run(&self, _: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let decision = self.script.iter().find_map(|(_, scripted)| match scripted {
            ScriptEntry::Decision(decision) => Some(decision),
            ScriptEntry::Restarted(_) | ScriptEntry::Saved(_) => None,
        });
        let same = decision.filter(|decision| decision.hook == hook);
        same.map_or(requests.len(), |decision| {
            decision.requests.len().clamp(1, requests.len().max(1))
        })
    }
}
