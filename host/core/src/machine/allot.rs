//! Token budgets: how many tokens each engine of a device may schedule in a step.
//!
//! # Invariants
//! The budgets of a device sum to at most its `tokens-per-step`, and an engine's budget is at
//! least the number of its running sequences, as far as the total goes.

use std::collections::BTreeMap;

use crate::answer::{Allotment, Answer, Author};
use crate::effect::Effect;
use crate::fact::{Clock, Fact};
use crate::hook::Hook;
use crate::ids::{DeviceId, ExecutorId};
use crate::policies::{Policies, Strike};
use crate::question::Question;
use crate::refusal::{Refusal, RefusalCause};
use crate::rows::Moment;
use crate::view::View;

use super::Machine;

impl Machine {
    /// Asks for the budgets of every device whose engines became busy or idle, came or left.
    pub(super) fn ask_budgets(&mut self, at: Moment, policies: &mut dyn Policies) {
        for device in std::mem::take(&mut self.allot_due) {
            let record = &self.devices[device.0 as usize];
            let Some(tokens_total) = record.spec.tokens_per_step else {
                continue;
            };
            if record.executors.is_empty() {
                continue;
            }
            let answer = if self.allot_built_in.remove(&device) {
                let strike = Strike {
                    at: self.now,
                    hook: Hook::Budget,
                    clock: Clock::Tokenless,
                    request: None,
                };
                policies.struck(&View::new(self), &strike);
                Answer::unbound()
            } else {
                let question = Question::Budget {
                    device,
                    tokens_total,
                };
                policies.ask(&self.asked(at, question)).budget()
            };
            let (author, answer) = self.take_answer(Hook::Budget, answer);
            let checked = answer.map(|answer| self.check_allotments(device, tokens_total, answer));
            let (author, budgets) = match checked {
                Some(Ok(budgets)) => (author, budgets),
                Some(Err(refusal)) => {
                    self.refuse(policies, author, Hook::Budget, refusal);
                    (Author::BuiltIn, self.budgets_built_in(device, tokens_total))
                }
                None => (Author::BuiltIn, self.budgets_built_in(device, tokens_total)),
            };
            self.set_budgets(device, tokens_total, author, budgets);
        }
    }

    fn budgets_built_in(&self, device: DeviceId, tokens_total: u32) -> BTreeMap<ExecutorId, u32> {
        let allotments = self.allot_built_in(device, tokens_total);
        let pairs = allotments.iter().map(|a| (a.executor, a.tokens_max));
        pairs.collect()
    }

    /// One budget per engine named, if the answer is in order.
    fn check_allotments(
        &self,
        device: DeviceId,
        tokens_total: u32,
        allotments: Vec<Allotment>,
    ) -> Result<BTreeMap<ExecutorId, u32>, Refusal> {
        let executors = &self.devices[device.0 as usize].executors;
        let mut budgets = BTreeMap::new();
        let mut sum: u64 = 0;
        for Allotment {
            executor,
            tokens_max,
        } in allotments
        {
            let refuse = |cause| Refusal {
                request: None,
                executor: Some(executor),
                cause,
            };
            if !executors.contains(&executor) {
                return Err(refuse(RefusalCause::UnknownExecutor));
            }
            if budgets.insert(executor, tokens_max).is_some() {
                return Err(refuse(RefusalCause::NamedTwice));
            }
            sum += u64::from(tokens_max);
        }
        if sum > u64::from(tokens_total) {
            let total = tokens_total;
            return Err(RefusalCause::OverTotal { sum, total }.whole());
        }
        Ok(budgets)
    }

    /// Sets the budgets, raised so that every running sequence gets a token; what that takes is
    /// taken from the largest.
    fn set_budgets(
        &mut self,
        device: DeviceId,
        tokens_total: u32,
        author: Author,
        mut budgets: BTreeMap<ExecutorId, u32>,
    ) {
        let executors = self.devices[device.0 as usize].executors.clone();
        let floor = |id: &ExecutorId| self.executors.get(*id).map_or(0, |e| e.running());
        let floors: BTreeMap<ExecutorId, u32> = executors.iter().map(|e| (*e, floor(e))).collect();
        for (executor, floor) in &floors {
            let budget = budgets.entry(*executor).or_default();
            *budget = (*budget).max(*floor);
        }
        let sum: u64 = budgets.values().map(|tokens| u64::from(*tokens)).sum();
        let mut excess = sum.saturating_sub(u64::from(tokens_total));
        // Where more run than there are tokens, since slots were lowered below use, the total
        // goes before the floors.
        for floors in [floors, BTreeMap::new()] {
            while excess > 0
                && let Some((executor, spare)) = largest_spare(&budgets, &floors)
            {
                let cut = u32::try_from(excess).map_or(spare, |excess| excess.min(spare));
                budgets.entry(executor).and_modify(|tokens| *tokens -= cut);
                excess -= u64::from(cut);
            }
        }
        for executor in executors {
            let tokens_max = budgets.get(&executor).copied().unwrap_or(0);
            self.set_budget(executor, tokens_max, author);
        }
    }

    /// Raises the budgets of a device whose engines run more than when they were set.
    pub(super) fn keep_floors(&mut self, device: DeviceId) {
        let record = &self.devices[device.0 as usize];
        let Some(tokens_total) = record.spec.tokens_per_step else {
            return;
        };
        let set = record.executors.iter().filter_map(|id| {
            let tokens_max = self.executors.get(*id)?.tokens_max?;
            Some((*id, tokens_max))
        });
        let budgets = set.collect();
        self.set_budgets(device, tokens_total, Author::BuiltIn, budgets);
    }

    fn set_budget(&mut self, executor: ExecutorId, tokens_max: u32, author: Author) {
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        if record.tokens_max == Some(tokens_max) {
            return;
        }
        record.tokens_max = Some(tokens_max);
        self.effect(Effect::SetBudget {
            executor,
            tokens_max,
        });
        self.fact(Fact::Allotted {
            executor,
            tokens_max,
            author,
        });
    }
}

/// The engine with the most tokens above its floor, and how many; the first in attach order
/// among equals.
fn largest_spare(
    budgets: &BTreeMap<ExecutorId, u32>,
    floors: &BTreeMap<ExecutorId, u32>,
) -> Option<(ExecutorId, u32)> {
    let spares = budgets.iter().map(|(executor, tokens)| {
        let floor = floors.get(executor).copied().unwrap_or(0);
        (*executor, tokens.saturating_sub(floor))
    });
    let best = spares.max_by_key(|(executor, spare)| (*spare, std::cmp::Reverse(*executor)));
    best.filter(|(_, spare)| *spare > 0)
}
