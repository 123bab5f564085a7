//! Our policies, as components and natively, in the policy host of a server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pointsman_core::{
    Answer, Asked, Author, BlockHash, Hook, HookSet, Micros, Policies, PromptBlocks, Refusal, Reply,
};
use pointsman_component::Limits;
use pointsman_policy::{Patience, PolicyHost, PolicySource, start};
use pointsman_testkit::component::Components;
use pointsman_testkit::native;
use pointsman_testkit::standing::StandingFleet;
use serde_json::Map;

use crate::Contender;
use crate::fleet::{self, PROMPT_TOKENS, TOKENS_PER_BLOCK};

/// The part of a decision that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The policy: it is told what changed, and asked.
    Policy,
    /// The whole round: the lookup of cached blocks, the policy, the checks, and the books.
    Round,
}

/// A policy that routes, alone.
pub(crate) struct Ours {
    name: String,
    part: Part,
    fleet: StandingFleet,
    policies: Timed,
}

/// The policy host, with the time that its questions take.
struct Timed {
    host: PolicyHost,
    spent: Duration,
}

impl Policies for Timed {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let start = Instant::now();
        let answer = self.host.ask(asked);
        self.spent += start.elapsed();
        answer
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.host.refused(author, hook, refusal);
    }
}

fn block(hash: u64) -> BlockHash {
    BlockHash(hash.into())
}

/// The component of a policy.
pub(crate) fn component(components: &mut Components, name: &str) -> Result<PolicySource> {
    let component = components.component(name)?;
    Ok(PolicySource::component(
        component,
        &Map::new(),
        Limits::default(),
    ))
}

/// The same policy, linked in.
pub(crate) fn native(name: &str) -> Result<PolicySource> {
    let make = match name {
        "kv-cost" => pointsman_kv_cost::instance,
        "memory-aware" => pointsman_memory_aware::instance,
        other => anyhow::bail!("no native {other}"),
    };
    Ok(native::source(name, make, &Map::new()))
}

impl Ours {
    pub(crate) fn new(
        name: String,
        part: Part,
        source: PolicySource,
        workers: u64,
    ) -> Result<Self> {
        let mut fleet = StandingFleet::of_servers(u32::try_from(workers)?);
        for (worker, executor) in fleet
            .executors()
            .collect::<Vec<_>>()
            .into_iter()
            .enumerate()
        {
            fleet.occupy(executor, fleet::running(worker as u64), PROMPT_TOKENS);
        }
        for group in 0..fleet::GROUPS {
            for worker in fleet::holders(group, workers) {
                let hashes = fleet::shared(group).map(block).collect();
                fleet.store(worker as usize, TOKENS_PER_BLOCK, hashes);
            }
        }
        let mut host = PolicyHost::new(Patience::default());
        let policy = host.add(start(source)?)?;
        host.bind(Micros(0), policy, HookSet::from_iter([Hook::Routing]))?;
        let spent = Duration::ZERO;
        Ok(Self {
            name,
            part,
            fleet,
            policies: Timed { host, spent },
        })
    }
}

impl Contender for Ours {
    fn name(&self) -> &str {
        &self.name
    }

    fn route(&mut self, request: u64) -> Result<(Duration, u64)> {
        self.fleet.pass();
        self.fleet.change(1);
        let mut new = self.fleet.request(PROMPT_TOKENS, 64);
        new.prompt_blocks = PromptBlocks {
            tokens_per_block: TOKENS_PER_BLOCK,
            hashes: fleet::hashes(request).map(block).collect(),
        };
        self.fleet.arrive(new);
        self.policies.spent = Duration::ZERO;
        let start = Instant::now();
        self.fleet.decide(&mut self.policies);
        let round = start.elapsed();
        let placed = self.fleet.finish();
        let (_, executor) = placed.first().context("it was not placed")?;
        let faults = self
            .policies
            .host
            .status()
            .any(|it| !it.stats.faults.is_empty());
        anyhow::ensure!(!faults, "{} faulted", self.name);
        let took = match self.part {
            Part::Policy => self.policies.spent,
            Part::Round => round,
        };
        Ok((took, executor.0.into()))
    }
}
