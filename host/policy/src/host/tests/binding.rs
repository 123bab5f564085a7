//! Snapshots, bindings and outputs.

use pointsman_component::{LogLevel, LogLine};
use pointsman_core::rows::Request;
use pointsman_core::{Config, Input, Machine, ModelId, NewRequest, RefusalCause, fixture};

use super::*;

// === Snapshots ===

#[test]
fn a_fresh_instance_gets_the_last_snapshot() {
    let policy = scripted("a");
    let mut host = PolicyHost::new(Patience {
        snapshot_every: 2,
        ..PATIENCE
    });
    bind(&mut host, &policy);
    policy.calls();
    for now in 1..4 {
        author(&mut host, now);
    }
    assert_eq!(policy.calls(), ["order", "order", "snapshot", "order"]);
    policy.fail(&[Failing::Order]);
    author(&mut host, 5);
    policy.fail(&[]);
    policy.calls();
    author(&mut host, 105);
    assert_eq!(
        policy.calls(),
        ["configure {}", "restore [7]", "order", "snapshot"]
    );
    let restarted = PolicyEventKind::Restarted {
        generation: 2,
        restored: Restored::Warm,
    };
    assert_eq!(events(&mut host), [(0, restarted)]);
    assert_eq!(counters(&host, 0).snapshots_kept, 2);
}

#[test]
fn state_that_a_policy_cannot_take_back_is_forgotten() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    assert!(host.handover(Micros(0), 0).is_some());
    policy.fail(&[Failing::Order]);
    author(&mut host, 0);
    policy.fail(&[Failing::Restore]);
    policy.calls();
    assert_eq!(author(&mut host, 100), (Author::Policy(0), 0));
    assert_eq!(
        policy.calls(),
        ["configure {}", "restore [7]", "configure {}", "order"]
    );
    policy.fail(&[Failing::Order]);
    author(&mut host, 101);
    policy.fail(&[]);
    policy.calls();
    author(&mut host, 301);
    assert_eq!(policy.calls(), ["configure {}", "order"]);
}

#[test]
fn a_fault_at_a_snapshot_is_an_event_and_ends_snapshots() {
    let policy = scripted("a");
    let mut host = PolicyHost::new(Patience {
        snapshot_every: 1,
        ..PATIENCE
    });
    bind(&mut host, &policy);
    policy.fail(&[Failing::Snapshot]);
    assert_eq!(author(&mut host, 0), (Author::Policy(0), 0));
    assert_eq!(author(&mut host, 99), (Author::BuiltIn, 0));
    policy.calls();
    assert_eq!(author(&mut host, 100), (Author::Policy(0), 0));
    assert_eq!(policy.calls(), ["configure {}", "order"]);
    let kinds = events(&mut host);
    assert!(
        matches!(kinds[0].1, PolicyEventKind::Faulted(_)),
        "{kinds:?}"
    );
    assert!(
        matches!(kinds[1].1, PolicyEventKind::SnapshotsEnded { .. }),
        "{kinds:?}"
    );
}

#[test]
fn a_snapshot_above_the_limit_is_not_kept() {
    let policy = scripted("a");
    policy.set(|script| script.state = vec![0; 2]);
    let mut host = PolicyHost::new(PATIENCE);
    let limits = Limits {
        snapshot_bytes: 1,
        ..Limits::default()
    };
    let number = host
        .add(start(policy.source_with(limits)).unwrap())
        .unwrap();
    assert_eq!(host.handover(Micros(0), number), None);
    let why = "2 bytes, 1 are allowed".to_owned();
    assert_eq!(
        events(&mut host),
        [(0, PolicyEventKind::SnapshotsEnded { why })]
    );
}

// === Binding ===

#[test]
fn a_third_policy_retires_the_first() {
    let policies = [scripted("a"), scripted("b"), scripted("c")];
    let mut host = host(&[&policies[0], &policies[1], &policies[2]]);
    assert_eq!(events(&mut host), [(0, PolicyEventKind::Retired)]);
    let hooks = HookSet::from_iter([Hook::Priority]);
    let status: Vec<_> = host
        .status()
        .map(|s| (s.number, s.in_force, s.behind))
        .collect();
    assert_eq!(
        status,
        [(1, HookSet::EMPTY, hooks), (2, hooks, HookSet::EMPTY)]
    );
    assert_eq!(host.bind(Micros(0), 0, hooks), Err(BindError::Unknown(0)));
}

#[test]
fn binding_a_hook_that_is_not_exported_changes_nothing() {
    let policy = scripted("a");
    let mut host = host(&[]);
    let number = host.add(start(policy.source()).unwrap()).unwrap();
    let hooks = HookSet::from_iter([Hook::Priority, Hook::Budget]);
    let error = host.bind(Micros(0), number, hooks).unwrap_err();
    assert_eq!(error, BindError::NotExported(Hook::Budget));
    assert_eq!(host.holder(Hook::Priority), None);
}

#[test]
fn a_swap_takes_the_common_hooks_and_removing_gives_them_back() {
    let (old, new) = (scripted("a"), scripted("b"));
    old.set(|script| script.hooks.insert(Hook::Routing));
    let mut host = host(&[&old]);
    host.bind(Micros(0), 0, HookSet::from_iter([Hook::Routing]))
        .unwrap();
    let number = host.add(start(new.source()).unwrap()).unwrap();
    let taken = host.swap(Micros(1), 0, number).unwrap();
    assert_eq!(taken, HookSet::from_iter([Hook::Priority]));
    assert_eq!(host.holder(Hook::Routing), None);
    assert_eq!(author(&mut host, 1), (Author::Policy(number), 0));
    host.remove(Micros(2), number);
    assert_eq!(author(&mut host, 2), (Author::Policy(0), 0));
    host.remove(Micros(2), 0);
    assert_eq!(author(&mut host, 2), (Author::BuiltIn, 0));
    assert_eq!(host.status().count(), 0);
}

#[test]
fn a_commit_binds_a_policy_that_its_own_steps_take_the_last_hook_from() {
    let (old, next, new) = (scripted("old"), scripted("next"), scripted("new"));
    old.set(|script| script.hooks.insert(Hook::Routing));
    // It stands behind on the hook that the commit binds to others.
    for binds_new in [false, true] {
        let mut host = host(&[&old, &next]);
        let third = host.add(start(new.source()).unwrap()).unwrap();
        let priority = HookSet::from_iter([Hook::Priority]);
        let mut commit = Commit {
            bind: vec![(0, HookSet::from_iter([Hook::Routing]))],
            ..Commit::default()
        };
        if binds_new {
            commit.bind.insert(0, (third, priority));
        } else {
            commit.install.push(Install {
                policy: start(new.source()).unwrap(),
                assignment: Assignment::Enforce(priority),
                default_of: HookSet::EMPTY,
                probation: None,
            });
        }
        let committed = host.commit(Micros(1), commit);
        assert!(committed.is_ok(), "{committed:?}");
        assert_eq!(host.holder(Hook::Routing), Some(0));
        let holder = host.holder(Hook::Priority);
        assert!(holder.is_some_and(|it| it >= third), "{holder:?}");
        assert_eq!(author(&mut host, 2), (Author::Policy(holder.unwrap()), 0));
    }
}

#[test]
fn a_commit_that_cannot_be_made_whole_changes_nothing() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = host(&[&old]);
    let priority = HookSet::from_iter([Hook::Priority]);
    let install = |assignment| Install {
        policy: start(new.source()).unwrap(),
        assignment,
        default_of: HookSet::EMPTY,
        probation: None,
    };
    let share = crate::mode::Percent::new(50).unwrap().into();
    let at_fault = CommitError::Install {
        at: 1,
        error: BindError::NoCanary(Hook::Priority),
    };
    let taken_out = CommitError::Bind(BindError::Unknown(0));
    for (more, roll_back, error) in [
        (Assignment::Canary(priority, share), false, at_fault),
        (Assignment::Enforce(HookSet::EMPTY), true, taken_out),
    ] {
        let rolled_back = roll_back.then(|| (0, "no".to_owned()));
        let commit = Commit {
            install: vec![install(Assignment::Enforce(priority)), install(more)],
            bind: vec![(0, priority)],
            roll_back: rolled_back.into_iter().collect(),
            ..Commit::default()
        };
        let refused = host.commit(Micros(1), commit).map(|made| made.installed);
        assert_eq!(refused, Err(error));
        assert_eq!(host.holder(Hook::Priority), Some(0));
        assert_eq!(host.numbers().collect::<Vec<_>>(), [0]);
        assert_eq!(host.quarantined().count(), 0);
    }
}

#[test]
fn a_successor_starts_from_the_state_of_the_policy_it_replaces() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    let snapshot = host.handover(Micros(0), 0).unwrap();
    let mut successor = start(policy.source()).unwrap();
    assert_eq!(successor.restore(&snapshot), Ok(Restored::Warm));
    let number = host.add(successor).unwrap();
    assert_eq!(
        host.swap(Micros(0), 0, number),
        Ok(HookSet::from_iter([Hook::Priority]))
    );
    assert_eq!(author(&mut host, 0), (Author::Policy(1), 0));
}

// === Outputs ===

#[test]
fn log_lines_become_events_and_events_are_bounded() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    author(&mut host, 3);
    let kinds: Vec<_> = std::iter::from_fn(|| host.poll_event())
        .map(|event| event.kind)
        .collect();
    let line = LogLine {
        level: LogLevel::Info,
        message: "said".to_owned(),
    };
    assert_eq!(
        kinds,
        [
            PolicyEventKind::Logged(line),
            PolicyEventKind::LogDropped(2)
        ]
    );
    for second in 4..13 {
        author(&mut host, second * 1_000_000);
    }
    assert_eq!(host.events_dropped(), 2);
    let first = host.poll_event().map(|event| event.at);
    assert_eq!(first, Some(Micros(5_000_000)));
}

#[test]
fn a_copy_explains_and_the_policy_is_not_disturbed() {
    let policy = scripted("a");
    policy.set(|script| script.hooks.insert(Hook::Routing));
    let host = host(&[&policy]);
    let request = waiting();
    let cached = fixture::cached(7);
    let rows = Feeding(RefCell::new(vec![(Extent::Everything, 3)]));
    let rehearse = |host: &PolicyHost| host.rehearse_by(0, &rows, moment(1)).unwrap();
    policy.set(|script| script.hooks = HookSet::from_iter([Hook::Priority]));
    let mute = start(policy.source())
        .unwrap()
        .rehearse(0, &rows, moment(1));
    assert_eq!(
        mute.explain(&request, &cached),
        Err(crate::ExplainError::NotExported)
    );
    policy.calls();
    let candidates = rehearse(&host).explain(&request, &cached).unwrap();
    assert_eq!(candidates[0].note, "for 7");
    assert_eq!(
        policy.calls(),
        ["configure {}", "observe 1 Everything 3", "explain"]
    );
    assert_eq!(counters(&host, 0).generation, 1);
}

fn waiting() -> Request {
    Request {
        model: Some(ModelId(1)),
        ..fixture::request(7)
    }
}

// === With the machine ===

/// A machine with one executor and one request.
fn machine() -> Machine {
    let mut machine = Machine::new(Config::default()).unwrap();
    let device = fixture::device_spec("cpu0");
    let device = machine
        .handle(Micros(0), Input::DeviceAttached(device))
        .device()
        .unwrap();
    let executor = fixture::executor_spec("cpu0/llama", device);
    machine
        .handle(Micros(0), Input::ExecutorAttached(executor))
        .executor()
        .unwrap();
    let tenant = machine.intern(Micros(0), "default");
    machine.handle(Micros(0), Input::arrival(NewRequest::new(tenant, 100, 20)));
    machine
}

#[test]
fn the_machine_asks_the_policies_and_its_refusals_are_counted() {
    let policy = scripted("a");
    policy.set(|script| script.hooks.insert(Hook::Routing));
    let mut host = host(&[&policy]);
    host.bind(Micros(0), 0, HookSet::from_iter([Hook::Routing]))
        .unwrap();
    machine().decide(Micros(0), &mut host);
    let stats = stats(&host, 0);
    let refusals: Vec<_> = stats.refusals.iter().filter(|(_, n)| **n > 0).collect();
    assert_eq!(refusals, [(Hook::Routing, &1)]);
    let cause = stats.refusal_last.map(|refusal| refusal.cause);
    assert_eq!(cause, Some(RefusalCause::UnknownExecutor));
    let calls = policy.calls();
    assert!(calls[0].starts_with("observe 0 Everything "), "{calls:?}");
    assert!(calls.contains(&"route".to_owned()), "{calls:?}");
}

#[test]
fn a_briefed_policy_is_told_in_a_round_only_what_changed_since() {
    let policy = scripted("a");
    let mut machine = machine();
    let mut started = start(policy.source()).unwrap();
    let needs = started.description().needs;
    let briefing = Briefing::new(&machine.view(), Micros(1), needs);
    policy.calls();
    started.brief(briefing).unwrap();
    let calls = policy.calls();
    assert!(calls[0].starts_with("observe 1 Everything "), "{calls:?}");
    machine.intern::<ModelId>(Micros(2), "llama");

    let mut host = PolicyHost::new(PATIENCE);
    let number = host.add(started).unwrap();
    host.bind(Micros(2), number, HookSet::from_iter([Hook::Priority]))
        .unwrap();
    machine.decide(Micros(2), &mut host);
    // The changes are the model, its name, and the request with its new stage.
    let calls = policy.calls();
    assert!(calls[0].starts_with("observe 2 SinceLast "), "{calls:?}");
}

#[test]
fn what_is_no_more_is_handed_out_to_be_dropped_elsewhere() {
    let policies = [scripted("a"), scripted("b"), scripted("c")];
    let mut host = host(&[&policies[0], &policies[1], &policies[2]]);
    host.remove(Micros(0), 1);
    let retired = host.poll_retired().unwrap();
    assert_eq!(
        format!("{retired:?}"),
        "Retired { policies: [0, 1], instances: 0 }"
    );
    assert!(host.poll_retired().is_none());
    policies[2].fail(&[Failing::Order]);
    author(&mut host, 1);
    let retired = host.poll_retired().unwrap();
    assert_eq!(
        format!("{retired:?}"),
        "Retired { policies: [], instances: 1 }"
    );
}
