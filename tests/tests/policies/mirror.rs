//! The mirror of a guest when it is asked: the machine's state, without refused actions.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the facts it is about"
)]

use pointsman_component::{Limits, PolicyEngine};
use pointsman_core::rows::{Change, SequenceState};
use pointsman_core::{
    Answer, Asked, Author, Config, Fact, Hook, Input, Micros, NewRequest, Outcome, Policies, Reply,
    RowKinds, Sink, Tap, TenantId, View, rows::NameKind,
};
use pointsman_policy::{Patience, PolicyHost, PolicySource, start};
use pointsman_tests::fleet;

/// Compares, at every routing question, the digest that the guest gives as its reason with one of
/// all rows that the machine would tell a new policy.
#[derive(Default)]
struct MirrorCheck {
    compared: u32,
}

/// The guest's digest (`tests/guests`), from the machine's rows.
fn digest(view: &View<'_>) -> u16 {
    let rows = view.rows(RowKinds::ALL);
    let terms = rows.iter().map(|row| match row {
        Change::Load(load) => u64::from(load.id.0 + 1) * u64::from(load.slots_used + 1),
        Change::Waiting(request) => 3 * (request.id.0 + 1),
        Change::Sequence(sequence) => {
            let state = match sequence.state {
                SequenceState::Queued => 1,
                SequenceState::Running => 2,
                SequenceState::Leaving => 3,
            };
            state * (sequence.request.0 + 1)
        }
        _ => 0,
    });
    let sum = terms.fold(0, u64::wrapping_add);
    u16::try_from(sum & 0xffff).unwrap()
}

impl Sink<PolicyHost> for MirrorCheck {
    fn ask(&mut self, inner: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = inner.ask(asked);
        if let Some(Reply::Routing(verdicts)) = &answer.value {
            for verdict in verdicts {
                assert_eq!(
                    verdict.reason,
                    digest(&asked.view),
                    "asked with a stale mirror"
                );
                self.compared += 1;
            }
        }
        answer
    }
}

fn host(settings: &str, hooks: &[Hook]) -> PolicyHost {
    let engine = PolicyEngine::new().unwrap();
    let component = fleet::load(&engine, "test/hostile").unwrap();
    let settings = fleet::settings(settings);
    let source = PolicySource::component(&component, &settings, Limits::default());
    let mut host = PolicyHost::new(Patience::default());
    let policy = host.add(start(source).unwrap()).unwrap();
    host.bind(Micros(0), policy, hooks.iter().copied().collect())
        .unwrap();
    host
}

#[test]
fn a_guest_is_never_asked_with_a_stale_mirror() {
    let checked = Tap {
        inner: host("{}", &Hook::ALL),
        sink: MirrorCheck::default(),
    };
    let (mut world, executors) = fleet::small_world(Config::default(), checked, (3, 2, 40));
    world.input(Input::NameInterned {
        kind: NameKind::Tenant,
        text: "default".into(),
    });
    for n in 0..60_u32 {
        let new = NewRequest::new(TenantId(0), 10 + n % 30, 60);
        let request = world.arrive(new, 20 + n % 10);
        if n % 7 == 3 {
            world.input(Input::RequestCancelled(request));
        }
        if n == 30 {
            world.lose(executors[2]);
        }
        let pause = world.now().after(Micros(u64::from(n % 5) * 30_000));
        world.run_until(pause);
    }
    assert!(world.run_out(Micros(100_000_000)));
    assert!(
        world.policies.sink.compared > 40,
        "most requests were routed"
    );
}

/// Tests one executor with one slot. The guest places a request there that does not allow it, and
/// counts it. If the executor's unchanged load were not sent again, the guest would think that the
/// slot is taken and hold the next request.
#[test]
fn a_refused_placement_leaves_no_phantom_count_in_a_guest() {
    let host = host(r#"{"answers": "ignore-allowed"}"#, &[Hook::Routing]);
    let (mut world, executors) = fleet::small_world(Config::default(), host, (1, 1, 40));
    world.input(Input::NameInterned {
        kind: NameKind::Tenant,
        text: "default".into(),
    });
    // The refused request allows this executor, which the guest does not choose.
    let device = world
        .machine
        .executor_snapshot(executors[0])
        .unwrap()
        .device;
    let other = world
        .attach_executor(fleet::executor("other", device, 1), Default::default())
        .unwrap();
    let mut refused = NewRequest::new(TenantId(0), 10, 10);
    refused.allowed = Some(vec![other]);
    let refused = world.arrive(refused, 10);
    world.settle();
    let was_refused = world.facts().iter().any(|stamped| {
        matches!(&stamped.fact, Fact::Refused(_, Hook::Routing, refusal)
            if refusal.request == Some(refused))
    });
    assert!(was_refused);
    // The request must go, or else the guest would count it again with the next one.
    world.input(Input::RequestCancelled(refused));
    let next = world.arrive(NewRequest::new(TenantId(0), 10, 10), 10);
    world.settle();
    let placed = world
        .facts()
        .iter()
        .find_map(|stamped| match &stamped.fact {
            Fact::Placed {
                request,
                executor,
                by,
                ..
            } if *request == next => Some((*executor, by.author)),
            _ => None,
        });
    assert_eq!(placed, Some((executors[0], Author::Policy(0))));
    assert!(world.run_out(Micros(60_000_000)));
    assert!(matches!(
        world.outcome(next),
        Some(Outcome::Finished { .. })
    ));
}
