//! One executor as the mirror shows it.

use crate::wire::types::{Device, ExecutorInfo, ExecutorLoad, Health, LoadedModels, Residency};

/// An executor, once both its rows have come.
#[derive(Clone, Copy, Debug)]
pub struct Executor<'a> {
    /// Index among the executors of the mirror; good until the next `observe`.
    pub position: usize,
    /// The row that rarely changes.
    pub info: &'a ExecutorInfo,
    /// The row that changes all the time.
    pub load: &'a ExecutorLoad,
    /// Models present on the executor, by ascending id.
    pub residencies: Residencies<'a>,
}

/// The models present on an executor, by ascending id.
///
/// # Panics
///
/// To look at them in a hook that does not need [`Feed::RESIDENCIES`](crate::Feed) panics.
#[derive(Clone, Copy, Debug)]
pub struct Residencies<'a>(Option<&'a [Residency]>);

// === impl Residencies ===

impl<'a> Residencies<'a> {
    /// The models that are not told.
    pub(crate) const UNTOLD: Self = Self(None);

    /// The models as rows, each of which names the executor.
    #[must_use]
    #[inline]
    pub fn new(rows: &'a [Residency]) -> Self {
        Self(Some(rows))
    }

    /// The models' rows.
    #[must_use]
    #[inline]
    pub fn rows(self) -> &'a [Residency] {
        self.0
            .expect("a hook that reads residencies has them in its NEEDS")
    }

    /// Iterates over the models' rows.
    #[inline]
    pub fn iter(self) -> std::slice::Iter<'a, Residency> {
        self.rows().iter()
    }
}

// === impl Executor ===

impl<'a> Executor<'a> {
    /// Id, by which answers name the executor.
    #[must_use]
    #[inline]
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// Tokens of a KV block, where the executor reports paged KV.
    #[must_use]
    #[inline]
    pub fn tokens_per_block(&self) -> Option<u32> {
        self.info.tokens_per_block.filter(|&tokens| tokens > 0)
    }

    /// Returns whether the executor takes new work: up or degraded.
    #[must_use]
    #[inline]
    pub fn is_live(&self) -> bool {
        matches!(self.load.health, Health::Up | Health::Degraded)
    }

    /// Presence of a model on the executor.
    #[must_use]
    #[inline]
    pub fn residency(&self, model: u32) -> Option<&'a Residency> {
        self.residencies.iter().find(|row| row.model == model)
    }

    /// Returns whether a sequence of the model runs on the executor.
    #[must_use]
    #[inline]
    pub fn runs(&self, model: u32) -> bool {
        self.residency(model).is_some_and(|row| row.sequences > 0)
    }

    /// Returns whether the model runs on the executor, is kept loaded there, or is loaded by the word of
    /// the server.
    #[must_use]
    #[inline]
    pub fn is_warm(&self, model: u32, now: u64) -> bool {
        self.residency(model).is_some_and(|row| {
            let is_kept = row.warm_until.is_some_and(|until| until > now);
            row.sequences > 0 || is_kept || row.loaded
        })
    }

    /// Returns whether the model would have to be loaded before a request of it could start there,
    /// by the word of the server.
    #[must_use]
    #[inline]
    pub fn lacks(&self, model: u32) -> bool {
        match self.info.loaded_models {
            LoadedModels::Told => !self.residency(model).is_some_and(|row| row.loaded),
            LoadedModels::Untold => false,
        }
    }

    /// Returns whether the model is being loaded there: a request of it was placed there, and the
    /// server does not tell yet that it is loaded.
    #[must_use]
    #[inline]
    pub fn is_loading(&self, model: u32) -> bool {
        self.lacks(model) && self.runs(model)
    }

    /// Requests placed on the executor: running, and placed but not started.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u64 {
        u64::from(self.load.slots_used)
            + u64::from(self.load.queued_critical)
            + u64::from(self.load.queued_throughput)
    }
}

// === impl Device ===

impl Device {
    /// Blocks that a placement can have: free ones, and cached ones, which are given up on demand.
    #[must_use]
    #[inline]
    pub fn blocks_available(&self) -> u64 {
        u64::from(self.blocks_free) + u64::from(self.blocks_cached)
    }
}
