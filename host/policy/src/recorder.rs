//! The seam behind which a journal is written: [`PolicyRecorder`].

use pointsman_core::{Answer, Asked, Machine, Micros, Recorder, Reply};

use crate::host::{PolicyEvent, PolicyHost};
use crate::policy::Briefing;

/// A recorder of a run that also notes what happens to policies.
pub trait PolicyRecorder: Recorder + Send {
    /// Asks `host`, and notes the answer and what it took.
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply>;

    /// Notes which policies answer from now on, and whose state was taken: something was done to
    /// them between two rounds.
    fn policies_changed(&mut self, now: Micros, host: &PolicyHost);

    /// Notes what happened to a policy.
    fn policy_event(&mut self, event: &PolicyEvent);

    /// Notes that everything was gathered for a policy that may be added later.
    fn briefed(&mut self, now: Micros, briefing: &Briefing);

    /// Ends a turn of the driver: writes a keyframe where one is due.
    fn turn(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost);

    /// The time at which [`Self::turn`] is to be called at the latest.
    fn flush_at(&self) -> Option<Micros>;
}
