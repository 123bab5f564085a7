//! The setting in which a policy is asked.

use pointsman_events::{Moment, Question};

use crate::view::View;

/// A question together with the machine and the time at which it is asked.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The machine, changes made earlier in the same round included.
    pub view: View<'a>,
    /// The round of the question, and the time of the round.
    pub at: Moment,
    /// The question with its arguments.
    pub question: Question<'a>,
}
