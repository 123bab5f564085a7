//! The self-test: questions that a policy must be able to answer before it is put in force.
//!
//! A real [`Machine`] asks a started copy, under the limits of its source: on a host without
//! executors, with one, with everything full, and with more rows than one `observe` takes. A fault
//! fails the test, and so does an answer with a wrong form: verdicts that do not match the
//! questions, names that do not exist or were not asked about, more tokens than there are. The test
//! is slow, and belongs on a thread that nobody waits for.
//!
//! # Invariants
//! 1. Every answer goes through the interlock, which alone judges the form (`tests`).
//! 2. The test is the same each time: it has no clock and no chance (`tests`).
//!
//! # Not here
//! The quality of an answer, and refusals that depend on other events ([`crate::Probation`]).

#[cfg(test)]
mod tests;

use std::fmt;

use pointsman_core::rows::{ExecutorKind, RequestClass, Role};
use pointsman_core::{
    Author, Config, DeviceSpec, Effect, ExecutorSpec, Fact, Hook, Input, KvSpec, Machine, Micros,
    NewRequest, PolicyFault, Progress, ReadableBlocks, Refusal, RefusalCause, StartOrder,
    StepReport,
};

use crate::policy::{PolicySource, StartError, start};
use crate::runner::Runner;

/// A state of the host in which a policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// No executor is attached.
    NoExecutor,
    /// One executor with room.
    OneExecutor,
    /// No free slot, a full queue, and a full parking lot.
    AllFull,
    /// More rows than one `observe` takes.
    ManyRows,
}

/// A reason why a policy did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelfTestError {
    /// The policy did not start.
    #[error("self-test")]
    Start(#[from] StartError),
    /// The policy faulted.
    #[error("self-test with {scene}: {}", .fault.headline())]
    Faulted {
        /// State of the host at that time.
        scene: Scene,
        /// Hook of the question.
        hook: Hook,
        /// Fault that the policy had.
        fault: PolicyFault,
    },
    /// An answer had a wrong form.
    #[error("self-test with {scene}: malformed answer of {}", .hook.as_str())]
    Malformed {
        /// State of the host at that time.
        scene: Scene,
        /// Hook of the question.
        hook: Hook,
        /// Refusal by the interlock.
        #[source]
        refusal: Refusal,
    },
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scene::NoExecutor => "no executor",
            Scene::OneExecutor => "one executor",
            Scene::AllFull => "everything full",
            Scene::ManyRows => "many rows",
        })
    }
}

/// Asks a copy of `source` the questions that any policy must be able to answer.
///
/// # Errors
/// If the policy does not start, faults, or gives an answer with a wrong form.
pub fn self_test(source: &PolicySource) -> Result<(), SelfTestError> {
    no_executor(source)?;
    one_executor(source)?;
    all_full(source)?;
    many_rows(source)
}

/// The bounds of a machine that waits as long as the one that the policy is for.
fn config(source: &PolicySource) -> Config {
    let bounds = source.bounds();
    Config {
        wait_max: bounds.wait_max,
        unplaced_max: bounds.unplaced_max,
        held_max: bounds.held_max,
        ..Config::default()
    }
}

// === Scenes ===

fn no_executor(source: &PolicySource) -> Result<(), SelfTestError> {
    let mut host = TestHost::new(source, Scene::NoExecutor, config(source))?;
    host.turn()?;
    host.arrive(3, RequestClass::LatencyCritical, 0);
    host.turn()
}

fn one_executor(source: &PolicySource) -> Result<(), SelfTestError> {
    let mut host = TestHost::new(source, Scene::OneExecutor, config(source))?;
    host.attach(1, 2);
    host.turn()?;
    host.arrive(2, RequestClass::LatencyCritical, 0);
    host.arrive(2, RequestClass::Throughput, -1);
    // Two run and two wait, then the other two run.
    for _ in 0..3 {
        host.turn()?;
        host.finish();
    }
    host.turn()
}

fn all_full(source: &PolicySource) -> Result<(), SelfTestError> {
    let config = Config {
        queue_max: 4,
        parking_max: 2,
        ..config(source)
    };
    let mut host = TestHost::new(source, Scene::AllFull, config)?;
    host.attach(1, 2);
    host.arrive(2, RequestClass::Throughput, -1);
    host.turn()?;
    // Four fill the queue, and a running request may have to make room for them.
    host.arrive(4, RequestClass::LatencyCritical, 5);
    host.turn()?;
    // No place is left for these, neither in the queue nor outside of it.
    host.arrive(8, RequestClass::LatencyCritical, 1);
    for _ in 0..3 {
        host.turn()?;
    }
    host.finish();
    host.turn()
}

fn many_rows(source: &PolicySource) -> Result<(), SelfTestError> {
    let rows = source.limits().observe_rows.min(ROWS_MAX);
    let config = Config {
        queue_max: rows,
        ..config(source)
    };
    let mut host = TestHost::new(source, Scene::ManyRows, config)?;
    host.attach(EXECUTORS, 4);
    host.arrive(rows, RequestClass::LatencyCritical, 0);
    host.turn()?;
    host.finish();
    host.turn()
}

/// Largest number of rows in the test: a higher limit on rows must not make it longer.
const ROWS_MAX: u32 = 4096;

/// Number of executors in the test with many rows: a fleet for which an interpreted policy answers a
/// full batch within the default limits. One that is too slow for a larger fleet shows there.
const EXECUTORS: u32 = 8;

/// Time between two turns: longer than `evict` is not asked again after an answer.
const TURN: Micros = Micros(100_000);

const PROMPT_TOKENS: u32 = 40;

// === The host ===

/// A small host: a machine, the policy on every hook it exports, and engines that start and stop
/// sequences as ordered.
struct TestHost {
    scene: Scene,
    machine: Machine,
    policy: Runner,
    now: Micros,
    running: Vec<StartOrder>,
}

impl TestHost {
    fn new(source: &PolicySource, scene: Scene, config: Config) -> Result<Self, SelfTestError> {
        Ok(Self {
            scene,
            machine: Machine::new(config).expect("the bounds of a scene are in their ranges"),
            policy: start(source.clone())?,
            now: Micros(1_000_000),
            running: Vec::new(),
        })
    }

    /// Attaches `executors` of `slots` slots, each on a device of its own.
    fn attach(&mut self, executors: u32, slots: u32) {
        for n in 0..executors {
            let device = DeviceSpec {
                name: format!("device-{n}"),
                kv: KvSpec::Owned {
                    block_bytes: 1 << 20,
                    blocks_total: 64,
                    host_blocks: 64,
                },
                tokens_per_step: Some(256),
            };
            let device = self
                .machine
                .handle(self.now, Input::DeviceAttached(device))
                .device();
            let executor = ExecutorSpec {
                name: format!("executor-{n}"),
                device: device.expect("its name is new"),
                kind: ExecutorKind::Simulated,
                role: Role::Both,
                group: 0,
                share_weight: 1,
                serves: None,
                slots_total: slots,
                models_max: None,
                queue_limit: 0,
                tokens_per_block: Some(16),
                preempts: true,
                reads: ReadableBlocks::Device,
                model_unload_delay: Micros(0),
            };
            let attached = self
                .machine
                .handle(self.now, Input::ExecutorAttached(executor))
                .executor();
            attached.expect("its name is new, and its device is there");
        }
    }

    /// Lets `requests` requests of one model and two tenants arrive.
    fn arrive(&mut self, requests: u32, class: RequestClass, priority: i32) {
        let model = self.machine.intern(self.now, "model");
        let tenants = ["one", "two"].map(|name| self.machine.intern(self.now, name));
        for (n, tenant) in (0..requests).zip(tenants.into_iter().cycle()) {
            let mut new = NewRequest::new(tenant, PROMPT_TOKENS + n % 8, 60);
            new.model = Some(model);
            new.class = class;
            new.priority = priority;
            new.may_wait = n % 3 != 0;
            new.output_tokens_expected = (n % 2 == 0).then_some(30);
            self.machine.handle(self.now, Input::arrival(new));
        }
    }

    /// Advances time, runs a round, carries out its effects and checks its facts.
    fn turn(&mut self) -> Result<(), SelfTestError> {
        self.now = self.now.after(TURN);
        self.machine.decide(self.now, &mut self.policy);
        while let Some(effect) = self.machine.poll_effect() {
            self.obey(effect);
        }
        while let Some(stamped) = self.machine.poll_fact() {
            self.look_at(stamped.fact)?;
        }
        Ok(())
    }

    fn obey(&mut self, effect: Effect) {
        match effect {
            Effect::Start(order) => {
                let started = Input::SequenceStarted(order.sequence);
                self.machine.handle(self.now, started);
                self.running.push(order);
            }
            Effect::Evict { sequence, .. } | Effect::Cancel(sequence) => {
                self.running.retain(|order| order.sequence != sequence);
                let left = Input::SequenceLeft(sequence, 0);
                self.machine.handle(self.now, left);
            }
            Effect::Grant { .. }
            | Effect::SetBudget { .. }
            | Effect::Arrange { .. }
            | Effect::Finish { .. }
            | Effect::Detached { .. } => {}
        }
    }

    /// Lets every running sequence make its first token and end.
    fn finish(&mut self) {
        for order in std::mem::take(&mut self.running) {
            let made = StepReport {
                executor: order.sequence.executor,
                incarnation: order.sequence.incarnation,
                progress: vec![Progress {
                    request: order.sequence.request,
                    prefilled: order.prompt_tokens - order.cached_tokens,
                    generated: 1,
                }],
            };
            self.machine.handle(self.now, Input::StepFinished(made));
            let ended = Input::SequenceFinished(order.sequence);
            self.machine.handle(self.now, ended);
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other fact is about the policy's answers"
    )]
    fn look_at(&self, fact: Fact) -> Result<(), SelfTestError> {
        let scene = self.scene;
        match fact {
            Fact::Fault(hook, fault) => Err(SelfTestError::Faulted { scene, hook, fault }),
            Fact::Refused(Author::Policy(_), hook, refusal) if is_malformed(refusal.cause) => {
                Err(SelfTestError::Malformed {
                    scene,
                    hook,
                    refusal,
                })
            }
            _ => Ok(()),
        }
    }
}

/// True if an answer is refused for its form, which no state of the host excuses.
fn is_malformed(cause: RefusalCause) -> bool {
    matches!(
        cause,
        RefusalCause::WrongCount { .. }
            | RefusalCause::UnknownRequest
            | RefusalCause::UnknownExecutor
            | RefusalCause::NamedTwice
            | RefusalCause::NotAsked
            | RefusalCause::NamesNone
            | RefusalCause::TooMany { .. }
            | RefusalCause::NotQueued
            | RefusalCause::NotPlaced
            | RefusalCause::IsNeedy
            | RefusalCause::OverTotal { .. }
    )
}
