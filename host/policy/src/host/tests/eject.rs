//! The emergency switch.

use super::*;

const PRIORITY: [Hook; 1] = [Hook::Priority];

#[test]
fn an_ejected_hook_goes_to_the_embedded_default_at_once() {
    let (default, other, third) = (scripted("default"), scripted("other"), scripted("third"));
    let mut host = host(&[&default]);
    let hooks = HookSet::from_iter(PRIORITY);
    host.set_default(Micros(0), 0, hooks).unwrap();
    // Two more policies take the hook, and the default is still a member.
    bind(&mut host, &other);
    bind(&mut host, &third);
    assert_eq!(host.in_force(0), HookSet::EMPTY);
    assert_eq!(host.eject(Micros(5), Hook::Priority), [1, 2]);
    assert_eq!(author(&mut host, 5), (Author::Policy(0), 0));
    let kinds = events(&mut host);
    let ejected = PolicyEventKind::Ejected(Hook::Priority);
    assert!(kinds.contains(&(2, ejected)), "{kinds:?}");
    assert_eq!(host.numbers().collect::<Vec<_>>(), [0]);
    // The second order has nothing to eject.
    assert_eq!(host.eject(Micros(6), Hook::Priority), Vec::<u32>::new());
    assert_eq!(author(&mut host, 6), (Author::Policy(0), 0));
}

#[test]
fn without_an_embedded_default_the_built_in_rule_has_an_ejected_hook() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    assert_eq!(host.eject(Micros(5), Hook::Priority), [0]);
    assert_eq!(author(&mut host, 5), (Author::BuiltIn, 0));
    assert_eq!(host.status().count(), 0);
}

#[test]
fn a_default_that_went_into_quarantine_is_no_default_any_more() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    host.set_default(Micros(0), 0, HookSet::from_iter(PRIORITY))
        .unwrap();
    policy.fail(&[Failing::Order]);
    for now in [0, 100, 300] {
        author(&mut host, now);
    }
    assert_eq!(host.default_of(Hook::Priority), None);
    host.eject(Micros(400), Hook::Priority);
    assert_eq!(author(&mut host, 400), (Author::BuiltIn, 0));
}
