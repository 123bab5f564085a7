//! The dumps of faults.

use super::*;

#[test]
fn a_fault_leaves_the_question_the_mirror_and_the_words_of_the_fault() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Order]);
    let rows = Feeding(RefCell::new(vec![(Extent::Everything, 3)]));
    order_from(&mut host, &rows, 40);
    let dump = host.poll_dump().unwrap();
    assert_eq!(host.poll_dump(), None);
    assert_eq!((dump.at, dump.round), (Micros(40), Some(Round(1))));
    let question = Question::Priority(fixture::asked(&[1, 2]).into());
    let asked = DumpedCall::Question(question);
    assert_eq!(dump.asked, asked);
    assert_eq!(dump.mirror.as_ref().map(|mirror| mirror.rows), Some(3));
    assert_eq!((dump.name.as_str(), dump.generation), ("a", 1));
    assert_eq!(dump.kind, FaultKind::Trap);
    assert!(dump.detail.contains("scripted at"), "{}", dump.detail);
    let json = serde_json::to_string(&dump).unwrap();
    assert_eq!(serde_json::from_str::<FaultDump>(&json).unwrap(), dump);
}

#[test]
fn a_fault_at_a_snapshot_leaves_a_dump_too() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Snapshot]);
    assert_eq!(host.handover(Micros(4), 0), None);
    let dump = host.poll_dump().unwrap();
    assert_eq!(
        (dump.asked, dump.mirror, dump.round),
        (DumpedCall::Snapshot, None, None)
    );
}

#[test]
fn dumps_that_nobody_polls_are_bounded_and_counted() {
    let policy = scripted("a");
    let mut host = host(&[]);
    let fail_once = |host: &mut PolicyHost, now| {
        let number = bind(host, &policy);
        policy.fail(&[Failing::Order]);
        author(host, now);
        policy.fail(&[]);
        host.remove(Micros(now), number);
    };
    for now in 0..20 {
        fail_once(&mut host, now);
    }
    assert_eq!(host.dumps_dropped(), 4);
    assert_eq!(std::iter::from_fn(|| host.poll_dump()).count(), 16);
    fail_once(&mut host, 20);
    assert_eq!(host.poll_dump().map(|dump| dump.at), Some(Micros(20)));
}

#[test]
fn equal_mirrors_have_equal_digests() {
    let digest = |count| {
        let rows = Feeding(RefCell::new(vec![(Extent::Everything, count)]));
        MirrorDigest::of_rows(&rows, RowKinds::ALL)
    };
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3).digest, digest(4).digest);
}
