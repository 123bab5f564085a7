//! The report of a run.

use pointsman_core::{Micros, Outcome};
use serde::Serialize;

use super::{Course, Histogram, Measures, RequestRecord};
use crate::numbers::{float, float_len, millis, secs};
use crate::workload::Roll;

/// Bounds that a good answer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goodput {
    /// The longest time to the first token.
    pub ttft_max: Micros,
    /// The longest mean time between two tokens.
    pub itl_max: Micros,
}

impl Default for Goodput {
    /// 2 s to the first token, and 25 ms between tokens.
    fn default() -> Self {
        Self {
            ttft_max: Micros(2_000_000),
            itl_max: Micros(25_000),
        }
    }
}

impl Goodput {
    /// True if an answer came to its end, and kept the bounds.
    #[must_use]
    pub fn is_met(&self, record: &RequestRecord) -> bool {
        let ttft = record.ttft().filter(|_| record.whole().is_some());
        let is_fast = ttft.is_some_and(|ttft| ttft <= self.ttft_max);
        let gap = record.mean_gap_ms().unwrap_or(0.0);
        is_fast && gap <= millis(self.itl_max)
    }
}

/// A distribution of times in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeSpread {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The time that nine of ten do not exceed.
    pub p90: f64,
    /// The time that 95 of 100 do not exceed.
    pub p95: f64,
    /// The time that 99 of 100 do not exceed.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// The report of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunReport {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that were served to their end.
    pub finished: u64,
    /// Requests that were not taken.
    pub refused: u64,
    /// Requests whose time ran out.
    pub expired: u64,
    /// Requests whose every try failed.
    pub failed: u64,
    /// Requests whose client left.
    pub cancelled: u64,
    /// The time from the first arrival to the last end, in seconds.
    pub duration_s: f64,
    /// Requests served in a second.
    pub requests_per_s: f64,
    /// Tokens generated in a second.
    pub output_tokens_per_s: f64,
    /// Prompt tokens of requests that got a first token.
    pub prompt_tokens: u64,
    /// The part of them that was cached, from 0 to 1.
    pub hit_rate: f64,
    /// Requests that were served well: see [`Goodput`].
    pub good: u64,
    /// The part of all requests that was served well, from 0 to 1.
    pub goodput: f64,
    /// Times to the first token; absent, as each of these: there are none.
    pub ttft_ms: Option<TimeSpread>,
    /// Times until an executor took a request up.
    pub wait_ms: Option<TimeSpread>,
    /// Mean times between tokens, by request.
    pub tpot_ms: Option<TimeSpread>,
    /// Times between two tokens.
    pub itl_ms: Option<TimeSpread>,
    /// Times to the end of an answer.
    pub whole_ms: Option<TimeSpread>,
    /// Requests that policies had evicted.
    pub evicted: u64,
    /// Sequences that servers made give way by themselves.
    pub recomputed: u64,
    /// Requests that went on elsewhere after a failure.
    pub failed_over: u64,
    /// Models that were loaded in another one's place.
    pub swaps: u64,
    /// Liveness bounds that ran out under a policy.
    pub strikes: u64,
    /// Answers of policies that the interlock refused.
    pub refused_answers: u64,
    /// Faults of policies.
    pub faults: u64,
    /// Jain's index of the tokens that tenants were served, by their weights: 1 where all shares are
    /// equal.
    pub jain: f64,
    /// The tenants, in order of the workload.
    pub tenants: Vec<TenantReport>,
    /// The executors, in attach order.
    pub executors: Vec<ExecutorReport>,
    /// The course of the run.
    pub course: Course,
}

/// The report of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantReport {
    /// The tenant's name.
    pub name: String,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that were served to their end.
    pub finished: u64,
    /// The part of its requests that was served well, from 0 to 1.
    pub goodput: f64,
    /// Tokens that it was served, prompts included.
    pub tokens: u64,
    /// Times to the first token; absent: there are none.
    pub ttft_ms: Option<TimeSpread>,
}

/// The report of one executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExecutorReport {
    /// The executor's name.
    pub name: String,
    /// Requests that had their last place there.
    pub requests: u64,
    /// The part of the run for which it computed, from 0 to 1.
    pub busy: f64,
    /// Prompt tokens that it computed.
    pub prefill_tokens: u64,
    /// Tokens that it generated.
    pub decode_tokens: u64,
    /// The part of its requests' prompt tokens that was cached, from 0 to 1.
    pub hit_rate: f64,
}

impl TimeSpread {
    /// The distribution of these times; absent: there are none.
    #[must_use]
    pub fn of(times: impl Iterator<Item = Micros>) -> Option<Self> {
        let mut times: Vec<Micros> = times.collect();
        times.sort_unstable();
        let sum: f64 = times.iter().map(|time| float(time.0)).sum();
        let at = |permille: u32| times[(times.len() * permille as usize).div_ceil(1000) - 1];
        (!times.is_empty()).then(|| Self::new(sum / float_len(times.len()), at))
    }

    /// The distribution of counted times; absent: there are none.
    #[must_use]
    pub fn of_histogram(times: &Histogram) -> Option<Self> {
        (times.total() > 0).then(|| Self::new(times.mean(), |permille| times.quantile(permille)))
    }

    /// A distribution by its mean in µs and the times that so many permille do not exceed.
    fn new(mean: f64, at: impl Fn(u32) -> Micros) -> Self {
        let at = |permille| millis(at(permille));
        Self {
            mean: mean / 1000.0,
            p50: at(500),
            p90: at(900),
            p95: at(950),
            p99: at(990),
            max: at(1000),
        }
    }
}

impl RunReport {
    /// The report of a run.
    #[must_use]
    pub fn new(measures: &Measures, roll: &Roll, goodput: Goodput) -> Self {
        let records = &measures.records;
        let of = |is_it: fn(&Outcome) -> bool| {
            let ended = records.iter().filter_map(|record| record.outcome);
            ended.filter(is_it).count() as u64
        };
        let first = records.iter().map(|record| record.arrived).min();
        let last = records.iter().filter_map(|record| record.ended).max();
        let duration = last.unwrap_or_default().since(first.unwrap_or_default());
        let duration_s = secs(duration).max(1e-6);
        let output: u64 = measures.executors.iter().map(|it| it.decode_tokens).sum();
        let finished = of(|it| matches!(it, Outcome::Finished { .. }));
        let good = records
            .iter()
            .filter(|record| goodput.is_met(record))
            .count() as u64;
        let tenants = tenants(records, roll, goodput);
        Self {
            requests: records.len() as u64,
            finished,
            refused: of(|it| matches!(it, Outcome::Refused(_))),
            expired: of(|it| matches!(it, Outcome::Expired(_))),
            failed: of(|it| matches!(it, Outcome::Failed(_))),
            cancelled: of(|it| matches!(it, Outcome::Cancelled)),
            duration_s,
            requests_per_s: float(finished) / duration_s,
            output_tokens_per_s: float(output) / duration_s,
            prompt_tokens: prompts(records.iter()).0,
            hit_rate: hit_rate(records.iter()),
            good,
            goodput: float(good) / float_len(records.len().max(1)),
            ttft_ms: TimeSpread::of(records.iter().filter_map(RequestRecord::ttft)),
            wait_ms: TimeSpread::of(records.iter().filter_map(RequestRecord::wait)),
            tpot_ms: TimeSpread::of(records.iter().filter_map(mean_gap)),
            itl_ms: TimeSpread::of_histogram(&measures.gaps),
            whole_ms: TimeSpread::of(records.iter().filter_map(RequestRecord::whole)),
            evicted: measures.host.evicted,
            recomputed: measures.executors.iter().map(|it| it.recomputed).sum(),
            failed_over: measures.host.failed_over,
            swaps: measures.executors.iter().map(|it| it.swaps).sum(),
            strikes: measures.host.strikes,
            refused_answers: measures.host.refused_answers.total(),
            faults: measures.host.faults,
            jain: jain(&tenants, roll),
            tenants,
            executors: executors(measures, duration),
            course: measures.series.course(),
        }
    }
}

/// The mean time between tokens, to the µs.
fn mean_gap(record: &RequestRecord) -> Option<Micros> {
    record.mean_gap_ms().map(crate::numbers::from_millis)
}

/// Prompt tokens of requests that got a first token, and those of them that were cached.
fn prompts<'a>(records: impl Iterator<Item = &'a RequestRecord>) -> (u64, u64) {
    let served = records.filter(|record| record.first_token.is_some());
    served.fold((0, 0), |(tokens, cached), record| {
        let more = u64::from(record.cached_tokens);
        (tokens + u64::from(record.prompt_tokens), cached + more)
    })
}

fn hit_rate<'a>(records: impl Iterator<Item = &'a RequestRecord>) -> f64 {
    let (tokens, cached) = prompts(records);
    float(cached) / float(tokens.max(1))
}

/// Tokens that a request was served, its prompt included.
fn served(record: &RequestRecord) -> u64 {
    let prompt = record.first_token.map_or(0, |_| record.prompt_tokens);
    u64::from(prompt) + u64::from(record.output_tokens)
}

fn tenants(records: &[RequestRecord], roll: &Roll, goodput: Goodput) -> Vec<TenantReport> {
    let mut by_tenant: Vec<Vec<&RequestRecord>> = vec![Vec::new(); roll.tenants.len()];
    for record in records {
        if let Some(of_tenant) = by_tenant.get_mut(record.tenant as usize) {
            of_tenant.push(record);
        }
    }
    let report = |(tenant, records): (&crate::workload::TenantEntry, Vec<&RequestRecord>)| {
        let good = records
            .iter()
            .filter(|record| goodput.is_met(record))
            .count();
        TenantReport {
            name: tenant.name.clone(),
            requests: records.len() as u64,
            finished: records.iter().filter(|it| it.whole().is_some()).count() as u64,
            goodput: float_len(good) / float_len(records.len().max(1)),
            tokens: records.iter().map(|record| served(record)).sum(),
            ttft_ms: TimeSpread::of(records.iter().filter_map(|record| record.ttft())),
        }
    };
    roll.tenants.iter().zip(by_tenant).map(report).collect()
}

/// Jain's index of shares, by weight, among tenants with requests.
fn jain(tenants: &[TenantReport], roll: &Roll) -> f64 {
    let shares = tenants.iter().zip(&roll.tenants);
    let shares = shares.filter(|(tenant, _)| tenant.requests > 0);
    jain_of(shares.map(|(tenant, entry)| (tenant.tokens, entry.weight)))
}

/// Jain's index of tokens, each by its tenant's weight; 1 where there are none.
pub(crate) fn jain_of(tokens: impl Iterator<Item = (u64, u32)>) -> f64 {
    let shares = tokens.map(|(tokens, weight)| float(tokens) / f64::from(weight.max(1)));
    let shares: Vec<f64> = shares.collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 {
        sum * sum / (float_len(shares.len()) * squares)
    } else {
        1.0
    }
}

fn executors(measures: &Measures, duration: Micros) -> Vec<ExecutorReport> {
    let mut by_executor: Vec<Vec<&RequestRecord>> = vec![Vec::new(); measures.executors.len()];
    for record in &measures.records {
        let placed = record
            .executor
            .and_then(|idx| by_executor.get_mut(idx as usize));
        if let Some(of_executor) = placed {
            of_executor.push(record);
        }
    }
    let report =
        |(executor, records): (&super::ExecutorMeasures, Vec<&RequestRecord>)| ExecutorReport {
            name: executor.name.clone(),
            requests: records.len() as u64,
            busy: float(executor.busy.0) / float(duration.0.max(1)),
            prefill_tokens: executor.prefill_tokens,
            decode_tokens: executor.decode_tokens,
            hit_rate: hit_rate(records.into_iter()),
        };
    measures
        .executors
        .iter()
        .zip(by_executor)
        .map(report)
        .collect()
}

#[cfg(test)]
mod tests {
    use pointsman_core::rows::RequestClass;

    use super::super::ExecutorMeasures;
    use super::*;

    fn record(tenant: u32, ttft: u64, whole: u64) -> RequestRecord {
        RequestRecord {
            tenant,
            class: RequestClass::LatencyCritical,
            arrived: Micros(1_000_000),
            started: Some(Micros(1_000_500)),
            first_token: Some(Micros(1_000_000 + ttft)),
            ended: Some(Micros(1_000_000 + whole)),
            executor: Some(0),
            prompt_tokens: 100,
            cached_tokens: 40,
            output_tokens: 11,
            outcome: Some(Outcome::Finished { output_tokens: 11 }),
        }
    }

    fn report(records: Vec<RequestRecord>) -> RunReport {
        let measures = Measures {
            records,
            executors: vec![ExecutorMeasures::default()],
            ..Measures::default()
        };
        RunReport::new(&measures, &Roll::of_tenants(["a", "b"]), Goodput::default())
    }

    #[test]
    fn a_request_is_good_if_it_begins_and_goes_on_in_time() {
        let second = 1_000_000;
        // 25 ms between tokens, exactly; then a µs more in all; then too late a beginning.
        let good = record(0, second, second + 250_000);
        let slow = record(0, second, second + 250_001);
        let late = record(0, 2 * second + 1, 2 * second + 2);
        let unended = RequestRecord {
            outcome: Some(Outcome::Cancelled),
            ..good
        };
        let report = report(vec![good, slow, late, unended]);
        assert_eq!((report.requests, report.good, report.goodput), (4, 1, 0.25));
        assert_eq!((report.finished, report.cancelled), (3, 1));
        assert_eq!((report.hit_rate, report.prompt_tokens), (0.4, 400));
        assert_eq!(report.wait_ms.unwrap().max, 0.5);
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let spread = TimeSpread::of((1..=200).map(|n| Micros(n * 1000))).unwrap();
        let found = [spread.p50, spread.p90, spread.p95, spread.p99, spread.max];
        assert_eq!(found, [100.0, 180.0, 190.0, 198.0, 200.0]);
        assert_eq!(spread.mean, 100.5);
        let one = TimeSpread::of([Micros(7000)].into_iter()).unwrap();
        assert_eq!((one.p50, one.max), (7.0, 7.0));
    }

    #[test]
    fn where_nobody_is_served_there_are_no_times() {
        let refused = RequestRecord {
            started: None,
            first_token: None,
            outcome: Some(Outcome::Cancelled),
            ..record(0, 1, 2)
        };
        let report = report(vec![refused]);
        assert_eq!((report.ttft_ms, report.wait_ms), (None, None));
        assert_eq!((report.itl_ms, report.tpot_ms), (None, None));
        assert_eq!((report.whole_ms, report.tenants[0].ttft_ms), (None, None));
    }

    #[test]
    fn equal_shares_have_the_index_one_and_one_of_two_a_half() {
        let both = report(vec![record(0, 1, 2), record(1, 1, 2)]);
        assert_eq!(both.jain, 1.0);
        let starved = RequestRecord {
            first_token: None,
            output_tokens: 0,
            ..record(1, 1, 2)
        };
        let one = report(vec![record(0, 1, 2), starved]);
        assert_eq!(one.jain, 0.5);
        assert_eq!(one.tenants[0].tokens, 111);
    }
}
