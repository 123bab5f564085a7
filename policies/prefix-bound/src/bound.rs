//! How loaded an executor may be before its prefix no longer draws requests.
//!
//! The thresholds are those of SGLang's cache-aware router, there for the greatest and the least
//! load of a fleet, here for the load of the executor in question: it is over the bound if
//! `load - other > balance-abs` and `load > balance-rel x other`.

use crate::settings::{Against, Settings};

/// The bound for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The sum of the loads measured against, and how many they are: their mean, undivided.
    sum: u64,
    count: u64,
    balance_abs: u64,
    balance_rel: u64,
}

impl Bound {
    pub(crate) fn new(settings: &Settings, loads: impl Iterator<Item = u64>) -> Self {
        let (sum, count) = match settings.against {
            Against::Least => (loads.min().unwrap_or(0), 1),
            Against::Mean => loads.fold((0, 0), |(sum, count), load| (sum + load, count + 1)),
        };
        Self {
            sum,
            count,
            balance_abs: u64::from(settings.balance_abs),
            balance_rel: u64::from(settings.balance_rel),
        }
    }

    /// Whether a load is within the bound.
    pub(crate) fn holds(&self, load: u64) -> bool {
        let all = load * self.count;
        let far = all > self.sum + self.balance_abs * self.count;
        let much = all * 1000 > self.sum * self.balance_rel;
        !(far && much)
    }
}

#[cfg(test)]
mod tests {
    use super::Bound;
    use crate::settings::{Against, Settings};

    /// The greatest load within the bound.
    fn greatest(against: Against, balance: (u32, u32), loads: &[u64]) -> u64 {
        let settings = Settings {
            balance_abs: balance.0,
            balance_rel: balance.1,
            against,
            ..Settings::default()
        };
        let bound = Bound::new(&settings, loads.iter().copied());
        let over = (0..10_000).find(|&load| !bound.holds(load));
        over.expect("some load is over every bound") - 1
    }

    #[test]
    fn a_load_is_over_when_it_is_over_both_thresholds() {
        let least = |balance, loads: &[u64]| greatest(Against::Least, balance, loads);
        // 64 more than 10 are 74, 1.5 times 10 are 15: the later one counts.
        assert_eq!(least((64, 1500), &[200, 10]), 74);
        // 64 more than 400 are 464, 1.5 times 400 are 600.
        assert_eq!(least((64, 1500), &[400, 900]), 600);
        // SGLang's other set of defaults, 32 and 1.1: 232 and 220.
        assert_eq!(least((32, 1100), &[200]), 232);
        assert_eq!(least((0, 1000), &[3, 5]), 3);
    }

    #[test]
    fn the_mean_is_not_rounded() {
        let mean = |balance, loads: &[u64]| greatest(Against::Mean, balance, loads);
        // The mean is 10/3: two more are 5.33, 1.5 times it is 5.
        assert_eq!(mean((2, 1500), &[0, 0, 10]), 5);
        // The mean is 5: one more is 6, twice it is 10.
        assert_eq!(mean((1, 2000), &[0, 10]), 10);
    }
}
