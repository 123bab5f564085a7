//! Copies of what sequences hold, from the pool to host memory and back.
//!
//! A sequence that is to leave by swap is copied out as far as it was computed, and has left when the copy
//! is done: its blocks are given to others then. A sequence that comes back is copied in, and has started
//! when that is done; until then it takes part in no step, and its host blocks are its own. Steps of other
//! sequences are made meanwhile.

use pointsman_events::{HostBlockId, SequenceRef};
use pointsman_executor::contract::Event;

use super::running::{CopyBack, RunningSequence};
use super::{StepLoop, StepOutcome};
use crate::backend::{DeviceError, SwapDirection, SwapTicket, SwapWait};

/// A sequence that was told to leave, and waits for copies.
#[derive(Debug)]
pub(super) struct LeavingSequence {
    running: RunningSequence,
    departure: Departure,
}

/// The way of a leaving sequence's KV to host memory.
#[derive(Debug)]
enum Departure {
    /// It is to be copied to these blocks.
    Due(Vec<HostBlockId>),
    /// The KV of so many tokens is copied, or a copy is waited for that brings it back.
    Copying(SwapTicket, usize),
}

// === impl StepLoop ===

impl StepLoop {
    /// Has a sequence leave: at once, or when it is copied to `host_blocks`, if there are any.
    pub(super) fn leave(&mut self, sequence: SequenceRef, host_blocks: Vec<HostBlockId>) {
        let Some(idx) = self.find(sequence) else {
            return;
        };
        let mut running = self.running.remove(idx);
        let departure = match (running.copy_back(), host_blocks.is_empty()) {
            (CopyBack::Copying(ticket), true) => Some(Departure::Copying(*ticket, 0)),
            (CopyBack::Copying(_) | CopyBack::Here, false) => Some(Departure::Due(host_blocks)),
            // What is to be copied in is in host memory still.
            (CopyBack::Due(_), _) | (CopyBack::Here, true) => None,
        };
        match departure {
            Some(departure) => self.leaving.push(LeavingSequence { running, departure }),
            None => self.has_left(running, 0),
        }
    }

    /// Reports that a sequence has left, and before that its start, if that was not told.
    fn has_left(&mut self, running: RunningSequence, swapped_tokens: usize) {
        if !running.is_here() {
            self.started.push(Event::Started(running.id()));
        }
        self.ended.push(running.leave(swapped_tokens));
    }

    /// Begins the copies that are due, and reports the sequences whose copies are done. Waits for none.
    ///
    /// # Errors
    /// If the device fails. All that ran is lost, and the loop is of no use any more.
    pub fn swap(&mut self) -> Result<(), DeviceError> {
        self.begin_swaps()?;
        self.settle_swaps(SwapWait::No)
    }

    /// Waits for a swap, if one is under way.
    pub(super) fn wait_for_swap(&mut self) -> Result<StepOutcome, DeviceError> {
        if !self.has_events() {
            self.settle_swaps(SwapWait::ForNext)?;
        }
        Ok(match self.has_events() {
            true => StepOutcome::Stepped,
            false => StepOutcome::Nothing,
        })
    }

    fn has_events(&self) -> bool {
        !self.started.is_empty() || !self.ended.is_empty()
    }

    fn begin_swaps(&mut self) -> Result<(), DeviceError> {
        for LeavingSequence { running, departure } in &mut self.leaving {
            if let Departure::Due(host_blocks) = departure {
                let (copies, tokens) = running.copies_to(host_blocks, self.tokens_per_block);
                let model = &mut self.models[running.model()];
                let ticket = model.swap(SwapDirection::Out, &copies)?;
                *departure = Departure::Copying(ticket, tokens);
            }
        }
        for running in &mut self.running {
            let model = running.model();
            if let CopyBack::Due(copies) = running.copy_back() {
                let ticket = self.models[model].swap(SwapDirection::In, copies)?;
                *running.copy_back() = CopyBack::Copying(ticket);
            }
        }
        Ok(())
    }

    fn settle_swaps(&mut self, wait: SwapWait) -> Result<(), DeviceError> {
        if self.leaving.is_empty() && self.running.iter().all(RunningSequence::is_here) {
            return Ok(());
        }
        for place in 0..self.models.len() {
            let done = self.models[place].swapped(wait)?;
            self.settle_model(place, done);
        }
        Ok(())
    }

    /// Reports the sequences of a model whose copies are `done`.
    fn settle_model(&mut self, place: usize, done: SwapTicket) {
        let mut running = self.running.iter_mut();
        for running in running.by_ref().filter(|running| running.model() == place) {
            let id = running.id();
            if let CopyBack::Copying(ticket) = running.copy_back()
                && *ticket <= done
            {
                *running.copy_back() = CopyBack::Here;
                self.started.push(Event::Started(id));
            }
        }
        for leaving in std::mem::take(&mut self.leaving) {
            match leaving.departure {
                Departure::Copying(ticket, tokens)
                    if leaving.running.model() == place && ticket <= done =>
                {
                    self.has_left(leaving.running, tokens);
                }
                Departure::Copying(..) | Departure::Due(_) => self.leaving.push(leaving),
            }
        }
    }
}
