//! The reasons for which requests wait, for monitors and operators: a look that changes nothing.

use std::collections::BTreeMap;

use pointsman_interface::rows::{RequestClass, Stage};
use pointsman_interface::{ExecutorId, Micros, ModelId, RefusalCause, RequestId};

use super::Machine;
use super::interlock::check_place;
use super::requests::Request;

/// The reason for which a request without a place waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Admission has not been asked about the request yet.
    Arrived,
    /// The request waits for room in the queue.
    Parked,
    /// Others give way to the request on that executor.
    Reserved(ExecutorId),
    /// A policy holds the request on purpose, until then at the latest.
    Held(Micros),
    /// Some executor could take the request: the policies have given others, or nobody, the place.
    Turn,
    /// No executor can take the request now. For each obstacle the number of executors where it is the
    /// one that counts.
    Blocked(BTreeMap<Obstacle, u32>),
}

/// The obstacle to a placement on one executor, the easiest to overcome first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// There are too few free blocks.
    NoBlocks,
    /// As many requests of the model run as may.
    RunningMax,
    /// As many distinct models are there as may be.
    ModelsMax,
    /// No slot is free, and the executor's queue has no room.
    NoSlot,
    /// The executor takes nothing new.
    Unavailable,
    /// The request could need more blocks than there are.
    NeverFits,
    /// The executor has failed the request before.
    FailedBefore,
    /// The request may not go there.
    NotAllowed,
    /// The model is not served there.
    NotServed,
}

/// The reasons of several requests, found with one look at the executors for those that are alike. Good
/// for as long as the machine is borrowed.
#[derive(Debug)]
pub struct WaitReasons<'a> {
    machine: &'a Machine,
    /// The reason of requests of a model and a class that are this long or shorter.
    known: BTreeMap<(Option<ModelId>, RequestClass), (u64, WaitReason)>,
}

impl Machine {
    /// The way to the reasons for which requests wait.
    #[must_use]
    pub fn wait_reasons(&self) -> WaitReasons<'_> {
        WaitReasons {
            machine: self,
            known: BTreeMap::new(),
        }
    }
}

impl WaitReasons<'_> {
    /// The reason for which a request waits; absent: it has a place, or there is none of that id.
    pub fn of(&mut self, id: RequestId) -> Option<WaitReason> {
        let request = self.machine.requests.find(id)?;
        let waiting = request.waiting()?;
        Some(match request.row.stage {
            Stage::Arrived => WaitReason::Arrived,
            Stage::Parked => WaitReason::Parked,
            Stage::Queued | Stage::Placed => match (request.reservation(), waiting.held_until()) {
                (Some(reservation), _) => WaitReason::Reserved(reservation.executor),
                (None, Some(until)) => WaitReason::Held(until),
                (None, None) => self.of_executors(request),
            },
        })
    }

    /// The reason that executors have against a request, looked up once for requests that are alike. What
    /// a short request lacks blocks for says nothing about a shorter one.
    fn of_executors(&mut self, request: &Request) -> WaitReason {
        let row = &request.row;
        let is_plain = row.allowed.is_none() && row.failed_on.is_empty();
        let key = (row.model, row.class);
        let length = request.tokens_bound();
        if let Some((known, reason)) = self.known.get(&key)
            && is_plain
            && length <= *known
        {
            return reason.clone();
        }
        let reason = self.look(request);
        let by_length = match &reason {
            WaitReason::Blocked(obstacles) => {
                obstacles.contains_key(&Obstacle::NoBlocks)
                    || obstacles.contains_key(&Obstacle::NeverFits)
            }
            WaitReason::Turn => false,
            WaitReason::Arrived
            | WaitReason::Parked
            | WaitReason::Reserved(_)
            | WaitReason::Held(_) => true,
        };
        if is_plain && !by_length {
            self.known.insert(key, (length, reason.clone()));
        }
        reason
    }

    fn look(&self, request: &Request) -> WaitReason {
        let ledger = &self.machine.ledger;
        let mut obstacles = BTreeMap::new();
        for executor in ledger.executors() {
            match check_place(ledger, request, executor) {
                Ok(_) => return WaitReason::Turn,
                Err(cause) => {
                    if let Some(obstacle) = Obstacle::of(cause) {
                        *obstacles.entry(obstacle).or_default() += 1;
                    }
                }
            }
        }
        WaitReason::Blocked(obstacles)
    }
}

impl Obstacle {
    /// The obstacle behind a refusal of a placement.
    fn of(cause: RefusalCause) -> Option<Self> {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "no other refusal is one of a placement"
        )]
        Some(match cause {
            RefusalCause::NoBlocks { .. } => Obstacle::NoBlocks,
            RefusalCause::RunningMax => Obstacle::RunningMax,
            RefusalCause::ModelsMax => Obstacle::ModelsMax,
            RefusalCause::NoSlot => Obstacle::NoSlot,
            RefusalCause::Unavailable(_) => Obstacle::Unavailable,
            RefusalCause::NeverFits { .. } => Obstacle::NeverFits,
            RefusalCause::FailedBefore => Obstacle::FailedBefore,
            RefusalCause::NotAllowed => Obstacle::NotAllowed,
            RefusalCause::NotServed => Obstacle::NotServed,
            _ => return None,
        })
    }
}
