//! A case: everything that a run depends on, as data. One is drawn from a seed; a kept one is a file.

use std::collections::BTreeMap;

use pointsman_core::rows::RequestClass;
use pointsman_core::{Config, Hook, Micros, RequestId};
use pointsman_policy::Mode;
use pointsman_sim::draws::mix;
use pointsman_sim::fleet::{ExecutorPlan, FleetPlan, KvKeeper};
use pointsman_sim::latency::{LatencyProfile, LinearCost};
use pointsman_sim::workload::{Arrival, Listed, PromptText, Roll};
use pointsman_sim::{Checks, Failure, FailurePlan, Plan, RequestPlan};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A run as data. Times are in milliseconds since its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Case {
    /// The bounds of the machine.
    pub(crate) bounds: Bounds,
    /// The executors, in attach order.
    pub(crate) executors: Vec<Executor>,
    /// The requests.
    pub(crate) requests: Vec<Request>,
    /// The faults. One that is about an executor or a request that there is not has no effect.
    pub(crate) faults: Vec<Fault>,
    /// The policies, each with the time at which it is put in the place of the one before it. Before the
    /// first, the built-in rules decide.
    pub(crate) policies: Vec<(u64, Policy)>,
}

/// Bounds of the machine that a case sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Bounds {
    pub(crate) queue_max: u32,
    pub(crate) parking_max: u32,
    pub(crate) batch_max: u32,
    pub(crate) attempts_max: u32,
    pub(crate) overtaken_max: u32,
    pub(crate) wait_max: u64,
    pub(crate) unplaced_max: u64,
    pub(crate) held_max: u64,
    pub(crate) unserved_max: u64,
}

/// An executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Executor {
    pub(crate) kv: Keeper,
    pub(crate) blocks: u32,
    pub(crate) tokens_per_block: u32,
    pub(crate) sequences: u32,
    pub(crate) queue: u32,
    pub(crate) step_tokens: u32,
    /// Models at once; absent: any number.
    pub(crate) models_max: Option<u32>,
    pub(crate) model_load: u64,
}

/// The keeper of an executor's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Keeper {
    Host,
    Server,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) at: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) class: Class,
    pub(crate) priority: i32,
    pub(crate) tenant: u32,
    pub(crate) model: Option<u32>,
    /// The time after which the answer is worthless; absent: never.
    pub(crate) patience: Option<u64>,
    /// The text of its prompt, of which others may have the same; absent: nobody has.
    pub(crate) text: Option<u64>,
}

/// The class of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    LatencyCritical,
    Throughput,
}

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// An executor dies, and comes back.
    Lost {
        executor: usize,
        at: u64,
        until: u64,
    },
    /// An executor takes three times as long.
    Slow {
        executor: usize,
        at: u64,
        until: u64,
    },
    /// A request fails where it runs, if it runs there.
    Failed {
        request: u64,
        executor: usize,
        at: u64,
    },
    /// A client leaves.
    Left { request: u64, at: u64 },
}

/// A policy that answers for all hooks, or a change of those of a real policy host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// None: the built-in rules decide.
    BuiltIn,
    /// Answers at random; of 100, so many are meant to be in order.
    Random { seed: u64, sanity: u32 },
    /// Holds every request without a time, and evicts nobody.
    Holds,
    /// Holds every request for as long as it may, and evicts nobody.
    HoldsOnPurpose,
    /// The newest first, all of them to one executor.
    NewestFirst { executor: u32 },
    /// Fails whenever it is asked.
    Faults,
    /// The default components, as a server has them from the start.
    Defaults,
    /// A component, taken in as a server does.
    Component(Component),
    /// The holder of this hook goes.
    Removed(Hook),
    /// The hook goes back to its default.
    Ejected(Hook),
    /// Admission fails closed from now on.
    FailsClosed,
}

/// A component of `target/policies`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) settings: BTreeMap<String, Value>,
    /// The weight of its answers, at the hooks where that can be said.
    pub(crate) mode: Mode,
    /// Questions of its probation; absent: it has none.
    pub(crate) probation: Option<u32>,
}

pub(crate) fn millis(ms: u64) -> Micros {
    Micros(ms * 1000)
}

impl Case {
    /// The plan of the run.
    pub(crate) fn plan(&self) -> Plan<Listed> {
        let arrivals = self.requests.iter().map(Request::arrival);
        let roll = Roll {
            models: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
            ..Roll::of_tenants(["first", "second"])
        };
        let fleet = FleetPlan {
            executors: self.executors.iter().enumerate().map(plan_of).collect(),
        };
        Plan {
            config: self.bounds.config(),
            failures: FailurePlan {
                listed: self.faults.iter().flat_map(Fault::failures).collect(),
                ..FailurePlan::default()
            },
            requests: RequestPlan {
                output_tokens_max: 100,
                ..RequestPlan::default()
            },
            checks: Checks::EachEvent,
            ..Plan::new(fleet, Listed::new(roll, arrivals.collect()))
        }
    }
}

impl Bounds {
    fn config(&self) -> Config {
        Config {
            queue_max: self.queue_max,
            parking_max: self.parking_max,
            batch_max: self.batch_max,
            attempts_max: self.attempts_max,
            overtaken_max: self.overtaken_max,
            wait_max: millis(self.wait_max),
            unplaced_max: millis(self.unplaced_max),
            held_max: millis(self.held_max),
            unserved_max: millis(self.unserved_max),
            change_log_max: 64,
            ..Config::default()
        }
    }
}

fn plan_of((place, executor): (usize, &Executor)) -> ExecutorPlan {
    let measured = ExecutorPlan::named("measured").expect("there is such a profile");
    ExecutorPlan {
        name: format!("executor-{place}"),
        // Long steps, so that much happens while others last.
        profile: LatencyProfile::Linear(LinearCost {
            step_ms: 20.0,
            prefill_token_ms: 0.5,
            decode_ms: 2.0,
            ..LinearCost::MEASURED
        }),
        kv: match executor.kv {
            Keeper::Host => KvKeeper::Host,
            Keeper::Server => KvKeeper::Server,
        },
        blocks_total: executor.blocks,
        tokens_per_block: executor.tokens_per_block,
        sequences_max: executor.sequences,
        queue_limit: executor.queue,
        step_tokens: executor.step_tokens,
        models_max: executor.models_max,
        model_load: millis(executor.model_load),
        ..measured
    }
}

impl Request {
    fn arrival(&self) -> Arrival {
        // Pieces of eight tokens, for any prompt that is drawn.
        let pieces = |text| (0..16).map(move |n| mix(text).wrapping_add(n));
        let pieces = self.text.into_iter().flat_map(pieces);
        let prompt = PromptText::of_pieces(self.prompt_tokens, 8, pieces);
        Arrival {
            tenant: self.tenant,
            model: self.model,
            class: match self.class {
                Class::LatencyCritical => RequestClass::LatencyCritical,
                Class::Throughput => RequestClass::Throughput,
            },
            priority: self.priority,
            patience: self.patience.map(millis),
            ..Arrival::new(millis(self.at), prompt, self.output_tokens)
        }
    }
}

impl Fault {
    fn failures(&self) -> Vec<(Micros, Failure)> {
        match *self {
            Fault::Lost {
                executor,
                at,
                until,
            } => vec![
                (millis(at), Failure::Dies(executor)),
                (millis(until), Failure::Returns(executor)),
            ],
            Fault::Slow {
                executor,
                at,
                until,
            } => vec![
                (millis(at), Failure::Slows(executor)),
                (millis(until), Failure::Recovers(executor)),
            ],
            Fault::Failed {
                request,
                executor,
                at,
            } => vec![(millis(at), Failure::Fails(RequestId(request), executor))],
            Fault::Left { request, at } => vec![(millis(at), Failure::Leaves(RequestId(request)))],
        }
    }

    /// The executor that the fault is about.
    pub(crate) fn executor_mut(&mut self) -> Option<&mut usize> {
        match self {
            Fault::Lost { executor, .. }
            | Fault::Slow { executor, .. }
            | Fault::Failed { executor, .. } => Some(executor),
            Fault::Left { .. } => None,
        }
    }

    /// The request that the fault is about.
    pub(crate) fn request_mut(&mut self) -> Option<&mut u64> {
        match self {
            Fault::Failed { request, .. } | Fault::Left { request, .. } => Some(request),
            Fault::Lost { .. } | Fault::Slow { .. } => None,
        }
    }
}
