//! The cases of the contract suite. Each puts a clause of the contract to the test.
//!
//! [`contract_suite!`](crate::contract_suite) makes a test of each case. A case drives the executor
//! into a situation; the [`TestHost`] checks what happens there.
//!
//! Cases about KV, budgets, orders and embeddings are for engines: they return at once for a server elsewhere.

use fastrand::Rng;
use pointsman_events::{Arrangement, ExecutorId, Incarnation, RequestId, SequenceRef};

use super::{ExecutorUnderTest, SLOTS, TestHost, job, random_job, reference};
use crate::contract::Command;
use crate::delivery::StopReason;
use crate::job::Job;

/// Makes a module of tests, one for each case of the suite. Takes the module's name, an expression
/// that makes an [`ExecutorUnderTest`](crate::test_util::ExecutorUnderTest), and the number of
/// random runs.
#[macro_export]
macro_rules! contract_suite {
    ($name:ident, $make:expr, $random_runs:literal) => {
        mod $name {
            use super::*;

            $crate::contract_suite! { @cases $make;
                several_at_once_answer_as_each_alone
                an_answer_ends_by_end_of_sequence_stop_string_or_length
                a_sequence_without_a_block_sits_out_until_it_is_granted_one
                evicted_sequences_go_on_where_they_were
                swapped_sequences_go_on_without_being_computed_again
                sequences_that_are_swapped_after_every_token_answer_as_if_left_alone
                sequences_that_come_back_may_be_told_to_leave_again
                cancelled_sequences_leave_and_are_gone
                steps_keep_to_the_budget_and_everybody_gets_on
                prompts_are_computed_in_the_order_that_was_set
                commands_about_what_is_not_there_change_nothing
                prompts_are_embedded_as_each_alone
            }

            #[test]
            fn random_runs_keep_the_books() {
                $crate::test_util::suite::random_runs_keep_the_books(|| $make, $random_runs);
            }
        }
    };
    (@cases $make:expr; $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::test_util::suite::$case(|| $make);
            }
        )*
    };
}

/// Returns a prompt of `tokens` tokens.
fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|idx| 20 + idx * 7 % 900).collect()
}

/// Returns a job that goes on for as many tokens as it may.
fn long_job(prompt_tokens: u32, output_tokens_max: u32) -> Job {
    Job {
        ignore_eos: true,
        ..job(&prompt(prompt_tokens), output_tokens_max)
    }
}

fn evict(sequence: SequenceRef) -> Command {
    Command::Evict {
        sequence,
        host_blocks: Vec::new(),
    }
}

/// Grants blocks and takes events until `done`.
fn turn_until<E: ExecutorUnderTest>(host: &mut TestHost<E>, done: impl Fn(&TestHost<E>) -> bool) {
    while !done(host) {
        for request in host.running() {
            host.try_grant(request);
        }
        assert!(host.owes_events(), "no event is to come");
        host.turn();
    }
}

/// More requests than slots: other sequences change no answer.
pub fn several_at_once_answer_as_each_alone<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    let mut host = TestHost::new(make());
    let requests: Vec<_> = (1..=3 * SLOTS)
        .map(|idx| host.arrive(long_job(idx * 3, 2 + idx * 2)))
        .collect();
    host.run_out();
    assert!(requests.iter().all(|request| host.is_finished(*request)));
}

/// Each reason to stop is reported, and nothing after it is shown.
pub fn an_answer_ends_by_end_of_sequence_stop_string_or_length<E: ExecutorUnderTest>(
    make: impl Fn() -> E,
) {
    let mut host = TestHost::new(make());
    let endless = host.arrive(long_job(5, 12));
    let text = &host.alone(endless).text;
    let middle: String = text.chars().skip(2).take(2).collect();
    let stopped = host.arrive(Job {
        stop: vec!["never said".to_owned(), middle],
        ..long_job(5, 12)
    });
    let ending = host.executor.prompts_that_end();
    assert!(!ending.is_empty(), "no prompt ends by end of sequence");
    let ending = ending.iter().map(|prompt| host.arrive(job(prompt, 60)));
    let ending: Vec<_> = ending.collect();
    host.run_out();
    // A server elsewhere tells the reason in its response, and not to the executor.
    let length = if host.executor.is_elsewhere() {
        StopReason::Stop
    } else {
        StopReason::Length
    };
    assert_eq!(host.stop_reason(endless), Some(length));
    assert_eq!(host.stop_reason(stopped), Some(StopReason::Stop));
    for request in ending {
        assert_eq!(host.stop_reason(request), Some(StopReason::Stop));
    }
}

/// A sequence waits at the end of its blocks, and others go on.
pub fn a_sequence_without_a_block_sits_out_until_it_is_granted_one<E: ExecutorUnderTest>(
    make: impl Fn() -> E,
) {
    let mut host = TestHost::new(make());
    if host.executor.is_elsewhere() {
        return;
    }
    let two_blocks = 2 * host.executor.tokens_per_block();
    let short = host.start(long_job(two_blocks, 30));
    let other = host.start(long_job(3, 30));
    // Nothing is granted to `short`: it stops at the end of its blocks, `other` does not.
    while !host.is_finished(other) {
        host.try_grant(other);
        assert!(host.owes_events());
        host.turn();
    }
    let generated = host.generated(short);
    assert_eq!(generated, 1, "KV of the first token has no room");
    assert!(!host.owes_events());
    host.run_out();
    assert!(host.is_finished(short));
}

/// An eviction after any number of tokens changes no answer.
pub fn evicted_sequences_go_on_where_they_were<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    for tokens in [0, 1, 2, 9] {
        let mut host = TestHost::new(make());
        let request = host.start(long_job(10, 20));
        turn_until(&mut host, |host| host.generated(request) >= tokens);
        host.evict(request);
        turn_until(&mut host, |host| !host.running().contains(&request));
        host.run_out();
        assert!(host.is_finished(request));
    }
}

/// A swap after any number of tokens changes no answer, and nothing is computed again: the host counts what
/// is, and has the rest of the prompt from host memory.
pub fn swapped_sequences_go_on_without_being_computed_again<E: ExecutorUnderTest>(
    make: impl Fn() -> E,
) {
    for tokens in [0, 1, 2, 9] {
        let mut host = TestHost::new(make());
        if host.executor.host_blocks() == 0 {
            return;
        }
        let request = host.start(long_job(10, 20));
        let other = host.start(long_job(7, 30));
        turn_until(&mut host, |host| host.generated(request) >= tokens);
        host.swap(request);
        turn_until(&mut host, |host| !host.running().contains(&request));
        // Its blocks are others' meanwhile.
        let newcomer = host.start(long_job(12, 5));
        turn_until(&mut host, |host| host.is_finished(newcomer));
        host.run_out();
        assert!(host.is_finished(request) && host.is_finished(other));
    }
}

/// Sequences that run for one token at a time, from wherever their KV is by then, answer as any other.
pub fn sequences_that_are_swapped_after_every_token_answer_as_if_left_alone<
    E: ExecutorUnderTest,
>(
    make: impl Fn() -> E,
) {
    let mut host = TestHost::new(make());
    if host.executor.host_blocks() == 0 {
        return;
    }
    let requests = [3, 14].map(|tokens| host.arrive(long_job(tokens, 12)));
    while !requests.iter().all(|request| host.is_finished(*request)) {
        for request in requests {
            host.try_start(request);
        }
        let started = host.running();
        let made_one = |host: &TestHost<E>| {
            let mut started = started.iter();
            started.all(|request| host.generated(*request) > 0 || host.is_finished(*request))
        };
        turn_until(&mut host, made_one);
        for request in host.running() {
            host.swap(request);
        }
        turn_until(&mut host, |host| host.running().is_empty());
    }
    host.run_out();
}

/// The KV in host memory stays there until a sequence has started from it.
pub fn sequences_that_come_back_may_be_told_to_leave_again<E: ExecutorUnderTest>(
    make: impl Fn() -> E,
) {
    let stops: [fn(&mut TestHost<E>, RequestId); 3] =
        [TestHost::swap, TestHost::evict, TestHost::cancel];
    for stop in stops {
        let mut host = TestHost::new(make());
        if host.executor.host_blocks() == 0 {
            return;
        }
        let request = host.start(long_job(10, 20));
        turn_until(&mut host, |host| host.generated(request) >= 3);
        host.swap(request);
        turn_until(&mut host, |host| !host.running().contains(&request));
        assert!(host.try_start(request));
        stop(&mut host, request);
        turn_until(&mut host, |host| !host.running().contains(&request));
        host.run_out();
        assert!(host.is_finished(request) || host.is_cancelled(request));
    }
}

/// A cancelled sequence leaves, and others go on.
pub fn cancelled_sequences_leave_and_are_gone<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    for tokens in [0, 1, 5] {
        let mut host = TestHost::new(make());
        let (stays, goes) = (host.start(long_job(4, 25)), host.start(long_job(9, 25)));
        turn_until(&mut host, |host| host.generated(goes) >= tokens);
        host.cancel(goes);
        host.run_out();
        assert!(host.is_cancelled(goes));
        assert!(host.is_finished(stays));
    }
}

/// No step has more tokens than the budget, and no sequence starves.
pub fn steps_keep_to_the_budget_and_everybody_gets_on<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    for budget in [1, 3, 5, 17] {
        let mut host = TestHost::new(make());
        if host.executor.is_elsewhere() {
            return;
        }
        host.set_budget(budget);
        let requests: Vec<_> = (0..SLOTS)
            .map(|idx| host.start(long_job(4 + idx * 9, 10)))
            .collect();
        host.run_out();
        assert!(requests.iter().all(|request| host.is_finished(*request)));
    }
}

/// Prompts come in the order that was set, whichever started first, and no answer is another.
pub fn prompts_are_computed_in_the_order_that_was_set<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    for prefill_max in [None, Some(6)] {
        let mut host = TestHost::new(make());
        if host.executor.is_elsewhere() {
            return;
        }
        // It pauses until all is set.
        host.set_budget(0);
        let [first, second] = [(); 2].map(|()| host.start(long_job(40, 5)));
        host.arrange(Arrangement {
            prefill_max,
            first: vec![second],
        });
        host.set_budget(8);
        turn_until(&mut host, |host| host.generated(second) > 0);
        assert_eq!(host.generated(first), 0, "it came last");
        host.run_out();
        assert!(host.is_finished(first) && host.is_finished(second));
    }
}

/// Commands of another life, executor or request are ignored.
pub fn commands_about_what_is_not_there_change_nothing<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    let mut host = TestHost::new(make());
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
        let blocks = vec![host.free_block()];
        host.executor.send(Command::Grant { sequence, blocks });
        host.executor.send(evict(sequence));
        host.executor.send(Command::Cancel(sequence));
    }
    host.run_out();
    assert!(host.is_finished(request));
    host.executor.send(evict(here));
    let next = host.start(long_job(3, 3));
    host.run_out();
    assert!(host.is_finished(next));
}

/// Prompts are embedded among sequences that generate, and whatever makes them leave on the way changes no
/// number.
pub fn prompts_are_embedded_as_each_alone<E: ExecutorUnderTest>(make: impl Fn() -> E) {
    let stops: [fn(&mut TestHost<E>, RequestId); 2] = [TestHost::swap, TestHost::evict];
    for stop in stops {
        let mut host = TestHost::new(make());
        if host.executor.is_elsewhere() {
            return;
        }
        host.set_budget(6);
        let requests: Vec<_> = (1..=2 * SLOTS)
            .map(|idx| host.arrive(job(&prompt(idx * 5), if idx % 3 == 0 { 6 } else { 0 })))
            .collect();
        let embedded = requests.iter().map(|request| host.alone(*request));
        let embedded: Vec<_> = embedded.filter_map(|it| it.embedding.clone()).collect();
        assert_eq!(embedded.len(), 6, "each prompt that is to be embedded is");
        assert_ne!(embedded[0], embedded[1]);
        for request in &requests {
            let _started: bool = host.try_start(*request);
        }
        for _ in 0..4 {
            host.turn();
        }
        for request in host.running() {
            stop(&mut host, request);
        }
        host.run_out();
        assert!(requests.iter().all(|request| host.is_finished(*request)));
    }
}

/// Any interleaving of commands and steps gives every request its answer or lets it go.
pub fn random_runs_keep_the_books<E: ExecutorUnderTest>(make: impl Fn() -> E, runs: u64) {
    for seed in 0..runs {
        let mut rng = Rng::with_seed(seed);
        let mut host = TestHost::new(make());
        for _ in 0..150 {
            act(&mut host, &mut rng);
        }
        host.set_budget(u32::MAX);
        host.run_out();
        for request in host.requests() {
            let ended = host.is_finished(request) || host.is_cancelled(request);
            assert!(ended, "{request} has not ended, seed {seed}");
        }
    }
}

fn act<E: ExecutorUnderTest>(host: &mut TestHost<E>, rng: &mut Rng) {
    let running = host.running();
    let any = rng.choice(&running).copied();
    let known = host.requests().len() as u64;
    match (rng.u8(0..20), any) {
        (0 | 1, _) => {
            let mut job = random_job(rng, 30, 40);
            if rng.u8(0..6) == 0 {
                job.output_tokens_max = 0;
            }
            let request = host.arrive(job.clone());
            arrive_with_stop(host, rng, job, request);
        }
        (2..6, _) if known > 0 => {
            let _started: bool = host.try_start(RequestId(rng.u64(0..known)));
        }
        (6 | 7, _) => host.set_budget(rng.u32(1..40)),
        (8, Some(request)) if rng.bool() => host.evict(request),
        (8, Some(request)) => host.swap(request),
        (15, _) => {
            let first = (0..rng.u64(0..4)).map(|_| RequestId(rng.u64(0..known + 1)));
            let first = first.collect();
            let prefill_max = rng.bool().then(|| rng.u32(0..20));
            host.arrange(Arrangement { prefill_max, first });
        }
        (9, Some(request)) if rng.bool() => host.cancel(request),
        (10, Some(request)) if rng.bool() => host.hang_up(request),
        (11..15, Some(request)) => host.try_grant(request),
        _ if host.owes_events() => host.turn(),
        _ => {}
    }
}

/// Takes in the same job again, with a piece of its answer as stop string.
fn arrive_with_stop<E: ExecutorUnderTest>(
    host: &mut TestHost<E>,
    rng: &mut Rng,
    job: Job,
    like: RequestId,
) {
    let text: Vec<char> = host.alone(like).text.chars().collect();
    if text.len() < 2 {
        return;
    }
    let start = rng.usize(..text.len() - 1);
    let end = (start + rng.usize(1..5)).min(text.len());
    let stop = vec![text[start..end].iter().collect(), "\u{1f600}".to_owned()];
    host.arrive(Job { stop, ..job });
}
