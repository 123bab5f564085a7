//! The self-test: what a policy must be able to answer before anybody depends on it.
//!
//! A started copy is asked, under the limits of its source, by a real [`Machine`]: on a host
//! without executors, with one, with everything full, and with more rows than one `observe`
//! takes. A fault fails the test, and so does an answer whose form is wrong: verdicts that do not
//! match the questions, names of what does not exist or was not asked about, more tokens than
//! there are. Slow: do it where nobody waits.
//!
//! # Invariants
//! 1. Every answer goes through the interlock, which alone says what is out of order (`tests`).
//! 2. The test is the same each time: no clock, no chance (`tests`).
//!
//! # Not here
//! Whether an answer is any good, and refusals that depend on what else happens
//! ([`crate::Probation`]).

#[cfg(test)]
mod tests;

use std::fmt;

use pointsman_core::rows::{ExecutorKind, RequestClass, Role};
use pointsman_core::{
    Author, Config, DeviceSpec, Effect, ExecutorSpec, Fact, Hook, Input, KvSpec, Machine, Micros,
    NewRequest, Progress, Refusal, RefusalCause, StartOrder, StepReport,
};

use crate::instance::Fault;
use crate::policy::{PolicySource, StartError, start};
use crate::runner::Runner;

/// What a policy is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// There is no executor.
    NoExecutor,
    /// One executor, with room.
    OneExecutor,
    /// No slot, no place in the queue and none outside it.
    AllFull,
    /// More rows than one `observe` takes.
    ManyRows,
}

/// Why a policy did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelfTestError {
    /// It did not start.
    #[error("self-test")]
    Start(#[from] StartError),
    /// It faulted.
    #[error("self-test with {scene}: faulted at {}", .hook.as_str())]
    Faulted {
        /// Where.
        scene: Scene,
        /// At which question.
        hook: Hook,
        /// How.
        #[source]
        fault: Fault,
    },
    /// The form of an answer was wrong.
    #[error("self-test with {scene}: malformed answer of {}", .hook.as_str())]
    Malformed {
        /// Where.
        scene: Scene,
        /// To which question.
        hook: Hook,
        /// What was wrong.
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

/// Asks a copy of `source` what any policy must be able to answer.
///
/// # Errors
/// If it does not start, faults, or gives an answer whose form is wrong.
pub fn self_test(source: &PolicySource) -> Result<(), SelfTestError> {
    no_executor(source)?;
    one_executor(source)?;
    all_full(source)?;
    many_rows(source)
}

// === Scenes ===

fn no_executor(source: &PolicySource) -> Result<(), SelfTestError> {
    let mut stage = Stage::new(source, Scene::NoExecutor, Config::default())?;
    stage.turn()?;
    stage.arrive(3, RequestClass::LatencyCritical, 0);
    stage.turn()
}

fn one_executor(source: &PolicySource) -> Result<(), SelfTestError> {
    let mut stage = Stage::new(source, Scene::OneExecutor, Config::default())?;
    stage.attach(1, 2);
    stage.turn()?;
    stage.arrive(2, RequestClass::LatencyCritical, 0);
    stage.arrive(2, RequestClass::Throughput, -1);
    // Two run, two wait; then they run.
    for _ in 0..3 {
        stage.turn()?;
        stage.finish();
    }
    stage.turn()
}

fn all_full(source: &PolicySource) -> Result<(), SelfTestError> {
    let config = Config {
        queue_max: 4,
        parking_max: 2,
        ..Config::default()
    };
    let mut stage = Stage::new(source, Scene::AllFull, config)?;
    stage.attach(1, 2);
    stage.arrive(2, RequestClass::Throughput, -1);
    stage.turn()?;
    // Four fill the queue, and somebody may have to give way to them.
    stage.arrive(4, RequestClass::LatencyCritical, 5);
    stage.turn()?;
    // There is no room for these.
    stage.arrive(8, RequestClass::LatencyCritical, 1);
    for _ in 0..3 {
        stage.turn()?;
    }
    stage.finish();
    stage.turn()
}

fn many_rows(source: &PolicySource) -> Result<(), SelfTestError> {
    let rows = source.limits().observe_rows.min(ROWS_MAX);
    let config = Config {
        queue_max: rows,
        ..Config::default()
    };
    let mut stage = Stage::new(source, Scene::ManyRows, config)?;
    stage.attach(EXECUTORS, 4);
    stage.arrive(rows, RequestClass::LatencyCritical, 0);
    stage.turn()?;
    stage.finish();
    stage.turn()
}

/// Rows are many from here on: no setting of a limit makes the test longer.
const ROWS_MAX: u32 = 4096;

/// Executors where there are many.
const EXECUTORS: u32 = 64;

/// Time from turn to turn: more than `evict` is left alone after an answer.
const TURN: Micros = Micros(100_000);

const PROMPT_TOKENS: u32 = 40;

// === Stage ===

/// A host in miniature: a machine, the policy on every hook it has, and engines that start what
/// they are told to and let go what they are told to.
struct Stage {
    scene: Scene,
    machine: Machine,
    policy: Runner,
    now: Micros,
    running: Vec<StartOrder>,
}

impl Stage {
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
                },
                tokens_per_step: Some(256),
            };
            let device = self.machine.handle_device_attached(self.now, device);
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
                model_unload_delay: Micros(0),
            };
            let attached = self.machine.handle_executor_attached(self.now, executor);
            attached.expect("its name is new, and its device is there");
        }
    }

    /// So many requests, of two tenants, a model and a few sessions.
    fn arrive(&mut self, requests: u32, class: RequestClass, priority: i32) {
        let model = self.machine.intern_model(self.now, "model");
        let tenants = ["one", "two"].map(|name| self.machine.intern_tenant(self.now, name));
        for (n, tenant) in (0..requests).zip(tenants.into_iter().cycle()) {
            let mut new = NewRequest::new(tenant, PROMPT_TOKENS + n % 8, 60);
            new.model = Some(model);
            new.class = class;
            new.priority = priority;
            new.may_wait = n % 3 != 0;
            new.output_tokens_expected = (n % 2 == 0).then_some(30);
            self.machine.handle_request_arrived(self.now, new);
        }
    }

    /// Lets time pass and a round go, obeys its orders, and looks at what it found.
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
            Effect::Evict { sequence, how: _ } | Effect::Cancel(sequence) => {
                self.running.retain(|order| order.sequence != sequence);
                self.machine.handle(self.now, Input::SequenceLeft(sequence));
            }
            Effect::Grant { .. }
            | Effect::SetBudget { .. }
            | Effect::Finish { .. }
            | Effect::Detached { .. } => {}
        }
    }

    /// Everything that runs makes its first token and ends.
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
            Fact::Fault(hook, fault) => Err(SelfTestError::Faulted {
                scene,
                hook,
                fault: Fault::new(fault.kind, fault.detail),
            }),
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

/// Whether an answer is refused for its form, which no state of the host excuses.
fn is_malformed(cause: RefusalCause) -> bool {
    matches!(
        cause,
        RefusalCause::WrongCount { .. }
            | RefusalCause::UnknownRequest
            | RefusalCause::UnknownExecutor
            | RefusalCause::NamedTwice
            | RefusalCause::NotAsked
            | RefusalCause::NamesNone
            | RefusalCause::NotQueued
            | RefusalCause::NotPlaced
            | RefusalCause::IsNeedy
            | RefusalCause::OverTotal { .. }
    )
}
