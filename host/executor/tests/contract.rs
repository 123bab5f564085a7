//! The executor contract as a suite that every executor passes.
//!
//! An executor is put through it by a [`Subject`] and one line at the end of this file. The books
//! ([`common::books`]) check every event; the cases here see to it that each clause is put to the
//! test.
#![expect(clippy::unwrap_used, reason = "the cases are tests")]

mod common;

use common::books::{Host, Phase, SLOTS, Subject, reference};
use common::subjects::{Stepped, Threaded, demo, scripted};
use common::{demo_text, job, random_job};
use fastrand::Rng;
use pointsman_core::{ExecutorId, Incarnation, RequestId, SequenceRef};
use pointsman_executor::contract::Command;
use pointsman_executor::delivery::StopReason;
use pointsman_executor::job::Job;
use pointsman_executor::text::ChatMessage;

/// A prompt of `tokens` tokens.
fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|idx| 20 + idx * 7 % 900).collect()
}

/// A job that goes on for as many tokens as it may.
fn long_job(prompt_tokens: u32, output_tokens_max: u32) -> Job {
    Job {
        ignore_eos: true,
        ..job(&prompt(prompt_tokens), output_tokens_max)
    }
}

/// Hears the subject until `done`.
fn turn_until<S: Subject>(host: &mut Host<S>, done: impl Fn(&Host<S>) -> bool) {
    while !done(host) {
        for request in host.running() {
            host.try_grant(request);
        }
        assert!(host.owes_something(), "it has come to a halt");
        host.turn();
    }
}

fn generated<S: Subject>(host: &Host<S>, request: RequestId) -> u32 {
    match &host.requests[&request].phase {
        Phase::Running(stay) => stay.generated,
        Phase::Waiting(_) | Phase::Finished(_) | Phase::Cancelled | Phase::Failed(..) => 0,
    }
}

fn is_finished<S: Subject>(host: &Host<S>, request: RequestId) -> bool {
    matches!(host.requests[&request].phase, Phase::Finished(_))
}

fn several_at_once_answer_as_each_alone<S: Subject>(subject: S) {
    let mut host = Host::new(subject);
    let requests: Vec<_> = (1..=3 * SLOTS)
        .map(|idx| host.arrive(long_job(idx * 3, 2 + idx * 2)))
        .collect();
    host.run_out();
    assert!(requests.iter().all(|request| is_finished(&host, *request)));
}

fn an_answer_ends_by_end_of_sequence_stop_string_or_length<S: Subject>(subject: S) {
    let mut host = Host::new(subject);
    let endless = host.arrive(long_job(5, 12));
    let text = host.requests[&endless].alone.text.clone();
    let middle: String = text.chars().skip(2).take(2).collect();
    let stopped = host.arrive(Job {
        stop: vec!["never said".to_owned(), middle],
        ..long_job(5, 12)
    });
    let questions = ["What comes after four?", "What is 7 plus 5?", "Hello!"];
    let eos = questions.map(|question| {
        let messages = [ChatMessage::new("user", question)];
        let prompt = demo_text().chat_prompt(&messages).unwrap();
        host.arrive(job(&prompt, 60))
    });
    host.run_out();
    let stop = |request: RequestId| match host.requests[&request].phase {
        Phase::Finished(stop) => Some(stop),
        Phase::Waiting(_) | Phase::Running(_) | Phase::Cancelled | Phase::Failed(..) => None,
    };
    assert_eq!(stop(endless), Some(StopReason::Length));
    assert_eq!(stop(stopped), Some(StopReason::Stop));
    for request in eos {
        assert_eq!(stop(request), Some(StopReason::Stop));
    }
}

fn a_sequence_without_a_block_sits_out_until_it_is_granted_one<S: Subject>(subject: S) {
    let mut host = Host::new(subject);
    let (short, other) = (host.start(long_job(8, 30)), host.start(long_job(3, 30)));
    // Nothing is granted to `short`: it stops at the end of its blocks, `other` does not.
    while !is_finished(&host, other) {
        host.try_grant(other);
        assert!(host.owes_something());
        host.turn();
    }
    let Phase::Running(stay) = &host.requests[&short].phase else {
        panic!("it cannot have ended")
    };
    assert_eq!(stay.generated, 1, "KV of the first token has no room");
    assert!(!host.owes_something());
    host.run_out();
    assert!(is_finished(&host, short));
}

fn evicted_sequences_go_on_where_they_were<S: Subject>(make: impl Fn() -> S) {
    for tokens in [0, 1, 2, 9] {
        let mut host = Host::new(make());
        let request = host.start(long_job(10, 20));
        turn_until(&mut host, |host| generated(host, request) >= tokens);
        host.evict(request);
        turn_until(&mut host, |host| !host.running().contains(&request));
        host.run_out();
        assert!(is_finished(&host, request));
    }
}

fn cancelled_sequences_leave_and_are_gone<S: Subject>(make: impl Fn() -> S) {
    for tokens in [0, 1, 5] {
        let mut host = Host::new(make());
        let (stays, goes) = (host.start(long_job(4, 25)), host.start(long_job(9, 25)));
        turn_until(&mut host, |host| generated(host, goes) >= tokens);
        host.cancel(goes);
        host.run_out();
        assert!(matches!(host.requests[&goes].phase, Phase::Cancelled));
        assert!(is_finished(&host, stays));
    }
}

fn steps_keep_to_the_budget_and_everybody_gets_on<S: Subject>(make: impl Fn() -> S) {
    for budget in [1, 3, 5, 17] {
        let mut host = Host::new(make());
        host.set_budget(budget);
        let requests: Vec<_> = (0..SLOTS)
            .map(|idx| host.start(long_job(4 + idx * 9, 10)))
            .collect();
        host.run_out();
        assert!(requests.iter().all(|request| is_finished(&host, *request)));
    }
}

fn commands_about_what_is_not_there_change_nothing<S: Subject>(subject: S) {
    let mut host = Host::new(subject);
    let request = host.start(long_job(10, 15));
    let here = reference(request);
    let elsewhere = [
        SequenceRef {
            request: RequestId(77),
            ..here
        },
        SequenceRef {
            incarnation: Incarnation(1),
            ..here
        },
        SequenceRef {
            executor: ExecutorId(4),
            ..here
        },
    ];
    for sequence in elsewhere {
        let blocks = host.free[..1].to_vec();
        host.subject.send(Command::Grant { sequence, blocks });
        host.subject.send(Command::Evict(sequence));
        host.subject.send(Command::Cancel(sequence));
    }
    host.run_out();
    assert!(is_finished(&host, request));
    host.subject.send(Command::Evict(here));
    let next = host.start(long_job(3, 3));
    host.run_out();
    assert!(is_finished(&host, next));
}

/// Any interleaving of commands and steps gives every request its answer or lets it go.
fn random_runs_keep_the_books<S: Subject>(make: impl Fn() -> S, runs: u64) {
    for seed in 0..runs {
        let mut rng = Rng::with_seed(seed);
        let mut host = Host::new(make());
        for _ in 0..150 {
            act(&mut host, &mut rng);
        }
        host.set_budget(u32::MAX);
        host.run_out();
        for (request, record) in &host.requests {
            let ended = matches!(record.phase, Phase::Finished(_) | Phase::Cancelled);
            assert!(ended, "{request} has not ended, seed {seed}");
        }
    }
}

fn act<S: Subject>(host: &mut Host<S>, rng: &mut Rng) {
    let running = host.running();
    let any = rng.choice(&running).copied();
    let known = host.requests.len() as u64;
    match (rng.u8(0..20), any) {
        (0 | 1, _) => {
            let job = random_job(rng, 30, 40);
            let request = host.arrive(job.clone());
            arrive_with_stop(host, rng, job, request);
        }
        (2..6, _) if known > 0 => {
            let _started: bool = host.try_start(RequestId(rng.u64(0..known)));
        }
        (6 | 7, _) => host.set_budget(rng.u32(1..40)),
        (8, Some(request)) => host.evict(request),
        (9, Some(request)) if rng.bool() => host.cancel(request),
        (10, Some(request)) if rng.bool() => host.hang_up(request),
        (11..15, Some(request)) => host.try_grant(request),
        _ if host.owes_something() => host.turn(),
        _ => {}
    }
}

/// The same job again, with a piece of its answer as stop string.
fn arrive_with_stop<S: Subject>(host: &mut Host<S>, rng: &mut Rng, job: Job, like: RequestId) {
    let text: Vec<char> = host.requests[&like].alone.text.chars().collect();
    if text.len() < 2 {
        return;
    }
    let start = rng.usize(..text.len() - 1);
    let end = (start + rng.usize(1..5)).min(text.len());
    let stop = vec![text[start..end].iter().collect(), "\u{1f600}".to_owned()];
    host.arrive(Job { stop, ..job });
}

/// The suite for one executor: `$make` makes a subject, `$runs` are its random runs.
macro_rules! keeps_the_contract {
    ($name:ident, $runs:literal, $make:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn several_at_once_answer_as_each_alone() {
                super::several_at_once_answer_as_each_alone($make());
            }

            #[test]
            fn an_answer_ends_by_end_of_sequence_stop_string_or_length() {
                super::an_answer_ends_by_end_of_sequence_stop_string_or_length($make());
            }

            #[test]
            fn a_sequence_without_a_block_sits_out_until_it_is_granted_one() {
                super::a_sequence_without_a_block_sits_out_until_it_is_granted_one($make());
            }

            #[test]
            fn evicted_sequences_go_on_where_they_were() {
                super::evicted_sequences_go_on_where_they_were($make);
            }

            #[test]
            fn cancelled_sequences_leave_and_are_gone() {
                super::cancelled_sequences_leave_and_are_gone($make);
            }

            #[test]
            fn steps_keep_to_the_budget_and_everybody_gets_on() {
                super::steps_keep_to_the_budget_and_everybody_gets_on($make);
            }

            #[test]
            fn commands_about_what_is_not_there_change_nothing() {
                super::commands_about_what_is_not_there_change_nothing($make());
            }

            #[test]
            fn random_runs_keep_the_books() {
                super::random_runs_keep_the_books($make, $runs);
            }
        }
    };
}

keeps_the_contract!(stepped_engine, 30, || Stepped::new(scripted));
keeps_the_contract!(engine_on_its_thread, 30, || Threaded::new(scripted));
keeps_the_contract!(demo_model, 3, || Stepped::new(demo));
keeps_the_contract!(demo_model_on_its_thread, 3, || Threaded::new(demo));
