//! A policy that rests after a fault, with a real machine.

use std::sync::atomic::{AtomicU32, Ordering};

use pointsman_component::{Digest, Fault, Instance, Limits, PolicyDescription};
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{
    Allotment, Allotments, Bounds, FaultKind, Hook, HookSet, Moment, Needs, Question, RowKinds,
};
use pointsman_policy::{PolicySource, start};

use super::*;

/// A policy of token budgets that faults at its first question, and has others answer for as long as it rests. All its
/// instances count the questions together.
struct FaultsOnce(Arc<AtomicU32>);

/// The tokens that it gives an engine in each step.
const GIVEN: u32 = 9;

impl Instance for FaultsOnce {
    fn hooks(&self) -> HookSet {
        HookSet::from_iter([Hook::Budget])
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        Ok(PolicyDescription {
            name: "faults-once".to_owned(),
            version: "1.0.0".to_owned(),
            summary: "For tests.".to_owned(),
            needs: Needs::every(RowKinds::ALL),
            reasons: Vec::new(),
            state_version: 1,
            orders_one: false,
            settings: Vec::new(),
        })
    }

    fn configure(&mut self, _: &str, _: &Bounds) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }

    fn observe(&mut self, _: Micros, _: Extent, _: &[Change]) -> Result<(), Fault> {
        Ok(())
    }

    fn ask(&mut self, _: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        let Question::Budget { used, .. } = question else {
            return Err(Fault::not_exported(question.hook().as_str()));
        };
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(Fault::new(FaultKind::Trap, "scripted"));
        }
        let engines = used.iter().map(|used| Allotment {
            executor: used.executor,
            tokens_max: GIVEN,
        });
        Ok(Reply::Budget(Allotments {
            engines: engines.collect(),
            again: None,
        }))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }
}

/// The policy, with a count of its questions.
fn faults_once() -> (PolicySource, Arc<AtomicU32>) {
    let questions = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&questions);
    let source = PolicySource::native(
        Digest::of(b"faults-once"),
        move || Box::new(FaultsOnce(Arc::clone(&counted))),
        &serde_json::Map::new(),
        Limits::default(),
    );
    (source, questions)
}

#[test]
fn a_policy_of_budgets_is_asked_again_at_the_end_of_its_rest_though_no_engine_changes() {
    let mut stage = Stage::new();
    let (source, questions) = faults_once();
    let policies = &mut stage.driver.policies;
    let number = policies.add(start(source).unwrap()).unwrap();
    let budgets = HookSet::from_iter([Hook::Budget]);
    policies.bind(AT, number, budgets).unwrap();
    let tokens = |stage: &Stage| {
        let snapshot = stage.driver.machine.executor_snapshot(CPU);
        snapshot.and_then(|snapshot| snapshot.tokens_max)
    };
    let rested = AT.after(Micros(Patience::default().back_off_micros));
    let early = Micros(rested.0 - 1);
    for now in [AT, early] {
        let settled = stage.driver.settle(now);
        assert_eq!(settled, Settled::Until(Some(rested)));
        assert_eq!(tokens(&stage), Some(64), "by the built-in rule");
    }
    let settled = stage.driver.settle(rested);
    assert_eq!(tokens(&stage), Some(GIVEN));
    assert_eq!(settled, Settled::Until(None));
    assert_eq!(questions.load(Ordering::Relaxed), 2);
    stage.driver.machine.check_invariants().unwrap();
}
