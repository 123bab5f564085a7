//! The sink between the machine and the policies that fills the log, and the answers that it notes.

use pointsman_core::{
    Answer, Asked, ExecutorId, Micros, Policies, Question, Reply, RequestId, Sink, admission,
    routing,
};

use super::{LogSink, NAMED_MAX, PendingQuestion};

/// An answer about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracedAnswer {
    /// The decision at the door.
    Admission(admission::Choice),
    /// The first executors of the answer, and the number of all.
    Place(Vec<ExecutorId>, usize),
    /// The request waits, until this time at the latest.
    Hold(Option<Micros>),
    /// The request is given up.
    GiveUp,
    /// The number of sequences that give way to the request.
    Evict(usize),
}

impl<P: Policies> Sink<P> for LogSink<'_> {
    fn ask(&mut self, inner: &mut P, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = inner.ask(asked);
        if self.0.max > 0 {
            self.note(asked, &answer);
        }
        answer
    }
}

impl LogSink<'_> {
    fn note(&mut self, asked: &Asked<'_>, answer: &Answer<Reply>) {
        match &asked.question {
            Question::Admission { arrivals, .. } => {
                for (idx, arrival) in arrivals.iter().enumerate() {
                    let mut question = PendingQuestion::new(arrival.request, asked, answer);
                    question.together = arrivals.len();
                    if let Some(Reply::Admission(verdicts)) = &answer.value
                        && let Some(verdict) = verdicts.get(idx)
                    {
                        question.answer = Some(TracedAnswer::Admission(verdict.choice));
                        question.reason = verdict.reason;
                    }
                    self.0.pending.push_back(question);
                }
            }
            Question::Routing(requests) => {
                for (idx, cached) in requests.iter().enumerate() {
                    let mut question = PendingQuestion::new(cached.request, asked, answer);
                    question.together = requests.len();
                    question.cached = Some(cached.clone());
                    if let Some(Reply::Routing(verdicts)) = &answer.value
                        && let Some(verdict) = verdicts.get(idx)
                    {
                        question.answer = Some(TracedAnswer::of_routing(&verdict.choice));
                        question.reason = verdict.reason;
                    }
                    self.0.pending.push_back(question);
                }
            }
            Question::Preemption(shortage) => {
                let mut question = PendingQuestion::new(shortage.needy, asked, answer);
                if let Some(Reply::Preemption(eviction)) = &answer.value {
                    let victims = eviction.as_ref().map_or(0, |it| it.victims.len());
                    question.answer = Some(TracedAnswer::Evict(victims));
                    question.reason = eviction.as_ref().map_or(0, |it| it.reason);
                }
                self.0.pending.push_back(question);
            }
            // These questions are about no single request.
            Question::Priority(_) | Question::Budget { .. } | Question::Arrangement { .. } => {}
        }
    }
}

impl PendingQuestion {
    fn new(request: RequestId, asked: &Asked<'_>, answer: &Answer<Reply>) -> Self {
        let faults = answer.faults.iter().take(NAMED_MAX);
        Self {
            request,
            at: asked.at.now,
            round: asked.at.round,
            hook: asked.question.hook(),
            together: 1,
            cached: None,
            answer: None,
            author: answer.author,
            reason: 0,
            faults: faults.map(|fault| (fault.policy, fault.kind)).collect(),
        }
    }
}

impl TracedAnswer {
    fn of_routing(choice: &routing::Choice) -> Self {
        match choice {
            routing::Choice::Place(executors) => {
                let first = executors.iter().take(NAMED_MAX).copied();
                TracedAnswer::Place(first.collect(), executors.len())
            }
            routing::Choice::Hold(until) => TracedAnswer::Hold(*until),
            routing::Choice::GiveUp => TracedAnswer::GiveUp,
        }
    }

    /// The executors that the answer names, as far as they are remembered.
    pub(super) fn executors(&self) -> &[ExecutorId] {
        match self {
            TracedAnswer::Place(executors, _) => executors,
            TracedAnswer::Admission(_)
            | TracedAnswer::Hold(_)
            | TracedAnswer::GiveUp
            | TracedAnswer::Evict(_) => &[],
        }
    }
}
