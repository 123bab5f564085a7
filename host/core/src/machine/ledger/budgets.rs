//! Token budgets: how many tokens each executor of a device may schedule in a step.
//!
//! # Invariants
//! The budgets of a device sum to at most its `tokens-per-step`, and an executor's budget is at
//! least the number of its running sequences, as far as the total goes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use pointsman_events::{Author, DeviceId, Effect, ExecutorId, Fact, TokensUsed};

use super::super::count;
use super::super::outbox::Outbox;
use super::Ledger;

/// Tokens per step by executor.
pub(crate) type Budgets = BTreeMap<ExecutorId, u32>;

impl Ledger {
    /// Takes the list of devices whose budgets are to be set anew.
    pub(crate) fn take_allot_due(&mut self) -> BTreeSet<DeviceId> {
        std::mem::take(&mut self.sets.allot_due)
    }

    /// Has the budgets of a device set anew.
    pub(crate) fn allot(&mut self, device: DeviceId) {
        self.sets.allot_due.insert(device);
    }

    /// Has the budgets of all devices set anew, by the policy that has taken over: what was to be set by
    /// the built-in rule was so because of the one before. False if there is nothing to set.
    pub(crate) fn allot_anew(&mut self) -> bool {
        self.sets.allot_built_in.clear();
        let divided = self.devices.iter().filter(|device| device.is_divided());
        self.sets.allot_due.extend(divided.map(|device| device.id));
        !self.sets.allot_due.is_empty()
    }

    /// Takes the tokens that each executor of a device computed since the last time, in attach
    /// order.
    pub(crate) fn take_tokens_used(&mut self, device: DeviceId) -> Vec<TokensUsed> {
        let executors = self[device].executors.clone().into_iter();
        let used = executors.map(|executor| TokensUsed {
            executor,
            tokens: std::mem::take(&mut self.executor_mut(executor).tokens_used),
        });
        used.collect()
    }

    /// Has the next budgets of a device set by the built-in rule.
    pub(crate) fn allot_built_in(&mut self, device: DeviceId) {
        self.sets.allot_built_in.insert(device);
        self.sets.allot_due.insert(device);
    }

    /// Tells whether the next budgets of a device are the built-in ones, for this one time.
    pub(crate) fn take_allot_built_in(&mut self, device: DeviceId) -> bool {
        self.sets.allot_built_in.remove(&device)
    }

    /// Sets the budgets of a device, raised so that every running sequence gets a token. The
    /// tokens for that are taken from the largest budgets.
    pub(crate) fn set_budgets(
        &mut self,
        device: DeviceId,
        mut budgets: Budgets,
        author: Author,
        out: &mut Outbox,
    ) {
        let Some(tokens_total) = self[device].spec.tokens_per_step else {
            return;
        };
        let executors = self.executors_on(device);
        let floors: Budgets = executors
            .map(|e| (e.id, count(e.running().count())))
            .collect();
        for (executor, floor) in &floors {
            let budget = budgets.entry(*executor).or_default();
            *budget = (*budget).max(*floor);
        }
        let sum: u64 = budgets.values().map(|tokens| u64::from(*tokens)).sum();
        let mut excess = sum.saturating_sub(u64::from(tokens_total));
        // Where more run than there are tokens, since slots were lowered below use, the total
        // goes before the floors.
        for floors in [floors, Budgets::new()] {
            while excess > 0
                && let Some((executor, spare)) = largest_spare(&budgets, &floors)
            {
                let cut = u32::try_from(excess).map_or(spare, |excess| excess.min(spare));
                budgets.entry(executor).and_modify(|tokens| *tokens -= cut);
                excess -= u64::from(cut);
            }
        }
        for executor in self[device].executors.clone() {
            let tokens_max = budgets.get(&executor).copied().unwrap_or(0);
            self.set_budget(executor, tokens_max, author, out);
        }
    }

    /// Raises the budgets of a device whose executors run more than when they were set.
    pub(super) fn keep_floors(&mut self, device: DeviceId, out: &mut Outbox) {
        let executors = self.executors_on(device);
        let budgets = executors.filter_map(|e| Some((e.id, e.tokens_max?)));
        self.set_budgets(device, budgets.collect(), Author::BuiltIn, out);
    }

    fn set_budget(
        &mut self,
        executor: ExecutorId,
        tokens_max: u32,
        author: Author,
        out: &mut Outbox,
    ) {
        let record = self.executor_mut(executor);
        if record.tokens_max == Some(tokens_max) {
            return;
        }
        record.tokens_max = Some(tokens_max);
        out.effect(Effect::SetBudget {
            executor,
            tokens_max,
        });
        out.fact(Fact::Allotted {
            executor,
            tokens_max,
            author,
        });
    }
}

/// The executor with the most tokens above its floor, and how many; the first in attach order
/// among equals.
fn largest_spare(budgets: &Budgets, floors: &Budgets) -> Option<(ExecutorId, u32)> {
    let spares = budgets.iter().map(|(executor, tokens)| {
        let floor = floors.get(executor).copied().unwrap_or(0);
        (*executor, tokens.saturating_sub(floor))
    });
    let best = spares.max_by_key(|(executor, spare)| (*spare, Reverse(*executor)));
    best.filter(|(_, spare)| *spare > 0)
}
