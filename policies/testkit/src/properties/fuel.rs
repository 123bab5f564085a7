//! The cost of a question on fleets of several sizes.
//!
//! Requests arrive one by one until every slot has one. Then half as many as there are executors
//! arrive and find no room. A question is about one of these and the whole fleet. Work on the rows
//! that a policy is told, such as an index, belongs to `observe` and not to a question.

use pointsman_core::{
    Config, DeviceSpec, ExecutorId, ExecutorSpec, Fact, Input, KvSpec, NewRequest, TenantId,
    fixture,
};
use pointsman_policy::{PolicyHost, StartError};
use pointsman_sim::{EngineProfile, World};

use super::{Plan, Subject, host_of};
use crate::kit::Flavour;
use crate::report::{Problem, Verdict};

/// Factor by which the fuel per executor may grow in a larger fleet: sorting and trees cost a
/// little more per row.
const GROWTH_MAX: u64 = 2;
/// Number of executors on one device.
const PER_DEVICE: u32 = 8;
/// Number of slots of an executor.
const SLOTS: u32 = 2;

pub(super) fn check(subject: &Subject, plan: &Plan) -> Verdict {
    if subject.flavour() == Flavour::Native {
        return Verdict::Skipped("a native policy uses no fuel; check its component".to_owned());
    }
    let limit = subject.source().limits().call_fuel;
    let mut costs: Vec<(u32, u64)> = Vec::new();
    for executors in &plan.fleets {
        match most_fuel(subject, *executors) {
            Ok(fuel) => costs.push((*executors, fuel)),
            Err(summary) => {
                let detail = shown(&costs);
                return Verdict::Failed(Problem {
                    detail,
                    ..Problem::new(summary)
                });
            }
        }
    }
    match too_steep(&costs, limit) {
        None => Verdict::Passed(shown(&costs)),
        Some(summary) => Verdict::Failed(Problem {
            detail: shown(&costs),
            ..Problem::new(summary)
        }),
    }
}

fn shown(costs: &[(u32, u64)]) -> String {
    let shown = costs
        .iter()
        .map(|(executors, fuel)| format!("{fuel} fuel at {executors} executors"));
    shown.collect::<Vec<_>>().join(", ")
}

/// The problem of these costs, if there is one.
fn too_steep(costs: &[(u32, u64)], limit: u64) -> Option<String> {
    for (executors, fuel) in costs {
        if fuel * 2 > limit {
            return Some(format!(
                "a question at {executors} executors uses {fuel} of the {limit} fuel it may use"
            ));
        }
    }
    let pairs = costs.iter().zip(costs.iter().skip(1));
    for ((few, before), (many, after)) in pairs {
        let allowed = before * GROWTH_MAX * u64::from(*many) / u64::from(*few).max(1);
        if *after > allowed {
            return Some(format!(
                "fuel grows faster than the fleet: {after} at {many} executors after {before} at \
                 {few}, where {allowed} would be in proportion"
            ));
        }
    }
    None
}

/// The most fuel that a question takes on a fleet of this size.
fn most_fuel(subject: &Subject, executors: u32) -> Result<u64, String> {
    let host = host_of(subject.source().clone()).map_err(|error: StartError| error.to_string())?;
    let mut world = fleet(host, executors);
    for _ in 0..executors * SLOTS {
        arrive(&mut world);
    }
    let ids: Vec<ExecutorId> = world.machine.executor_ids().collect();
    for id in ids {
        world.step(id);
    }
    for _ in 0..executors / 2 {
        arrive(&mut world);
    }
    if world
        .facts()
        .iter()
        .any(|stamped| matches!(stamped.fact, Fact::Fault(..)))
    {
        return Err(format!("it fails with {executors} executors"));
    }
    let status = world.policies.status().next();
    status
        .map(|status| status.counters.fuel_max)
        .ok_or_else(|| format!("it is in quarantine with {executors} executors"))
}

fn arrive(world: &mut World<PolicyHost>) {
    world.arrive(NewRequest::new(TenantId(0), 16, 64), 64);
    world.settle();
}

fn fleet(host: PolicyHost, executors: u32) -> World<PolicyHost> {
    let mut world = World::new(Config::default(), host).expect("the default bounds are valid");
    world.input(Input::NameInterned {
        kind: pointsman_core::rows::NameKind::Tenant,
        text: "tenant".to_owned(),
    });
    let mut device = None;
    for n in 0..executors {
        if n % PER_DEVICE == 0 {
            let spec = DeviceSpec {
                name: format!("device-{n}"),
                kv: KvSpec::Owned {
                    block_bytes: 1 << 20,
                    blocks_total: 256,
                    host_blocks: 0,
                },
                tokens_per_step: Some(2048),
            };
            device = world.attach_device(spec).ok();
        }
        let Some(device) = device else { break };
        let spec = ExecutorSpec {
            slots_total: SLOTS,
            ..fixture::executor_spec(&format!("executor-{n}"), device)
        };
        world
            .attach_executor(spec, EngineProfile::default())
            .expect("the device has tokens for each of its slots");
    }
    world
}

#[cfg(test)]
mod tests {
    use pointsman_component::Limits;

    use super::*;

    #[test]
    fn what_grows_with_the_fleet_passes_and_what_grows_faster_does_not() {
        let limit = Limits::default().call_fuel;
        assert_eq!(
            too_steep(&[(8, 1000), (64, 16_000), (512, 16_000)], limit),
            None
        );
        let steep = too_steep(&[(8, 1000), (64, 16_001)], limit).unwrap();
        assert!(
            steep.starts_with("fuel grows faster than the fleet: 16001"),
            "{steep}"
        );
        let near = too_steep(&[(8, limit / 2 + 1)], limit).unwrap();
        assert!(near.starts_with("a question at 8 executors"), "{near}");
    }
}
