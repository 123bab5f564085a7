//! Checks of a state: by itself, and by what comes of it.

use pointsman_core::{
    Answer, Asked, BrokenInvariant, Micros, Policies, Question, Reply, RequestId, routing,
};

use crate::event::{Event, name};
use crate::world::World;

/// Events after which everything has ended that can.
const EVENTS_MAX: usize = 200;

impl World {
    /// Checks the state by itself: the machine's invariants, its liveness clocks, that no request waits
    /// beyond its time, that no engine was given something that it cannot do, and that where a request
    /// has not ended something is left to happen.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let said = |broken: BrokenInvariant| broken.to_string();
        self.machine.check_invariants().map_err(said)?;
        self.check_blocks()?;
        if self.is_due() {
            return Ok(());
        }
        self.machine.check_liveness().map_err(said)?;
        self.check_waits()
    }

    /// Checks that no block is in the tables of two sequences: none of these requests share a prompt.
    fn check_blocks(&self) -> Result<(), String> {
        let mut owner: [Option<RequestId>; 8] = [None; 8];
        for sequence in self.clients.iter().filter_map(|c| c.sequence.as_ref()) {
            for block in &sequence.blocks {
                let before = owner[block.0 as usize].replace(sequence.of.request);
                if let Some(before) = before {
                    let (id, other) = (sequence.of.request, before);
                    return Err(format!("block {block} is of requests {id} and {other}"));
                }
            }
        }
        Ok(())
    }

    fn check_waits(&self) -> Result<(), String> {
        let mut sequences = self.clients.iter().filter_map(|c| c.sequence.as_ref());
        let is_silent = sequences.all(|sequence| sequence.messages(0).next().is_none());
        let has_timer = self.machine.next_timeout().is_some();
        for (kind, client) in (0u8..).zip(&self.clients) {
            if client.id.is_none() || client.outcome.is_some() {
                continue;
            }
            if is_silent && !has_timer {
                return Err(format!(
                    "{} is stuck: nothing is left to happen",
                    name(kind)
                ));
            }
            let waited = client.waiting_since.map(|since| self.now.since(since));
            let Some(waited) = waited else { continue };
            if !has_timer {
                return Err(format!("{} waits, and no timer runs", name(kind)));
            }
            if waited > self.machine.config().wait_max {
                return Err(format!("{} has waited for {waited}us", name(kind)));
            }
        }
        Ok(())
    }
}

impl World {
    /// Checks that every request ends once nobody arrives or hangs up, executors come back and fail no more,
    /// and engines say all that they have to say, although the policy places nothing and lets nobody give
    /// way.
    pub(crate) fn check_end(&self) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..EVENTS_MAX {
            let Some(event) = world.next_of_itself() else {
                break;
            };
            world.happen(event, &mut Stubborn);
            world.check()?;
        }
        match world.unended().next() {
            Some(kind) => Err(format!("{} never ends", name(kind))),
            None => Ok(()),
        }
    }

    /// The next thing that happens if no client and no fault has a say. Time passes last.
    fn next_of_itself(&self) -> Option<Event> {
        let own = self.events().into_iter().filter(|event| match event {
            Event::Arrives(_) | Event::HangsUp(_) | Event::Fails(_) | Event::Dies(_) => false,
            Event::Starts(_)
            | Event::Token(_)
            | Event::Finishes(_)
            | Event::Leaves(_)
            | Event::Returns(_)
            | Event::Round
            | Event::Time => true,
        });
        own.min_by_key(|event| *event == Event::Time)
    }
}

/// A policy that holds every request for as long as it may, and evicts nobody.
struct Stubborn;

impl Policies for Stubborn {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let hold = routing::Verdict {
            choice: routing::Choice::Hold(Some(Micros(u64::MAX))),
            reason: 0,
        };
        if let Question::Routing(requests) = &asked.question {
            Answer::by(0, Reply::Routing(vec![hold; requests.len()]))
        } else if let Question::Preemption(_) = asked.question {
            Answer::by(0, Reply::Preemption(None))
        } else {
            Answer::unbound()
        }
    }
}
