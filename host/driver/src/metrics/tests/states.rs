//! What is set when somebody asks, and what the documentation lists.

use super::*;

#[test]
fn states_replace_what_was_set_before() {
    let host = Host::new();
    let metrics = &host.metrics;
    metrics.policies(&host.policies.status().collect::<Vec<_>>());
    let set = |queued, slots_used, executor| {
        let queued_by_class = ByClass {
            latency_critical: queued,
            ..ByClass::default()
        };
        let load = Load {
            queued_by_class,
            slots_total: 8,
            slots_used,
            ..Load::default()
        };
        let mut row = host.row(executor);
        row.load.slots_used = slots_used;
        metrics.overview(&Overview {
            load,
            ..Overview::default()
        });
        metrics.executors(&[row]);
    };
    set(9, 3, "gone");
    set(0, 0, "cpu0/demo");
    let text = metrics.render();
    let in_force =
        "pointsman_policy_in_force{hook=\"routing\",policy=\"once\",digest=\"abababababab\"} 1\n";
    assert_eq!(samples(&text, "policy_in_force"), in_force);
    assert_eq!(
        samples(&text, "slots"),
        "pointsman_slots 8\npointsman_slots_used 0\n"
    );
    assert_eq!(
        samples(&text, "queued_requests"),
        "pointsman_queued_requests{class=\"latency-critical\"} 0\n\
         pointsman_queued_requests{class=\"throughput\"} 0\n"
    );
    assert_eq!(
        samples(&text, "executor_slots_used"),
        "pointsman_executor_slots_used{executor=\"cpu0/demo\"} 0\n"
    );

    metrics.policies(&[]);
    assert_eq!(samples(&metrics.render(), "policy_in_force"), "");
}

#[test]
fn counters_follow_the_engine_they_tell_of() {
    let metrics = Metrics::default();
    metrics.executor_attached("cpu0/demo");
    for steps in [1, 3] {
        let totals = EngineTotals {
            steps,
            prefill_tokens: 100 * steps,
            decode_tokens: 8 * steps,
            busy: Duration::from_millis(500 * steps),
            sat_out: 0,
        };
        metrics.engine("cpu0/demo", totals);
    }
    let expected = "\
pointsman_engine_steps_total{executor=\"cpu0/demo\"} 3
pointsman_engine_tokens_total{executor=\"cpu0/demo\",phase=\"decode\"} 24
pointsman_engine_tokens_total{executor=\"cpu0/demo\",phase=\"prefill\"} 300
pointsman_engine_busy_seconds_total{executor=\"cpu0/demo\"} 1.5
pointsman_engine_sat_out_total{executor=\"cpu0/demo\"} 0
";
    assert_eq!(samples(&metrics.render(), "engine"), expected);
}

#[test]
fn responses_and_transactions_are_counted_by_how_they_went() {
    let metrics = Metrics::default();
    metrics.executor_attached("cpu0/demo");
    metrics.http_response("/v1/chat/completions", 200);
    metrics.http_response("/v1/chat/completions", 429);
    metrics.http_response("/v1/chat/completions", 200);
    let stream = metrics.stream("demo", "cpu0/demo");
    stream.first_token.observe(0.02);
    stream.inter_token.observe(0.003);
    let pause = Duration::from_micros(40);
    metrics.policy_committed(pause);
    metrics.policy_refused("configure");
    metrics.label_ignored();
    metrics.started(1_700_000_000);
    let text = metrics.render();
    for line in [
        "pointsman_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 2",
        "pointsman_http_responses_total{endpoint=\"/v1/chat/completions\",status=\"429\"} 1",
        "pointsman_time_to_first_token_seconds_bucket{le=\"0.025\",model=\"demo\",executor=\"cpu0/demo\"} 1",
        "pointsman_inter_token_latency_seconds_bucket{le=\"0.0025\",model=\"demo\",executor=\"cpu0/demo\"} 0",
        "pointsman_inter_token_latency_seconds_bucket{le=\"0.005\",model=\"demo\",executor=\"cpu0/demo\"} 1",
        "pointsman_policy_transactions_total{outcome=\"committed\",step=\"commit\"} 1",
        "pointsman_policy_transactions_total{outcome=\"refused\",step=\"configure\"} 1",
        "pointsman_policy_swap_pause_seconds_sum 0.00004",
        "pointsman_labels_ignored_total 1",
        "process_start_time_seconds 1700000000",
    ] {
        assert!(
            text.contains(&format!("\n{line}\n")),
            "{line} not in\n{text}"
        );
    }
    let version = concat!(
        "pointsman_build_info{version=\"",
        env!("CARGO_PKG_VERSION"),
        "\"} 1\n"
    );
    assert!(text.contains(version));
    assert!(text.ends_with("# EOF\n"));
}

/// The table of `host/docs/metrics.md`, as the metrics describe themselves.
fn table() -> String {
    let metrics = Metrics::default();
    let mut described = metrics.described().to_vec();
    described.sort_by(|a, b| a.name.cmp(&b.name));
    let rows = described.iter().map(|metric| {
        let labels = metric.labels.iter().map(|label| format!("`{label}`"));
        let labels: Vec<String> = labels.collect();
        let DescribedMetric {
            name, kind, help, ..
        } = metric;
        format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", "))
    });
    let head = "| metric | kind | labels | meaning |\n|---|---|---|---|\n";
    format!("{head}{}", rows.collect::<String>())
}

#[test]
fn the_documentation_lists_every_metric_with_its_labels() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (words, listed) = document.split_at(document.find("| metric |").unwrap());
    let table = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{words}{table}")).unwrap();
        return;
    }
    assert_eq!(listed, table, "run this test with UPDATE=1");
}

#[test]
fn an_executor_that_is_gone_has_no_series() {
    let mut host = Host::new();
    host.arrive(0, "alice");
    let orders = host.decide(0);
    host.serve(SECOND, &orders[0]);
    host.decide(SECOND);
    let metrics = &host.metrics;
    metrics.engine("cpu0/demo", EngineTotals::default());
    metrics.stream("demo", "cpu0/demo").first_token.observe(1.0);
    let named = "executor=\"cpu0/demo\"";
    assert!(host.metrics.render().contains(named));
    host.tell(&Stamped {
        now: Micros(1),
        round: Round(1),
        fact: Fact::ExecutorDetached(EXECUTOR),
    });
    let text = host.metrics.render();
    assert!(!text.contains(named), "{text}");
}

const ELSEWHERE: ExecutorId = ExecutorId(7);

/// Has a request of a session that [`EXECUTOR`] served last placed on `executor`, and then elsewhere.
fn goes_on(host: &mut Host, request: u64, executor: ExecutorId) {
    let request = RequestId(request);
    let arrived = Fact::Arrived {
        request,
        tenant: TenantId(0),
        model: None,
        class: RequestClass::Throughput,
        preferred: Some(EXECUTOR),
    };
    let placed = |executor| Fact::Placed {
        request,
        executor,
        into: PlacedIn::Slot,
        by: Decided::BUILT_IN,
    };
    for fact in [arrived, placed(executor), placed(ELSEWHERE)] {
        host.tell(&Stamped {
            now: Micros(1),
            round: Round(1),
            fact,
        });
    }
}

#[test]
fn what_is_measured_of_an_executor_that_is_gone_makes_no_series() {
    let mut host = Host::new();
    host.decide(0);
    let detach = Input::ExecutorUpdated(EXECUTOR, ExecutorUpdate::Detach);
    host.machine.handle(Micros(1), detach);
    host.decide(1);
    assert!(host.machine.executor_spec(EXECUTOR).is_none());
    // Its last answer is written, a session of its goes on elsewhere, and its engine is still known.
    let stream = host.metrics.stream("demo", "cpu0/demo");
    stream.first_token.observe(1.0);
    stream.inter_token.observe(1.0);
    goes_on(&mut host, 70, ELSEWHERE);
    let totals = EngineTotals::default();
    host.metrics.engine("cpu0/demo", totals);
    let text = host.metrics.render();
    assert!(!text.contains("cpu0/demo"), "{text}");
    // One that comes under its name has series of its own.
    host.metrics.executor_attached("cpu0/demo");
    host.metrics.engine("cpu0/demo", totals);
    let steps = "pointsman_engine_steps_total{executor=\"cpu0/demo\"} 0\n";
    assert_eq!(samples(&host.metrics.render(), "engine_steps"), steps);
}

#[test]
fn a_session_that_goes_elsewhere_is_a_miss_of_the_executor_that_was_expected() {
    let mut host = Host::new();
    // What has to go on elsewhere later is no miss.
    goes_on(&mut host, 70, EXECUTOR);
    goes_on(&mut host, 71, ELSEWHERE);
    let sessions = "\
pointsman_session_requests_total{executor=\"cpu0/demo\",result=\"hit\"} 1
pointsman_session_requests_total{executor=\"cpu0/demo\",result=\"miss\"} 1
";
    assert_eq!(
        samples(&host.metrics.render(), "session_requests"),
        sessions
    );
}

#[test]
fn every_family_has_a_help_and_resident_memory_is_told_where_it_can_be_known() {
    let text = Metrics::default().render();
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split(' ').nth(2).unwrap();
        let help = text
            .lines()
            .find(|line| line.starts_with(&format!("# HELP {name} ")));
        assert!(
            help.is_some_and(|help| help.len() > name.len() + 16),
            "{name}"
        );
    }
    let line = |line: &str| line.starts_with("process_resident_memory_bytes 0");
    assert_eq!(text.lines().any(line), !cfg!(target_os = "linux"));
}
