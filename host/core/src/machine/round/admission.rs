//! Admission: arrivals enter the queue, or do not.

use std::borrow::Cow;

use pointsman_events::{
    Author, Decided, Fact, Hook, Otherwise, Outcome, Question, RefusalCause, RefusedWhy, RequestId,
    admission,
};

use super::super::interlock::{check_admission, check_count};
use super::OngoingRound;

impl OngoingRound<'_> {
    pub(super) fn ask_admission(&mut self) {
        let mut arrivals = self.machine.requests.take_arrivals();
        for id in &arrivals {
            self.machine.expire(*id);
        }
        arrivals.retain(|id| self.machine.requests.find(*id).is_some());
        for batch in arrivals.chunks(self.machine.config.batch_max as usize) {
            let mut left = batch;
            while !left.is_empty() {
                let (run, rest) = left.split_at(self.run_of(Hook::Admission, left));
                self.ask_admit(run);
                left = rest;
            }
        }
    }

    fn ask_admit(&mut self, batch: &[RequestId]) {
        let question = Question::Admission {
            arrivals: Cow::Owned(self.machine.asked(batch)),
            room: self.room(),
        };
        let answer = self.ask(question, |answer| answer.admission());
        let (author, otherwise) = (answer.author, answer.otherwise);
        let verdicts = self.in_count(author, (Hook::Admission, batch.len()), answer.value);
        let mut verdicts = verdicts.into_iter();
        for id in batch {
            let admitted = verdicts.next().map(|verdict| {
                let reason = verdict.reason;
                self.admit(*id, verdict.choice, Decided { author, reason })
            });
            if let Some(Err(cause)) = admitted {
                self.refuse(author, Hook::Admission, cause.of(*id));
            }
            if admitted != Some(Ok(())) {
                self.admit_otherwise(*id, otherwise);
            }
        }
    }

    /// The verdicts, if there is one for each of `expected` requests; otherwise none of them.
    pub(super) fn in_count<T>(
        &mut self,
        author: Author,
        (hook, expected): (Hook, usize),
        verdicts: Option<Vec<T>>,
    ) -> Vec<T> {
        let verdicts = verdicts.unwrap_or_default();
        if author == Author::BuiltIn {
            return verdicts;
        }
        let Err(refusal) = check_count(expected, verdicts.len()) else {
            return verdicts;
        };
        self.refuse(author, hook, refusal);
        Vec::new()
    }

    fn admit(
        &mut self,
        id: RequestId,
        choice: admission::Choice,
        by: Decided,
    ) -> Result<(), RefusalCause> {
        use admission::Choice;
        // A client that may wait outside is let in at once where there is room inside.
        let choice = match choice {
            Choice::Park if self.room() > 0 => Choice::Admit,
            Choice::Admit | Choice::Park | Choice::Shed(_) | Choice::Displace(_) => choice,
        };
        check_admission(&self.machine.requests, &self.machine.config, id, choice)?;
        match choice {
            Choice::Admit => {
                self.machine.out.fact(Fact::Admitted(id, by));
                self.enqueue(id);
            }
            Choice::Park => {
                let Self { machine, .. } = self;
                machine.out.fact(Fact::Parked(id, by));
                machine.requests.park(id, &mut machine.out);
                self.admitted.push(id);
            }
            Choice::Shed(retry_after) => {
                self.turn_away(id, RefusedWhy::NoRoom { retry_after }, by);
            }
            Choice::Displace(other) => {
                let retry_after = other.retry_after;
                self.turn_away(other.request, RefusedWhy::Displaced { retry_after }, by);
                self.machine.out.fact(Fact::Admitted(id, by));
                self.enqueue(id);
            }
        }
        Ok(())
    }

    /// Decides about an arrival for which there is no usable verdict: while there is room it is
    /// admitted, unless admission is closed.
    fn admit_otherwise(&mut self, id: RequestId, otherwise: Otherwise) {
        let retry_after = self.machine.config.retry_after_secs;
        let choice = match otherwise {
            Otherwise::Closed => {
                let why = RefusedWhy::Closed { retry_after };
                return self.turn_away(id, why, Decided::BUILT_IN);
            }
            Otherwise::BuiltIn if self.room() > 0 => admission::Choice::Admit,
            Otherwise::BuiltIn => admission::Choice::Shed(retry_after),
        };
        let applied = self.admit(id, choice, Decided::BUILT_IN);
        debug_assert_eq!(applied, Ok(()), "the built-in choice looks at the room");
    }

    pub(super) fn turn_away(&mut self, id: RequestId, why: RefusedWhy, by: Decided) {
        self.machine.out.fact(Fact::TurnedAway(id, by));
        self.machine.end(id, Outcome::Refused(why));
    }

    pub(super) fn enqueue(&mut self, id: RequestId) {
        let Self { machine, .. } = self;
        machine.requests.enqueue(id, &mut machine.out);
        self.admitted.push(id);
    }

    pub(super) fn room(&self) -> u32 {
        self.machine.requests.room(&self.machine.config)
    }
}
