//! Spare connections: those of clients that come when all places are taken.
//!
//! # Invariants
//! 1. There are never more than a few, and a newer one ends the oldest
//!    (`tests::a_newer_one_ends_the_oldest_that_is_left`).

use std::collections::VecDeque;

use tokio::task::AbortHandle;

/// The most spare connections.
pub(super) const SPARES_MAX: usize = 16;

/// The tasks of spare connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Spares(VecDeque<AbortHandle>);

// === impl Spares ===

impl Spares {
    /// Adds a connection's task. The oldest one ends if there are as many as there may be.
    pub(super) fn add(&mut self, spare: AbortHandle) {
        self.0.retain(|spare| !spare.is_finished());
        if self.0.len() == SPARES_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(spare);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn a_newer_one_ends_the_oldest_that_is_left() {
        let (mut tasks, mut spares) = (JoinSet::<()>::new(), Spares::default());
        let silent: Vec<AbortHandle> = (0..SPARES_MAX).map(|_| tasks.spawn(pending())).collect();
        for spare in &silent {
            spares.add(spare.clone());
        }
        // One that ends by itself makes room.
        silent[1].abort();
        assert!(tasks.join_next().await.is_some());
        spares.add(tasks.spawn(pending()));
        assert!(!silent[0].is_finished());
        spares.add(tasks.spawn(pending()));
        let ended = tasks.join_next_with_id().await.unwrap().unwrap_err();
        assert_eq!(ended.id(), silent[0].id());
        assert_eq!(tasks.len(), SPARES_MAX);
    }
}
