//! What an hour of facts comes to.

use pointsman_core::rows::RequestClass;
use pointsman_core::{Decided, DeviceId, PlacedIn, RequestId, RequeuedWhy, Round, TenantId};

use super::*;
use crate::lives::Lives;

const MINUTE: u64 = 60_000_000;
const A: ExecutorId = ExecutorId(0);
const B: ExecutorId = ExecutorId(1);
const MODEL: ModelId = ModelId(2);

/// A host of which facts are told.
struct Host {
    lives: Lives,
    activity: Activity,
    next: u64,
}

/// A request that is served.
struct Served {
    preferred: Option<ExecutorId>,
    executor: ExecutorId,
    /// The times of arrival, start and end, in µs.
    at: [u64; 3],
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            lives: Lives::default(),
            activity: Activity::default(),
            next: 0,
        };
        for executor in [A, B] {
            host.tell(0, Fact::ExecutorAttached(executor, DeviceId(0)));
        }
        host
    }

    fn tell(&mut self, now: u64, fact: Fact) {
        let stamped = Stamped {
            now: Micros(now),
            round: Round(1),
            fact,
        };
        let life = self.lives.fold(&stamped);
        self.activity.fact(&stamped, life);
    }

    fn begin(&mut self, served: &Served) -> RequestId {
        let request = RequestId(self.next);
        self.next += 1;
        let [arrived, started, _] = served.at;
        let executor = served.executor;
        let arrival = Fact::Arrived {
            request,
            tenant: TenantId(0),
            model: Some(MODEL),
            class: RequestClass::LatencyCritical,
            preferred: served.preferred,
        };
        let placed = Fact::Placed {
            request,
            executor,
            into: PlacedIn::Slot,
            by: Decided::BUILT_IN,
        };
        self.tell(arrived, arrival);
        self.tell(started, placed);
        self.tell(started, Fact::Started(request, executor));
        request
    }

    fn end_stay(&mut self, request: RequestId, served: &Served) {
        let [_, started, ended] = served.at;
        let stay = Stay {
            request,
            executor: served.executor,
            tenant: TenantId(0),
            model: Some(MODEL),
            started: Some(Micros(started)),
            prompt_tokens: 20,
            cached_tokens: 16,
            output_tokens: 5,
        };
        self.tell(ended, Fact::StayEnded(stay));
    }

    fn serve(&mut self, served: &Served) {
        let request = self.begin(served);
        self.end_stay(request, served);
        let finished = Outcome::Finished { output_tokens: 5 };
        self.tell(served.at[2], Fact::Ended(request, finished));
    }

    fn on(&self, now: u64, executor: ExecutorId, slots: u32) -> ExecutorActivity {
        let activity = self.activity.executor(Micros(now), executor, slots);
        activity.unwrap()
    }
}

fn served(executor: ExecutorId, at: [u64; 3]) -> Served {
    Served {
        preferred: None,
        executor,
        at,
    }
}

#[test]
fn an_executor_is_told_with_its_share_its_use_and_its_mean_duration() {
    let mut host = Host::new();
    // Two minutes and four on one, over the end of a minute; one minute on the other.
    host.serve(&served(A, [0, 0, 2 * MINUTE]));
    host.serve(&served(B, [2 * MINUTE, 2 * MINUTE, 3 * MINUTE]));
    host.serve(&served(A, [2 * MINUTE, 3 * MINUTE, 7 * MINUTE]));
    let a = host.on(10 * MINUTE, A, 2);
    let expected = ExecutorActivity {
        served: 2,
        share_permille: Some(666),
        // 6 of 2 times 10 minutes.
        utilisation_permille: Some(300),
        mean_micros: Some(3 * MINUTE),
        sessions: SessionHits::default(),
    };
    assert_eq!(a, expected);
    assert_eq!(host.on(10 * MINUTE, B, 1).utilisation_permille, Some(100));
    assert_eq!(host.on(10 * MINUTE, B, 0).utilisation_permille, None);

    // An hour later nothing of it counts, but for the totals.
    let a = host.on(70 * MINUTE, A, 2);
    let rest = (a.served, a.utilisation_permille, a.mean_micros);
    assert_eq!(rest, (2, Some(0), None));
}

#[test]
fn what_still_runs_counts_up_to_now_and_use_never_passes_the_whole() {
    let mut host = Host::new();
    host.begin(&served(A, [0, 0, 0]));
    assert_eq!(host.on(MINUTE, A, 2).utilisation_permille, Some(500));
    assert_eq!(host.on(200 * MINUTE, A, 2).utilisation_permille, Some(500));
    // Slots were lowered below use.
    host.begin(&served(A, [0, 0, 0]));
    assert_eq!(host.on(MINUTE, A, 1).utilisation_permille, Some(1000));
}

#[test]
fn a_session_miss_is_charged_to_the_executor_that_was_expected() {
    let mut host = Host::new();
    for (preferred, executor) in [(Some(A), A), (Some(A), B), (None, B)] {
        host.serve(&Served {
            preferred,
            executor,
            at: [0, 1, 2],
        });
    }
    let hits = |hits, misses| SessionHits { hits, misses };
    assert_eq!(host.on(3, A, 1).sessions, hits(1, 1));
    assert_eq!(host.on(3, B, 1).sessions, hits(0, 0));
    assert_eq!(host.activity.report(Micros(3)).totals.sessions, hits(1, 1));
}

#[test]
fn totals_models_waits_and_minutes_follow_the_facts() {
    let mut host = Host::new();
    host.serve(&served(A, [0, 10, 20]));
    host.serve(&served(A, [MINUTE, MINUTE + 30, MINUTE + 40]));
    let left = served(A, [MINUTE + 50, MINUTE + 70, MINUTE + 80]);
    let request = host.begin(&left);
    host.tell(MINUTE + 75, Fact::Ended(request, Outcome::Cancelled));
    host.end_stay(request, &left);
    host.activity.turned(Micros(MINUTE + 90), 4);

    let report = host.activity.report(Micros(MINUTE + 90));
    let totals = Totals {
        arrived: 3,
        finished: 2,
        cancelled: 1,
        prompt_tokens: 60,
        cached_tokens: 48,
        output_tokens: 15,
        ..Totals::default()
    };
    assert_eq!(report.totals, totals);
    let waits = report.waits.unwrap();
    let waited = (
        waits.count,
        waits.p10_micros,
        waits.mean_micros,
        waits.p90_micros,
    );
    assert_eq!(waited, (3, 10, 20, 30));
    assert_eq!(report.recent.waits, report.waits);
    let minutes = report.minutes.iter();
    let minutes = minutes.map(|it| (it.from.0, it.numbers.finished, it.numbers.queued_max));
    assert_eq!(minutes.collect::<Vec<_>>(), [(0, 1, 0), (MINUTE, 1, 4)]);
    let of_model = ModelActivity {
        requests: 3,
        prompt_tokens: 60,
        output_tokens: 15,
    };
    assert_eq!(host.activity.model(MODEL), of_model);
    assert_eq!(host.activity.model(ModelId(9)), ModelActivity::default());
}

#[test]
fn waits_and_first_tokens_of_the_last_quarter_of_an_hour_are_told_by_themselves() {
    let mut host = Host::new();
    let [long, short] = [
        [0, 1000, 2000],
        [20 * MINUTE, 20 * MINUTE + 10, 20 * MINUTE + 90],
    ];
    for at in [long, short] {
        let served = served(A, at);
        let request = host.begin(&served);
        let first = Micros(at[1] + 30);
        let after = host.lives.generated(first, request).unwrap();
        host.activity.first_token(first, after);
        // Later tokens are none.
        assert_eq!(host.lives.generated(first.after(Micros(5)), request), None);
        host.end_stay(request, &served);
    }
    let median =
        |times: Option<TimeSummary>| times.map(|it| (it.count, it.p50_micros, it.p95_micros));
    let report = host.activity.report(Micros(21 * MINUTE));
    assert_eq!(median(report.waits), Some((2, 10, 1000)));
    assert_eq!(median(report.recent.waits), Some((1, 10, 10)));
    assert_eq!(median(report.recent.first_tokens), Some((1, 40, 40)));
    let minutes = report.minutes.iter();
    let minutes = minutes.map(|minute| median(minute.first_tokens));
    let expected = [Some((1, 1030, 1030)), Some((1, 40, 40))];
    assert_eq!(minutes.collect::<Vec<_>>(), expected);
    let report = host.activity.report(Micros(35 * MINUTE));
    assert_eq!(report.recent, RecentTimes::default());
}

#[test]
fn a_request_that_goes_on_elsewhere_was_served_by_the_last() {
    let mut host = Host::new();
    let first = served(A, [0, 0, 10]);
    let request = host.begin(&first);
    host.end_stay(request, &first);
    host.tell(10, Fact::Requeued(request, RequeuedWhy::Lost));
    let placed = Fact::Placed {
        request,
        executor: B,
        into: PlacedIn::Slot,
        by: Decided::BUILT_IN,
    };
    host.tell(20, placed);
    host.tell(20, Fact::Started(request, B));
    host.end_stay(request, &served(B, [0, 20, 50]));
    let finished = Outcome::Finished { output_tokens: 5 };
    host.tell(50, Fact::Ended(request, finished));
    assert_eq!(host.on(60, A, 1).served, 0);
    let b = host.on(60, B, 1);
    assert_eq!((b.served, b.mean_micros), (1, Some(30)));
    assert_eq!(host.activity.running, 0);
    host.tell(70, Fact::ExecutorDetached(B));
    assert_eq!(host.activity.executor(Micros(70), B, 1), None);
}
