//! The step loop without its thread, on a backend that notices every wrong block.

use std::sync::Arc;

use fastrand::Rng;
use pointsman_engine::backend::DeviceError;
use pointsman_engine::step_loop::{LoopModel, StepLoop, StepLoopParts, StepOutcome};
use pointsman_events::{Arrangement, BlockId, ModelId, RequestId, RetryClass};
use pointsman_executor::contract::{Command, Event, Start};
use pointsman_executor::delivery::{self, Deliveries, Delivery};
use pointsman_executor::job::{Job, JobState};
use pointsman_executor::test_util::{
    self, EXECUTOR, FIRST_LIFE, SLOTS, TestHost, job, random_job, reference,
};

use pointsman_engine::test_util::scripted::{
    Faults, POISON, SHAPE, ScriptedBackend, Shape, StepFault,
};
use pointsman_engine::test_util::subjects::{Stepped, scripted};
use pointsman_engine::test_util::texts::{model, tokenizer};

/// The host compares each answer with that of the same job alone.
#[test]
fn batched_and_chunked_sequences_answer_as_alone() {
    let mut rng = Rng::with_seed(11);
    for budget in [2, 3, 7, 16, 64, u32::MAX] {
        let mut host = TestHost::new(Stepped::new(&[scripted]));
        host.set_budget(budget);
        let jobs = (0..12).map(|_| random_job(&mut rng, 60, 50));
        let requests: Vec<RequestId> = jobs.map(|job| host.arrive(job)).collect();
        host.run_out();
        assert!(requests.iter().all(|request| host.is_finished(*request)));
    }
}

#[test]
fn a_sequence_preempted_after_any_step_answers_as_alone() {
    let mut rng = Rng::with_seed(12);
    for steps in 0..40 {
        let mut host = TestHost::new(Stepped::new(&[scripted]));
        host.set_budget(9);
        let request = host.start(Job {
            ignore_eos: true,
            ..random_job(&mut rng, 30, 40)
        });
        let other = host.start(random_job(&mut rng, 30, 40));
        for _ in 0..steps {
            host.try_grant(request);
            host.try_grant(other);
            if host.owes_events() {
                host.turn();
            }
        }
        if !host.is_finished(request) {
            host.evict(request);
            host.turn();
        }
        // Another sequence overwrites the blocks it left before it comes back.
        let heir = host.start(random_job(&mut rng, 40, 10));
        host.run_out();
        let all = [request, other, heir];
        assert!(all.iter().all(|request| host.is_finished(*request)));
    }
}

#[test]
fn tokens_beyond_the_tokenizer_are_never_generated() {
    let padded = Shape {
        vocab_size: 1100,
        ..SHAPE
    };
    let mut rng = Rng::with_seed(13);
    let mut host = TestHost::new(Stepped::on(
        vec![Box::new(ScriptedBackend::new(padded))],
        &[scripted],
    ));
    let jobs = (0..20).map(|_| random_job(&mut rng, 20, 40));
    let requests: Vec<RequestId> = jobs.map(|job| host.arrive(job)).collect();
    host.run_out();
    assert!(requests.iter().all(|request| host.is_finished(*request)));
}

#[test]
fn tokens_that_the_tokenizer_leaves_out_are_never_generated() {
    let text = Arc::new(model(&[tokenizer()]).unwrap());
    let favoured = Shape {
        vocab_size: text.vocab_size(),
        favoured_from: 260,
        ..SHAPE
    };
    assert_eq!((text.missing_ids(), text.vocab_size()), (&[260][..], 263));
    let parts = StepLoopParts {
        slots: 1,
        models: vec![LoopModel::new(
            ModelId(0),
            text,
            Box::new(ScriptedBackend::new(favoured)),
        )],
        stats: Arc::default(),
    };
    let mut steps = StepLoop::new(EXECUTOR, FIRST_LIFE, parts);
    let (start, _deliveries) = start(1, &job(&[30, 31], 5));
    let sequence = start.order.sequence;
    steps.handle(Command::Start(Box::new(start)));
    for _ in 0..3 {
        assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
    }
    steps.handle(Command::Evict {
        sequence,
        host_blocks: Vec::new(),
    });
    let left = steps.take_events().pop();
    let Some(Event::Left { state, .. }) = left else {
        panic!("{left:?}")
    };
    assert_eq!(state.generated(), [261; 3]);
}

#[test]
fn slow_clients_and_those_that_left_change_nothing() {
    let mut host = TestHost::new(Stepped::new(&[scripted]));
    let endless = |first| Job {
        ignore_eos: true,
        ..job(&[first, 77], 40)
    };
    let [reads, lags, left] = [50, 51, 52].map(|first| host.start(endless(first)));
    host.lag(lags);
    host.hang_up(left);
    host.run_out();
    for request in [reads, lags, left] {
        assert!(host.is_finished(request));
    }
    // A token each in every step, after the prompts: nobody was waited for.
    assert_eq!(host.executor.stats.steps.get(), 40);
}

#[test]
fn a_budget_below_the_number_of_sequences_goes_round() {
    let mut host = TestHost::new(Stepped::new(&[scripted]));
    let requests = [60, 61, 62, 63].map(|first| {
        host.start(Job {
            ignore_eos: true,
            ..job(&[first], 20)
        })
    });
    host.set_budget(1);
    // They start.
    host.turn();
    for _ in 0..4 * 10 {
        for request in requests {
            host.try_grant(request);
        }
        host.turn();
    }
    for request in requests {
        assert_eq!(host.generated(request), 10);
    }
}

#[test]
fn an_answer_ends_where_the_context_does() {
    let mut host = TestHost::new(Stepped::new(&[scripted]));
    let context = SHAPE.context_tokens as usize;
    for prompt_tokens in [context - 5, context - 1, context] {
        let request = host.arrive(Job {
            ignore_eos: true,
            ..job(&vec![30; prompt_tokens], 40)
        });
        host.run_out();
        assert!(host.is_finished(request));
        let generated = host.alone(request).ids.len();
        assert_eq!(generated, (context - prompt_tokens).max(1));
    }
}

#[test]
fn a_sequence_of_a_model_that_is_not_served_goes_elsewhere() {
    let mut steps = bare(ScriptedBackend::new(SHAPE));
    let (mut start, _deliveries) = start(1, &job(&[30, 31], 5));
    start.order.model = Some(ModelId(77));
    steps.handle(Command::Start(Box::new(start)));
    let events = steps.take_events();
    let [Event::Started(_), Event::Failed { retry, why, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    let expected = (RetryClass::Elsewhere, "the model is not served here");
    assert_eq!((*retry, why.as_str()), expected);
}

/// A change that makes a start wrong.
type Spoil = fn(&mut Start);

#[test]
fn what_cannot_be_run_is_refused_and_harms_nobody() {
    let wrong: [(&str, Spoil); 5] = [
        ("9 tokens were ordered, and there are 2", |start| {
            start.order.prompt_tokens = 9;
        }),
        ("0 tokens were ordered, and there are 0", |start| {
            start.order.prompt_tokens = 0;
            let sink = start.sequence.sink.clone();
            start.sequence = JobState::new(Arc::new(job(&[], 5)), sink);
        }),
        ("129 tokens are more than the context of 128", |start| {
            start.order.prompt_tokens = 129;
            start.sequence.tokens = vec![30; 129];
        }),
        (
            "token 1024 is beyond the model's vocabulary of 1024",
            |start| {
                start.sequence.tokens[1] = 1024;
            },
        ),
        ("nothing is left to generate", |start| {
            start.order.output_tokens_max = 0;
        }),
    ];
    for (expected, spoil) in wrong {
        let mut steps = bare(ScriptedBackend::new(SHAPE));
        let (mut start, _deliveries) = start(1, &job(&[30, 31], 5));
        spoil(&mut start);
        steps.handle(Command::Start(Box::new(start)));
        let events = steps.take_events();
        let [Event::Started(_), Event::Failed { retry, why, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((*retry, why.as_str()), (RetryClass::Never, expected));
        assert_eq!(steps.step(), Ok(StepOutcome::Nothing));
    }
}

#[test]
fn a_start_beyond_the_slots_goes_elsewhere() {
    let mut steps = bare(ScriptedBackend::new(SHAPE));
    for request in 0..=SLOTS {
        let (start, _deliveries) = start(request, &job(&[30, 31], 5));
        steps.handle(Command::Start(Box::new(start)));
    }
    let events = steps.take_events();
    let Some(Event::Failed {
        sequence, retry, ..
    }) = events.last()
    else {
        panic!("{events:?}")
    };
    assert_eq!(sequence.request, RequestId(SLOTS.into()));
    assert_eq!(*retry, RetryClass::Elsewhere);
}

#[test]
fn a_sequence_whose_logits_are_no_numbers_fails_alone() {
    let mut host = TestHost::new(Stepped::new(&[scripted]));
    let well = host.start(job(&[40, 41], 20));
    let (poisoned, mut deliveries) = start(77, &job(&[POISON, 41], 20));
    let steps = &mut host.executor.steps;
    steps.handle(Command::Start(Box::new(poisoned)));
    assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
    let mut events = steps.take_events();
    let failed = events.pop();
    let Some(Event::Failed {
        sequence, retry, ..
    }) = failed
    else {
        panic!("{failed:?}")
    };
    assert_eq!(sequence.request, RequestId(77));
    assert_eq!(retry, RetryClass::Elsewhere);
    assert!(deliveries.try_next().is_none());
    assert_eq!(events.len(), 3, "two starts and a step: {events:?}");
    assert!(!steps.is_idle());
    host.cancel(well);
}

#[test]
fn nothing_of_a_step_that_fails_is_shown() {
    let faults = Faults::after(&[(3, StepFault::Error)]);
    let mut steps = bare(ScriptedBackend::failing(SHAPE, faults));
    let mut clients = Vec::new();
    for request in 0..3 {
        let (start, deliveries) = start(request, &job(&[70 + request, 5], 20));
        steps.handle(Command::Start(Box::new(start)));
        clients.push(deliveries);
    }
    for _ in 0..2 {
        assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
        drop(steps.take_events());
    }
    for client in &mut clients {
        while client.try_next().is_some() {}
    }
    let error = DeviceError("the device fell off the bus".to_owned());
    assert_eq!(steps.step(), Err(error));
    assert!(steps.take_events().is_empty());
    for client in &mut clients {
        assert!(client.try_next().is_none());
    }
}

#[test]
fn cached_tokens_are_not_computed_again() {
    let mut steps = bare(ScriptedBackend::new(SHAPE));
    let job = Job {
        ignore_eos: true,
        ..job(&[30, 31, 32, 33, 34, 35, 36, 37, 38], 20)
    };
    // The first sequence leaves its blocks to the second, of which the first two are full.
    let mut texts = [(0, 9), (8, 1)].map(|(cached_tokens, computed)| {
        let (mut start, mut deliveries) = start(cached_tokens, &job);
        start.order.cached_tokens = cached_tokens;
        let sequence = start.order.sequence;
        steps.handle(Command::Start(Box::new(start)));
        assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
        let events = steps.take_events();
        let Event::Stepped(report) = &events[1] else {
            panic!("{events:?}")
        };
        assert_eq!(report.progress[0].prefilled, computed);
        for _ in 0..10 {
            assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
        }
        steps.handle(Command::Cancel(sequence));
        drop(steps.take_events());
        read(&mut deliveries)
    });
    assert!(!texts[0].is_empty());
    let [first, second] = &mut texts;
    assert_eq!(first, second);
}

/// A bulk prompt that started first, and an urgent one that comes while it is computed.
#[test]
fn an_urgent_prompt_is_not_held_up_by_one_that_started_first() {
    let mut steps = bare(ScriptedBackend::new(Shape {
        tokens_per_block: 16,
        ..SHAPE
    }));
    let begin = |steps: &mut StepLoop, request: u32, tokens: u32| {
        let prompt: Vec<u32> = (0..tokens).map(|idx| 30 + idx).collect();
        let (start, _deliveries) = start(request, &job(&prompt, 5));
        steps.handle(Command::Start(Box::new(start)));
        RequestId(request.into())
    };
    steps.handle(Command::SetBudget { tokens_max: 8 });
    let bulk = begin(&mut steps, 0, 100);
    let step = |steps: &mut StepLoop| {
        assert_eq!(steps.step(), Ok(StepOutcome::Stepped));
        let stepped = steps.take_events().into_iter().find_map(|event| {
            if let Event::Stepped(report) = event {
                Some(report)
            } else {
                None
            }
        });
        let progress = stepped.expect("a step was made").progress.into_iter();
        progress.map(|made| (made.request, made.prefilled, made.generated))
    };
    assert_eq!(step(&mut steps).collect::<Vec<_>>(), [(bulk, 8, 0)]);
    let urgent = begin(&mut steps, 1, 21);
    steps.handle(Command::Arrange(Arrangement {
        prefill_max: None,
        first: vec![urgent, bulk],
    }));
    for generated in [0, 0, 1] {
        let made: Vec<_> = step(&mut steps).collect();
        assert_eq!(made, [(bulk, 1, 0), (urgent, 7, generated)]);
    }
    // Its answer takes a token of each step, and the prompt the rest.
    let made: Vec<_> = step(&mut steps).collect();
    assert_eq!(made, [(bulk, 7, 0), (urgent, 0, 1)]);
    steps.handle(Command::Arrange(Arrangement {
        prefill_max: Some(3),
        first: Vec::new(),
    }));
    let made: Vec<_> = step(&mut steps).collect();
    assert_eq!(made, [(bulk, 3, 0), (urgent, 0, 1)]);
}

#[test]
fn counts_what_it_does() {
    let mut host = TestHost::new(Stepped::new(&[scripted]));
    let short = host.start(Job {
        ignore_eos: true,
        ..job(&[30, 31, 32, 33], 3)
    });
    host.turn();
    host.turn();
    // The prompt fills its block, and it is granted no other.
    assert_eq!(host.executor.steps.step(), Ok(StepOutcome::Nothing));
    host.run_out();
    assert!(host.is_finished(short));
    let stats = &host.executor.stats;
    assert_eq!(stats.steps.get(), 3);
    assert_eq!(stats.prefill_tokens.get(), 4);
    assert_eq!(stats.generated_tokens.get(), 3);
    assert_eq!(stats.sat_out.get(), 1);
}

// === A step loop without a host ===

fn bare(backend: ScriptedBackend) -> StepLoop {
    Stepped::on(vec![Box::new(backend)], &[scripted]).steps
}

/// Makes a start of `job` with more blocks than it needs, the same whatever the request.
fn start(request: u32, job: &Job) -> (Start, Deliveries) {
    let (sink, _closing, deliveries) = delivery::channel(job.output_tokens_max);
    let sequence = JobState::new(Arc::new(job.clone()), sink);
    let blocks = (0..10).map(|idx| BlockId(idx + 10 * (request % 4)));
    let name = reference(RequestId(request.into()));
    (
        test_util::start(name, sequence, blocks.collect()),
        deliveries,
    )
}

fn read(deliveries: &mut Deliveries) -> String {
    let read = std::iter::from_fn(|| deliveries.try_next());
    read.map(|delivery| match delivery {
        Delivery::Text(piece) => piece.text,
        Delivery::Embedding(_) | Delivery::Placed(_) | Delivery::Relayed(_) | Delivery::End(_) => {
            String::new()
        }
    })
    .collect()
}
