//! The seam behind which a record of a run is kept.

use std::fmt;

use pointsman_interface::{Micros, Round};

use crate::fact::Stamped;
use crate::input::Input;

/// A keeper of a record of what a runtime does to its machine, and of what comes of it. With a
/// `Sink` for the questions it has all there is to do a run again.
pub trait Recorder: fmt::Debug {
    /// Notes that the machine is given `input`.
    fn input(&mut self, now: Micros, input: &Input);

    /// Notes that the machine is told to decide, after its round `round`.
    fn round(&mut self, now: Micros, round: Round);

    /// Notes a fact of the machine.
    fn fact(&mut self, stamped: &Stamped);
}
