//! Arrangements are asked for where the sequences that run on an executor are others than before, and
//! everywhere where another policy took over.

use std::borrow::Cow;

use pointsman_events::rows::ExecutorKind;
use pointsman_events::{Arrangement, Author, ExecutorId, Hook, Question, RequestId};

use super::super::interlock::named;
use super::{OngoingRound, built_in};

impl OngoingRound<'_> {
    pub(super) fn ask_arrangements(&mut self) {
        for id in self.machine.ledger.take_arrange_due() {
            let is_built_in = self.machine.ledger.take_arrange_built_in(id);
            let Some(executor) = self.machine.ledger.find(id) else {
                continue;
            };
            // A server elsewhere has an order of its own.
            if executor.spec.kind == ExecutorKind::Remote {
                continue;
            }
            let running: Vec<RequestId> = executor.running().collect();
            // One alone has no order.
            let (author, arrangement) = if is_built_in || running.len() < 2 {
                (Author::BuiltIn, Arrangement::default())
            } else {
                self.ask_arrangement(id, &running)
            };
            self.arrange(id, &running, (author, arrangement));
        }
    }

    fn ask_arrangement(
        &mut self,
        executor: ExecutorId,
        running: &[RequestId],
    ) -> (Author, Arrangement) {
        let question = Question::Arrangement {
            executor,
            sequences: Cow::Borrowed(running),
        };
        let answer = self.ask(question, |answer| answer.arrangement());
        (answer.author, answer.value.unwrap_or_default())
    }

    /// Tells an engine how to spend its steps. Sequences that the answer does not name come after
    /// those that it does, by the built-in rule. Where all that comes to the order of arrival, in
    /// which an engine serves them anyway, none is named.
    fn arrange(
        &mut self,
        executor: ExecutorId,
        running: &[RequestId],
        (author, arrangement): (Author, Arrangement),
    ) {
        let Arrangement { prefill_max, first } = arrangement;
        let (mut order, left, checked) = named(running, first);
        if let Err(refusal) = checked {
            self.refuse(author, Hook::Budget, refusal);
        }
        let machine = &mut *self.machine;
        order.extend(built_in::order(&machine.requests, left));
        if order == running {
            order.clear();
        }
        let arrangement = Arrangement {
            prefill_max,
            first: order,
        };
        let (ledger, out) = (&mut machine.ledger, &mut machine.out);
        ledger.set_arrangement(executor, arrangement, author, out);
    }
}
