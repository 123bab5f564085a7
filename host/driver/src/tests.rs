//! The driver with a real machine and a hand that plays the executor.

use pointsman_core::rows::Health;
use pointsman_core::{
    Config, DeviceSpec, ExecutorSpec, FailedWhy, Incarnation, Outcome, Progress, PromptBlocks,
    RequestId, RetryClass, SequenceRef, StepReport, fixture,
};
use pointsman_executor::contract::{Event, Events};
use pointsman_executor::delivery::{Deliveries, Delivery, End, Piece, StopReason, channel};
use pointsman_executor::job::{Job, JobState, Sampling};
use pointsman_policy::Patience;

use super::message::Hints;
use super::spans::{AskedFor, Operation, TraceOrigin};
use super::*;

mod log;
mod operators;
mod rests;
mod traced;

const AT: Micros = Micros(1);
const CPU: ExecutorId = ExecutorId(0);
const MEMORY: Memory = Memory {
    labels_max: 2,
    decisions_max: 8,
    sessions_max: 8,
    session_idle_max: Micros(1_000_000),
};

/// A driver with one executor of two slots, and the executor's end of the channel.
struct Stage {
    driver: Driver,
    commands: mpsc::Receiver<Command>,
    tickets: u64,
}

impl Stage {
    fn new() -> Self {
        Self::with_room_for(64)
    }

    fn with_room_for(commands_max: usize) -> Self {
        Self::with_executors(&["cpu0/demo"], commands_max)
    }

    /// A stage whose executors share one channel.
    fn with_executors(names: &[&str], commands_max: usize) -> Self {
        Self::with_queues(names, commands_max, 0)
    }

    /// A stage whose executors have queues of their own and share one channel.
    fn with_queues(names: &[&str], commands_max: usize, queue_limit: u32) -> Self {
        let mut machine = Machine::new(Config::default()).unwrap();
        let device = DeviceSpec {
            tokens_per_step: Some(64),
            ..fixture::device_spec("cpu0")
        };
        let device = machine
            .handle(AT, Input::DeviceAttached(device))
            .device()
            .unwrap();
        let spec = |name: &str| ExecutorSpec {
            slots_total: 2,
            queue_limit,
            tokens_per_block: Some(4),
            ..fixture::executor_spec(name, device)
        };
        let executors: Vec<ExecutorId> = names
            .iter()
            .map(|name| {
                machine
                    .handle(AT, Input::ExecutorAttached(spec(name)))
                    .executor()
                    .unwrap()
            })
            .collect();
        let policies = PolicyHost::new(Patience::default());
        let mut driver = Driver::new(machine, policies, Arc::new(Metrics::default()), MEMORY);
        let (sender, commands) = mpsc::channel(commands_max);
        for executor in executors {
            driver.attach(executor, sender.clone());
        }
        Self {
            driver,
            commands,
            tickets: 0,
        }
    }

    fn submit(&mut self) -> (TicketId, Deliveries) {
        self.submit_with(Hints::default())
    }

    fn submit_with(&mut self, hints: Hints) -> (TicketId, Deliveries) {
        let submitted = self.hand_in(hints);
        self.settle();
        submitted
    }

    /// Submits a request about which nothing is decided yet.
    fn hand_in(&mut self, hints: Hints) -> (TicketId, Deliveries) {
        let ticket = TicketId(self.tickets);
        self.tickets += 1;
        let job = Job {
            sampling: Sampling::GREEDY,
            ..Job::new(vec![1, 2, 3], 4)
        };
        let (sink, closing, deliveries) = channel(job.output_tokens_max);
        let origin = TraceOrigin {
            operation: Operation::Chat,
            asked: AskedFor::default(),
            parent: None,
        };
        let submission = Submission {
            model: Some("demo".to_owned()),
            tenant: "default".to_owned(),
            job: Arc::new(job),
            prompt_blocks: PromptBlocks::default(),
            hints,
            trace: Some(Box::new(origin)),
        };
        let submitted = Submitted {
            quota: None,
            ticket,
            submission,
            sink,
            closing,
        };
        self.driver.submit(AT, submitted);
        (ticket, deliveries)
    }

    fn settle(&mut self) {
        self.driver.settle(AT);
        self.driver.machine.check_invariants().unwrap();
    }

    fn says(&mut self, incarnation: u32, list: Vec<Event>) {
        let events = Events {
            executor: CPU,
            incarnation: Incarnation(incarnation),
            list,
        };
        self.driver.events(AT, events);
        self.settle();
    }

    /// The next command but budgets.
    fn command(&mut self) -> Option<Command> {
        loop {
            let command = self.commands.try_recv().ok()?;
            if !matches!(command, Command::SetBudget { .. }) {
                return Some(command);
            }
        }
    }

    /// The next start. Grants before it are passed over.
    fn start(&mut self) -> Start {
        match self.command() {
            Some(Command::Start(start)) => *start,
            Some(Command::Grant { .. }) => self.start(),
            other => panic!("no start: {other:?}"),
        }
    }
}

fn stepped(request: RequestId, prefilled: u32, generated: u32) -> Event {
    Event::Stepped(StepReport {
        executor: CPU,
        incarnation: Incarnation(0),
        progress: vec![Progress {
            request,
            prefilled,
            generated,
        }],
    })
}

fn end(deliveries: &mut Deliveries) -> End {
    loop {
        match deliveries.try_next() {
            Some(Delivery::End(end)) => return end,
            Some(_) => {}
            None => panic!("no end"),
        }
    }
}

#[test]
fn a_client_is_told_where_it_runs_and_how_it_ended() {
    let mut stage = Stage::new();
    let (_, mut deliveries) = stage.submit();
    let start = stage.start();
    let sequence = start.order.sequence;
    assert_eq!(start.sequence.job.prompt, [1, 2, 3]);
    let Some(Delivery::Placed(placement)) = deliveries.try_next() else {
        panic!("not placed");
    };
    assert_eq!(placement.executor, "cpu0/demo");
    assert_eq!(placement.by.policy, "built-in");
    let finished = Event::Finished {
        sequence,
        stop: StopReason::Stop,
    };
    stage.says(
        0,
        vec![
            Event::Started(sequence),
            stepped(sequence.request, 3, 1),
            finished,
        ],
    );
    let expected = End {
        outcome: Outcome::Finished { output_tokens: 1 },
        stop: Some(StopReason::Stop),
        refused_by: None,
    };
    assert_eq!(end(&mut deliveries), expected);
    assert_eq!(stage.driver.in_hand(), 0);
    assert_eq!(stage.driver.load().slots_used, 0);
}

#[test]
fn a_client_that_leaves_while_queued_is_never_started() {
    let mut stage = Stage::new();
    let running = [stage.submit(), stage.submit()];
    let (waiting, _deliveries) = stage.submit();
    assert_eq!(stage.driver.load().queued, 1);
    stage.driver.depart(AT, waiting);
    stage.settle();
    assert_eq!(stage.driver.load().queued, 0);
    assert_eq!(stage.driver.in_hand(), running.len());
    drop(stage.start());
    drop(stage.start());
    assert!(stage.command().is_none());
}

#[test]
fn a_client_that_leaves_while_it_runs_frees_its_slot_and_blocks() {
    let mut stage = Stage::new();
    let (ticket, _deliveries) = stage.submit();
    let start = stage.start();
    let sequence = start.order.sequence;
    stage.driver.depart(AT, ticket);
    stage.settle();
    assert!(matches!(stage.command(), Some(Command::Cancel(it)) if it == sequence));
    assert!(stage.driver.load().blocks_used > 0);
    let state = Box::new(start.sequence);
    let left = Event::Left {
        sequence,
        state,
        swapped_tokens: 0,
    };
    stage.says(0, vec![left]);
    let load = stage.driver.load();
    assert_eq!((load.slots_used, load.blocks_used, load.live), (0, 0, 0));
}

#[test]
fn what_an_executor_gives_back_is_taken_up_elsewhere_where_it_was_left() {
    let mut stage = Stage::with_executors(&["cpu0/demo", "cpu1/demo"], 64);
    let (_, mut deliveries) = stage.submit();
    let mut start = stage.start();
    let sequence = start.order.sequence;
    start.sequence.tokens.push(7);
    let failed = Event::Failed {
        sequence,
        retry: RetryClass::Elsewhere,
        why: "a test".to_owned(),
        state: Some(Box::new(start.sequence)),
    };
    stage.says(0, vec![Event::Started(sequence), failed]);
    let resumed = stage.start();
    assert_eq!(resumed.order.sequence.executor, ExecutorId(1));
    assert_eq!(resumed.sequence.generated(), [7]);
    let places: Vec<_> = std::iter::from_fn(|| deliveries.try_next()).collect();
    let [Delivery::Placed(first), Delivery::Placed(second)] = places.as_slice() else {
        panic!("{places:?}");
    };
    assert_eq!(
        (&*first.executor, &*second.executor),
        ("cpu0/demo", "cpu1/demo")
    );
}

#[test]
fn a_lost_executor_begins_anew_and_what_it_ran_begins_from_the_start_elsewhere() {
    let mut stage = Stage::with_executors(&["cpu0/demo", "cpu1/demo"], 64);
    let (_, _deliveries) = stage.submit();
    let sequence = stage.start().order.sequence;
    let lost = Event::Lost {
        why: "a test".to_owned(),
    };
    stage.says(0, vec![Event::Started(sequence), lost]);
    let executor = stage.driver.machine.executor_snapshot(CPU).unwrap();
    assert_eq!(executor.health, Health::Up);
    assert_eq!(executor.incarnation, Incarnation(1));
    let again = stage.start();
    assert_eq!(again.order.sequence.executor, ExecutorId(1));
    assert!(again.sequence.generated().is_empty());
}

/// Generates a token and hands in its text, and the reason if generation ends with it.
fn generate(sequence: &mut JobState, token: u32, stop: Option<StopReason>) {
    sequence.tokens.push(token);
    sequence.unsent = Piece {
        text: format!("<{token}>"),
        tokens: 1,
        logprobs: Vec::new(),
    };
    sequence.deliver(stop);
}

fn texts(deliveries: &mut Deliveries) -> Vec<String> {
    let all = std::iter::from_fn(|| deliveries.try_next());
    let texts = all.filter_map(|delivery| match delivery {
        Delivery::Text(piece) => Some(piece.text),
        Delivery::Embedding(_) | Delivery::Placed(_) | Delivery::Relayed(_) | Delivery::End(_) => {
            None
        }
    });
    texts.collect()
}

#[test]
fn what_was_handed_in_goes_on_elsewhere_and_nobody_hands_in_more_of_it() {
    let lost = |_| Event::Lost {
        why: "a test".to_owned(),
    };
    let failed = |sequence| Event::Failed {
        sequence,
        retry: RetryClass::Elsewhere,
        why: "a test".to_owned(),
        state: None,
    };
    let ends: [&dyn Fn(SequenceRef) -> Event; 2] = [&lost, &failed];
    for end in ends {
        let mut stage = Stage::with_executors(&["cpu0/demo", "cpu1/demo"], 64);
        let (_, mut deliveries) = stage.submit();
        let mut start = stage.start();
        let sequence = start.order.sequence;
        generate(&mut start.sequence, 7, None);
        // Counted, and not handed in.
        start.sequence.tokens.push(8);
        let steps = stepped(sequence.request, 3, 2);
        stage.says(0, vec![Event::Started(sequence), steps, end(sequence)]);
        let mut resumed = stage.start();
        assert_eq!(resumed.order.sequence.executor, ExecutorId(1));
        assert_eq!(resumed.order.prompt_tokens, 4);
        assert_eq!(resumed.order.output_tokens_max, 3);
        assert_eq!(resumed.sequence.generated(), [7]);
        generate(&mut start.sequence, 9, None);
        generate(&mut resumed.sequence, 10, None);
        assert_eq!(texts(&mut deliveries), ["<7>", "<10>"]);
    }
}

#[test]
fn an_answer_that_was_handed_in_whole_has_ended_though_its_executor_died_before_it_said_so() {
    let mut stage = Stage::with_executors(&["cpu0/demo", "cpu1/demo"], 64);
    let (_, mut deliveries) = stage.submit();
    let mut start = stage.start();
    let sequence = start.order.sequence;
    generate(&mut start.sequence, 7, Some(StopReason::Stop));
    let lost = Event::Lost {
        why: "a test".to_owned(),
    };
    let steps = stepped(sequence.request, 3, 1);
    stage.says(0, vec![Event::Started(sequence), steps, lost]);
    let expected = End {
        outcome: Outcome::Finished { output_tokens: 1 },
        stop: Some(StopReason::Stop),
        refused_by: None,
    };
    assert_eq!(end(&mut deliveries), expected);
    let mut commands = std::iter::from_fn(|| stage.command());
    assert!(!commands.any(|command| matches!(command, Command::Start(_))));
}

#[test]
fn nothing_is_started_in_a_life_that_ended_before_the_order_was_carried_out() {
    let mut stage = Stage::with_queues(&["cpu0/demo"], 64, 1);
    let requests = [(); 3].map(|()| stage.submit());
    let [sequence, other] = [(); 2].map(|()| stage.start().order.sequence);
    // The first ends, so that the third takes its slot, and all that in the executor's last words.
    let finished = Event::Finished {
        sequence,
        stop: StopReason::Stop,
    };
    let lost = Event::Lost {
        why: "a test".to_owned(),
    };
    let started = [sequence, other].map(Event::Started);
    let list = started.into_iter().chain([finished, lost]).collect();
    stage.says(0, list);
    let started = stage.start().order.sequence;
    assert_eq!(started.request, RequestId(2));
    assert_eq!(started.incarnation, Incarnation(1));
    assert!(stage.command().is_none());
    drop(requests);
}

#[test]
fn a_request_that_the_only_executor_was_lost_with_has_failed() {
    let mut stage = Stage::new();
    let (_, mut deliveries) = stage.submit();
    let sequence = stage.start().order.sequence;
    let lost = Event::Lost {
        why: "a test".to_owned(),
    };
    stage.says(0, vec![Event::Started(sequence), lost]);
    let failed = Outcome::Failed(FailedWhy::NowhereLeft);
    assert_eq!(end(&mut deliveries).outcome, failed);
    assert_eq!(stage.driver.in_hand(), 0);
}

#[test]
fn what_a_lost_executor_still_says_changes_nothing() {
    let mut stage = Stage::new();
    let (_, mut deliveries) = stage.submit();
    let start = stage.start();
    let sequence = start.order.sequence;
    let finished = Event::Finished {
        sequence,
        stop: StopReason::Stop,
    };
    stage.says(7, vec![finished]);
    assert_eq!(stage.driver.in_hand(), 1);
    assert!(matches!(deliveries.try_next(), Some(Delivery::Placed(_))));
    assert!(deliveries.try_next().is_none());
}

#[test]
fn an_executor_that_has_ended_is_down_and_its_requests_go_on_waiting_or_fail() {
    let mut stage = Stage::new();
    let (_, _deliveries) = stage.submit();
    let (_, receiver) = mpsc::channel(1);
    drop(std::mem::replace(&mut stage.commands, receiver));
    stage.settle();
    let executor = stage.driver.machine.executor_snapshot(CPU).unwrap();
    assert_eq!(executor.health, Health::Down);
    assert_eq!(stage.driver.load().executors_up, 0);
}

#[test]
fn an_executor_that_gives_up_takes_nothing_more_and_is_lost_once() {
    let mut stage = Stage::new();
    let _running = [stage.submit(), stage.submit()];
    let (_, mut waiting) = stage.submit();
    let started = [(); 2].map(|()| Event::Started(stage.start().order.sequence));
    let why = "given up".to_owned();
    stage.commands.close();
    let list = started.into_iter().chain([Event::Lost { why }]);
    stage.says(0, list.collect());
    let executor = stage.driver.machine.executor_snapshot(CPU).unwrap();
    assert_eq!(executor.health, Health::Down);
    assert_eq!(executor.incarnation, Incarnation(1));
    let metrics = stage.driver.metrics.render();
    let lost = "executors_lost_total{executor=\"cpu0/demo\"} 1\n";
    assert!(metrics.contains(lost), "{metrics}");
    let mut told = std::iter::from_fn(|| waiting.try_next());
    assert!(!told.any(|delivery| matches!(delivery, Delivery::Placed(_))));
}

#[test]
fn an_engine_hears_of_its_budget_before_its_first_start() {
    let mut stage = Stage::new();
    let (_, _deliveries) = stage.submit();
    let first = stage.commands.try_recv().unwrap();
    let budget = matches!(first, Command::SetBudget { tokens_max: 64 });
    assert!(budget, "{first:?}");
    assert!(matches!(stage.commands.try_recv(), Ok(Command::Start(_))));
}

#[test]
fn commands_that_find_no_room_come_later_in_order() {
    let mut stage = Stage::with_room_for(1);
    let (first, _one) = stage.submit();
    let (_, _two) = stage.submit();
    stage.driver.depart(AT, first);
    stage.settle();
    let mut order = Vec::new();
    while let Ok(command) = stage.commands.try_recv() {
        order.push(match &command {
            Command::Start(start) => format!("start {}", start.order.sequence.request),
            Command::Cancel(sequence) => format!("cancel {}", sequence.request),
            Command::SetBudget { .. } => "budget".to_owned(),
            Command::Grant { .. }
            | Command::Evict { .. }
            | Command::Arrange(_)
            | Command::Load(_)
            | Command::Configure { .. } => format!("{command:?}"),
        });
        stage.settle();
    }
    order.retain(|command| command != "budget");
    assert_eq!(order, ["start 0", "start 1", "cancel 0"]);
}

#[test]
fn distinct_labels_beyond_the_bound_are_ignored() {
    let mut stage = Stage::new();
    let hints = |labels: &[&str]| Hints {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ..Hints::default()
    };
    stage.submit_with(hints(&["team=a", "team=b", "team=c"]));
    stage.submit_with(hints(&["team=b", "team=d"]));
    assert_eq!(stage.driver.labels.known.len(), 2);
    assert_eq!(stage.driver.machine.name(NameKind::Label, 2), None);
}

#[test]
fn a_driver_that_stops_leaves_nobody_waiting() {
    let mut stage = Stage::new();
    let (_, mut deliveries) = stage.submit();
    drop(stage.start());
    stage.driver.abandon(AT);
    assert_eq!(stage.driver.in_hand(), 0);
    drop(stage);
    while let Some(delivery) = deliveries.blocking_next() {
        assert!(matches!(delivery, Delivery::Placed(_)), "{delivery:?}");
    }
}

#[test]
fn a_driver_that_stops_tells_of_each_request_with_what_it_has_used_so_far() {
    let mut stage = Stage::new();
    let requests = [(); 3].map(|()| stage.submit());
    let sequence = stage.start().order.sequence;
    let steps = stepped(sequence.request, 3, 2);
    stage.says(0, vec![Event::Started(sequence), steps]);
    // The second one's client has left, and its executor has not let it go yet. The third waits.
    stage.driver.depart(AT, requests[1].0);
    stage.settle();
    stage.driver.abandon(AT);
    let finished = stage.driver.finished.newest();
    let told = finished.iter().map(|request| {
        let used = (request.prompt_tokens, request.output_tokens);
        (request.ticket.0, (request.outcome, used))
    });
    let expected = [
        (0, ("cancelled", (3, 2))),
        (1, ("cancelled", (0, 0))),
        (2, ("cancelled", (0, 0))),
    ];
    assert_eq!(told.collect::<BTreeMap<_, _>>(), BTreeMap::from(expected));
    assert_eq!(finished.len(), requests.len());
}
