//! Token budgets: the times of the question, the interlock's treatment of the answer, and the
//! obedience of engines.

mod common;

use common::{
    World, add_device, add_executor, arrive, assert_nothing_held, device_with, executor_spec,
    executor_with, facts, is_running, refusals, request, steps, strikes, world, world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Allotment, Allotments, AttachError, Author, Clock, Config, DeviceId, Effect, ExecutorId,
    ExecutorUpdate, Fact, Handled, Input, Micros, RefusalCause, RequestId, StepReport, TokensUsed,
};
use pointsman_sim::{Engine, EngineProfile};

/// Two engines of two slots on a device that schedules 20 tokens in a step.
fn pair() -> (World, DeviceId, [ExecutorId; 2]) {
    pair_in(world())
}

/// [`pair`] in this world.
fn pair_in(mut world: World) -> (World, DeviceId, [ExecutorId; 2]) {
    let device = device_with(&mut world, 200, Some(20));
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 2));
    world.settle();
    (world, device, executors)
}

fn budgets(world: &World, executors: [ExecutorId; 2]) -> [u32; 2] {
    executors.map(|id| {
        let budget = world.engine(id).and_then(Engine::tokens_max);
        let snapshot = world.machine.executor_snapshot(id);
        assert_eq!(snapshot.map(|snapshot| snapshot.tokens_max), Some(budget));
        budget.expect("it has a budget")
    })
}

fn allotments(executors: [ExecutorId; 2], tokens: [u32; 2], again: Option<Micros>) -> Allotments {
    let pairs = executors.into_iter().zip(tokens);
    let engines = pairs.map(|(executor, tokens_max)| Allotment {
        executor,
        tokens_max,
    });
    Allotments {
        engines: engines.collect(),
        again,
    }
}

fn answer(world: &mut World, executors: [ExecutorId; 2], tokens: [u32; 2]) {
    world
        .policies
        .on_allot(move |_| allotments(executors, tokens, None));
}

/// Runs one more request on that executor.
fn start_on(world: &mut World, executor: ExecutorId, prompt_tokens: u32) -> RequestId {
    world.policies.route_to(&[executor]);
    let id = arrive(world, request(prompt_tokens, 3));
    assert!(is_running(world, id));
    id
}

/// Has an engine make steps in which no sequence gets anything.
fn idle_steps(world: &mut World, executor: ExecutorId, n: u32) {
    let snapshot = world.machine.executor_snapshot(executor);
    let incarnation = snapshot.expect("it is attached").incarnation;
    for _ in 0..n {
        world.input(Input::StepFinished(StepReport {
            executor,
            incarnation,
            progress: Vec::new(),
        }));
        world.settle();
    }
}

/// A configuration by which a sequence may go without a token for fewer steps than so many.
fn tokenless(tokenless_steps_max: u32) -> Config {
    Config {
        tokenless_steps_max,
        ..Config::default()
    }
}

// === The answer ===

#[test]
fn the_built_in_rule_gives_busy_engines_equal_shares() {
    let (mut world, _, executors) = pair();
    assert_eq!(budgets(&world, executors), [10, 10], "none is busy");
    start_on(&mut world, executors[1], 4);
    assert_eq!(budgets(&world, executors), [0, 20]);
    start_on(&mut world, executors[0], 4);
    assert_eq!(budgets(&world, executors), [10, 10]);
}

#[test]
fn a_policy_sets_the_budgets_within_the_total() {
    let (mut world, _, executors) = pair();
    answer(&mut world, executors, [15, 5]);
    start_on(&mut world, executors[0], 4);
    assert_eq!(budgets(&world, executors), [15, 5]);
    let allotted = Fact::Allotted {
        executor: executors[0],
        tokens_max: 15,
        author: Author::Policy(0),
    };
    assert!(facts(&world).any(|fact| *fact == allotted));
}

#[test]
fn allotments_over_the_total_are_refused_for_equal_shares() {
    let (mut world, _, executors) = pair();
    answer(&mut world, executors, [15, 6]);
    start_on(&mut world, executors[0], 4);
    let over = RefusalCause::OverTotal { sum: 21, total: 20 };
    assert_eq!(refusals(&world), [over]);
    assert_eq!(budgets(&world, executors), [20, 0]);
}

#[test]
fn allotments_to_strangers_or_twice_to_one_are_refused() {
    let (mut world, _, [first, second]) = pair();
    let stranger = ExecutorId(99);
    answer(&mut world, [first, stranger], [1, 1]);
    start_on(&mut world, first, 4);
    answer(&mut world, [first, first], [1, 1]);
    start_on(&mut world, second, 4);
    assert_eq!(
        refusals(&world),
        [RefusalCause::UnknownExecutor, RefusalCause::NamedTwice]
    );
}

#[test]
fn every_running_sequence_gets_a_token_and_the_total_holds() {
    let (mut world, _, executors) = pair();
    start_on(&mut world, executors[0], 4);
    start_on(&mut world, executors[0], 4);
    answer(&mut world, executors, [0, 20]);
    start_on(&mut world, executors[1], 4);
    assert_eq!(budgets(&world, executors), [2, 18]);
    assert_eq!(refusals(&world), [], "it is in order, and raised");
}

#[test]
fn tokens_per_step_change_while_engines_run() {
    let (mut world, device, executors) = pair();
    let set = |world: &mut World, tokens| world.input(Input::TokensPerStepSet(device, tokens));
    let sum = |world: &World| {
        let snapshots = executors.map(|id| world.machine.executor_snapshot(id));
        let budgets = snapshots
            .into_iter()
            .flatten()
            .filter_map(|it| it.tokens_max);
        budgets.sum::<u32>()
    };
    start_on(&mut world, executors[0], 4);
    start_on(&mut world, executors[1], 4);
    assert_eq!(sum(&world), 20);
    assert_eq!(set(&mut world, 12), Handled::Done);
    assert_eq!(sum(&world), 12, "no step has more, not even the next one");
    world.settle();
    assert_eq!(budgets(&world, executors), [6, 6]);
    assert_eq!(set(&mut world, 30), Handled::Done);
    world.settle();
    assert_eq!(budgets(&world, executors), [15, 15]);
    // Too few for the slots, of which each may run a sequence.
    let too_few = AttachError::TooFewTokens {
        slots: 4,
        tokens_per_step: 3,
    };
    assert_eq!(set(&mut world, 3), Handled::Refused(too_few));
    assert_eq!(world.machine.tokens_per_step(device), Some(30));
    let nowhere = Input::TokensPerStepSet(DeviceId(9), 30);
    let unknown = AttachError::UnknownDevice(DeviceId(9));
    assert_eq!(world.input(nowhere), Handled::Refused(unknown));
}

#[test]
fn a_sequence_that_joins_others_gets_a_token_too() {
    let (mut world, _, executors) = pair();
    answer(&mut world, executors, [1, 19]);
    start_on(&mut world, executors[0], 4);
    assert_eq!(budgets(&world, executors), [1, 19]);
    start_on(&mut world, executors[0], 4);
    assert_eq!(budgets(&world, executors), [2, 18]);
}

#[test]
fn the_total_holds_though_more_run_than_it_has_tokens() {
    let (mut world, device, [first, second]) = pair();
    world.update(first, ExecutorUpdate::SlotsTotal(18));
    for _ in 0..18 {
        start_on(&mut world, first, 4);
    }
    world.update(first, ExecutorUpdate::SlotsTotal(2));
    let late = executor_with(&mut world, device, |spec, _| spec.slots_total = 16);
    for _ in 0..16 {
        start_on(&mut world, late, 4);
    }
    let all = [first, second, late];
    let sum: u32 = all
        .map(|id| world.engine(id).unwrap().tokens_max().unwrap())
        .iter()
        .sum();
    assert_eq!(sum, 20);
}

// === The question ===

#[test]
fn a_policy_is_asked_when_engines_come_or_go_or_become_busy_or_idle_and_not_otherwise() {
    let (mut world, device, [first, second]) = pair();
    let mut told = world.policies.asked.allot.len();
    assert_eq!(told, 1, "one round, one question for a device");
    let mut asked = |world: &World| {
        let before = std::mem::replace(&mut told, world.policies.asked.allot.len());
        told - before
    };
    start_on(&mut world, first, 4);
    assert_eq!(asked(&world), 1, "busy");
    start_on(&mut world, first, 4);
    assert_eq!(asked(&world), 0, "busier");
    steps(&mut world, first, 2);
    assert_eq!(asked(&world), 0, "tokens");
    steps(&mut world, first, 1);
    assert_eq!(asked(&world), 1, "idle");
    world.update(second, ExecutorUpdate::ShareWeight(5));
    world.settle();
    assert_eq!(asked(&world), 1, "another weight");
    world.update(second, ExecutorUpdate::SlotsTotal(1));
    world.settle();
    assert_eq!(asked(&world), 0, "another number of slots");
    world.update(second, ExecutorUpdate::Detach);
    world.settle();
    assert_eq!(asked(&world), 1, "gone");
    world.lose(first);
    world.settle();
    assert_eq!(asked(&world), 1, "lost");
    add_executor(&mut world, device, 1);
    world.settle();
    assert_eq!(asked(&world), 1, "attached");
    let asked = &world.policies.asked.allot;
    assert!(asked.iter().all(|about| *about == device));
}

#[test]
fn a_device_whose_engines_set_their_own_budgets_is_not_asked_about() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    start_on(&mut world, executor, 4);
    steps(&mut world, executor, 3);
    assert_eq!(world.policies.asked.allot, []);
    assert_eq!(world.engine(executor).unwrap().tokens_max(), None);
}

#[test]
fn an_executor_that_is_back_is_told_its_budget_again() {
    let (mut world, _, executors) = pair();
    world.lose(executors[0]);
    world.settle();
    let told = world.effects().len();
    world.update(executors[0], ExecutorUpdate::Health(Health::Up));
    world.settle();
    let told: Vec<_> = world.effects()[told..]
        .iter()
        .filter(|effect| {
            matches!(effect, Effect::SetBudget { executor, .. } if *executor == executors[0])
        })
        .collect();
    assert_eq!(
        told.len(),
        1,
        "a new process knows nothing of the last one's"
    );
}

#[test]
fn a_policy_is_asked_again_when_it_wants_but_not_at_once() {
    let (mut world, _, executors) = pair();
    let retry = world.machine.config().evict_retry;
    let wanted = world.now().after(Micros(700_000));
    world
        .policies
        .on_allot(move |_| allotments(executors, [10, 10], Some(wanted)));
    start_on(&mut world, executors[0], 4);
    let asked = |world: &World| world.policies.asked.allot.len();
    let before = asked(&world);
    // The sequence ends within these 700 ms, for which the question comes once.
    world.run_until(Micros(wanted.0 - 1));
    assert_eq!(asked(&world), before + 1);
    world.run_until(wanted);
    assert_eq!(asked(&world), before + 2);
    // That time is past now: the next question comes after the least pause, and again after it.
    world.run_until(Micros(wanted.0 + retry.0 - 1));
    assert_eq!(asked(&world), before + 2);
    world.run_until(Micros(wanted.0 + 3 * retry.0));
    assert_eq!(asked(&world), before + 5);
    answer(&mut world, executors, [10, 10]);
    world.run_until(Micros(wanted.0 + 4 * retry.0));
    assert_eq!(asked(&world), before + 6, "the last answer wants no more");
    world.run_until(wanted.after(Micros(10_000_000)));
    assert_eq!(asked(&world), before + 6);
}

#[test]
fn a_policy_is_told_what_each_engine_computed_since_the_last_time() {
    let (mut world, _, [first, second]) = pair();
    start_on(&mut world, first, 4);
    steps(&mut world, first, 2);
    start_on(&mut world, second, 6);
    let used = |first_tokens, second_tokens| {
        vec![
            TokensUsed {
                executor: first,
                tokens: first_tokens,
            },
            TokensUsed {
                executor: second,
                tokens: second_tokens,
            },
        ]
    };
    let told = &world.policies.asked.used;
    assert_eq!(
        told.last(),
        Some(&used(5, 0)),
        "the first new token comes out of the prompt's last pass"
    );
    steps(&mut world, second, 1);
    steps(&mut world, first, 1);
    let told = &world.policies.asked.used;
    assert_eq!(
        told.last(),
        Some(&used(1, 6)),
        "the rest, and no token twice"
    );
}

#[test]
fn tokens_computed_before_budgets_that_nobody_was_asked_for_are_told_with_the_next_question() {
    let (mut world, _, executors) = pair_in(world_with(tokenless(2)));
    answer(&mut world, executors, [10, 10]);
    let starved = start_on(&mut world, executors[0], 4);
    steps(&mut world, executors[0], 1);
    let asked = world.policies.asked.allot.len();
    idle_steps(&mut world, executors[0], 2);
    assert_eq!(strikes(&world), [(Clock::Tokenless, starved)]);
    assert_eq!(budgets(&world, executors), [20, 0], "the built-in ones");
    assert_eq!(world.policies.asked.allot.len(), asked);
    start_on(&mut world, executors[1], 4);
    let told = world.policies.asked.used.last().expect("it was asked");
    let told: Vec<u64> = told.iter().map(|used| used.tokens).collect();
    assert_eq!(told, [4, 0]);
}

#[test]
fn steps_without_a_token_count_only_where_there_are_budgets() {
    let mut world = world_with(tokenless(3));
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    let id = start_on(&mut world, executor, 4);
    idle_steps(&mut world, executor, 2);
    world.input(Input::TokensPerStepSet(device, 20));
    world.settle();
    idle_steps(&mut world, executor, 2);
    assert_eq!(strikes(&world), []);
    idle_steps(&mut world, executor, 1);
    assert_eq!(strikes(&world), [(Clock::Tokenless, id)]);
}

// === The engine ===

#[test]
fn engines_schedule_at_most_their_budget_in_a_step() {
    let (mut world, _, executors) = pair();
    answer(&mut world, executors, [7, 13]);
    for executor in executors {
        start_on(&mut world, executor, 50);
        start_on(&mut world, executor, 30);
    }
    for (executor, budget) in executors.into_iter().zip([7, 13]) {
        let before = world.engine(executor).unwrap().tokens_total();
        steps(&mut world, executor, 3);
        let scheduled = world.engine(executor).unwrap().tokens_total() - before;
        assert_eq!(scheduled, 3 * budget);
    }
    assert!(world.run_out(common::END));
    assert_nothing_held(&mut world);
}

#[test]
fn more_slots_than_tokens_are_refused() {
    let (mut world, device, [first, _]) = pair();
    let mut spec = executor_spec(&world, device);
    spec.slots_total = 17;
    let attached = world.attach_executor(spec, EngineProfile::default());
    let too_few = AttachError::TooFewTokens {
        slots: 21,
        tokens_per_step: 20,
    };
    assert_eq!(attached, Err(too_few));
    world.update(first, ExecutorUpdate::SlotsTotal(19));
    let slots = world.machine.executor_snapshot(first).unwrap().slots_total;
    assert_eq!(slots, 2, "and so is raising them");
    executor_with(&mut world, device, |spec, _| spec.slots_total = 16);
}

// === Tokens used ===

#[test]
fn tokens_used_are_counted_by_engine_since_the_last_allotment() {
    let (mut world, _, executors) = pair();
    let used = |world: &World| {
        executors.map(|id| world.machine.executor_snapshot(id).unwrap().tokens_used)
    };
    start_on(&mut world, executors[0], 12);
    assert_eq!(used(&world), [0, 0]);
    // The first token comes out of the pass that reads the prompt's end.
    steps(&mut world, executors[0], 2);
    assert_eq!(used(&world), [12 + 1, 0]);
    start_on(&mut world, executors[1], 4);
    assert_eq!(used(&world), [0, 0], "a new allotment was made");
    steps(&mut world, executors[1], 1);
    assert_eq!(used(&world), [0, 4]);
    start_on(&mut world, executors[1], 4);
    assert_eq!(used(&world), [0, 4], "both were busy: nothing was allotted");
}
