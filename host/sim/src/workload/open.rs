//! Requests at random that do not wait for each other: steady, in bursts, with one tenant that
//! floods.

use pointsman_core::Micros;
use pointsman_core::rows::RequestClass;

use super::{Arrival, PromptText, Roll, Workload};
use crate::draws::{Draws, mix, place_of, zipf};
use crate::numbers::{from_secs, secs, whole_at_least};

/// The requests to make.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenPlan {
    /// The seed of all draws.
    pub seed: u64,
    /// Requests in all.
    pub requests: u64,
    /// Requests in a second, on average outside of bursts and floods. Above 0: otherwise none ever comes.
    pub rate: f64,
    /// Lengths of prompts, what they share included.
    pub prompt: Lengths,
    /// Lengths of answers.
    pub output: Lengths,
    /// Tenants, of equal shares.
    pub tenants: u32,
    /// Models, with shares by Zipf's law; 0: requests name no model.
    pub models: u32,
    /// The exponent of the models' shares.
    pub models_zipf: f64,
    /// Groups of requests whose prompts begin alike; 0: none do.
    pub prefixes: u32,
    /// Tokens of the common beginning.
    pub prefix_tokens: u32,
    /// The part of requests for which only throughput matters.
    pub throughput_share: f64,
    /// Times with more requests.
    pub bursts: Option<Bursts>,
    /// A tenant that sends more than the others together.
    pub flood: Option<Flood>,
}

/// Times with more requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// From one beginning to the next.
    pub every: Micros,
    /// The length of each.
    pub lasting: Micros,
    /// The rate within one, as a multiple.
    pub factor: f64,
}

/// The requests that the last tenant sends besides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flood {
    /// The beginning.
    pub from: Micros,
    /// The length.
    pub lasting: Micros,
    /// Requests in a second, as a multiple of the rate of all tenants.
    pub factor: f64,
}

/// A distribution of lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// The mean.
    pub mean: f64,
    /// The median; with the mean it sets a lognormal distribution. Not below the mean: all lengths
    /// are the mean.
    pub median: f64,
    /// The greatest length.
    pub max: u32,
}

impl Lengths {
    /// Lengths that are all the same.
    #[must_use]
    pub fn fixed(tokens: u32) -> Self {
        Self {
            mean: f64::from(tokens),
            median: f64::from(tokens),
            max: tokens,
        }
    }

    /// Draws a length.
    pub fn draw(&self, draws: &mut Draws) -> u32 {
        if self.median >= self.mean {
            return whole_at_least(self.mean, 1).min(self.max.max(1));
        }
        let drawn = draws.lognormal(self.mean, self.median.max(1.0));
        whole_at_least(drawn, 1).min(self.max.max(1))
    }
}

/// A workload of independent requests.
#[derive(Clone, Debug)]
pub struct OpenLoad {
    plan: OpenPlan,
    roll: Roll,
    draws: Draws,
    model_shares: Vec<f64>,
    next: Option<Arrival>,
    made: u64,
    at: f64,
}

impl OpenLoad {
    /// Makes a workload by a plan.
    #[must_use]
    pub fn new(plan: OpenPlan) -> Self {
        let mut roll = Roll::of_tenants((0..plan.tenants.max(1)).map(|n| format!("tenant-{n}")));
        roll.models = (0..plan.models).map(|n| format!("model-{n}")).collect();
        let mut load = Self {
            roll,
            draws: Draws::new(plan.seed),
            model_shares: zipf(plan.models, plan.models_zipf),
            next: None,
            made: 0,
            at: 0.0,
            plan,
        };
        load.next = load.make();
        load
    }

    /// The rates of all tenants together and of the flood at a time.
    fn rates(&self, at: f64) -> (f64, f64) {
        let plan = &self.plan;
        let is_burst = |burst: &Bursts| at % secs(burst.every).max(1e-6) < secs(burst.lasting);
        let burst = plan.bursts.filter(is_burst);
        let rate = plan.rate * burst.map_or(1.0, |burst| burst.factor);
        let is_flood = |flood: &Flood| {
            let begun = at - secs(flood.from);
            begun >= 0.0 && begun < secs(flood.lasting)
        };
        let flood = plan.flood.filter(is_flood);
        (rate, flood.map_or(0.0, |flood| plan.rate * flood.factor))
    }

    /// The highest rate at any time.
    fn rate_max(&self) -> f64 {
        let plan = &self.plan;
        let burst = plan.bursts.map_or(1.0, |burst| burst.factor.max(1.0));
        plan.rate * (burst + plan.flood.map_or(0.0, |flood| flood.factor))
    }

    /// Makes the next request, by thinning: candidates come at the highest rate, and each is taken
    /// with the probability that the rate of its time has of that.
    fn make(&mut self) -> Option<Arrival> {
        if self.made == self.plan.requests {
            return None;
        }
        self.made += 1;
        let most = self.rate_max().max(1e-9);
        let is_flood = loop {
            self.at += self.draws.exponential(1.0 / most);
            let (rate, flood) = self.rates(self.at);
            let taken = self.draws.unit() * most;
            if taken < rate + flood {
                break taken >= rate;
            }
        };
        let plan = &self.plan;
        let draws = &mut self.draws;
        let tokens = plan.prompt.draw(draws);
        let output = plan.output.draw(draws);
        let prompt = if plan.prefixes == 0 {
            PromptText::unlike_others(tokens)
        } else {
            let group = draws.below(u64::from(plan.prefixes));
            let tokens = tokens.max(plan.prefix_tokens + 1);
            PromptText::of_pieces(tokens, plan.prefix_tokens, [mix(group)])
        };
        let drawn = draws.below(u64::from(plan.tenants.max(1)));
        let last = plan.tenants.max(1) - 1;
        let tenant = u32::try_from(drawn).unwrap_or(last);
        let model = place_of(&self.model_shares, draws.unit());
        let is_throughput = draws.chance(plan.throughput_share);
        Some(Arrival {
            tenant: if is_flood { last } else { tenant },
            model: (plan.models > 0).then(|| crate::numbers::narrow_len(model)),
            class: if is_throughput {
                RequestClass::Throughput
            } else {
                RequestClass::LatencyCritical
            },
            ..Arrival::new(from_secs(self.at), prompt, output)
        })
    }
}

impl Workload for OpenLoad {
    fn roll(&self) -> &Roll {
        &self.roll
    }

    fn next_at(&self) -> Option<Micros> {
        self.next.as_ref().map(|arrival| arrival.at)
    }

    fn pop(&mut self) -> Option<Arrival> {
        let next = self.make();
        std::mem::replace(&mut self.next, next)
    }

    fn total(&self) -> Option<u64> {
        Some(self.plan.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> OpenPlan {
        OpenPlan {
            seed: 5,
            requests: 4000,
            rate: 20.0,
            prompt: Lengths {
                mean: 600.0,
                median: 400.0,
                max: 4000,
            },
            output: Lengths::fixed(9),
            tenants: 3,
            models: 0,
            models_zipf: 1.0,
            prefixes: 0,
            prefix_tokens: 0,
            throughput_share: 0.25,
            bursts: None,
            flood: None,
        }
    }

    fn made(plan: OpenPlan) -> Vec<Arrival> {
        let mut load = OpenLoad::new(plan);
        std::iter::from_fn(|| load.pop()).collect()
    }

    #[test]
    fn requests_come_at_the_rate_with_the_lengths_and_classes_asked_for() {
        let arrivals = made(plan());
        assert_eq!(arrivals.len(), 4000);
        let last = secs(arrivals[3999].at);
        assert!((190.0..210.0).contains(&last), "4000 at 20/s in {last} s");
        let tokens: f64 = arrivals.iter().map(|it| f64::from(it.prompt.tokens)).sum();
        assert!((560.0..640.0).contains(&(tokens / 4000.0)), "{tokens}");
        assert!(arrivals.iter().all(|it| it.output_tokens == 9));
        let n = arrivals
            .iter()
            .filter(|it| it.class == RequestClass::Throughput)
            .count();
        assert!((900..1100).contains(&n), "{n} of about 1000");
        assert_eq!(
            arrivals,
            made(plan()),
            "the same seed gives the same requests"
        );
    }

    #[test]
    fn bursts_and_floods_bring_more_requests_in_their_time() {
        let bursts = Bursts {
            every: Micros(60_000_000),
            lasting: Micros(6_000_000),
            factor: 10.0,
        };
        let arrivals = made(OpenPlan {
            bursts: Some(bursts),
            ..plan()
        });
        let within = |it: &&Arrival| it.at.0 % 60_000_000 < 6_000_000;
        let share = arrivals.iter().filter(within).count();
        assert!(
            (2200..2600).contains(&share),
            "{share}, about 2400 in two bursts"
        );
        let flood = Flood {
            from: Micros(10_000_000),
            lasting: Micros(20_000_000),
            factor: 4.0,
        };
        let arrivals = made(OpenPlan {
            flood: Some(flood),
            ..plan()
        });
        let within = arrivals
            .iter()
            .filter(|it| (10_000_000..30_000_000).contains(&it.at.0));
        let (last, others): (Vec<_>, Vec<_>) = within.partition(|it| it.tenant == 2);
        assert!(
            last.len() > 5 * others.len(),
            "{} {}",
            last.len(),
            others.len()
        );
    }

    #[test]
    fn prompts_of_a_group_begin_alike() {
        let arrivals = made(OpenPlan {
            prefixes: 2,
            prefix_tokens: 64,
            models: 3,
            ..plan()
        });
        let firsts = arrivals.iter().map(|it| it.prompt.blocks(64).hashes[0]);
        let firsts: std::collections::BTreeSet<_> = firsts.collect();
        assert_eq!(firsts.len(), 2);
        let of = |model| arrivals.iter().filter(|it| it.model == Some(model)).count();
        assert!(
            of(0) > of(1) && of(1) > of(2),
            "{} {} {}",
            of(0),
            of(1),
            of(2)
        );
    }
}
