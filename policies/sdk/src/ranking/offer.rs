//! The offers of executors to requests, in a few words, so that whole subtrees can be passed over.

use crate::case::tokens_at_start;
use crate::executor::Executor;
use crate::fleet::{Fleet, Place, Readiness};
use crate::wire::types::Request;

/// A set of ids, as a superset: id *n* is bit *n* mod 64. An id outside the set is certainly not
/// a member; one inside has to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ids(u64);

/// The offer of some executors, or the demand of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    models: Ids,
    groups: Ids,
    /// Bits of [`Readiness`]; the last is for executors without a place.
    readiness: u8,
    /// Tokens that find room, or more.
    tokens: u64,
}

// === impl Ids ===

impl Ids {
    const ALL: Self = Self(u64::MAX);

    fn one(id: u32) -> Self {
        Self(1 << (id % u64::BITS))
    }

    fn of(ids: Option<&[u32]>) -> Self {
        let all = |ids: &[u32]| ids.iter().fold(0, |all, &id| all | Self::one(id).0);
        ids.map_or(Self::ALL, |ids| Self(all(ids)))
    }
}

// === impl Offer ===

impl Offer {
    const NO_PLACE: u8 = 1 << 4;

    /// The offer of an executor, with its best place for any request.
    pub(super) fn of(fleet: Fleet<'_>, executor: &Executor<'_>, place: Option<&Place<'_>>) -> Self {
        let info = executor.info;
        // One that serves nothing may have to be asked: a request without a model goes there.
        let serves = info.serves.as_deref().filter(|it| !it.is_empty());
        Self {
            models: Ids::of(serves),
            groups: Ids::one(info.group),
            readiness: place.map_or(Self::NO_PLACE, |place| place.readiness().bit()),
            tokens: fleet.tokens_free(executor).unwrap_or(u64::MAX),
        }
    }

    /// The demand of a request. One that names no model asks for any executor.
    pub(super) fn wanted(request: &Request) -> Self {
        Self {
            models: request.model.map_or(Ids::ALL, Ids::one),
            groups: Ids::ALL,
            readiness: u8::MAX,
            tokens: tokens_at_start(request),
        }
    }

    /// The same for a request of any size: it may wait for room.
    pub(super) fn whatever_its_size(self) -> Self {
        Self { tokens: 0, ..self }
    }

    /// The same in a group.
    pub(super) fn in_group(self, group: u32) -> Self {
        Self {
            groups: Ids::one(group),
            ..self
        }
    }

    /// The same where the place is a better one than this.
    pub(super) fn better_than(self, readiness: Readiness) -> Self {
        Self {
            readiness: readiness.bit() - 1,
            ..self
        }
    }

    /// The offer of two sets of executors together.
    #[inline]
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            models: Ids(self.models.0 | other.models.0),
            groups: Ids(self.groups.0 | other.groups.0),
            readiness: self.readiness | other.readiness,
            tokens: self.tokens.max(other.tokens),
        }
    }

    /// Returns whether an executor with this offer may meet a demand.
    #[inline]
    pub(super) fn meets(self, wanted: Self) -> bool {
        self.models.0 & wanted.models.0 != 0
            && self.groups.0 & wanted.groups.0 != 0
            && self.readiness & wanted.readiness != 0
            && self.tokens >= wanted.tokens
    }
}
