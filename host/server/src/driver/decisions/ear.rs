//! Hearing what is asked, without a word of its own.

use pointsman_core::{Answer, Asked, Policies, Question, Reply, RequestId, Sink, routing};

use super::{Ear, NAMED_MAX, Sound, Verdict};

impl<P: Policies> Sink<P> for Ear<'_> {
    fn ask(&mut self, inner: &mut P, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = inner.ask(asked);
        if self.0.max > 0 {
            self.hear(asked, &answer);
        }
        answer
    }
}

impl Ear<'_> {
    fn hear(&mut self, asked: &Asked<'_>, answer: &Answer<Reply>) {
        match &asked.question {
            Question::Admission { arrivals, .. } => {
                for (idx, request) in arrivals.iter().enumerate() {
                    let mut sound = Sound::new(*request, asked, answer);
                    sound.together = arrivals.len();
                    if let Some(Reply::Admission(verdicts)) = &answer.value
                        && let Some(verdict) = verdicts.get(idx)
                    {
                        sound.answer = Some(Verdict::Admission(verdict.choice));
                        sound.reason = verdict.reason;
                    }
                    self.0.heard.push_back(sound);
                }
            }
            Question::Routing(requests) => {
                for (idx, cached) in requests.iter().enumerate() {
                    let mut sound = Sound::new(cached.request, asked, answer);
                    sound.together = requests.len();
                    sound.cached = Some(cached.clone());
                    if let Some(Reply::Routing(verdicts)) = &answer.value
                        && let Some(verdict) = verdicts.get(idx)
                    {
                        sound.answer = Some(Verdict::of_routing(&verdict.choice));
                        sound.reason = verdict.reason;
                    }
                    self.0.heard.push_back(sound);
                }
            }
            Question::Preemption(shortage) => {
                let mut sound = Sound::new(shortage.needy, asked, answer);
                if let Some(Reply::Preemption(eviction)) = &answer.value {
                    let victims = eviction.as_ref().map_or(0, |it| it.victims.len());
                    sound.answer = Some(Verdict::Evict(victims));
                    sound.reason = eviction.as_ref().map_or(0, |it| it.reason);
                }
                self.0.heard.push_back(sound);
            }
            // About no request by itself.
            Question::Priority(_) | Question::Budget { .. } => {}
        }
    }
}

impl Sound {
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

impl Verdict {
    fn of_routing(choice: &routing::Choice) -> Self {
        match choice {
            routing::Choice::Place(executors) => {
                let first = executors.iter().take(NAMED_MAX).copied();
                Verdict::Place(first.collect(), executors.len())
            }
            routing::Choice::Hold(until) => Verdict::Hold(*until),
            routing::Choice::GiveUp => Verdict::GiveUp,
        }
    }
}
