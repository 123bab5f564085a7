//! Policies with a mirror: the changes that they are told are folded, and compared with the
//! machine's rows before every question.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::rows::{Change, Extent, NameKind, Sequence};
use pointsman_core::{
    Answer, Asked, DeviceId, ExecutorId, Feed, Needs, Policies, Reply, RequestId, RowKind,
    RowKinds, Sink, Tap, TenantId, View,
};

/// The key of the row that a change is about, whether the row is there or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Name(NameKind, u32),
    Executor(ExecutorId),
    Load(ExecutorId),
    Residency(ExecutorId, u32),
    Device(DeviceId),
    Model(u32),
    Tenant(TenantId),
    Waiting(RequestId),
    Sequence(RequestId),
}

impl Key {
    /// The kind of the row.
    fn kind(self) -> RowKind {
        match self {
            Key::Name(..) => RowKind::Name,
            Key::Executor(_) => RowKind::Executor,
            Key::Load(_) => RowKind::Load,
            Key::Residency(..) => RowKind::Residency,
            Key::Device(_) => RowKind::Device,
            Key::Model(_) => RowKind::Model,
            Key::Tenant(_) => RowKind::Tenant,
            Key::Waiting(_) => RowKind::Waiting,
            Key::Sequence(_) => RowKind::Sequence,
        }
    }
}

/// The key of a row that is there; absent: the row is gone, or the change is no row.
fn key(change: &Change) -> Option<Key> {
    Some(match change {
        Change::Name(name) => Key::Name(name.kind, name.id),
        Change::Executor(row) => Key::Executor(row.id),
        Change::Load(row) => Key::Load(row.id),
        Change::Residency(row) => Key::Residency(row.executor, row.model.0),
        Change::Device(row) => Key::Device(row.id),
        Change::Model(row) => Key::Model(row.id.0),
        Change::Tenant(row) => Key::Tenant(row.id),
        Change::Waiting(row) => Key::Waiting(row.id),
        Change::Sequence(row) => Key::Sequence(row.request),
        Change::ExecutorGone(_)
        | Change::ResidencyGone(_)
        | Change::WaitingGone(_)
        | Change::SequenceGone(_)
        | Change::Completed(_) => return None,
    })
}

/// The keys of the rows that this change says are gone.
fn gone(change: &Change) -> Vec<Key> {
    match change {
        Change::ExecutorGone(id) => vec![
            Key::Executor(*id),
            Key::Load(*id),
            Key::Name(NameKind::Executor, id.0),
        ],
        Change::ResidencyGone(at) => vec![Key::Residency(at.executor, at.model.0)],
        Change::WaitingGone(id) => vec![Key::Waiting(*id)],
        Change::SequenceGone(id) => vec![Key::Sequence(*id)],
        Change::Name(_)
        | Change::Executor(_)
        | Change::Load(_)
        | Change::Residency(_)
        | Change::Device(_)
        | Change::Model(_)
        | Change::Tenant(_)
        | Change::Waiting(_)
        | Change::Sequence(_)
        | Change::Completed(_) => Vec::new(),
    }
}

/// All that a policy knows, folded from the changes that it was told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mirror(BTreeMap<Key, Change>);

impl Mirror {
    fn fold(&mut self, kinds: RowKinds, extent: Extent, changes: &[Change]) {
        if extent == Extent::Everything {
            self.0.clear();
        }
        let mut told = BTreeSet::new();
        for change in changes {
            if let Some(key) = key(change) {
                assert!(told.insert(key), "{key:?} is told twice");
                if kinds.contains(RowKind::Name) {
                    self.assert_named(key);
                }
                self.0.insert(key, change.clone());
            }
            for (at, key) in gone(change).into_iter().enumerate() {
                assert!(at > 0 || told.insert(key), "{key:?} is told twice");
                self.0.remove(&key);
            }
        }
    }

    /// Asserts that the text behind an id came before the id was used.
    fn assert_named(&self, key: Key) {
        let name = match key {
            Key::Executor(id) => Key::Name(NameKind::Executor, id.0),
            Key::Device(id) => Key::Name(NameKind::Device, id.0),
            Key::Model(id) => Key::Name(NameKind::Model, id),
            Key::Tenant(id) => Key::Name(NameKind::Tenant, id.0),
            Key::Name(..)
            | Key::Load(_)
            | Key::Residency(..)
            | Key::Waiting(_)
            | Key::Sequence(_) => return,
        };
        assert!(
            self.0.contains_key(&name),
            "{key:?} is used before its name"
        );
    }

    /// Leaves out the fields that are sent only with the next change of state or block count.
    fn without_lagging(mut self) -> Self {
        for change in self.0.values_mut() {
            if let Change::Sequence(row) = change {
                *row = Sequence {
                    tokens_generated: 0,
                    blocks_exclusive: 0,
                    ..*row
                };
            }
        }
        self
    }
}

/// Policies of which a mirror is kept, and compared before every question.
pub type Fed<P> = Tap<P, Fold>;

/// A mirror, as a policy would keep it.
#[derive(Debug)]
pub struct Fold {
    needs: Needs,
    feed: Feed,
    mirror: Mirror,
    /// The changes that the policy was told before each question.
    pub told: Vec<(Extent, Vec<Change>)>,
}

/// `policies`, with hooks of these needs.
pub fn fed_with<P>(policies: P, needs: Needs) -> Fed<P> {
    Tap {
        inner: policies,
        sink: Fold {
            needs,
            feed: Feed::new(needs),
            mirror: Mirror::default(),
            told: Vec::new(),
        },
    }
}

impl Fold {
    fn observe(&mut self, view: &View<'_>, kinds: RowKinds) {
        let mut changes = Vec::new();
        let extent = self.feed.changes(view, kinds, &mut changes);
        self.mirror.fold(kinds, extent, &changes);
        self.told.push((extent, changes));
        let mut fresh = Mirror::default();
        fresh.fold(kinds, Extent::Everything, &view.rows(kinds));
        let known = Mirror(self.mirror.0.clone()).without_lagging();
        let fresh = fresh.without_lagging();
        for (key, row) in &fresh.0 {
            assert_eq!(known.0.get(key), Some(row), "the policy does not know");
        }
        let stale = known.0.keys().find(|key| {
            let of_removed = matches!(key, Key::Load(_) | Key::Name(NameKind::Executor, _));
            let is_told =
                kinds.contains(key.kind()) && (!of_removed || kinds.contains(RowKind::Executor));
            is_told && !fresh.0.contains_key(key)
        });
        assert_eq!(stale, None, "the policy knows what is gone");
    }
}

impl<P: Policies> Sink<P> for Fold {
    fn ask(&mut self, inner: &mut P, asked: &Asked<'_>) -> Answer<Reply> {
        self.observe(&asked.view, self.needs.of(asked.question.hook()));
        let answer = inner.ask(asked);
        if let Some(reply) = &answer.value {
            self.feed
                .named
                .by_reply(&self.needs, &asked.question, reply);
        }
        answer
    }
}
