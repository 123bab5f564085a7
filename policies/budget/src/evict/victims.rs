//! The sequences that may be made to give way, in the order they would.

use std::cmp::Reverse;

use pointsman_sdk::wire::types::{Residency, Sequence, SequenceState};
use pointsman_sdk::{Mirror, Urgency};

/// Sequences that may be asked to give way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked<'a> {
    /// Sequences that are less urgent than this.
    LessUrgent(Urgency),
    /// Sequences that are less urgent than this one, or as urgent and came later. One that was evicted
    /// starts later and has still come earlier: the host asks for it first.
    LessUrgentOrLater(&'a Sequence),
}

/// Sequences that may give way, the least urgent first, among them the newest.
#[derive(Clone, Debug)]
pub(super) struct Candidates<'a> {
    sequences: Vec<&'a Sequence>,
}

// === impl Asked ===

impl Asked<'_> {
    fn includes(self, sequence: &Sequence) -> bool {
        let urgency = Urgency::from(sequence);
        match self {
            Self::LessUrgent(needy) => urgency < needy,
            Self::LessUrgentOrLater(needy) => {
                let is_later = sequence.request > needy.request;
                let needy = Urgency::from(needy);
                urgency < needy || urgency == needy && is_later
            }
        }
    }
}

// === impl Candidates ===

impl<'a> Candidates<'a> {
    /// The candidates on one executor.
    pub(super) fn on(mirror: &'a Mirror, executor: u32, asked: Asked<'_>) -> Self {
        let sequences = mirror.sequences_on(executor);
        Self::sorted(sequences.filter(|row| may_leave(row, asked)).collect())
    }

    /// All sequences of a model that run on an executor, if all may give way.
    pub(super) fn all_of(mirror: &'a Mirror, row: &Residency, asked: Asked<'_>) -> Option<Self> {
        let running = mirror
            .sequences_on(row.executor)
            .filter(|sequence| sequence.model == Some(row.model))
            .filter(|sequence| sequence.state == SequenceState::Running);
        let sequences: Vec<_> = running.collect();
        let all_may_leave = sequences.iter().all(|sequence| may_leave(sequence, asked));
        (all_may_leave && !sequences.is_empty()).then(|| Self::sorted(sequences))
    }

    fn sorted(mut sequences: Vec<&'a Sequence>) -> Self {
        sequences.sort_unstable_by_key(|sequence| {
            let newest = Reverse((sequence.started, sequence.request));
            (Urgency::from(*sequence), newest)
        });
        Self { sequences }
    }

    pub(super) fn least_urgent(&self) -> Option<Urgency> {
        self.sequences.first().map(|row| Urgency::from(*row))
    }

    pub(super) fn most_urgent(&self) -> Option<Urgency> {
        self.sequences.last().map(|row| Urgency::from(*row))
    }

    /// The first candidates that free so many slots and blocks; at least one.
    pub(super) fn covering(&self, slots: usize, blocks: u64) -> Option<Vec<&'a Sequence>> {
        let mut victims = Vec::new();
        let mut freed = 0_u64;
        for sequence in &self.sequences {
            if victims.len() >= slots && freed >= blocks {
                break;
            }
            // A sequence that frees no blocks gives way only for its slot.
            if victims.len() >= slots && sequence.blocks_exclusive == 0 {
                continue;
            }
            victims.push(*sequence);
            freed += u64::from(sequence.blocks_exclusive);
        }
        let covered = victims.len() >= slots && freed >= blocks && !victims.is_empty();
        covered.then(|| spare(victims, slots, freed.saturating_sub(blocks)))
    }

    /// All candidates, if they free so many slots and blocks.
    pub(super) fn all_if_covering(self, slots: usize, blocks: u64) -> Option<Vec<&'a Sequence>> {
        let freed: u64 = self
            .sequences
            .iter()
            .map(|sequence| u64::from(sequence.blocks_exclusive))
            .sum();
        (self.sequences.len() >= slots && freed >= blocks).then_some(self.sequences)
    }
}

/// The `victims` without those that need not leave: more than `slots` of them, whose blocks are among
/// the `surplus`. The last ones, which would give way last, are spared first.
fn spare(mut victims: Vec<&Sequence>, slots: usize, mut surplus: u64) -> Vec<&Sequence> {
    for at in (0..victims.len()).rev() {
        let frees = u64::from(victims[at].blocks_exclusive);
        if victims.len() > slots.max(1) && frees <= surplus {
            victims.remove(at);
            surplus -= frees;
        }
    }
    victims
}

fn may_leave(sequence: &Sequence, asked: Asked<'_>) -> bool {
    sequence.state == SequenceState::Running && sequence.preemptible && asked.includes(sequence)
}
