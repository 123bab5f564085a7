//! The texts behind ids, each interned once.

use std::collections::BTreeMap;

use pointsman_events::rows::{Name, NameKind};

/// Names by kind and id. An id is the position of its name among those of its kind.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Names {
    ids: BTreeMap<(NameKind, String), u32>,
    texts: BTreeMap<(NameKind, u32), String>,
    next: BTreeMap<NameKind, u32>,
}

impl Names {
    /// Gives a name a new id, for kinds whose names may be used again while ids never are.
    pub(super) fn push(&mut self, kind: NameKind, text: &str) -> u32 {
        let next = self.next.entry(kind).or_default();
        let id = *next;
        *next += 1;
        self.ids.insert((kind, text.to_owned()), id);
        self.texts.insert((kind, id), text.to_owned());
        id
    }

    /// The newest id with this name.
    pub(super) fn find(&self, kind: NameKind, text: &str) -> Option<u32> {
        self.ids.get(&(kind, text.to_owned())).copied()
    }

    pub(super) fn text(&self, kind: NameKind, id: u32) -> Option<&str> {
        self.texts.get(&(kind, id)).map(String::as_str)
    }

    pub(super) fn row(&self, kind: NameKind, id: u32) -> Option<Name> {
        let text = self.text(kind, id)?.to_owned();
        Some(Name { kind, id, text })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Name> + '_ {
        self.texts.iter().map(|((kind, id), text)| Name {
            kind: *kind,
            id: *id,
            text: text.clone(),
        })
    }
}
