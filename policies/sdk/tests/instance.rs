//! A policy driven as the host drives it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pointsman_sdk::fixture::{asked, at, bounds, cached, executor, load, request};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Change, Extent};
use pointsman_sdk::{
    BatchPlacements, Case, Description, Feed, Fleet, Hook, Instance, Mirror, Moment, NoSettings,
    Policy, Routing,
};

/// First fit; counts the changes and clearings it hears of.
#[derive(Default)]
struct FirstFit {
    heard: u8,
    cleared: u8,
}

impl Policy for FirstFit {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "first-fit".into(),
            version: "1.0.0".into(),
            summary: String::new(),
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self::default())
    }

    fn snapshot(&self) -> Vec<u8> {
        vec![self.heard, self.cleared]
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let &[heard, cleared] = state else {
            return Err("not two bytes".into());
        };
        *self = Self { heard, cleared };
        Ok(())
    }

    fn cleared(&mut self) {
        self.cleared += 1;
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        if let Change::Waiting(row) = change {
            assert!(
                mirror.request(row.id).is_none(),
                "told before it is applied"
            );
        }
        self.heard += 1;
    }
}

impl Routing for FirstFit {
    const NEEDS: Feed = Feed::FIT;

    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let verdict = |asked: &Cached| {
            let request = mirror.request(asked.request).expect("it is waiting");
            let case = Case::new(Fleet { mirror, placed }, request, at.now);
            let fits = |executor| Some((executor, case.fit(&executor).ok()?));
            let choice = match mirror.executors().find_map(fits) {
                Some((executor, seat)) => {
                    placed.place(mirror, request, &executor, seat);
                    Choice::Place(vec![executor.id()])
                }
                None => Choice::Hold(None),
            };
            Verdict { choice, reason: 0 }
        };
        requests.iter().map(verdict).collect()
    }
}

pointsman_sdk::export!(FirstFit: routing);

fn started() -> Box<dyn Instance> {
    let mut policy = instance();
    policy
        .configure("{}", bounds())
        .expect("there is nothing to set");
    let mut changes = vec![Change::Executor(executor(0)), Change::Load(load(0))];
    changes.extend((1..=6).map(|id| Change::Waiting(request(id))));
    policy.observe(0, Extent::Everything, changes);
    policy
}

fn placed(policy: &mut dyn Instance) -> usize {
    let verdicts = policy.route(at(0), (1..=6).map(cached).collect());
    let placed = |verdict: &&Verdict| matches!(verdict.choice, Choice::Place(_));
    verdicts.iter().filter(placed).count()
}

#[test]
fn placements_of_one_batch_count_until_the_next_observe() {
    let mut policy = started();
    assert_eq!(placed(&mut *policy), 4);
    assert_eq!(placed(&mut *policy), 0);
    // The host refused them all: nothing is left of them.
    policy.observe(1, Extent::SinceLast, Vec::new());
    assert_eq!(placed(&mut *policy), 4);
}

#[test]
fn a_policy_hears_of_changes_and_carries_its_state_over() {
    let mut policy = started();
    assert_eq!(policy.snapshot(), [8, 1]);
    let mut successor = instance();
    assert_eq!(successor.configure("{}", bounds()), Ok(()));
    assert_eq!(successor.restore(vec![8, 1]), Ok(()));
    assert_eq!(successor.snapshot(), [8, 1]);
    assert_eq!(successor.restore(vec![8]), Err("not two bytes".into()));
}

#[test]
fn settings_are_taken_once_and_refused_with_their_key() {
    let mut policy = instance();
    let refused = policy.configure(r#"{"speed": 1}"#, bounds());
    assert_eq!(
        refused,
        Err("unknown field `speed`, there are no fields".into())
    );
    assert_eq!(policy.configure("{}", bounds()), Ok(()));
    assert_eq!(
        policy.configure("{}", bounds()),
        Err("already configured".into())
    );
}

#[test]
fn only_named_hooks_are_exported() {
    let mut policy = started();
    assert_eq!(policy.hooks(), [Hook::Routing]);
    let asked = catch_unwind(AssertUnwindSafe(|| policy.order(at(0), asked(&[1]))));
    let message = asked.expect_err("it has no priority hook");
    assert_eq!(
        message.downcast_ref::<&str>(),
        Some(&"the policy does not export priority")
    );
}

/// A policy that reads more in `order` than it asks for.
mod curious {
    use pointsman_sdk::wire::types::AskedRequest;
    use pointsman_sdk::{Description, Feed, Mirror, Moment, NoSettings, Policy, Priority};

    pub(crate) struct Curious;

    impl Policy for Curious {
        type Settings = NoSettings;

        fn describe() -> Description {
            super::FirstFit::describe()
        }

        fn new(_: NoSettings) -> Result<Self, String> {
            Ok(Self)
        }
    }

    impl Priority for Curious {
        const NEEDS: Feed = Feed::FLEET;

        /// Reads what the first request names.
        fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
            match requests[0].request {
                0 => drop(mirror.executors().next()),
                1 => drop(mirror.request(1)),
                2 => drop(mirror.device(0)),
                3 => drop(mirror.model(0)),
                4 => drop(mirror.tenant(0)),
                5 => drop(mirror.sequence(0)),
                6 => drop(mirror.presences(0).next()),
                7 => drop(mirror.executors().next().map(|at| at.residencies.rows())),
                _ => {}
            }
            requests.iter().map(|asked| asked.request).collect()
        }
    }

    pointsman_sdk::export!(Curious: priority);
}

#[test]
fn the_host_is_told_what_each_hook_needs() {
    let [need] = &curious::instance().describe().needs[..] else {
        panic!("there is one hook");
    };
    assert_eq!(need.hook, Hook::Priority);
    assert_eq!(need.feed, Feed::EXECUTORS | Feed::LOADS);
}

#[test]
fn to_read_what_the_hook_does_not_need_panics() {
    let started = || {
        let mut policy = curious::instance();
        policy
            .configure("{}", bounds())
            .expect("there is nothing to set");
        let changes = vec![Change::Executor(executor(0)), Change::Load(load(0))];
        policy.observe(0, Extent::Everything, changes);
        policy
    };
    assert_eq!(started().order(at(0), asked(&[0])), [0]);
    for what in 1..=7 {
        let mut policy = started();
        let answered = catch_unwind(AssertUnwindSafe(|| policy.order(at(0), asked(&[what]))));
        let message = answered.expect_err("it reads what it did not ask for");
        let text = message.downcast_ref::<String>().map(String::as_str);
        let text = text.or(message.downcast_ref::<&str>().copied());
        assert!(
            text.is_some_and(|text| text.contains("NEEDS")),
            "{what}: {text:?}"
        );
    }
}
