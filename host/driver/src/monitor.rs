//! The state of the host with its activity and the requests that wait, for the monitor.

use pointsman_core::rows::{NameKind, Request};
use pointsman_core::{Micros, WaitReason, WaitReasons};

use super::Driver;
use super::operator::{
    EXECUTORS_SHOWN, MonitorReport, WAITING_SHOWN, WaitingRow, WatchedExecutor, WatchedModel,
};

impl Driver {
    /// The state of the host at the time `now`, with its activity.
    pub(super) fn monitored(&mut self, now: Micros) -> MonitorReport {
        // Also forgets those that have been idle for too long.
        let sessions = self.sessions.tracked(now);
        let executors = self.machine.executor_ids().take(EXECUTORS_SHOWN);
        let executors = executors.filter_map(|id| {
            let slots = self.machine.executor_info(id)?.slots_total;
            Some(WatchedExecutor {
                activity: self.activity.executor(now, id, slots).unwrap_or_default(),
                last_report: self.executors.last_heard(id),
            })
        });
        let models = self.machine.models().map(|model| WatchedModel {
            activity: self.activity.model(model.id),
            sessions: self.sessions.of_model(model.id),
        });
        MonitorReport {
            overview: self.overview(now),
            activity: self.activity.report(now),
            executors: executors.collect(),
            models: models.collect(),
            waiting: self.waiting_rows(),
            finished: self.finished.newest(),
            sessions,
        }
    }

    fn waiting_rows(&self) -> Vec<WaitingRow> {
        let mut reasons = self.machine.wait_reasons();
        let waiting = self.machine.waiting_requests().take(WAITING_SHOWN);
        let rows = waiting.filter_map(|request| self.waiting_row(request, &mut reasons));
        rows.collect()
    }

    fn waiting_row(&self, request: &Request, reasons: &mut WaitReasons<'_>) -> Option<WaitingRow> {
        let reason = reasons.of(request.id)?;
        let executor = match &reason {
            WaitReason::Reserved(executor) => Some(*executor),
            WaitReason::Arrived
            | WaitReason::Parked
            | WaitReason::Held(_)
            | WaitReason::Turn
            | WaitReason::Blocked(_) => None,
        };
        let delayed = self.lives.of(request.id)?.delayed;
        let model = request.model;
        Some(WaitingRow {
            ticket: self.requests.ticket(request.id)?,
            tenant: self.name_of(NameKind::Tenant, request.tenant.0),
            model: model.map(|model| self.name_of(NameKind::Model, model.0)),
            class: request.class,
            priority: request.priority,
            prompt_tokens: request.prompt_tokens,
            output_tokens_max: request.output_tokens_max,
            arrived: request.arrived,
            reason,
            executor: executor.map(|id| self.name_of(NameKind::Executor, id.0)),
            delayed_by: delayed.map(|(round, by)| self.authorship(round, by)),
        })
    }
}
