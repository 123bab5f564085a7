//! Token budgets are asked for where executors became busy or idle, came or left, and everywhere where
//! another policy took over.

use std::borrow::Cow;

use pointsman_events::{Author, Clock, DeviceId, Hook, Micros, Question, Strike};

use super::super::interlock::check_budgets;
use super::super::ledger::Budgets;
use super::super::timers::Timer;
use super::{OngoingRound, built_in};

/// The budgets of a device, as they are to be set.
struct BudgetsSet {
    author: Author,
    budgets: Budgets,
    /// The time at which their author wants to be asked again.
    again: Option<Micros>,
}

impl OngoingRound<'_> {
    pub(super) fn ask_budgets(&mut self) {
        for device in self.machine.ledger.take_allot_due() {
            let record = &self.machine.ledger[device];
            let tokens_total = record.spec.tokens_per_step;
            let Some(tokens_total) = tokens_total.filter(|_| !record.executors.is_empty()) else {
                continue;
            };
            let set = self.ask_budget(device, tokens_total);
            let machine = &mut *self.machine;
            let set = set.unwrap_or_else(|| BudgetsSet {
                author: Author::BuiltIn,
                budgets: built_in::budgets(&machine.ledger, device, tokens_total),
                again: None,
            });
            let soonest = self.at.now.after(machine.config.evict_retry);
            let again = set.again.map(|at| at.max(soonest));
            machine.out.timers.arm(Timer::Allot(device), again);
            let (ledger, out) = (&mut machine.ledger, &mut machine.out);
            ledger.set_budgets(device, set.budgets, set.author, out);
        }
    }

    /// A policy's budgets for a device; absent: the built-in rule sets them.
    fn ask_budget(&mut self, device: DeviceId, tokens_total: u32) -> Option<BudgetsSet> {
        if self.machine.ledger.take_allot_built_in(device) {
            self.strike(Strike {
                at: self.at.now,
                hook: Hook::Budget,
                clock: Clock::Tokenless,
                request: None,
            });
            return None;
        }
        let used = self.machine.ledger.take_tokens_used(device);
        let question = Question::Budget {
            device,
            tokens_total,
            used: Cow::Owned(used),
        };
        let answer = self.ask(question, |answer| answer.budget());
        let (author, allotments) = (answer.author, answer.value?);
        let ledger = &self.machine.ledger;
        match check_budgets(ledger, (device, tokens_total), allotments.engines) {
            Ok(budgets) => Some(BudgetsSet {
                author,
                budgets,
                again: allotments.again,
            }),
            Err(refusal) => {
                self.refuse(author, Hook::Budget, refusal);
                None
            }
        }
    }
}
