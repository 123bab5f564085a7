//! Cases drawn from a seed.

mod components;

use std::ops::Range;

use fastrand::Rng;

use crate::case::{Bounds, Case, Class, Executor, Fault, Keeper, Policy, Request};

/// The time in ms within which requests arrive and policies change.
const LASTING: u64 = 20_000;

/// The policies of the cases that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    /// Policies of this test, asked at once.
    Native,
    /// Components, in the policy host of a server.
    Components,
}

impl Cast {
    /// The end of the name of the test that has these cases.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cast::Native => "native",
            Cast::Components => "components",
        }
    }
}

/// The case of a seed.
pub(crate) fn case(cast: Cast, seed: u64) -> Case {
    let rng = &mut Rng::with_seed(seed);
    let bounds = bounds(rng);
    let executors: Vec<Executor> = (0..rng.u32(1..5)).map(|_| executor(rng)).collect();
    let mut requests: Vec<Request> = (0..rng.u32(5..200)).map(|_| request(rng)).collect();
    // Requests are numbered as they arrive.
    requests.sort_by_key(|request| request.at);
    let faults = 0..rng.u32(0..40);
    let faults = faults.map(|_| fault(rng, executors.len(), requests.len() as u64));
    let faults = faults.collect();
    let policies = match cast {
        Cast::Native => policies(rng, 1..8, policy),
        Cast::Components => components::policies(rng),
    };
    Case {
        bounds,
        executors,
        requests,
        faults,
        policies,
    }
}

/// So many policies at random times, in order.
fn policies(rng: &mut Rng, n: Range<u32>, draw: fn(&mut Rng) -> Policy) -> Vec<(u64, Policy)> {
    let mut policies: Vec<(u64, Policy)> = (0..rng.u32(n))
        .map(|_| (rng.u64(0..LASTING), draw(rng)))
        .collect();
    policies.sort_by_key(|(at, _)| *at);
    policies
}

fn bounds(rng: &mut Rng) -> Bounds {
    Bounds {
        queue_max: rng.u32(1..40),
        parking_max: rng.u32(0..6),
        batch_max: rng.u32(1..6),
        attempts_max: rng.u32(1..5),
        overtaken_max: rng.u32(1..6),
        wait_max: rng.u64(6_000..20_000),
        unplaced_max: rng.u64(500..3_000),
        held_max: rng.u64(0..3_000),
        unserved_max: rng.u64(0..4_000),
    }
}

fn executor(rng: &mut Rng) -> Executor {
    // Blocks of the same size can be shared.
    let tokens_per_block = [4, 4, 8, 8, 7][rng.usize(0..5)];
    Executor {
        kv: if rng.u32(0..3) > 0 {
            Keeper::Host
        } else {
            Keeper::Server
        },
        blocks: rng.u32(160..500) / tokens_per_block + 1,
        tokens_per_block,
        sequences: rng.u32(1..6),
        queue: if rng.bool() { 0 } else { rng.u32(1..4) },
        step_tokens: rng.u32(16..128),
        models_max: rng.bool().then(|| rng.u32(1..3)),
        model_load: if rng.bool() { 0 } else { rng.u64(0..500) },
    }
}

fn request(rng: &mut Rng) -> Request {
    Request {
        at: rng.u64(0..LASTING),
        prompt_tokens: rng.u32(1..90),
        output_tokens: rng.u32(1..80),
        class: if rng.bool() {
            Class::LatencyCritical
        } else {
            Class::Throughput
        },
        priority: rng.i32(-1..3),
        tenant: rng.u32(0..2),
        model: rng.bool().then(|| rng.u32(0..3)),
        patience: (rng.u32(0..6) == 0).then(|| rng.u64(0..10_000)),
        text: rng.bool().then(|| rng.u64(0..3)),
    }
}

fn fault(rng: &mut Rng, executors: usize, requests: u64) -> Fault {
    let (executor, request) = (rng.usize(0..executors), rng.u64(0..requests));
    let at = rng.u64(0..LASTING + 2_000);
    let until = at + rng.u64(1..3_000);
    match rng.u32(0..6) {
        0 | 1 => Fault::Lost {
            executor,
            at,
            until,
        },
        2 => Fault::Slow {
            executor,
            at,
            until,
        },
        3 | 4 => Fault::Failed {
            request,
            executor,
            at,
        },
        _ => Fault::Left { request, at },
    }
}

fn policy(rng: &mut Rng) -> Policy {
    match rng.u32(0..10) {
        0 => Policy::BuiltIn,
        1 => Policy::Holds,
        2 => Policy::HoldsOnPurpose,
        3 => Policy::NewestFirst {
            executor: rng.u32(0..4),
        },
        4 => Policy::Faults,
        _ => Policy::Random {
            seed: rng.u64(..),
            sanity: [0, 50, 90, 100][rng.usize(0..4)],
        },
    }
}
