//! Rows that policies are told, and the records that monitors are shown.

use std::sync::Arc;

use crate::log::{RowKey, Wanted};
use pointsman_interface::rows::{
    AskedRequest, Cached, Change, FeedKinds, Name, NameKind, Request, Sequence, SequenceState,
};
use pointsman_interface::{ExecutorId, RequestId};

use super::Machine;
use super::requests::{InSlot, Phase};

impl Machine {
    pub(crate) fn waiting_row(&self, id: RequestId) -> Option<&Arc<Request>> {
        let request = self.requests.find(id)?;
        request.waiting().map(|_| &request.row)
    }

    pub(super) fn sequence_row(&self, id: RequestId) -> Option<Sequence> {
        let request = self.requests.find(id)?;
        let placed = request.placed()?;
        let device = self.ledger.device_of(placed.executor);
        let state = match (&request.phase, placed.in_slot) {
            (Phase::Leaving(..), _) => SequenceState::Leaving,
            (_, InSlot::Queued) => SequenceState::Queued,
            (_, InSlot::Running) => SequenceState::Running,
        };
        Some(Sequence {
            request: id,
            executor: placed.executor,
            model: request.row.model,
            tenant: request.row.tenant,
            class: request.row.class,
            priority: request.row.priority,
            state,
            started: placed.started_at.unwrap_or(placed.placed_at),
            tokens_generated: request.generated,
            blocks: device.held(id),
            blocks_exclusive: device.pool().map_or(0, |pool| pool.exclusive(id)),
            preemptible: self.ledger[placed.executor].spec.preempts,
            swappable: false,
            preemptions: request.preemptions,
        })
    }

    /// These live requests as a question names them: with the longest cached prefix of each, as
    /// [`Self::look_up_prefixes`] has it.
    pub(super) fn asked(&mut self, requests: &[RequestId]) -> Vec<AskedRequest> {
        self.look_up_prefixes(requests);
        let asked = requests.iter().map(|id| AskedRequest {
            request: *id,
            cached_tokens: self.requests[*id].cached_tokens(),
        });
        asked.collect()
    }

    /// Looks up the longest cached prefix of those of these requests for which that was never done,
    /// and of up to `batch-max` others for which it was done longest ago. A look-up goes through
    /// all devices, so a long queue is looked up in turn.
    fn look_up_prefixes(&mut self, requests: &[RequestId]) {
        let now = self.out.at.round;
        let mut known = Vec::new();
        let mut due = Vec::new();
        for id in requests {
            let request = &self.requests[*id];
            match request.prefix_known_at() {
                _ if request.prompt_hashes.is_empty() => {}
                None => due.push(*id),
                Some(round) if round < now => known.push((round, *id)),
                Some(_) => {}
            }
        }
        let again = known.len().min(self.config.batch_max as usize);
        if again < known.len() {
            known.select_nth_unstable(again);
        }
        due.extend(known[..again].iter().map(|(_, id)| *id));
        for id in due {
            let tokens = self.ledger.longest_prefix(&self.requests[id]);
            self.requests.know_prefix(id, tokens, now);
        }
    }

    /// The part of a live request's prompt that is cached.
    pub(crate) fn cached(&self, id: RequestId) -> Option<Cached> {
        let overlaps_max = self.config.overlaps_max;
        Some(self.ledger.cached(self.requests.find(id)?, overlaps_max))
    }

    /// The row behind a key as it is now, if it is wanted.
    pub(crate) fn row(&self, key: RowKey, wanted: Wanted, kinds: FeedKinds) -> Option<Change> {
        match key {
            RowKey::Name(kind, id) => self.names.row(kind, id).map(Change::Name),
            RowKey::Executor(id) => self.ledger.executor_change(id, wanted),
            RowKey::Load(id) => self.ledger.load_change(id, wanted),
            RowKey::Residency(presence) => self.ledger.residency_change(presence, wanted),
            RowKey::Device(id) => self.ledger.device_change(id, wanted),
            RowKey::Model(id) => self.ledger.model_change(id, wanted),
            RowKey::Tenant(id) => self.ledger.tenant_change(id, wanted),
            RowKey::Waiting(id) if kinds.waiting => self.requests.waiting_change(id, wanted),
            RowKey::Sequence(id) if kinds.sequences => self.sequence_change(id, wanted),
            RowKey::Completion(number) if kinds.completed => {
                self.out.completions.get(number).map(Change::Completed)
            }
            RowKey::Waiting(_) | RowKey::Sequence(_) | RowKey::Completion(_) => None,
        }
    }

    fn sequence_change(&self, id: RequestId, wanted: Wanted) -> Option<Change> {
        match (self.requests.find(id), self.sequence_row(id)) {
            (Some(request), Some(row)) => wanted
                .live(request.sequence_stamp)
                .then_some(Change::Sequence(row)),
            _ => wanted.gone().then_some(Change::SequenceGone(id)),
        }
    }

    /// Every row there is, names first, so that each id is known before it is used.
    pub(crate) fn all_rows(&self, kinds: FeedKinds, out: &mut Vec<Change>) {
        let names = self.names.rows().filter(|name| self.is_in_use(name));
        out.extend(names.map(Change::Name));
        self.ledger.all_rows(out);
        for request in self.requests.iter() {
            if kinds.waiting && request.waiting().is_some() {
                out.push(Change::Waiting(Arc::clone(&request.row)));
            }
            if kinds.sequences {
                out.extend(self.sequence_row(request.id()).map(Change::Sequence));
            }
        }
    }

    /// Tells whether a name belongs to something that is still there.
    fn is_in_use(&self, name: &Name) -> bool {
        match name.kind {
            NameKind::Executor => self.ledger.find(ExecutorId(name.id)).is_some(),
            NameKind::Device
            | NameKind::Model
            | NameKind::Tenant
            | NameKind::Adapter
            | NameKind::Label => true,
        }
    }
}
