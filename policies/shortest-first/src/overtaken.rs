//! The number of later requests that may have been placed before one that waits.
//!
//! Nobody tells it. Ids grow with arrivals, so that what came later and waits no more has been placed, or has ended: the
//! number is at most that of all who came later, less those of them who wait.

use pointsman_sdk::Bounds;

/// The most later requests that can have overtaken each, of those that wait by their ascending ids.
pub(crate) fn at_most(newest: u64, waiting: &[u64]) -> impl Iterator<Item = u64> {
    let later_waiting = (0..waiting.len() as u64).rev();
    let later = waiting.iter().map(move |id| newest.saturating_sub(*id));
    later
        .zip(later_waiting)
        .map(|(later, waiting)| later.saturating_sub(waiting))
}

/// True of a number from which on a request goes first: the host steps in a quarter later.
pub(crate) fn is_enough(overtaken: u64, bounds: &Bounds) -> bool {
    overtaken >= u64::from(bounds.overtaken_max) * 3 / 4
}

#[cfg(test)]
mod tests {
    use pointsman_sdk::fixture::bounds;

    use super::{at_most, is_enough};

    #[test]
    fn who_came_later_and_waits_no_more_may_have_overtaken() {
        // 3, 4, 6 and 8 are gone: four came after 2, of which three wait; two after 5 and one after 7 are gone.
        let most: Vec<u64> = at_most(9, &[2, 5, 7, 9]).collect();
        assert_eq!(most, [4, 2, 1, 0]);
        assert_eq!(at_most(0, &[]).count(), 0);
    }

    #[test]
    fn it_is_enough_before_the_host_steps_in() {
        let bounds = bounds();
        assert_eq!(bounds.overtaken_max, 256);
        assert!(!is_enough(191, &bounds));
        assert!(is_enough(192, &bounds));
    }
}
