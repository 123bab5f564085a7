//! Models that are warm on a live executor, found once per question.

use pointsman_sdk::Mirror;

/// Answers of one question, by the model's position in the mirror.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    known: Vec<Option<bool>>,
}

impl Warmth {
    /// Forgets the last question's answers.
    pub(crate) fn begin(&mut self) {
        self.known.clear();
    }

    /// Returns whether the model runs, or is kept loaded, on an executor that is up or degraded.
    /// Free slots do not matter.
    pub(crate) fn is_warm(&mut self, mirror: &Mirror, model: u32, now: u64) -> bool {
        let Some(position) = mirror.model_position(model) else {
            return false;
        };
        if self.known.len() <= position {
            self.known.resize(position + 1, None);
        }
        *self.known[position].get_or_insert_with(|| {
            mirror
                .presences(model)
                .any(|(executor, _)| executor.is_live() && executor.is_warm(model, now))
        })
    }
}
