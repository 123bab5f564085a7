//! The reconciler's news for operators: log lines and the report.

use std::sync::Arc;

use super::Reconciler;
use crate::port::PolicyPort;
use crate::report::{FolderReport, PolicyReport, ReconcilerReport};
use crate::tell;

impl<P: PolicyPort> Reconciler<P> {
    /// Logs the transactions that have ended.
    pub(super) fn tell(&mut self) {
        for transaction in self.transactions.take_ended() {
            tell::transaction(&transaction, self.registry.get(&transaction.policy));
        }
    }

    /// Publishes the report, if it has changed.
    pub(super) fn publish(&self) {
        let remembered = self.state.remembered();
        let bindings = self.registry.bindings(remembered);
        let entries = self.registry.iter();
        let known = (remembered, &bindings);
        let policies = entries.filter_map(|(name, it)| PolicyReport::new(name, it, known));
        let entries = self.registry.iter();
        let refused = entries.filter_map(|(name, it)| Some((name.to_owned(), it.refusal.clone()?)));
        let report = ReconcilerReport {
            begun: true,
            policies: policies.collect(),
            refused: refused.collect(),
            conflicts: self.conflicts.clone(),
            folder: FolderReport {
                path: self.path.clone(),
                state: self.folder.state().clone(),
                left_out: self.folder.left_out().to_vec(),
            },
            transactions: self.transactions.kept().clone(),
            compiled: self.preparer.compiled(),
            cached: self.preparer.cached(),
            quarantine: remembered.quarantine.clone(),
            ordered: remembered.bindings.clone(),
            bound_by: bindings.by.clone(),
            state: self.state.report().clone(),
        };
        self.report.send_if_modified(|shown| {
            let changed = **shown != report;
            if changed {
                *shown = Arc::new(report);
            }
            changed
        });
    }
}
