//! Simulations: executors take as long as their profiles say, caches are shared, failures are
//! survived, and the same inputs give the same report.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pointsman_core::{
    Answer, Asked, ExecutorId, Micros, NoPolicies, Policies, Question, Reply, RequestId, routing,
};
use pointsman_sim::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use pointsman_sim::measure::RunReport;
use pointsman_sim::workload::{
    Agents, AgentsPlan, Arrival, Lengths, Listed, OpenLoad, OpenPlan, PromptText, Roll, Workload,
};
use pointsman_sim::{Checks, Failure, FailurePlan, Plan, Recurring, Simulation};

/// Routing in turn, but to the first executor that holds a part of the prompt.
#[derive(Debug)]
struct InTurn {
    executors: u32,
    next: u32,
}

impl Policies for InTurn {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Question::Routing(requests) = &asked.question else {
            return Answer::unbound();
        };
        let verdicts = requests.iter().map(|cached| {
            let holder = cached.overlaps.first().map(|overlap| overlap.executor);
            let executor = holder.unwrap_or_else(|| {
                self.next = (self.next + 1) % self.executors;
                ExecutorId(self.next)
            });
            routing::Verdict {
                choice: routing::Choice::Place(vec![executor]),
                reason: 0,
            }
        });
        Answer::by(0, Reply::Routing(verdicts.collect()))
    }
}

fn executor(profile: &str) -> ExecutorPlan {
    ExecutorPlan::named(profile).unwrap()
}

fn at(millis: u64, prompt: u32, output: u32) -> Arrival {
    let prompt = PromptText::unlike_others(prompt);
    Arrival::new(Micros(millis * 1000), prompt, output)
}

fn listed(arrivals: &[Arrival]) -> Listed {
    Listed::new(Roll::single(), arrivals.to_vec())
}

fn plan<W: Workload>(executor: ExecutorPlan, count: u32, workload: W) -> Plan<W> {
    Plan {
        checks: Checks::EachEvent,
        ..Plan::new(FleetPlan::of(executor, count), workload)
    }
}

/// A run in which requests go to executors in turn.
fn run<W: Workload>(executor: ExecutorPlan, count: u32, workload: W) -> RunReport {
    let policies = InTurn {
        executors: count,
        next: 0,
    };
    let simulation = Simulation::new(plan(executor, count, workload), policies);
    simulation.unwrap().run()
}

#[test]
fn a_request_alone_takes_as_long_as_its_profile_says() {
    let report = run(executor("polynomial"), 1, listed(&[at(5, 8192, 3)]));
    // Prefill takes 169.1369 ms, and decode at u = 8192 / 2^20 = 1/128 takes 6.1604 ms.
    assert_eq!(report.ttft_ms.unwrap().max, 175.297);
    // Then 8193 and 8194 tokens are read.
    assert!((report.whole_ms.unwrap().max - 175.297 - 2.0 * 6.1605).abs() < 0.002);
    assert_eq!(report.ttft_ms.unwrap().max, report.ttft_ms.unwrap().p50);

    let report = run(executor("smg"), 1, listed(&[at(0, 4096, 2)]));
    // Two chunks of 256 ms; a token comes with the second.
    assert_eq!(report.ttft_ms.unwrap().max, 512.0 + 6.35);
    assert_eq!(report.whole_ms.unwrap().max, 512.0 + 2.0 * 6.35);

    let report = run(executor("llm-d"), 1, listed(&[at(0, 2048, 2)]));
    assert_eq!(
        (report.ttft_ms.unwrap().max, report.whole_ms.unwrap().max),
        (542.0, 554.0)
    );
}

#[test]
fn an_executor_that_is_twice_as_fast_takes_half_as_long() {
    let fast = ExecutorPlan {
        speed: 2.0,
        ..executor("smg")
    };
    let report = run(fast, 1, listed(&[at(0, 4096, 1)]));
    assert_eq!(report.ttft_ms.unwrap().max, 259.175);
}

#[test]
fn a_running_sequence_gets_a_token_in_each_step_of_a_long_prompt() {
    let report = run(
        executor("polynomial"),
        1,
        listed(&[at(0, 64, 40), at(50, 81_920, 1)]),
    );
    // Ten steps of 169 ms, none longer: prompts are cut to the tokens that a step has.
    let longest = report.itl_ms.unwrap().max;
    assert!((170.0..185.0).contains(&longest), "{longest}");
    assert!(report.ttft_ms.unwrap().max > 1690.0, "{:?}", report.ttft_ms);
}

#[test]
fn requests_that_come_while_a_step_lasts_are_computed_in_the_next_one() {
    let requests = [at(0, 1024, 1), at(0, 512, 1), at(0, 512, 1)];
    let report = run(executor("smg"), 1, listed(&requests));
    // The first alone, 134.35 ms, and the others together, 128 + 6.7 ms.
    assert_eq!(report.ttft_ms.unwrap().max, 269.05);
    assert_eq!(report.ttft_ms.unwrap().p50, report.ttft_ms.unwrap().max);
}

#[test]
fn a_prompt_that_was_computed_before_is_not_computed_again() {
    let prompt = |tokens| PromptText::of_pieces(tokens, 512, [1, 2, 3, 4]);
    let ask = |millis: u64, tokens| Arrival::new(Micros(millis * 1000), prompt(tokens), 1);
    for profile in ["polynomial", "smg", "llm-d"] {
        let report = run(
            executor(profile),
            2,
            listed(&[ask(0, 2048), ask(5000, 2048)]),
        );
        let block = executor(profile).tokens_per_block;
        let cached = f64::from(2048 - block) / 4096.0;
        assert_eq!(
            report.hit_rate, cached,
            "{profile}: all but the block of the last token"
        );
        assert!(
            report.ttft_ms.unwrap().p50 < report.ttft_ms.unwrap().max / 2.0,
            "{profile}: {:?}",
            report.ttft_ms
        );
    }
}

#[test]
fn an_executor_counts_what_it_has_cached_in_blocks_of_its_own_size() {
    let second = ExecutorPlan {
        name: "second".to_owned(),
        ..executor("polynomial")
    };
    let fleet = FleetPlan {
        executors: vec![executor("smg"), second],
    };
    let ask = |millis: u64, rest: u64| Arrival {
        allowed: Some(vec![1]),
        ..Arrival::new(
            Micros(millis * 1000),
            PromptText::of_pieces(1024, 256, [1, rest, rest + 1, rest + 2]),
            1,
        )
    };
    let plan = Plan {
        checks: Checks::EachEvent,
        ..Plan::new(fleet, listed(&[ask(0, 10), ask(5000, 20)]))
    };
    let report = Simulation::new(plan, NoPolicies).unwrap().run();
    assert_eq!(report.executors[1].requests, 2);
    assert_eq!(
        report.hit_rate,
        256.0 / 2048.0,
        "a quarter of the second prompt"
    );
}

#[test]
fn the_host_hears_of_cached_blocks_after_a_delay() {
    let ask = |millis: u64| {
        let prompt = PromptText::of_pieces(1024, 512, [1, 2]);
        Arrival::new(Micros(millis * 1000), prompt, 1)
    };
    let hits = |delay| {
        let late = ExecutorPlan {
            cache_news_delay: Micros(delay),
            ..executor("polynomial")
        };
        run(late, 2, listed(&[ask(0), ask(1000)])).hit_rate
    };
    assert!(hits(0) > 0.4);
    assert!(hits(900_000) > 0.4);
    assert_eq!(hits(1_000_000), 0.0, "it goes to another executor");
}

#[test]
fn a_server_without_blocks_makes_the_last_one_wait_and_serves_all() {
    let small = ExecutorPlan {
        blocks_total: 40,
        ..executor("polynomial")
    };
    // 16 blocks each at first, and 4 more for the answer: two fit, and cannot both grow.
    let requests: Vec<Arrival> = (0..3).map(|n| at(n, 1000, 300)).collect();
    let report = run(small.clone(), 1, listed(&requests));
    assert_eq!(report.finished, 3);
    assert!(report.recomputed >= 1, "{}", report.recomputed);
    // An answer that outgrows the server alone, and a prompt that the server has no room for, as it alone knows.
    let report = run(
        small.clone(),
        1,
        listed(&[at(0, 1000, 3000), at(0, 100, 5)]),
    );
    assert_eq!(
        (report.failed, report.finished),
        (1, 1),
        "one could never have room"
    );
    let report = run(small, 1, listed(&[at(0, 4000, 1), at(0, 100, 5)]));
    assert_eq!(
        (report.failed, report.refused, report.finished),
        (1, 0, 1),
        "one is refused by the server"
    );
}

#[test]
fn a_server_that_becomes_idle_says_that_its_blocks_are_free() {
    // 63 blocks for each prompt: the second has room once the first has gone.
    let requests = |output| listed(&[at(1000, 4000, output), at(60_000, 4000, 3)]);
    let leaves = |secs: u64| (Micros(secs * 1_000_000), Failure::Leaves(RequestId(0)));
    let dies = (Micros(3_000_000), Failure::Dies(0));
    let returns = (Micros(5_000_000), Failure::Returns(0));
    for profile in ["polynomial", "llm-d"] {
        let small = || ExecutorPlan {
            blocks_total: 100,
            ..executor(profile)
        };
        let report = run(small(), 1, requests(3));
        assert_eq!(report.finished, 2, "{profile}");
        assert_eq!(report.wait_ms.unwrap().max, 0.0, "{profile}");
        // The client of the first leaves, or its server dies.
        for failures in [vec![leaves(3)], vec![dies, returns]] {
            let plan = Plan {
                failures: FailurePlan {
                    listed: failures.clone(),
                    ..FailurePlan::default()
                },
                ..plan(small(), 1, requests(1000))
            };
            let report = Simulation::new(plan, NoPolicies).unwrap().run();
            let cut_off = report.cancelled + report.failed;
            let ended = (cut_off, report.finished, report.wait_ms.unwrap().max);
            assert_eq!(ended, (1, 1, 0.0), "{profile}: {failures:?}");
        }
    }
}

#[test]
fn an_executor_with_work_all_the_time_is_busy_all_the_time() {
    for profile in ["polynomial", "llm-d", "measured"] {
        let report = run(executor(profile), 1, listed(&[at(0, 1000, 50)]));
        let busy = report.executors[0].busy;
        assert!((0.999..=1.0).contains(&busy), "{profile}: {busy}");
    }
}

#[test]
fn a_step_that_lasts_is_in_every_part_of_the_course() {
    let slow = ExecutorPlan {
        speed: 0.02,
        ..executor("polynomial")
    };
    // One step of 8.76 s, and no event in it.
    let course = run(slow, 1, listed(&[at(0, 8192, 1)])).course;
    assert_eq!(course.part_s, 1.0);
    assert_eq!(course.running, [1.0; 9]);
    assert!(course.kv_used.iter().all(|used| *used > 0.0), "{course:?}");
}

#[test]
fn an_engine_in_the_host_runs_within_the_machines_blocks_and_budget() {
    let hosted = ExecutorPlan {
        kv: KvKeeper::Host,
        blocks_total: 512,
        sequences_max: 4,
        step_tokens: 256,
        ..executor("smg")
    };
    let requests: Vec<Arrival> = (0..40).map(|n| at(n * 10, 200, 20)).collect();
    let plan = plan(hosted, 2, listed(&requests));
    let report = Simulation::new(plan, NoPolicies).unwrap().run();
    assert_eq!(report.finished, 40);
    // 256 tokens at 8,000/s and four sequences: no step takes longer.
    assert!(
        report.itl_ms.unwrap().max <= 2.0 * (32.0 + 6.0 + 4.0 * 0.35),
        "{:?}",
        report.itl_ms
    );
    assert!(
        report.wait_ms.unwrap().max > 100.0,
        "there are four slots: {:?}",
        report.wait_ms
    );
}

#[test]
fn a_model_that_is_not_loaded_takes_its_time_once() {
    let single = ExecutorPlan {
        models_max: Some(1),
        model_load: Micros(3_000_000),
        ..executor("smg")
    };
    let of = |millis, model| Arrival {
        model: Some(model),
        ..at(millis, 8, 1)
    };
    let roll = Roll {
        models: vec!["a".to_owned(), "b".to_owned()],
        ..Roll::single()
    };
    let arrivals = vec![of(0, 0), of(4000, 0), of(8000, 1)];
    let report = run(single, 1, Listed::new(roll, arrivals));
    assert_eq!((report.swaps, report.finished), (1, 3));
    let loaded = 7.35;
    assert_eq!(report.ttft_ms.unwrap().p50, 3000.0 + loaded);
    let mean = (2.0 * (3000.0 + loaded) + loaded) / 3.0;
    assert!(
        (report.ttft_ms.unwrap().mean - mean).abs() < 0.001,
        "{:?}",
        report.ttft_ms
    );
}

#[test]
fn models_at_work_and_those_asked_for_last_stay_loaded() {
    let two = ExecutorPlan {
        models_max: Some(2),
        model_load: Micros(3_000_000),
        ..executor("smg")
    };
    let of = |millis, model, output| Arrival {
        model: Some(model),
        ..at(millis, 8, output)
    };
    let roll = Roll {
        models: ["a", "b", "c"].map(str::to_owned).to_vec(),
        ..Roll::single()
    };
    // The first answer takes 13 s, so the second model makes room for the third.
    let at_work = vec![
        of(0, 0, 2000),
        of(100, 1, 1),
        of(8000, 2, 1),
        of(12_000, 0, 1),
    ];
    // The first model was asked for again after the second.
    let again = [of(8000, 0, 1), of(12_000, 2, 1), of(16_000, 0, 1)];
    let idle = [of(0, 0, 1), of(4000, 1, 1)].into_iter().chain(again);
    for arrivals in [at_work, idle.collect()] {
        let requests = arrivals.len() as u64;
        let report = run(two.clone(), 1, Listed::new(roll.clone(), arrivals));
        assert_eq!((report.swaps, report.finished), (1, requests));
    }
}

fn open(seed: u64) -> OpenLoad {
    OpenLoad::new(OpenPlan {
        seed,
        requests: 400,
        rate: 20.0,
        prompt: Lengths {
            mean: 900.0,
            median: 500.0,
            max: 8000,
        },
        output: Lengths {
            mean: 60.0,
            median: 40.0,
            max: 500,
        },
        tenants: 3,
        models: 0,
        models_zipf: 1.0,
        prefixes: 5,
        prefix_tokens: 256,
        throughput_share: 0.2,
        bursts: None,
        flood: None,
    })
}

fn failing(seed: u64) -> FailurePlan {
    let often = Recurring {
        between: Micros(10_000_000),
        lasting: Micros(1_000_000),
    };
    FailurePlan {
        seed,
        losses: Some(often),
        slowdowns: Some((often, 3.0)),
        failing_share: 0.05,
        leaving_share: 0.1,
        leaves_after: Micros(2_000_000),
        listed: Vec::new(),
    }
}

fn run_failing(kv: KvKeeper, seed: u64) -> RunReport {
    let executor = ExecutorPlan {
        kv,
        blocks_total: 2048,
        step_tokens: 1024,
        ..executor("smg")
    };
    let plan = Plan {
        failures: failing(seed),
        ..plan(executor, 5, open(seed))
    };
    Simulation::new(plan, NoPolicies).unwrap().run()
}

#[test]
fn every_request_has_an_outcome_whatever_fails() {
    for kv in [KvKeeper::Server, KvKeeper::Host] {
        let report = run_failing(kv, 7);
        let ended = report.finished + report.failed + report.cancelled + report.refused;
        assert_eq!(ended + report.expired, 400, "{kv:?}");
        assert!(
            report.failed_over > 10,
            "{kv:?}: {} went on elsewhere",
            report.failed_over
        );
        assert!(report.cancelled > 10, "{kv:?}: {} left", report.cancelled);
        assert!(
            report.finished > 300,
            "{kv:?}: {} were served",
            report.finished
        );
    }
}

#[test]
fn an_answer_that_goes_on_elsewhere_is_generated_once() {
    // In turn it comes to the second executor first, and is away from there between two of its reports.
    for failure in [Failure::Dies(1), Failure::Fails(RequestId(0), 1)] {
        let plan = Plan {
            failures: FailurePlan {
                listed: vec![(Micros(1_300_000), failure)],
                ..FailurePlan::default()
            },
            ..plan(executor("smg"), 2, listed(&[at(0, 64, 400)]))
        };
        let in_turn = InTurn {
            executors: 2,
            next: 0,
        };
        let report = Simulation::new(plan, in_turn).unwrap().run();
        assert_eq!((report.finished, report.failed_over), (1, 1), "{failure:?}");
        let generated = report.executors.iter().map(|it| it.decode_tokens);
        assert_eq!(generated.sum::<u64>(), 400, "{failure:?}");
        assert_eq!(report.tenants[0].tokens, 464, "{failure:?}");
    }
}

#[test]
fn a_tenant_that_was_never_served_counts_in_the_course_of_fairness_too() {
    let small = ExecutorPlan {
        blocks_total: 40,
        ..executor("polynomial")
    };
    // The server has no room for the prompt of the second tenant.
    let starved = Arrival {
        tenant: 1,
        ..at(0, 4000, 1)
    };
    let workload = Listed::new(
        Roll::of_tenants(["served", "starved"]),
        vec![at(0, 100, 400), starved],
    );
    let report = run(small, 1, workload);
    assert_eq!((report.finished, report.failed), (1, 1));
    assert_eq!(report.jain, 0.5);
    assert!(report.course.jain.len() > 1, "{:?}", report.course.jain);
    assert_eq!(report.course.jain.last(), Some(&report.jain));
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another() {
    let text = |seed| serde_json::to_string(&run_failing(KvKeeper::Server, seed)).unwrap();
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn a_session_goes_on_when_its_answer_has_come() {
    let agents = Agents::new(AgentsPlan {
        seed: 1,
        sessions: 30,
        rate: 5.0,
        turns: 4.0,
        shared_tokens: 4096,
        group_tokens: 1024,
        groups: 3,
        ..AgentsPlan::default()
    });
    let report = run(executor("polynomial"), 2, agents);
    assert_eq!(report.finished, report.requests);
    assert!(report.requests > 60, "{} turns", report.requests);
    assert!(
        report.hit_rate > 0.5,
        "turns share what was said: {}",
        report.hit_rate
    );
}
