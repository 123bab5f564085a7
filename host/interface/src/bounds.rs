//! The bounds that the host keeps whatever a policy says.

use crate::ids::Micros;

/// The bounds that the host keeps whatever a policy says, as a policy is told them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented in wit/hooks.wit, record bounds")]
pub struct Bounds {
    pub queue_max: u32,
    pub parking_max: u32,
    pub batch_max: u32,
    pub attempts_max: u32,
    pub overtaken_max: u32,
    pub wait_max: Micros,
    pub unplaced_max: Micros,
    pub held_max: Micros,
}
