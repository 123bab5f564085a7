//! Identities and times, as newtypes so that they cannot be mixed up.
//!
//! Ids are minted by the machine, count up from zero per kind and are never reused. Text
//! stops at the edge: behind most ids stands a name, see `Machine::name` of the core.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One client request, from arrival to its outcome, across retries and preemptions.
    RequestId(u64)
);
id!(
    /// Something that runs sequences: an engine on a device, a remote server.
    ExecutorId(u32)
);
id!(
    /// Memory shared by executors: those on one device draw blocks from one pool.
    DeviceId(u32)
);
id!(
    /// A model by name.
    ModelId(u32)
);
id!(
    /// A payer for requests, by name.
    TenantId(u32)
);
id!(
    /// A LoRA adapter.
    AdapterId(u32)
);
id!(
    /// A `key=value` label from the operator's list of allowed keys.
    LabelId(u32)
);
id!(
    /// Keyed hash of the client's session, the same in every run.
    SessionKey(u64)
);
id!(
    /// One block of one device's KV pool, by index.
    BlockId(u32)
);
id!(
    /// One block of one device's host arena, by index.
    HostBlockId(u32)
);
id!(
    /// Hash of a full block of prompt tokens, chained to the hashes of the blocks before it and
    /// seeded with the model and adapter, so that equal hashes mean equal KV contents.
    BlockHash(u128)
);
id!(
    /// One life of an executor, from attach or return to loss. Messages carry it, so that what a
    /// lost executor still says is told apart from what its successor says.
    Incarnation(u32)
);
id!(
    /// Microseconds on the host's monotonic clock.
    Micros(u64)
);
id!(
    /// A scheduling round, counted up from one.
    Round(u64)
);

impl Micros {
    /// This time `micros` later; saturates at the end of time.
    #[must_use]
    pub fn after(self, micros: Micros) -> Micros {
        Micros(self.0.saturating_add(micros.0))
    }

    /// Time from `earlier` to this; zero where that lies in the future.
    #[must_use]
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}
