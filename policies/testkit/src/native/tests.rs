//! Panics and missing hooks of native policies.

use pointsman_core::Hook;

use super::*;

struct Brittle;

impl sdk::Policy for Brittle {
    type Settings = Map<String, Value>;

    fn describe() -> sdk::Description {
        sdk::Description {
            name: "brittle".into(),
            version: "1".into(),
            summary: "Panics.".into(),
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn new(_: Self::Settings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl sdk::Priority for Brittle {
    const NEEDS: sdk::Feed = sdk::Feed::empty();
    const ORDERS_ONE: bool = true;

    fn order(
        &mut self,
        _: &sdk::Mirror,
        _: sdk::Moment,
        requests: &[sdk::wire::types::AskedRequest],
    ) -> Vec<u64> {
        sdk::log::info("about to break");
        panic!("cannot order {} requests", requests.len());
    }
}

sdk::export!(Brittle: priority);

#[test]
fn a_panic_is_a_fault_and_so_is_every_later_call() {
    let mut native = Native::new(instance);
    assert_eq!(native.hooks().iter().collect::<Vec<_>>(), [Hook::Priority]);
    assert!(!native.explains());
    assert_eq!(native.describe().unwrap().name, "brittle");
    native
        .configure("{}", &pointsman_core::Config::default().bounds())
        .unwrap()
        .unwrap();
    let at = Moment {
        now: Micros(0),
        round: pointsman_core::Round(1),
    };
    let fault = native
        .ask(
            at,
            &Question::Priority(pointsman_core::fixture::asked(&[1]).into()),
        )
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::Trap);
    let said = fault.to_string();
    let (place, message) = said.rsplit_once(": ").unwrap();
    assert_eq!(message, "cannot order 1 requests");
    assert!(
        place.starts_with("the policy panicked at policies/testkit/src/native/tests.rs:"),
        "{said}"
    );
    let later = native.snapshot().unwrap_err();
    assert_eq!(later, fault);
}

#[test]
fn a_hook_that_is_not_exported_is_a_fault() {
    let mut native = Native::new(instance);
    native
        .configure("{}", &pointsman_core::Config::default().bounds())
        .unwrap()
        .unwrap();
    let at = Moment {
        now: Micros(0),
        round: pointsman_core::Round(1),
    };
    let question = Question::Budget {
        device: pointsman_core::DeviceId(0),
        tokens_total: 8,
        used: Vec::new().into(),
    };
    let fault = native.ask(at, &question).unwrap_err();
    assert!(
        fault.to_string().contains("does not export budget"),
        "{fault}"
    );
}
