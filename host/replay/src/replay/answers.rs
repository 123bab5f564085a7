//! Answers of a journal, which the machine is given once the policies have given the same ones.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use pointsman_core::{Answer, Asked, Hook, Policies, Reply, RequestId, View};
use pointsman_journal::{Briefed, Decision, Restarted, Saved};

use super::recorded::{RecordedPolicies, brief_as};
use super::{Context, Mismatch};

/// An entry of the journal between the start of a round and its first fact.
#[derive(Debug)]
pub(super) enum ScriptEntry {
    Decision(Decision<'static>),
    /// A fresh instance, and the rows of the next decision if it was told these elsewhere.
    Restarted(Restarted, Option<Briefed>),
    Saved(Saved),
}

/// The place of an entry in the journal: its file, and its offset there.
pub(super) type Place = (Arc<Path>, u64);

/// Entries with their places.
pub(super) type Script = VecDeque<(Place, ScriptEntry)>;

/// The completeness of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Complete: no question follows the last entry.
    Whole,
    /// Cut off with the journal: more questions may follow.
    CutOff,
}

/// Policies that answer a machine from a script.
pub(super) struct ScriptedAnswers<'a, 'c> {
    script: Script,
    end: End,
    policies: &'a mut RecordedPolicies,
    context: &'a mut Context<'c>,
    /// Place of the current decision.
    at: Option<Place>,
    /// The first difference. Nothing after it is compared.
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

    /// Returns the rest of the script.
    ///
    /// # Errors
    /// The first difference, with the place of its decision.
    pub(super) fn finish(self) -> Result<Script, (Option<Place>, Mismatch)> {
        match self.wrong {
            None => Ok(self.script),
            Some(mismatch) => Err((self.at, mismatch)),
        }
    }

    /// Takes the recorded decision that answers a question; `None` if the journal was cut off
    /// before it.
    fn next(&mut self, asked: &Asked<'_>) -> Result<Option<Decision<'static>>, Mismatch> {
        let is_replayed = self.context.what_if.is_none();
        while let Some((place, scripted)) = self.script.pop_front() {
            self.at = Some(place);
            match scripted {
                ScriptEntry::Restarted(restarted, told) if is_replayed => {
                    let told = told.map(|told| brief_as(&asked.view, &told));
                    let briefing = told.transpose()?;
                    self.policies.restart(asked.at.now, restarted, briefing);
                }
                ScriptEntry::Saved(saved) if is_replayed => {
                    self.policies.save(&saved, self.context.tally)?;
                }
                ScriptEntry::Restarted(..) | ScriptEntry::Saved(_) => {}
                ScriptEntry::Decision(decision) => {
                    let is_same = asked.question.hook() == decision.hook
                        && asked
                            .question
                            .requests()
                            .eq(decision.requests.iter().copied());
                    if !is_same {
                        let recorded = in_words(decision.hook, decision.requests.iter().copied());
                        let replayed = asked_in_words(asked);
                        return Err(Mismatch::new("what was asked", recorded, replayed));
                    }
                    return Ok(Some(decision));
                }
            }
        }
        match self.end {
            End::CutOff => Ok(None),
            End::Whole => {
                let recorded = "nothing more";
                let replayed = asked_in_words(asked);
                Err(Mismatch::new("what was asked", recorded, replayed))
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

    /// As many requests as the recorded question had.
    fn run(&self, _: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let decision = self.script.iter().find_map(|(_, scripted)| match scripted {
            ScriptEntry::Decision(decision) => Some(decision),
            ScriptEntry::Restarted(..) | ScriptEntry::Saved(_) => None,
        });
        let same = decision.filter(|decision| decision.hook == hook);
        same.map_or(requests.len(), |decision| {
            decision.requests.len().clamp(1, requests.len().max(1))
        })
    }
}

fn asked_in_words(asked: &Asked<'_>) -> String {
    in_words(asked.question.hook(), asked.question.requests())
}

/// A question in words: `routing of requests 3, 4`.
fn in_words(hook: Hook, requests: impl Iterator<Item = RequestId>) -> String {
    let requests: Vec<_> = requests.map(|request| request.0.to_string()).collect();
    format!("{} of requests {}", hook.as_str(), requests.join(", "))
}
