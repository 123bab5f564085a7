//! The sequences that give way: the least urgent, and among them the newest.
//!
//! A shortage of blocks is covered by one other engine of the device, the one whose least urgent
//! work is the least urgent of all; failing that by the engine that needs them. A slot or a model's
//! place is given up on the executor that the needy request goes to. A slot becomes free without that before
//! long, so it is taken only for some ([`slots`]), and the caller bounds what that costs.
//!
//! # Invariants
//! 1. No victim is more urgent than the needy, nor as urgent where the needy is waiting
//!    (`tests::never_takes_from_the_more_urgent`).
//! 2. The blocks and slots of the victims cover the shortage (`tests`).
//! 3. Victims that are swapped find room in host memory (`tests::swaps_no_more_than_there_is_room_for`).

mod slots;
mod swap;
mod victims;

use pointsman_sdk::wire::preemption::{Cause, Eviction, How, Shortage};
use pointsman_sdk::wire::types::{Request, Sequence};
use pointsman_sdk::{Executor, Lack, Mirror, Urgency};

use crate::reason::Reason;
use crate::settings::TakeSlots;
use victims::{Asked, Candidates};

/// Names victims, where some cover the shortage.
pub(crate) fn eviction(
    mirror: &Mirror,
    now: u64,
    shortage: &Shortage,
    rules: Rules,
) -> Option<Eviction> {
    let needy = Needy::find(mirror, shortage)?;
    let targets = Lack::all(mirror, now, shortage);
    let offer = match shortage.cause {
        Cause::Blocks => for_blocks(mirror, &needy, &targets, rules.yield_to_older),
        Cause::Slots => for_a_slot(
            mirror,
            slots::asked(rules.take_slots, &needy, now)?,
            &targets,
        ),
        Cause::Models => for_a_model(mirror, &needy, &targets),
    }?;
    let executor = offer.target.executor;
    let device = mirror.device(executor.info.device);
    let room = device.map_or(0, |device| device.host_blocks_free);
    let victims = swap::ways(mirror, &offer.victims, room, rules.swap_from);
    Some(Eviction {
        executor: executor.id(),
        victims,
        reason: offer.reason.index(),
    })
}

/// Tokens that the victims of an eviction compute again, but for what is cached by then.
pub(crate) fn recomputed(mirror: &Mirror, eviction: &Eviction) -> u64 {
    let victims = eviction.victims.iter();
    let recomputed = victims.filter(|victim| victim.how == How::Recompute);
    let sequences = recomputed.filter_map(|victim| mirror.sequence(victim.request));
    sequences
        .map(|row| u64::from(row.prompt_tokens) + u64::from(row.tokens_generated))
        .sum()
}

/// The operator's rules for who gives way and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) yield_to_older: YieldToOlder,
    /// Tokens that a victim must hold for itself to be swapped.
    pub(crate) swap_from: u32,
    pub(crate) take_slots: TakeSlots,
}

/// Permission for a running sequence to take from later ones as urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum YieldToOlder {
    Never,
    LastResort,
}

/// The request or sequence that needs the room.
#[derive(Clone, Copy, Debug)]
enum Needy<'a> {
    Waiting(&'a Request),
    Running(&'a Sequence),
}

/// A way to cover the shortage; the least urgent is the best.
#[derive(Debug)]
struct Offer<'a> {
    urgency: Urgency,
    target: &'a Lack<'a>,
    victims: Vec<&'a Sequence>,
    reason: Reason,
}

/// Other engines of the device give before the target's own sequences do.
fn for_blocks<'a>(
    mirror: &'a Mirror,
    needy: &Needy<'a>,
    targets: &'a [Lack<'a>],
    yield_to_older: YieldToOlder,
) -> Option<Offer<'a>> {
    let less_urgent = Asked::LessUrgent(needy.urgency());
    let mut steps = vec![
        (less_urgent, Place::Neighbours, Reason::BlocksFromNeighbour),
        (less_urgent, Place::Own, Reason::BlocksFromOwn),
    ];
    if let (Needy::Running(sequence), YieldToOlder::LastResort) = (needy, yield_to_older) {
        let later = Asked::LessUrgentOrLater(sequence);
        steps.push((later, Place::Own, Reason::BlocksFromLater));
        steps.push((later, Place::Neighbours, Reason::BlocksFromLater));
    }
    steps.into_iter().find_map(|(asked, place, reason)| {
        best(targets.iter().flat_map(|target| {
            place.donors(mirror, target).filter_map(move |donor| {
                let candidates = Candidates::on(mirror, donor.id(), asked);
                let slots = place.slots(target)?;
                let victims = candidates.covering(slots, target.blocks)?;
                Some(Offer {
                    urgency: candidates.least_urgent()?,
                    target,
                    victims,
                    reason,
                })
            })
        }))
    })
}

/// Sequences of the target give their slots, as many as it lacks, and blocks with them.
fn for_a_slot<'a>(
    mirror: &'a Mirror,
    asked: Asked<'a>,
    targets: &'a [Lack<'a>],
) -> Option<Offer<'a>> {
    best(targets.iter().filter_map(|target| {
        let candidates = Candidates::on(mirror, target.executor.id(), asked);
        Some(Offer {
            urgency: candidates.least_urgent()?,
            target,
            victims: candidates.covering(slots_of(target), target.blocks)?,
            reason: Reason::SlotTaken,
        })
    }))
}

/// All sequences of one other model leave the target; the model whose most urgent is the least.
fn for_a_model<'a>(
    mirror: &'a Mirror,
    needy: &Needy<'a>,
    targets: &'a [Lack<'a>],
) -> Option<Offer<'a>> {
    best(targets.iter().flat_map(|target| {
        let asked = Asked::LessUrgent(needy.urgency());
        let models = target.executor.residencies.iter();
        models
            .filter(|row| row.sequences > 0)
            .filter_map(move |row| {
                let candidates = Candidates::all_of(mirror, row, asked)?;
                Some(Offer {
                    urgency: candidates.most_urgent()?,
                    target,
                    victims: candidates.all_if_covering(slots_of(target), target.blocks)?,
                    reason: Reason::ModelDriven,
                })
            })
    }))
}

/// The offer of the least urgent; the first of those, which come in attach order.
fn best<'a>(offers: impl Iterator<Item = Offer<'a>>) -> Option<Offer<'a>> {
    offers
        .filter(|offer| offer.target.has_place_for_model(&offer.victims))
        .min_by_key(|offer| offer.urgency)
}

/// Slots that victims must leave.
fn slots_of(target: &Lack<'_>) -> usize {
    usize::try_from(target.slots).unwrap_or(usize::MAX)
}

// === impl Needy ===

impl<'a> Needy<'a> {
    fn find(mirror: &'a Mirror, shortage: &Shortage) -> Option<Self> {
        match mirror.sequence(shortage.needy) {
            Some(sequence) => Some(Self::Running(sequence)),
            None => mirror.request(shortage.needy).map(Self::Waiting),
        }
    }

    fn urgency(&self) -> Urgency {
        match self {
            Self::Waiting(request) => Urgency::from(*request),
            Self::Running(sequence) => Urgency::from(*sequence),
        }
    }
}

// === impl Place ===

/// The engines whose sequences give blocks.
#[derive(Clone, Copy, Debug)]
enum Place {
    Neighbours,
    Own,
}

impl Place {
    fn donors<'a>(
        self,
        mirror: &'a Mirror,
        target: &Lack<'a>,
    ) -> impl Iterator<Item = Executor<'a>> + use<'a> {
        let own = target.executor.id();
        mirror
            .executors_on(target.executor.info.device)
            .filter(move |donor| match self {
                Self::Neighbours => donor.id() != own,
                Self::Own => donor.id() == own,
            })
    }

    /// Slots the victims must free on the target; none can from elsewhere.
    fn slots(self, target: &Lack<'_>) -> Option<usize> {
        match self {
            Self::Neighbours => (target.slots == 0).then_some(0),
            Self::Own => Some(slots_of(target)),
        }
    }
}

#[cfg(test)]
mod tests;
