//! The seam behind which a journal is written: [`PolicyRecorder`].

use pointsman_core::{Answer, Asked, Machine, Micros, Recorder, Reply};

use crate::host::{PolicyEvent, PolicyHost};
use crate::policy::Briefing;

/// A recorder of a run that also notes events of policies.
pub trait PolicyRecorder: Recorder + Send {
    /// Asks `host`, and notes the answer with its cost.
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply>;

    /// Notes a change of the policies between two rounds: other policies answer, or states were
    /// taken.
    fn policies_changed(&mut self, now: Micros, host: &PolicyHost);

    /// Notes an event of a policy.
    fn policy_event(&mut self, event: &PolicyEvent);

    /// Notes that everything was collected for a policy that may be added later.
    fn briefed(&mut self, now: Micros, briefing: &Briefing);

    /// Ends a turn of the driver: writes a keyframe where one is due.
    fn turn(&mut self, now: Micros, machine: &Machine, host: &mut PolicyHost);

    /// The time at which [`Self::turn`] is to be called at the latest.
    fn flush_at(&self) -> Option<Micros>;
}
