//! Facts for a journal, and fresh instances.

use super::*;

fn is_down(host: &PolicyHost) -> bool {
    host.status().any(|status| status.down_until.is_some())
}

fn restart(host: &mut PolicyHost, state: &[u8]) {
    let member = host.members.get_mut(&0).unwrap();
    member.restart(Some(state.to_vec()), Micros(5), &mut host.shared);
}

#[test]
fn a_renewed_policy_is_told_the_rest_saved_and_told_everything_anew() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    let rows = Feeding(RefCell::new(vec![(Extent::SinceLast, 2)]));
    host.renew_from(Micros(7), &rows);
    assert_eq!(policy.calls(), ["observe 7 SinceLast 2", "snapshot"]);
    assert_eq!(host.runner(0).unwrap().state(), Some(&[7][..]));
    assert_eq!(counters(&host, 0).snapshots, 1);
    let told = host.runner(0).unwrap().told();
    assert_eq!(told, None, "it is told everything with the next question");
}

#[test]
fn a_policy_that_faults_while_it_is_renewed_begins_anew() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Observe]);
    let rows = Feeding(RefCell::new(vec![(Extent::SinceLast, 1)]));
    host.renew_from(Micros(7), &rows);
    assert!(is_down(&host));
    assert_eq!(stats(&host, 0).faults[&FaultKind::Trap], 1);
    policy.fail(&[]);
    assert_eq!(author(&mut host, 1000).0, Author::Policy(0));
    assert_eq!(counters(&host, 0).generation, 2);
}

#[test]
fn a_policy_is_restarted_with_the_state_it_is_given() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    restart(&mut host, &[1, 2]);
    assert!(is_down(&host));
    assert_eq!(author(&mut host, 5).0, Author::Policy(0));
    assert!(policy.calls().contains(&"restore [1, 2]".to_owned()));
    assert_eq!(counters(&host, 0).generation, 2);
    assert!(!is_down(&host));
}

#[test]
fn who_began_anew_to_answer_is_told_until_the_next_question() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    restart(&mut host, &[1, 2]);
    author(&mut host, 5);
    let began = Began {
        policy: 0,
        generation: 2,
        state: Some(vec![1, 2]),
        was_briefed: false,
    };
    assert_eq!(host.last_asked().began, [began]);
    author(&mut host, 6);
    assert_eq!(host.last_asked().began, []);
}

#[test]
fn an_answer_costs_the_fuel_of_all_that_was_told_before_it_but_of_everything() {
    let policy = scripted("a");
    policy.set(|script| script.observe_fuel = 100);
    let limits = Limits {
        observe_rows: 2,
        ..Limits::default()
    };
    let mut host = PolicyHost::new(PATIENCE);
    let number = bind_with(&mut host, &policy, limits);
    let rows = Feeding(RefCell::new(vec![
        (Extent::Everything, 5),
        (Extent::SinceLast, 5),
    ]));
    for fuel in [11, 311] {
        order_from(&mut host, &rows, 1);
        let cost = host.last_asked().cost.unwrap();
        assert_eq!(cost.fuel, Some(fuel));
        assert_eq!(stats(&host, number).fuel[Hook::Priority].max(), fuel);
        assert_eq!(counters(&host, number).fuel, 11, "as a replay has it");
    }
}

#[test]
fn a_snapshot_that_is_too_large_was_given_all_the_same() {
    let policy = scripted("a");
    let limits = Limits::default();
    let bytes = usize::try_from(limits.snapshot_bytes).unwrap() + 1;
    policy.set(|script| script.state = vec![0; bytes]);
    let mut host = host(&[&policy]);
    host.handover(Micros(1), 0);
    assert_eq!(counters(&host, 0).snapshots, 1);
    assert_eq!(counters(&host, 0).snapshots_kept, 0);
    assert_eq!(host.runner(0).unwrap().state(), None);
}

#[test]
fn no_snapshot_is_taken_once_they_have_ended() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    let saves = |host: &PolicyHost| host.runner(0).unwrap().is_saved();
    assert!(saves(&host));
    host.members.get_mut(&0).unwrap().runner.end_snapshots();
    assert!(!saves(&host));
    assert_eq!(host.handover(Micros(1), 0), None);
    assert_eq!(counters(&host, 0).snapshots, 0);
}

#[test]
fn what_a_policy_took_over_is_its_state_until_it_is_saved() {
    let policy = scripted("a");
    let mut started = start(policy.source()).unwrap();
    let snapshot = Snapshot {
        name: "a".to_owned(),
        state_version: 1,
        state: vec![9],
    };
    started.restore(&snapshot).unwrap();
    let mut host = PolicyHost::new(PATIENCE);
    host.add(started).unwrap();
    assert_eq!(host.runner(0).unwrap().state(), Some(&[9][..]));
}
