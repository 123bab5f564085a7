//! Fixtures of the tests of shadows and canaries: a small fleet, eight tenants, and bursts of
//! requests of all of them.

use pointsman_component::{Limits, PolicyEngine};
use pointsman_core::rows::NameKind;
use pointsman_core::{
    Author, Config, Fact, Hook, HookSet, Input, Micros, NewRequest, Policies, RequestId, Stamped,
    TenantId,
};
use pointsman_policy::{PolicyHost, PolicySource, start};
use pointsman_sim::World;

use crate::fleet;

/// Number of tenants. They are called `tenant-0` and so on, by their ids.
pub const TENANTS: u32 = 8;

const SECOND: u64 = 1_000_000;

/// The set of these hooks.
#[must_use]
pub fn hooks(hooks: &[Hook]) -> HookSet {
    hooks.iter().copied().collect()
}

/// The guest that misbehaves on demand, with these settings.
///
/// # Panics
/// If the guest is missing or refused.
#[must_use]
pub fn guest(engine: &PolicyEngine, settings: &str) -> PolicySource {
    let component = fleet::load(engine, "test/hostile").expect("the guest was made");
    PolicySource::component(&component, &fleet::settings(settings), Limits::default())
}

/// Starts a policy and adds it.
///
/// # Panics
/// If the policy does not start, or is in quarantine.
pub fn add(host: &mut PolicyHost, source: PolicySource) -> u32 {
    let started = start(source).expect("it starts");
    host.add(started).expect("it is not in quarantine")
}

/// Makes a world of four engines with two slots each, the tenants, and `policies`.
pub fn world<P: Policies>(policies: P) -> World<P> {
    let (mut world, _) = fleet::small_world(Config::default(), policies, (4, 2, 256));
    for n in 0..TENANTS {
        world.input(Input::NameInterned {
            kind: NameKind::Tenant,
            text: format!("tenant-{n}"),
        });
    }
    world
}

/// Serves `requests` requests, in bursts of eight from all tenants. They are equally urgent, so
/// that none gives way.
///
/// # Panics
/// If a request has no outcome.
pub fn serve<P: Policies>(world: &mut World<P>, requests: u32) {
    serve_by(world, requests, |_| 0);
}

/// Serves requests with priorities from `priority`.
///
/// # Panics
/// If a request has no outcome.
pub fn serve_by<P: Policies>(world: &mut World<P>, requests: u32, priority: impl Fn(u32) -> i32) {
    for n in 0..requests {
        let mut new = NewRequest::new(TenantId(n % TENANTS), 20 + n % 50, 40);
        new.priority = priority(n);
        world.arrive(new, 5 + n % 20);
        if n % TENANTS == TENANTS - 1 {
            let later = world.now().after(Micros(60_000));
            world.run_until(later);
        }
    }
    let end = world.now().after(Micros(100 * SECOND));
    assert!(world.run_out(end), "left without an outcome");
}

/// The author of each placement, in order.
#[must_use]
pub fn routers(facts: &[Stamped]) -> Vec<(RequestId, Author)> {
    let placed = facts.iter().filter_map(|stamped| {
        if let Fact::Placed { request, by, .. } = &stamped.fact {
            return Some((*request, by.author));
        }
        None
    });
    placed.collect()
}
