//! Fleets and policy hosts that several tests and benchmarks start from.

use anyhow::{Context, Result};
use pointsman_component::{Limits, PolicyComponent, PolicyEngine};
use pointsman_core::{
    Config, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, Hook, HookSet, KvSpec, Micros,
    Policies, fixture,
};
use pointsman_policy::{Patience, PolicyHost, PolicySource, start};
use pointsman_sim::{EngineProfile, World};
use pointsman_testkit::{Flavour, component};
use serde_json::{Map, Value};

/// The default policies, with the hooks of each.
pub const DEFAULTS: [(&str, &[Hook]); 3] = [
    ("aging", &[Hook::Priority]),
    ("memory-aware", &[Hook::Routing]),
    ("budget", &[Hook::Admission, Hook::Budget, Hook::Preemption]),
];

/// Loads a component that `cargo xtask policies` made. `name` is its path below `target/policies`
/// without the extension.
///
/// # Errors
/// If the component is missing, or the host refuses it.
pub fn load(engine: &PolicyEngine, name: &str) -> Result<PolicyComponent> {
    Ok(component::load(engine, &component::component_path(name))?)
}

/// The default policies as shipped.
#[derive(Debug)]
pub struct Defaults {
    components: Vec<PolicyComponent>,
}

impl Defaults {
    /// Loads the components.
    ///
    /// # Errors
    /// If a component is missing, or the host refuses it.
    pub fn load(engine: &PolicyEngine) -> Result<Self> {
        let components = DEFAULTS.iter().map(|(name, _)| load(engine, name));
        Ok(Self {
            components: components.collect::<Result<_>>()?,
        })
    }

    /// Makes a source of a default policy.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn source(&self, name: &str, flavour: Flavour) -> Result<PolicySource> {
        let settings = Map::new();
        if flavour == Flavour::Component {
            let idx = DEFAULTS.iter().position(|(default, _)| *default == name);
            let component = idx.and_then(|idx| self.components.get(idx));
            let component = component.with_context(|| format!("no default policy {name}"))?;
            let limits = Limits::default();
            return Ok(PolicySource::component(component, &settings, limits));
        }
        let make = match name {
            "aging" => pointsman_aging::instance,
            "memory-aware" => pointsman_memory_aware::instance,
            "budget" => pointsman_budget::instance,
            other => anyhow::bail!("no default policy {other}"),
        };
        Ok(pointsman_testkit::native::source(name, make, &settings))
    }

    /// Makes a policy host with the default policies, each on its hooks.
    ///
    /// # Errors
    /// If a policy cannot be started.
    pub fn host(&self, flavour: Flavour) -> Result<PolicyHost> {
        let mut host = PolicyHost::new(Patience::default());
        for (name, hooks) in DEFAULTS {
            let policy = host.add(start(self.source(name, flavour)?)?)?;
            host.bind(
                Micros(0),
                policy,
                hooks.iter().copied().collect::<HookSet>(),
            )?;
        }
        Ok(host)
    }
}

/// Parses settings from JSON.
///
/// # Panics
/// If it is not a JSON object: tests write it.
#[must_use]
pub fn settings(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).expect("settings are a JSON object")
}

/// An executor with `slots` slots on `device` that serves every model and preempts.
#[must_use]
pub fn executor(name: &str, device: DeviceId, slots: u32) -> ExecutorSpec {
    ExecutorSpec {
        slots_total: slots,
        ..fixture::executor_spec(name, device)
    }
}

/// Makes a world with one device of `blocks` blocks, and `engines` executors of `slots` slots on
/// it.
///
/// # Panics
/// If the machine refuses it: the numbers are the test's.
pub fn small_world<P: Policies>(
    config: Config,
    policies: P,
    (engines, slots, blocks): (u32, u32, u32),
) -> (World<P>, Vec<ExecutorId>) {
    let mut world = World::new(config, policies).expect("a valid configuration");
    let device = world
        .attach_device(DeviceSpec {
            kv: KvSpec::Owned {
                block_bytes: 1 << 20,
                blocks_total: blocks,
                host_blocks: 0,
            },
            ..fixture::device_spec("device")
        })
        .expect("a new device");
    let executors = (0..engines).map(|n| {
        let spec = executor(&format!("engine{n}"), device, slots);
        world
            .attach_executor(spec, EngineProfile::default())
            .expect("a new executor")
    });
    let executors = executors.collect();
    (world, executors)
}
