//! The room that a request or sequence lacks on an executor: what victims must leave.
//!
//! `shortage.blocks` is all that the needy one needs. Much of it may be free, or cached and free on
//! demand; only the rest has to come from victims.

use crate::case::Case;
use crate::executor::Executor;
use crate::fleet::Fleet;
use crate::mirror::Mirror;
use crate::wire::preemption::{Cause, Shortage};
use crate::wire::types::Sequence;

/// The room that is lacking on one executor.
///
/// ```
/// # use pointsman_sdk::wire::preemption::{Eviction, How, Shortage, Victim};
/// # use pointsman_sdk::wire::types::Sequence;
/// # use pointsman_sdk::{Mirror, Moment, Urgency};
/// use pointsman_sdk::Lack;
///
/// /// The least urgent sequences give way, as few of them as are needed.
/// fn evict(mirror: &Mirror, at: Moment, shortage: &Shortage) -> Option<Eviction> {
///     Lack::all(mirror, at.now, shortage).into_iter().find_map(|lack| {
///         let needy = Urgency::of(mirror, shortage.needy)?;
///         let gives = |row: &&Sequence| row.preemptible && Urgency::from(*row) < needy;
///         let mut victims: Vec<_> = lack.candidates(mirror).filter(gives).collect();
///         victims.sort_unstable_by_key(|row| (Urgency::from(*row), row.request));
///         let victims = lack.fewest(victims)?.into_iter().map(|row| Victim {
///             request: row.request,
///             how: How::Recompute,
///         });
///         Some(Eviction {
///             executor: lack.executor.id(),
///             victims: victims.collect(),
///             reason: 0,
///         })
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lack<'a> {
    /// Executor to which the needy request would go, or on which the needy sequence runs.
    pub executor: Executor<'a>,
    /// Slots of the executor that victims must leave.
    pub slots: u32,
    /// Blocks of the executor's device that victims must leave: without those that are free or
    /// cached.
    pub blocks: u64,
    /// Model that must find a place on the executor; absent: it needs none.
    pub model: Option<u32>,
}

// === impl Lack ===

impl<'a> Lack<'a> {
    /// The lack on each executor where room could be made at the time `now`, in attach order. Empty
    /// where the rows of the needy one are not known.
    #[must_use]
    pub fn all(mirror: &'a Mirror, now: u64, shortage: &Shortage) -> Vec<Self> {
        let executors = mirror.executors();
        let executors = executors.filter(|it| shortage.executor.is_none_or(|id| id == it.id()));
        if let Some(sequence) = mirror.sequence(shortage.needy) {
            let its = executors.filter(|executor| executor.id() == sequence.executor);
            let lacks = its.map(|executor| Self {
                executor,
                slots: 0,
                blocks: u64::from(shortage.blocks).saturating_sub(available(mirror, &executor)),
                model: None,
            });
            return lacks.collect();
        }
        let Some(request) = mirror.request(shortage.needy) else {
            return Vec::new();
        };
        let case = Case::new(Fleet::from(mirror), request, now);
        let lacks = executors.filter_map(|it| Self::of_waiting(&case, shortage, it));
        lacks.collect()
    }

    /// The lack of a waiting request on an executor that may take it.
    fn of_waiting(case: &Case<'_>, shortage: &Shortage, executor: Executor<'a>) -> Option<Self> {
        case.check_lasting(&executor).ok()?;
        let slots = executor.load.slots_used.saturating_add(1);
        let mut lack = Self {
            executor,
            slots: slots.saturating_sub(executor.info.slots_total),
            blocks: case.blocks_on(&executor).unwrap_or(0),
            model: case.request.model,
        };
        // What others hold of its prompt is not needed again, which the host counts for those
        // executors that lack the same.
        if lack.cause() == shortage.cause {
            lack.blocks = lack.blocks.min(shortage.blocks.into());
        }
        let available = available(case.fleet.mirror, &executor);
        lack.blocks = lack.blocks.saturating_sub(available);
        // An executor without slots can be rid of all its sequences and still not take this one.
        (executor.info.slots_total > 0).then_some(lack)
    }

    /// The room that is lacking first.
    fn cause(&self) -> Cause {
        if self.slots > 0 {
            Cause::Slots
        } else if self.has_place_for_model(&[]) {
            Cause::Blocks
        } else {
            Cause::Models
        }
    }

    /// The sequences whose leaving could help: those on the executor's device, and where a slot or a
    /// model's place is lacking those on the executor alone.
    pub fn candidates(&self, mirror: &'a Mirror) -> impl Iterator<Item = &'a Sequence> + use<'a> {
        let own = self.executor.id();
        let only_own = self.slots > 0 || !self.has_place_for_model(&[]);
        let executors = mirror.executors_on(self.executor.info.device);
        let executors = executors.filter(move |it| !only_own || it.id() == own);
        executors.flat_map(|executor| mirror.sequences_on(executor.id()))
    }

    /// True if nothing is lacking any more once these have left.
    #[must_use]
    pub fn is_covered_by(&self, victims: &[&Sequence]) -> bool {
        let own = victims
            .iter()
            .filter(|row| row.executor == self.executor.id());
        let freed = victims.iter().map(|row| u64::from(row.blocks_exclusive));
        own.count() >= usize::try_from(self.slots).unwrap_or(usize::MAX)
            && freed.sum::<u64>() >= self.blocks
            && self.has_place_for_model(victims)
    }

    /// The first of these candidates that cover what is lacking, without those that need not leave
    /// for it; absent: all of them do not cover it, or nothing is lacking.
    #[must_use]
    pub fn fewest<'s>(
        &self,
        candidates: impl IntoIterator<Item = &'s Sequence>,
    ) -> Option<Vec<&'s Sequence>> {
        let mut victims = Vec::new();
        for candidate in candidates {
            victims.push(candidate);
            if self.is_covered_by(&victims) {
                break;
            }
        }
        if victims.is_empty() || !self.is_covered_by(&victims) {
            return None;
        }
        // Without the last one nothing was covered, so that one stays.
        for at in (0..victims.len() - 1).rev() {
            let spared = victims.remove(at);
            if !self.is_covered_by(&victims) {
                victims.insert(at, spared);
            }
        }
        Some(victims)
    }

    /// True if the needy one's model may run on the executor once these have left.
    #[must_use]
    pub fn has_place_for_model(&self, victims: &[&Sequence]) -> bool {
        let (Some(model), Some(models_max)) = (self.model, self.executor.info.models_max) else {
            return true;
        };
        if self.executor.runs(model) {
            return true;
        }
        let leaving = |model: u32| {
            let its = victims.iter().filter(|victim| {
                victim.model == Some(model) && victim.executor == self.executor.id()
            });
            its.count()
        };
        let rows = self.executor.residencies.iter();
        let staying = rows.filter(|row| row.sequences as usize > leaving(row.model));
        staying.count() < models_max as usize
    }
}

/// Blocks of an executor's device that can be had without anybody leaving.
fn available(mirror: &Mirror, executor: &Executor<'_>) -> u64 {
    let device = mirror.device(executor.info.device);
    device.map_or(0, |device| device.blocks_available())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::wire::types::{Change, Device, ExecutorInfo, ExecutorLoad, Extent, Request};

    /// A device of ten blocks, of which three are free or cached, and an executor on it with two
    /// slots; `running` sequences hold this many blocks each.
    fn mirror(slots_used: u32, running: &[u32]) -> Mirror {
        let mut mirror = Mirror::default();
        mirror.bind(fixture::bounds());
        mirror.let_read(crate::Feed::all());
        mirror.begin(0, Extent::Everything);
        let mut changes = vec![
            Change::Executor(ExecutorInfo {
                slots_total: 2,
                tokens_per_block: Some(1),
                ..fixture::executor(0)
            }),
            Change::Load(ExecutorLoad {
                slots_used,
                ..fixture::load(0)
            }),
            Change::Device(Device {
                blocks_total: 10,
                blocks_free: 1,
                blocks_cached: 2,
                ..fixture::device(0)
            }),
            Change::Waiting(Request {
                prompt_tokens: 5,
                output_tokens_max: 5,
                ..fixture::request(9)
            }),
        ];
        changes.extend((0..).zip(running).map(|(request, blocks)| {
            Change::Sequence(Sequence {
                blocks_exclusive: *blocks,
                ..fixture::sequence(request, 0)
            })
        }));
        for change in &mut changes {
            mirror.apply(change);
        }
        mirror
    }

    fn shortage(needy: u64, blocks: u32) -> Shortage {
        Shortage {
            cause: Cause::Blocks,
            needy,
            executor: None,
            blocks,
        }
    }

    fn fewest(lack: &Lack<'_>, mirror: &Mirror) -> Option<Vec<u64>> {
        let victims = lack.fewest(lack.candidates(mirror))?;
        Some(victims.into_iter().map(|row| row.request).collect())
    }

    #[test]
    fn what_is_free_or_cached_is_not_lacking() {
        let mirror = mirror(2, &[1, 3, 2]);
        // Six blocks and a slot for the one that waits.
        let needs_slot = Shortage {
            cause: Cause::Slots,
            ..shortage(9, 6)
        };
        let lacks = Lack::all(&mirror, 0, &needs_slot);
        let [lack] = lacks[..] else {
            panic!("{lacks:?}")
        };
        assert_eq!((lack.slots, lack.blocks), (1, 3));
        // The first one would have to be joined by the second, which is enough alone.
        assert_eq!(fewest(&lack, &mirror), Some(vec![1]));
        // For the sequence that grows by four only blocks are lacking.
        let lacks = Lack::all(&mirror, 0, &shortage(0, 4));
        assert_eq!((lacks[0].slots, lacks[0].blocks), (0, 1));
        let lacks = Lack::all(&mirror, 0, &shortage(77, 4));
        assert!(lacks.is_empty(), "of that one nothing is known");
    }

    #[test]
    fn what_cannot_be_covered_costs_nobody_its_place() {
        let mirror = mirror(2, &[1, 1]);
        let lacks = Lack::all(&mirror, 0, &shortage(9, 6));
        assert_eq!(fewest(&lacks[0], &mirror), None);
    }
}
