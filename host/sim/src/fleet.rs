//! Fleets of a simulation: the executors there are, and what each can do.

use pointsman_core::Micros;
use pointsman_core::rows::Role;

use crate::latency::{CostTable, LatencyProfile, LinearCost};

/// The keeper of the KV blocks of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvKeeper {
    /// The executor: a server elsewhere. It batches in its own way, says which prompt blocks it holds,
    /// and tells its counts now and then.
    Server,
    /// The executor: a server elsewhere that does not say which prompt blocks it holds.
    UntoldServer,
    /// The machine: an engine in the host.
    Host,
}

impl KvKeeper {
    /// Returns whether a server elsewhere keeps the blocks.
    pub(crate) fn is_server(self) -> bool {
        match self {
            KvKeeper::Server | KvKeeper::UntoldServer => true,
            KvKeeper::Host => false,
        }
    }
}

/// One executor, or several alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutorPlan {
    /// The name, to which a number is added where there are several.
    pub name: String,
    /// The number of such executors.
    pub count: u32,
    /// The times that work takes.
    pub profile: LatencyProfile,
    /// The speed of each, as a multiple of that of the profile.
    pub speed: f64,
    /// The keeper of the KV blocks.
    pub kv: KvKeeper,
    /// KV blocks of each.
    pub blocks_total: u32,
    /// Tokens in a block.
    pub tokens_per_block: u32,
    /// Sequences that each runs at once.
    pub sequences_max: u32,
    /// Requests that may be placed on each at once; absent: as many as it runs. A server with more
    /// has a queue of its own.
    pub slots: Option<u32>,
    /// Tokens of a step, prompts and decode together.
    pub step_tokens: u32,
    /// Requests that may wait in each executor's device queue, by class.
    pub queue_limit: u32,
    /// The topology group.
    pub group: u32,
    /// The part of inference that each is for.
    pub role: Role,
    /// The models that each serves, by their places in the workload's roll; absent: any.
    pub serves: Option<Vec<u32>>,
    /// Models that each has loaded at once; absent: as many as are asked for.
    pub models_max: Option<u32>,
    /// The time to load a model.
    pub model_load: Micros,
    /// The time for which a model stays loaded after its last sequence.
    pub model_unload_delay: Micros,
    /// The time after which the host hears which prompt blocks a server holds.
    pub cache_news_delay: Micros,
}

/// Every executor of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPlan {
    /// The executors, in attach order.
    pub executors: Vec<ExecutorPlan>,
}

/// A name of a profile that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no profile {0:?}; the profiles are {all}", all = ExecutorPlan::PROFILES.join(", "))]
pub struct UnknownProfile(pub String);

impl ExecutorPlan {
    /// The names of the profiles.
    pub const PROFILES: [&str; 6] = [
        "polynomial",
        "smg",
        "llm-d",
        "splitwise-h100",
        "splitwise-a100",
        "measured",
    ];

    /// An executor of a named profile, with the memory and the bounds that go with it there.
    ///
    /// # Errors
    /// If there is no such profile.
    pub fn named(profile: &str) -> Result<Self, UnknownProfile> {
        // Dynamo's mocker: 16,384 blocks of 64 tokens, 256 sequences, 8,192 tokens in a step.
        let plan = Self {
            name: "executor".to_owned(),
            count: 1,
            profile: LatencyProfile::Polynomial,
            speed: 1.0,
            kv: KvKeeper::Server,
            blocks_total: 16_384,
            tokens_per_block: 64,
            sequences_max: 256,
            slots: None,
            step_tokens: 8192,
            queue_limit: 0,
            group: 0,
            role: Role::Both,
            serves: None,
            models_max: None,
            model_load: Micros(0),
            model_unload_delay: Micros(0),
            cache_news_delay: Micros(0),
        };
        Ok(match profile {
            "polynomial" => plan,
            // 524,288 tokens in blocks of 16, prompts in chunks of 2,048.
            "smg" => Self {
                profile: LatencyProfile::SMG,
                blocks_total: 32_768,
                tokens_per_block: 16,
                step_tokens: 2048,
                ..plan
            },
            "llm-d" => Self {
                profile: LatencyProfile::LLM_D,
                sequences_max: 16,
                ..plan
            },
            // The tables know batches of up to 64, and chunks are not theirs.
            "splitwise-h100" => Self {
                profile: LatencyProfile::Table(CostTable::splitwise_h100()),
                sequences_max: 64,
                step_tokens: u32::MAX,
                ..plan
            },
            "splitwise-a100" => Self {
                profile: LatencyProfile::Table(CostTable::splitwise_a100()),
                sequences_max: 64,
                step_tokens: u32::MAX,
                ..plan
            },
            // The engine of this project, with its default number of slots.
            "measured" => Self {
                profile: LatencyProfile::Linear(LinearCost::MEASURED),
                kv: KvKeeper::Host,
                blocks_total: 512,
                tokens_per_block: 16,
                sequences_max: 8,
                step_tokens: 256,
                ..plan
            },
            other => return Err(UnknownProfile(other.to_owned())),
        })
    }

    /// The factor of all times of the profile.
    #[must_use]
    pub fn slowness(&self) -> f64 {
        1.0 / self.speed.max(1e-6)
    }

    /// Slots that the machine sees.
    #[must_use]
    pub fn slots_total(&self) -> u32 {
        self.slots.unwrap_or(self.sequences_max).max(1)
    }
}

impl FleetPlan {
    /// A fleet of so many executors of one plan.
    #[must_use]
    pub fn of(plan: ExecutorPlan, count: u32) -> Self {
        Self {
            executors: vec![ExecutorPlan { count, ..plan }],
        }
    }

    /// The number of executors.
    #[must_use]
    pub fn len(&self) -> u32 {
        let counts = self.executors.iter().map(|plan| plan.count);
        counts.fold(0, u32::saturating_add)
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the blocks whose hashes the machine is told with a prompt: the first executor's. Of
    /// those with blocks of another size the machine does not know what they share.
    #[must_use]
    pub fn tokens_per_block(&self) -> u32 {
        let first = self.executors.first();
        first.map_or(16, |plan| plan.tokens_per_block)
    }
}
