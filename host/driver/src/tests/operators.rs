//! Questions and orders of operators, with a real machine.

use std::thread;

use pointsman_core::rows::Health;
use pointsman_core::{DeviceId, KvSpec, RefusalCause};
use pointsman_executor::handle::{Ended, EngineHandle, EngineWork};
use pointsman_executor::stats::EngineStats;

use super::super::decisions::TraceEvent;
use super::super::operator::{
    AttachRefused, ChangeRefused, EXECUTORS_SHOWN, ExecutorChange, ExecutorRow, Fate,
    ForecastAuthor, ForecastOutcome, Operator, RequestSize, RouteQuery,
};
use super::super::provider::{PreparedExecutor, PreparedModel};
use super::*;
use tokio::sync::oneshot;

impl Stage {
    fn ask<R>(&mut self, question: impl FnOnce(oneshot::Sender<R>) -> Operator) -> R {
        let (answer, mut answered) = oneshot::channel();
        self.driver.operate(AT, question(answer));
        let answer = answered.try_recv().unwrap();
        self.settle();
        answer
    }

    fn order(&mut self, change: ExecutorChange) -> Result<ExecutorRow, ChangeRefused> {
        self.ask(|answer| Operator::Change("cpu0/demo".to_owned(), change, answer))
    }
}

fn route_query() -> RouteQuery {
    RouteQuery {
        model: Some("demo".to_owned()),
        tenant: "default".to_owned(),
        size: RequestSize {
            prompt_tokens: 3,
            prompt_blocks: PromptBlocks::default(),
            output_tokens_max: 4,
        },
        hints: Hints::default(),
    }
}

#[test]
fn a_draining_executor_takes_nothing_new_until_it_is_resumed() {
    let mut stage = Stage::new();
    let row = stage.order(ExecutorChange::Drain).unwrap();
    assert_eq!(
        (row.load.health, row.fate),
        (Health::Draining, Fate::Drains)
    );
    stage.submit();
    assert!(stage.command().is_none());
    assert_eq!(stage.driver.load().queued, 1);
    let row = stage.order(ExecutorChange::Resume).unwrap();
    assert_eq!((row.load.health, row.fate), (Health::Up, Fate::Stays));
    stage.start();
}

#[test]
fn one_that_drains_goes_on_draining_in_its_next_life() {
    let mut stage = Stage::new();
    stage.order(ExecutorChange::Drain).unwrap();
    let why = "device failed".to_owned();
    stage.says(0, vec![Event::Lost { why }]);
    let overview = stage.ask(Operator::Overview);
    assert_eq!(overview.executors[0].load.health, Health::Draining);
    stage.submit();
    assert!(stage.command().is_none());
    stage.order(ExecutorChange::Resume).unwrap();
    stage.start();
}

#[test]
fn one_that_has_given_up_is_told_of_as_ended_in_the_same_turn() {
    let mut stage = Stage::new();
    stage.commands.close();
    let events = Events {
        executor: CPU,
        incarnation: Incarnation(0),
        list: vec![Event::Lost {
            why: "given up".to_owned(),
        }],
    };
    stage.driver.events(AT, events);
    let ended = ChangeRefused::Ended("cpu0/demo".to_owned());
    for change in [ExecutorChange::Drain, ExecutorChange::Resume] {
        assert_eq!(stage.order(change), Err(ended.clone()));
    }
}

#[test]
fn a_removed_executor_finishes_what_it_runs_and_then_is_gone() {
    let mut stage = Stage::new();
    let (_ticket, mut deliveries) = stage.submit();
    let start = stage.start();
    let row = stage.order(ExecutorChange::Remove).unwrap();
    assert_eq!((row.fate, row.load.slots_used), (Fate::Leaves, 1));
    let again = stage.order(ExecutorChange::Resume);
    assert_eq!(again, Err(ChangeRefused::Leaves("cpu0/demo".to_owned())));
    stage.submit();
    assert!(stage.command().is_none(), "it takes something new");
    let finished = Event::Finished {
        sequence: start.order.sequence,
        stop: StopReason::Stop,
    };
    stage.says(0, vec![Event::Started(start.order.sequence), finished]);
    assert!(
        std::iter::from_fn(|| deliveries.try_next())
            .any(|delivery| matches!(delivery, Delivery::End(_)))
    );
    let gone = stage.order(ExecutorChange::Remove);
    let unknown = ChangeRefused::Unknown {
        name: "cpu0/demo".to_owned(),
        known: "none".to_owned(),
    };
    assert_eq!(gone, Err(unknown));
    assert!(stage.commands.is_closed() || stage.commands.try_recv().is_err());
}

fn prepared(name: &str, commands: mpsc::Sender<Command>) -> Box<PreparedExecutor> {
    Box::new(PreparedExecutor {
        device: None,
        spec: ExecutorSpec {
            slots_total: 1,
            tokens_per_block: Some(4),
            ..fixture::executor_spec(name, DeviceId(0))
        },
        models: vec![PreparedModel {
            name: "demo".to_owned(),
            context_tokens: 64,
        }],
        server: None,
        spawn: Box::new(move |_executor, _models| {
            Ok(EngineHandle {
                commands,
                stats: Arc::new(EngineStats::default()),
                work: EngineWork::Thread(thread::spawn(|| Ended::Closed)),
                found: None,
            })
        }),
    })
}

#[test]
fn one_that_is_added_is_used_and_a_name_that_is_taken_is_refused() {
    let mut stage = Stage::new();
    let (sender, mut commands) = mpsc::channel(8);
    let twin = prepared("cpu0/demo", sender.clone());
    let refused = stage.ask(|answer| Operator::Attach(twin, answer));
    assert!(
        matches!(refused, Err(AttachRefused::Machine(_))),
        "{refused:?}"
    );
    let second = prepared("cpu0/second", sender);
    let attached = stage
        .ask(|answer| Operator::Attach(second, answer))
        .unwrap();
    assert_eq!(attached.row.models, Some(vec!["demo".to_owned()]));
    for _ in 0..3 {
        stage.submit();
    }
    let commands = std::iter::from_fn(|| commands.try_recv().ok());
    let starts = commands.filter(|command| matches!(command, Command::Start(_)));
    assert_eq!(starts.count(), 1, "two found room on the first");
}

#[test]
fn one_without_a_thread_is_not_attached() {
    let mut stage = Stage::new();
    let mut second = prepared("cpu0/second", mpsc::channel(1).0);
    second.spawn = Box::new(|_executor, _models| Err(std::io::Error::other("no thread")));
    let refused = stage.ask(|answer| Operator::Attach(second, answer));
    assert!(
        matches!(refused, Err(AttachRefused::NoThread(_))),
        "{refused:?}"
    );
    assert_eq!(stage.ask(Operator::Overview).executors_total, 1);
}

#[test]
fn where_a_request_would_go_is_said_and_nothing_changes() {
    let mut stage = Stage::new();
    stage.submit();
    stage.start();
    let before = format!("{:?}", stage.driver.machine);
    let (answer, mut answered) = oneshot::channel();
    let question = Operator::Route(Box::new(route_query()), answer);
    stage.driver.operate(AT, question);
    let forecast = answered.try_recv().unwrap().unwrap().finish();
    assert_eq!(
        forecast.outcome,
        ForecastOutcome::Place("cpu0/demo".to_owned())
    );
    assert_eq!(forecast.by, ForecastAuthor::BuiltIn);
    assert_eq!(forecast.candidates[0].interlock, Ok("a slot is free"));
    assert_eq!(format!("{:?}", stage.driver.machine), before);
    // With both slots in use.
    stage.submit();
    let forecast = stage.ask(|answer| Operator::Route(Box::new(route_query()), answer));
    let forecast = forecast.unwrap().finish();
    assert_eq!(forecast.outcome, ForecastOutcome::Wait);
    let why = RefusalCause::NoSlot.to_string();
    assert_eq!(forecast.candidates[0].interlock, Err(why));
    let stranger = RouteQuery {
        tenant: "nobody".to_owned(),
        ..route_query()
    };
    let refused = stage.ask(|answer| Operator::Route(Box::new(stranger), answer));
    assert!(refused.is_err());
}

#[test]
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "nothing else happens to this request"
)]
fn what_was_decided_about_a_request_is_remembered_in_order() {
    let mut stage = Stage::new();
    let (ticket, _deliveries) = stage.submit();
    let start = stage.start();
    let finished = Event::Finished {
        sequence: start.order.sequence,
        stop: StopReason::Stop,
    };
    stage.says(0, vec![Event::Started(start.order.sequence), finished]);
    let explained = stage
        .ask(|answer| Operator::Decision(ticket, answer))
        .unwrap()
        .finish();
    let trace = &explained.traces.list[0];
    let kinds: Vec<&str> = trace
        .steps
        .iter()
        .map(|step| match &step.event {
            TraceEvent::Asked(question) => question.hook.as_str(),
            TraceEvent::Admitted(_) => "admitted",
            TraceEvent::Placed(..) => "placed",
            TraceEvent::Started(_) => "started",
            TraceEvent::Ended(_) => "ended",
            other => panic!("{other:?}"),
        })
        .collect();
    let order = [
        "admission",
        "admitted",
        "routing",
        "placed",
        "started",
        "ended",
    ];
    assert_eq!(kinds, order);
    assert_eq!(trace.outcome, Some(Outcome::Finished { output_tokens: 0 }));
    assert_eq!(explained.traces.names[&CPU], "cpu0/demo");
    assert!(explained.candidates.is_err(), "nobody routes");
    assert!(
        stage
            .ask(|answer| Operator::Decision(TicketId(99), answer))
            .is_none()
    );
}

#[test]
fn of_a_request_that_ends_as_it_arrives_it_is_said_that_nobody_was_asked() {
    let mut stage = Stage::with_executors(&[], 64);
    let (ticket, mut deliveries) = stage.submit();
    assert!(matches!(end(&mut deliveries).outcome, Outcome::Refused(_)));
    let explained = stage.ask(|answer| Operator::Decision(ticket, answer));
    let why = explained.unwrap().finish().candidates.err().unwrap();
    assert_eq!(why, "it ended as it arrived, before any policy was asked");
}

#[test]
fn a_server_that_comes_under_an_old_name_is_on_its_own_terms() {
    let mut stage = Stage::new();
    for kv in [KvSpec::Assumed, KvSpec::Remote] {
        let (sender, _commands) = mpsc::channel(8);
        let mut server = prepared("elsewhere", sender);
        let name = "remote:elsewhere".to_owned();
        server.device = Some(DeviceSpec {
            name,
            kv,
            tokens_per_step: None,
        });
        let attached = stage.ask(|answer| Operator::Attach(server, answer));
        let attached = attached.unwrap();
        let machine = &stage.driver.machine;
        let device = machine.executor_spec(attached.executor).unwrap().device;
        assert_eq!(machine.device_spec(device).unwrap().kv, kv);
        let remove = ExecutorChange::Remove;
        stage
            .ask(|answer| Operator::Change("elsewhere".to_owned(), remove, answer))
            .unwrap();
    }
}

#[test]
fn an_executor_past_those_that_are_shown_is_found_by_name_and_has_series() {
    let mut stage = Stage::new();
    let device = DeviceSpec {
        tokens_per_step: None,
        ..fixture::device_spec("cpu1")
    };
    let machine = &mut stage.driver.machine;
    let device = machine.handle(AT, Input::DeviceAttached(device));
    let device = device.device().unwrap();
    for number in 1..=EXECUTORS_SHOWN {
        let spec = ExecutorSpec {
            slots_total: 3,
            ..fixture::executor_spec(&format!("cpu1/{number}"), device)
        };
        let attached = machine.handle(AT, Input::ExecutorAttached(spec));
        attached.executor().unwrap();
    }
    let overview = stage.ask(Operator::Overview);
    let shown = (overview.executors.len(), overview.executors_total);
    assert_eq!(shown, (EXECUTORS_SHOWN, EXECUTORS_SHOWN + 1));
    let loads = stage.ask(Operator::Loads);
    let mut found = |name: &str| {
        let row = stage.ask(|answer| Operator::Executor(name.to_owned(), answer));
        row.map(|row| (row.name, row.slots_total))
    };
    assert_eq!(found("cpu1/1000"), Some(("cpu1/1000".to_owned(), 3)));
    assert_eq!(found("cpu1/1001"), None);
    let metrics = &stage.driver.metrics;
    metrics.executors(&loads);
    let text = metrics.render();
    for series in [
        "slots{executor=\"cpu0/demo\"} 2",
        "slots{executor=\"cpu1/1000\"} 3",
        "slots_used{executor=\"cpu1/1000\"} 0",
        "queued_requests{executor=\"cpu1/1000\",class=\"latency-critical\"} 0",
        "queued_requests{executor=\"cpu1/1000\",class=\"throughput\"} 0",
    ] {
        let line = format!("\npointsman_executor_{series}\n");
        assert!(text.contains(&line), "{series}");
    }
}
