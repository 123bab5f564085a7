//! Rows that policies are told, and the records that monitors are shown.

use std::sync::Arc;

use pointsman_events::changes::{RowKey, Stamp};
use pointsman_events::rows::{
    AskedRequest, Cached, Change, Name, NameKind, Request, Sequence, SequenceState,
};
use pointsman_events::{ExecutorId, RequestId, RowKind, RowKinds};

use super::Machine;
use super::requests::{InSlot, Phase};

impl Machine {
    pub(crate) fn waiting_row(&self, id: RequestId) -> Option<&Arc<Request>> {
        let request = self.requests.find(id)?;
        request.is_unstarted().then_some(&request.row)
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
        let preemptible = self.ledger[placed.executor].spec.preempts;
        Some(Sequence {
            request: id,
            executor: placed.executor,
            model: request.row.model,
            tenant: request.row.tenant,
            class: request.row.class,
            priority: request.row.priority,
            state,
            started: placed.started_at.unwrap_or(placed.placed_at),
            prompt_tokens: request.prompt_tokens_sent(),
            tokens_generated: request.generated,
            blocks: device.held(id),
            blocks_exclusive: device.pool().map_or(0, |pool| pool.exclusive(id)),
            preemptible,
            swappable: preemptible && device.arena().total() > 0,
            preemptions: request.preemptions,
        })
    }

    /// These live requests as a question names them: with the longest cached prefix of each, as
    /// [`Self::look_up_prefixes`] has it, and how often each was overtaken.
    pub(super) fn asked(&mut self, requests: &[RequestId]) -> Vec<AskedRequest> {
        self.look_up_prefixes(requests);
        let asked = requests.iter().map(|id| {
            let request = &self.requests[*id];
            AskedRequest {
                request: *id,
                cached_tokens: request.cached_tokens(),
                overtaken: request.overtaken(),
            }
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
                None if !self.ledger.may_be_cached(request) => {}
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

    /// The row behind a key as it is now, if it is there.
    pub(crate) fn row(&self, key: RowKey) -> Option<Change> {
        match key {
            // The name of an executor goes with it.
            RowKey::Name(NameKind::Executor, id) if self.ledger.find(ExecutorId(id)).is_none() => {
                None
            }
            RowKey::Name(kind, id) => self.names.row(kind, id).map(Change::Name),
            RowKey::Executor(id) => {
                let executor = self.ledger.find(id)?;
                Some(Change::Executor(Box::new(executor.info())))
            }
            RowKey::Load(id) => Some(Change::Load(self.ledger.load(self.ledger.find(id)?))),
            RowKey::Residency(presence) => {
                let executor = self.ledger.find(presence.executor)?;
                executor.residency(presence.model).map(Change::Residency)
            }
            RowKey::Device(id) => self.ledger.device_row(id).map(Change::Device),
            RowKey::Model(id) => self.ledger.model_row(id).map(Change::Model),
            RowKey::Tenant(id) => self.ledger.tenant_row(id).map(Change::Tenant),
            RowKey::Waiting(id) => self.waiting_row(id).cloned().map(Change::Waiting),
            RowKey::Sequence(id) => self.sequence_row(id).map(Change::Sequence),
            RowKey::Completion(number) => self.out.completions.get(number).map(Change::Completed),
        }
    }

    /// The stamp of a row that an answer can name, if the row is there.
    pub(crate) fn stamp(&self, key: RowKey) -> Option<Stamp> {
        match key {
            RowKey::Load(id) => Some(self.ledger.find(id)?.load_stamp),
            RowKey::Waiting(id) => Some(self.requests.find(id)?.waiting_stamp),
            RowKey::Sequence(id) => Some(self.requests.find(id)?.sequence_stamp),
            RowKey::Name(..)
            | RowKey::Executor(_)
            | RowKey::Residency(_)
            | RowKey::Device(_)
            | RowKey::Model(_)
            | RowKey::Tenant(_)
            | RowKey::Completion(_) => None,
        }
    }

    /// The news that the row behind a key is gone, if it has not come back.
    pub(crate) fn gone(&self, key: RowKey) -> Option<Change> {
        if self.row(key).is_some() {
            return None;
        }
        match key {
            RowKey::Executor(id) => Some(Change::ExecutorGone(id)),
            RowKey::Residency(presence) => Some(Change::ResidencyGone(presence)),
            RowKey::Waiting(id) => Some(Change::WaitingGone(id)),
            RowKey::Sequence(id) => Some(Change::SequenceGone(id)),
            RowKey::Name(..)
            | RowKey::Load(_)
            | RowKey::Device(_)
            | RowKey::Model(_)
            | RowKey::Tenant(_)
            | RowKey::Completion(_) => None,
        }
    }

    /// Every row there is of these kinds, names first, so that each id is known before it is used.
    pub(crate) fn all_rows(&self, kinds: RowKinds, out: &mut Vec<Change>) {
        if kinds.contains(RowKind::Name) {
            let names = self.names.rows().filter(|name| self.is_in_use(name));
            out.extend(names.map(Change::Name));
        }
        self.ledger.all_rows(kinds, out);
        let waiting = kinds.contains(RowKind::Waiting);
        let sequences = kinds.contains(RowKind::Sequence);
        if !waiting && !sequences {
            return;
        }
        for request in self.requests.iter() {
            if waiting && request.is_unstarted() {
                out.push(Change::Waiting(Arc::clone(&request.row)));
            }
            if sequences {
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
