//! Token budgets are asked for where executors became busy or idle, came or left.

use crate::fact::Clock;
use crate::policies::Strike;
use pointsman_interface::Author;
use pointsman_interface::DeviceId;
use pointsman_interface::Hook;
use pointsman_interface::Question;

use super::super::interlock::check_budgets;
use super::super::ledger::Budgets;
use super::{OngoingRound, built_in};

impl OngoingRound<'_> {
    pub(super) fn ask_budgets(&mut self) {
        for device in self.machine.ledger.take_allot_due() {
            let record = &self.machine.ledger[device];
            let Some(tokens_total) = record.spec.tokens_per_step else {
                continue;
            };
            if record.executors.is_empty() {
                continue;
            }
            let (author, budgets) = match self.ask_budget(device, tokens_total) {
                Some(by_policy) => by_policy,
                None => {
                    let ledger = &self.machine.ledger;
                    (
                        Author::BuiltIn,
                        built_in::budgets(ledger, device, tokens_total),
                    )
                }
            };
            let machine = &mut *self.machine;
            let out = &mut machine.out;
            machine.ledger.set_budgets(device, budgets, author, out);
        }
    }

    /// A policy's budgets for a device; absent: the built-in rule sets them.
    fn ask_budget(&mut self, device: DeviceId, tokens_total: u32) -> Option<(Author, Budgets)> {
        if self.machine.ledger.take_allot_built_in(device) {
            self.strike(Strike {
                at: self.at.now,
                hook: Hook::Budget,
                clock: Clock::Tokenless,
                request: None,
            });
            return None;
        }
        let question = Question::Budget {
            device,
            tokens_total,
        };
        let answer = self.ask(question, |answer| answer.budget());
        let ledger = &self.machine.ledger;
        match check_budgets(ledger, (device, tokens_total), answer.value?) {
            Ok(budgets) => Some((answer.author, budgets)),
            Err(refusal) => {
                self.refuse(answer.author, Hook::Budget, refusal);
                None
            }
        }
    }
}
