//! Models that servers elsewhere load: loading takes minutes, and drives other models out.

use pointsman_sdk::Fleet;

/// The place where a request's model is being loaded: the request rather waits for that than has it loaded once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    Nowhere,
    Underway,
}

impl Loading {
    /// Finds out where a model is being loaded; placements of this batch count.
    pub(crate) fn of(fleet: Fleet<'_>, model: u32) -> Self {
        let Fleet { mirror, placed } = fleet;
        let mut presences = mirror.presences(model);
        if presences.any(|(executor, _)| executor.is_live() && executor.is_loading(model)) {
            return Self::Underway;
        }
        let mut executors = mirror.executors();
        let is_started = placed.running(mirror, model) > 0
            && executors.any(|it| it.lacks(model) && placed.started(&it).contains(&model));
        if is_started {
            Self::Underway
        } else {
            Self::Nowhere
        }
    }
}
