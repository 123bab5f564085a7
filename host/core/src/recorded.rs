//! A machine of which a record may be kept: [`RecordedMachine`].

use std::ops::Deref;

use crate::machine::Machine;
use crate::policies::Policies;
use pointsman_events::{Effect, Handled, Input, InternedId, Micros, Recorder, Stamped};

/// A machine, and the recorder that is told of everything that is done to it and comes of it.
///
/// The machine can be read through it, and changed only by methods that tell the recorder first: so
/// there is no input, round or fact that the record lacks.
#[derive(Debug)]
pub struct RecordedMachine<R: ?Sized> {
    machine: Machine,
    recorder: Option<Box<R>>,
}

impl<R: Recorder + ?Sized> RecordedMachine<R> {
    /// A machine without a recorder.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            recorder: None,
        }
    }

    /// Has `recorder` told of everything from now on; absent: nobody.
    pub fn record(&mut self, recorder: Option<Box<R>>) {
        self.recorder = recorder;
    }

    /// Goes on with another machine, as from a keyframe.
    pub fn replace(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The recorder that is told; absent: none.
    #[must_use]
    pub fn recorder(&self) -> Option<&R> {
        self.recorder.as_deref()
    }

    /// The recorder, to be told of events that are not the machine's.
    pub fn recorder_mut(&mut self) -> Option<&mut R> {
        self.recorder.as_deref_mut()
    }

    /// The machine, beside the recorder.
    pub fn parts(&mut self) -> (&Machine, Option<&mut R>) {
        (&self.machine, self.recorder.as_deref_mut())
    }

    /// Gives the machine an input ([`Machine::handle`]).
    pub fn handle(&mut self, now: Micros, input: Input) -> Handled {
        if let Some(recorder) = &mut self.recorder {
            recorder.input(now, &input);
        }
        self.machine.handle(now, input)
    }

    /// The id of a name, made at its first use. Only the first use is an input.
    pub fn intern<I: InternedId>(&mut self, now: Micros, text: &str) -> I {
        let known = self.machine.id_of(I::KIND, text);
        let number = known.unwrap_or_else(|| self.handle(now, Input::name(I::KIND, text)).name());
        I::from_number(number)
    }

    /// Lets the machine decide ([`Machine::decide`]). The policies are made with the recorder,
    /// which may watch the questions.
    pub fn decide<'a, P: Policies>(
        &'a mut self,
        now: Micros,
        policies: impl FnOnce(Option<&'a mut R>) -> P,
    ) {
        if let Some(recorder) = &mut self.recorder {
            recorder.round(now, self.machine.round());
        }
        let mut policies = policies(self.recorder.as_deref_mut());
        self.machine.decide(now, &mut policies);
    }

    /// The next thing that happened ([`Machine::poll_fact`]).
    pub fn poll_fact(&mut self) -> Option<Stamped> {
        let fact = self.machine.poll_fact()?;
        if let Some(recorder) = &mut self.recorder {
            recorder.fact(&fact);
        }
        Some(fact)
    }

    /// The next thing the runtime must do ([`Machine::poll_effect`]).
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.machine.poll_effect()
    }
}

impl<R: ?Sized> Deref for RecordedMachine<R> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}
