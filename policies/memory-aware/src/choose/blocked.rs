//! What stands in the way of a request, put together over executors.

use pointsman_sdk::Obstacle;

/// What stood in the way of the executors that could not take the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The earliest end of a warm hold that is all that stands in the way.
    pub(crate) warm_until: Option<u64>,
    /// The greatest lack of any executor.
    pub(crate) lack: Option<Lack>,
}

/// What is lacking for now. Where executors lack different things the greatest is reported: what
/// is closest to being all that is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    Model,
    Slot,
    Blocks,
    /// The executor is kept free for a model that is warm nowhere.
    Drain,
    ModelLimit,
}

// === impl Blocked ===

impl Blocked {
    /// The index has no place, and why was not looked for.
    pub(crate) const UNKNOWN: Self = Self {
        warm_until: None,
        lack: Some(Lack::Slot),
    };

    #[inline]
    pub(crate) fn note(&mut self, obstacle: Obstacle) {
        match obstacle {
            Obstacle::WarmHold { until } => {
                let earliest = self.warm_until.unwrap_or(until).min(until);
                self.warm_until = Some(earliest);
            }
            Obstacle::ModelLimit => self.lacks(Lack::ModelLimit),
            Obstacle::NoBlocks => self.lacks(Lack::Blocks),
            Obstacle::NoSlot => self.lacks(Lack::Slot),
            Obstacle::ModelsMax => self.lacks(Lack::Model),
            Obstacle::NotLive
            | Obstacle::NotServed
            | Obstacle::NotAllowed
            | Obstacle::FailedBefore => {}
        }
    }

    #[inline]
    pub(crate) fn lacks(&mut self, lack: Lack) {
        self.lack = self.lack.max(Some(lack));
    }

    /// Whether what stands in the way passes on some executor.
    pub(crate) fn passes(self) -> bool {
        self != Self::default()
    }
}
