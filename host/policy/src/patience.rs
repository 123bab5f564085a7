//! The patience with a policy: how many faults it may have, and how long it is left alone after one.
//!
//! # Not here
//! The limits of a call: [`pointsman_component::Limits`].

/// The number of faults that a policy may have, and the number of its snapshots and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time that a policy is not asked after its first fault in the window, in host microseconds.
    /// It doubles with each further fault in the window.
    pub back_off_micros: u64,
    /// Longest such time, in host microseconds.
    pub back_off_max_micros: u64,
    /// Number of faults in the window that puts a policy in quarantine.
    pub faults_max: u32,
    /// Length of the window, in host microseconds.
    pub window_micros: u64,
    /// Number of answered questions between two snapshots.
    pub snapshot_every: u32,
    /// Events kept for [`crate::PolicyHost::poll_event`]. Above that the oldest is dropped.
    pub events_max: u32,
    /// Entries kept in the quarantine list. Above that the oldest is dropped.
    pub quarantine_max: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            back_off_micros: 100_000,
            back_off_max_micros: 10_000_000,
            faults_max: 5,
            window_micros: 60_000_000,
            snapshot_every: 256,
            events_max: 1024,
            quarantine_max: 64,
        }
    }
}

impl Patience {
    /// Time that a policy is not asked after its `faults`th fault in the window, in microseconds.
    pub(crate) fn back_off(&self, faults: usize) -> u64 {
        let doublings = u32::try_from(faults.saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.back_off_micros
            .saturating_mul(factor)
            .min(self.back_off_max_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_doubles_up_to_its_bound() {
        let patience = Patience::default();
        let waits: Vec<u64> = [1, 2, 3, 8, 200].map(|n| patience.back_off(n)).to_vec();
        assert_eq!(waits, [100_000, 200_000, 400_000, 10_000_000, 10_000_000]);
    }
}
