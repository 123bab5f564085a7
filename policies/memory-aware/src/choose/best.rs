//! The few best of many.

use super::Choice;
use crate::settings::CANDIDATES_MAX;

/// The best executors, best first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    kept: [Option<Choice>; CANDIDATES_MAX],
    kept_max: usize,
    count: usize,
}

// === impl Best ===

impl Best {
    /// Keeps the best `kept_max`, at most `CANDIDATES_MAX`.
    pub(crate) fn new(kept_max: usize) -> Self {
        Self {
            kept: [None; CANDIDATES_MAX],
            kept_max: kept_max.min(CANDIDATES_MAX),
            count: 0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Choice> + Clone {
        self.kept[..self.count].iter().flatten()
    }

    /// Insertion into the few kept: most executors are turned away by one comparison.
    #[inline]
    pub(crate) fn offer(&mut self, choice: Choice) {
        let better = |other: &Option<Choice>| other.is_some_and(|other| choice.rank < other.rank);
        if self.count == self.kept_max {
            if !better(&self.kept[self.count - 1]) {
                return;
            }
            self.count -= 1;
        }
        let mut at = self.count;
        while at > 0 && better(&self.kept[at - 1]) {
            self.kept[at] = self.kept[at - 1];
            at -= 1;
        }
        self.kept[at] = Some(choice);
        self.count += 1;
    }
}
