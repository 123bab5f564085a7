//! The reasons for which requests wait, for monitors and operators: a look that changes nothing.

use std::collections::BTreeMap;

use pointsman_events::rows::{RequestClass, Stage};
use pointsman_events::{ModelId, Obstacle, RequestId, WaitReason};

use super::Machine;
use super::interlock::check_place;
use super::requests::Request;

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
        let obstacles = self.obstacles(request);
        let by_length = [Obstacle::NoBlocks, Obstacle::NeverFits];
        let is_there = |it: &Obstacle| obstacles.as_ref().is_some_and(|all| all.contains_key(it));
        let is_by_length = by_length.iter().any(is_there);
        let reason = obstacles.map_or(WaitReason::Turn, WaitReason::Blocked);
        if is_plain && !is_by_length {
            self.known.insert(key, (length, reason.clone()));
        }
        reason
    }

    /// The obstacles to a request, each with the number of executors; absent: one could take it.
    fn obstacles(&self, request: &Request) -> Option<BTreeMap<Obstacle, u32>> {
        let ledger = &self.machine.ledger;
        let mut obstacles = BTreeMap::new();
        for executor in ledger.executors() {
            let cause = check_place(ledger, request, executor).err()?;
            if let Some(obstacle) = Obstacle::of(cause) {
                *obstacles.entry(obstacle).or_default() += 1;
            }
        }
        Some(obstacles)
    }
}
