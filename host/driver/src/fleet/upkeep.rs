//! Servers elsewhere that come and go with the configuration: described anew, withdrawn and taken back.
//!
//! They are known by their ids: an operator may have removed one, and added another executor by its name.
//!
//! # Invariants
//! 1. A server that is withdrawn drains, serves no model and is not in the catalogue until it is taken back; an
//!    operator's order to drain stays in force, whenever it came and though nothing runs there, and one to resume is
//!    refused (`super::tests::a_drained_server_that_the_configuration_is_without_stays_drained`, and
//!    `an_operators_order_to_drain_outlasts_that_a_name_is_without_the_server`, in `tests/tests/remote/roster.rs`).
//! 2. No executor of another id is touched
//!    (`super::tests::a_server_that_was_removed_is_not_taken_for_the_next_one_of_its_name`).

use std::sync::Arc;

use pointsman_core::ExecutorId;
use pointsman_executor::server::ServerConfig;
use tracing::info;

use super::{Drainer, Fleet, FleetMember, Members};
use crate::operator::{ChangeRefused, ExecutorChange, ExecutorRow, Operator};
use crate::provider::ExecutorTerms;

/// The reason why a server elsewhere is not as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpkeepError {
    /// The executor has gone, or was ordered to go.
    #[error("an operator has removed it")]
    Removed,
    /// The driver refuses.
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Ended,
}

// === impl Fleet ===

impl Fleet {
    /// Describes a server elsewhere anew: its models stay, requests wait and run on.
    ///
    /// # Errors
    /// If it is not there any more, or is an engine of this process.
    pub async fn configure(
        &self,
        executor: ExecutorId,
        server: ServerConfig,
        terms: ExecutorTerms,
    ) -> Result<ExecutorRow, UpkeepError> {
        let mut members = self.members.lock().await;
        let name = members.member(executor)?.entry.name.clone();
        let described = Box::new((server, terms));
        let order = |answer| Operator::Configure(name.clone(), described, answer);
        let configured = self.driver.operate(order).await;
        let row = configured.ok_or(UpkeepError::Ended)??;
        info!(executor = name, "executor described anew");
        Ok(row)
    }

    /// Has a server elsewhere drain and serve no model, and removes it where nothing runs there, unless an operator
    /// has it drain: what replaces it would know nothing of that order. Returns true as long as it is there: it can be
    /// taken back.
    pub async fn withdraw(&self, executor: ExecutorId) -> bool {
        let mut members = self.members.lock().await;
        let Ok(member) = members.member(executor) else {
            return false;
        };
        let name = member.entry.name.clone();
        let is_drained = member.drained_by.contains(&Drainer::Operator);
        let drained = self.order(&mut members, &name, ExecutorChange::Drain);
        let stays = drained.await.is_some_and(|drained| {
            // One whose engine has ended cannot drain.
            drained.is_ok_and(|row| is_drained || row.load.slots_used > 0)
        });
        if !stays {
            // What waits in its queue goes on there, or is turned back where that would be in vain.
            let removed = self.order(&mut members, &name, ExecutorChange::Remove);
            if let Some(Ok(_)) = removed.await {
                info!(executor = name, "executor removed");
            }
            return false;
        }
        let member = members.member(executor);
        if member.is_ok_and(|member| member.drained_by.insert(Drainer::Configuration)) {
            self.serve(&mut members, &name, &[]).await;
            // A request that names no model may go to any server that is there.
            self.catalog.send_modify(|catalog| {
                let executors = &mut Arc::make_mut(catalog).executors;
                executors.retain(|known| known.name != name);
            });
            info!(executor = name, "executor withdrawn");
        }
        true
    }

    /// Has a server elsewhere that was withdrawn serve its models again, and take requests unless an operator has it
    /// drain.
    ///
    /// # Errors
    /// If it is not there any more, or its executor has ended.
    pub async fn take_back(&self, executor: ExecutorId) -> Result<(), UpkeepError> {
        let mut members = self.members.lock().await;
        let FleetMember {
            entry,
            drained_by,
            found,
        } = members.member(executor)?.clone();
        let name = entry.name.clone();
        if !drained_by.contains(&Drainer::Operator) {
            let resumed = self.order(&mut members, &name, ExecutorChange::Resume);
            resumed.await.ok_or(UpkeepError::Ended)??;
        }
        let member = members.member(executor)?;
        if member.drained_by.remove(&Drainer::Configuration) {
            self.catalog
                .send_modify(|catalog| Arc::make_mut(catalog).executors.push(entry));
            self.serve(&mut members, &name, &found).await;
            info!(executor = name, "executor taken back");
        }
        Ok(())
    }
}

// === impl Members ===

impl Members {
    /// The executor of this id, unless it was ordered to go.
    fn member(&mut self, executor: ExecutorId) -> Result<&mut FleetMember, UpkeepError> {
        let member = self.executors.get_mut(&executor);
        member.ok_or(UpkeepError::Removed)
    }
}
