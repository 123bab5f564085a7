//! The capacity of a server that does not tell it, as the requests there show it.
//!
//! Requests that wait at a server wait in its order, and no policy has a say in that. Where some wait in two rounds of questions in
//! a row, and no more run than before, the server runs no more at once. Some that wait in one round alone say nothing: a server takes
//! those that have just come a step later, and long prompts one after the other.
//!
//! Memory may be lacking for a while, or tokens in a step, and not slots: a round in which none waits raises the capacity to one more
//! than it was, or than run, and the next ones in a row by two, four, and so on, while half of it is in use. Where the server is full,
//! few wait there before it is found again, and after one long prompt the capacity is soon no bound to what comes. It is
//! forgotten where none is known to wait and no request of ours is there.

use std::mem;

/// The requests at a server, ours and others', as it counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headcount {
    pub(super) running: u32,
    pub(super) waiting: u32,
}

/// The capacity that was found.
#[derive(Debug, Default)]
pub(super) struct FoundCapacity {
    /// Requests that the server was found to run at once; absent: it was not found to be full.
    running_max: Option<u32>,
    /// Requests that ran in the round before, if some waited then.
    ran: Option<u32>,
    /// The last rise of the capacity; zero: some have waited since.
    rise: u32,
}

// === impl Headcount ===

impl Headcount {
    pub(super) fn all(self) -> u32 {
        self.running.saturating_add(self.waiting)
    }
}

// === impl FoundCapacity ===

impl FoundCapacity {
    /// Takes note of a round in which so many requests were ours. Returns the capacity; absent: it is not known.
    pub(super) fn note(&mut self, counted: Option<Headcount>, ours: u32) -> Option<u32> {
        let waited = counted.filter(|counted| counted.waiting > 0);
        let runs = waited.map(|counted| counted.running);
        let ran = mem::replace(&mut self.ran, runs);
        let half = self.running_max.unwrap_or_default() / 2;
        self.rise = match (counted, runs) {
            (_, Some(_)) => 0,
            (Some(counted), None) if counted.running < half => 1,
            (Some(_), None) => self.rise.saturating_mul(2).max(1),
            (None, None) => self.rise,
        };
        self.running_max = match (ran, runs) {
            (Some(ran), Some(runs)) if runs <= ran => Some(ran),
            (_, Some(runs)) => self.running_max.map(|max| max.max(runs)),
            (_, None) if ours == 0 => None,
            (_, None) => self.running_max.map(|max| match counted {
                Some(counted) => max.max(counted.running).saturating_add(self.rise),
                None => max,
            }),
        };
        self.running_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The capacity after each of these rounds: the requests that run and wait, and those that are ours.
    fn found<const N: usize>(rounds: [(u32, u32, u32); N]) -> [Option<u32>; N] {
        let mut found = FoundCapacity::default();
        rounds.map(|(running, waiting, ours)| {
            let counted = Headcount { running, waiting };
            found.note(Some(counted), ours)
        })
    }

    #[test]
    fn a_server_at_which_requests_go_on_waiting_runs_no_more_at_once_than_it_does() {
        let (none, full) = (None, Some(64));
        let rounds = [
            (64, 192, 256),
            (64, 192, 256),
            (64, 100, 164),
            (62, 90, 152),
        ];
        assert_eq!(found(rounds), [none, full, full, full]);
        // By others' requests, too.
        assert_eq!(found([(64, 9, 0), (64, 9, 0)]), [none, full]);
    }

    #[test]
    fn requests_that_wait_for_a_moment_say_nothing() {
        let burst = [(20, 180, 200), (150, 50, 200), (200, 0, 200)];
        assert_eq!(found(burst), [None; 3]);
        let often = [(20, 1, 21), (20, 0, 20), (19, 3, 22), (22, 0, 22)];
        assert_eq!(found(often), [None; 4]);
    }

    #[test]
    fn a_capacity_grows_while_none_waits_and_with_what_runs_and_is_forgotten_with_our_requests() {
        let rounds = [
            (10, 5, 15),
            (10, 5, 15),
            (10, 0, 10),
            (11, 0, 11),
            (30, 2, 32),
            (12, 0, 12),
            (3, 0, 0),
        ];
        let capacities = [None, Some(10), Some(11), Some(13), Some(30), Some(31), None];
        assert_eq!(found(rounds), capacities);
        // A long prompt takes all tokens of some steps.
        let held_up = [(1, 199, 200), (1, 199, 200), (200, 0, 200)];
        assert_eq!(found(held_up), [None, Some(1), Some(201)]);
    }

    #[test]
    fn a_capacity_is_soon_no_bound_after_a_long_prompt_and_is_not_lost_where_little_runs() {
        // Four requests, whose prompts are read one after the other.
        let [held_up, runs] = [(1, 3, 4), (4, 0, 4)];
        let found = found([
            held_up, held_up, runs, runs, runs, runs, runs, runs, runs, runs,
        ]);
        let raised = [1, 5, 7, 11, 12, 13, 14, 15, 16].map(Some);
        assert_eq!((found[0], &found[1..]), (None, &raised[..]));
    }

    #[test]
    fn of_a_full_server_at_which_none_waits_for_a_moment_one_slot_more_is_tried() {
        let rounds = [
            (64, 9, 73),
            (64, 9, 73),
            (64, 0, 64),
            (64, 1, 65),
            (64, 1, 65),
            (64, 0, 64),
        ];
        let [full, one_more] = [64, 65].map(Some);
        let capacities = [None, full, one_more, one_more, full, one_more];
        assert_eq!(found(rounds), capacities);
    }

    #[test]
    fn a_round_in_which_nothing_is_counted_leaves_a_capacity_as_it_is() {
        let mut found = FoundCapacity::default();
        assert_eq!(found.note(None, 1), None);
        let counted = Some(Headcount {
            running: 2,
            waiting: 3,
        });
        let rounds = [counted, counted, None, None].map(|counted| found.note(counted, 5));
        assert_eq!(rounds, [None, Some(2), Some(2), Some(2)]);
    }
}
