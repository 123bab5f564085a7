//! The bound on the load of an executor beyond which its prefix no longer draws requests.
//!
//! The thresholds are those of SGLang's cache-aware router. They hold there for the greatest and
//! the least load of a fleet, and here for the load of the executor in question, which is over the
//! bound if `load - other > balance-abs` and `load > balance-rel x other`.

use std::iter::Sum;

use crate::settings::Settings;

/// Loads to measure against: their sum and number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    sum: u64,
    count: u64,
}

/// The bound for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The loads to measure against, by their mean.
    total: Total,
    balance_abs: u64,
    balance_rel: u64,
}

// === impl Total ===

impl Total {
    pub(crate) fn of(load: u64) -> Self {
        Self {
            sum: load,
            count: 1,
        }
    }

    pub(crate) fn add(&mut self, load: u64) {
        self.sum += load;
        self.count += 1;
    }

    /// Takes away a load that was added before.
    pub(crate) fn subtract(&mut self, load: u64) {
        self.sum -= load;
        self.count -= 1;
    }
}

impl Sum for Total {
    fn sum<I: Iterator<Item = Self>>(totals: I) -> Self {
        totals.fold(Self::default(), |all, one| Self {
            sum: all.sum + one.sum,
            count: all.count + one.count,
        })
    }
}

// === impl Bound ===

impl Bound {
    pub(crate) fn new(settings: &Settings, total: Total) -> Self {
        Self {
            total,
            balance_abs: u64::from(settings.balance_abs),
            balance_rel: u64::from(settings.balance_rel),
        }
    }

    /// Returns whether a load is within the bound.
    pub(crate) fn holds(&self, load: u64) -> bool {
        let Total { sum, count } = self.total;
        let all = load * count;
        let far = all > sum + self.balance_abs * count;
        let much = all * 1000 > sum * self.balance_rel;
        !(far && much)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, Total};
    use crate::settings::Settings;

    /// The greatest load within the bound against the mean of these loads.
    fn greatest(balance: (u32, u32), loads: &[u64]) -> u64 {
        let settings = Settings {
            balance_abs: balance.0,
            balance_rel: balance.1,
            ..Settings::default()
        };
        let total = loads.iter().copied().map(Total::of).sum();
        let bound = Bound::new(&settings, total);
        let over = (0..10_000).find(|&load| !bound.holds(load));
        over.expect("some load is over every bound") - 1
    }

    #[test]
    fn a_load_is_over_when_it_is_over_both_thresholds() {
        // 64 more than 10 are 74, 1.5 times 10 are 15: the later one counts.
        assert_eq!(greatest((64, 1500), &[10]), 74);
        // 64 more than 400 are 464, 1.5 times 400 are 600.
        assert_eq!(greatest((64, 1500), &[400]), 600);
        // SGLang's other set of defaults, 32 and 1.1: 232 and 220.
        assert_eq!(greatest((32, 1100), &[200]), 232);
        assert_eq!(greatest((0, 1000), &[3]), 3);
    }

    #[test]
    fn the_mean_is_not_rounded() {
        // The mean is 10/3: two more are 5.33, 1.5 times it is 5.
        assert_eq!(greatest((2, 1500), &[0, 0, 10]), 5);
        // The mean is 5: one more is 6, twice it is 10.
        assert_eq!(greatest((1, 2000), &[0, 10]), 10);
    }

    #[test]
    fn what_was_added_can_be_taken_away() {
        let mut total: Total = [3, 5].map(Total::of).into_iter().sum();
        total.add(7);
        total.subtract(3);
        assert_eq!(total, [5, 7].map(Total::of).into_iter().sum());
    }
}
