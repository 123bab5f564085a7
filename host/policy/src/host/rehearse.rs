//! The policy that routes for a request, as a [`Rehearsal`].

use pointsman_core::rows::Request;
use pointsman_core::{Hook, Moment, View};

use super::PolicyHost;
use crate::rehearsal::Rehearsal;
use crate::runner::Rows;

impl PolicyHost {
    /// The policy that routes `request`, which need not exist, for throw-away copies to be asked;
    /// `None` if no policy routes. All rows are copied.
    #[must_use]
    pub fn rehearse(&self, view: &View<'_>, at: Moment, request: &Request) -> Option<Rehearsal> {
        self.rehearse_by(self.router_of(view, request)?, view, at)
    }

    /// True if the policy that routes `request` explains.
    #[must_use]
    pub fn explains(&self, view: &View<'_>, request: &Request) -> bool {
        let router = self.router_of(view, request);
        router
            .and_then(|policy| self.runner(policy))
            .is_some_and(|runner| runner.explains)
    }

    /// The policy that routes `request`: the canary, if it has the request, else the one in force.
    pub(super) fn router_of(&self, view: &View<'_>, request: &Request) -> Option<u32> {
        let canary = self.canary(Hook::Routing);
        let canary = canary.filter(|canary| canary.has_request(view, request));
        let canary = canary.map(|canary| canary.policy);
        canary.or_else(|| self.holder(Hook::Routing))
    }

    pub(super) fn rehearse_by(
        &self,
        policy: u32,
        rows: &dyn Rows,
        at: Moment,
    ) -> Option<Rehearsal> {
        Some(self.runner(policy)?.rehearse(policy, rows, at))
    }
}

#[cfg(test)]
mod tests {
    use pointsman_core::rows::NameKind;
    use pointsman_core::rows::{Cached, Change, Extent};
    use pointsman_core::{
        Config, ExecutorId, Feed, HookSet, Machine, Micros, Needs, Round, RowKinds, TenantId,
        fixture, routing,
    };

    use super::*;
    use crate::fixture::{Handle, scripted};
    use crate::mode::Percent;
    use crate::patience::Patience;
    use crate::policy::start;

    struct Nobody;

    impl Rows for Nobody {
        fn changes(&self, _: &mut Feed, _: RowKinds, out: &mut Vec<Change>) -> Extent {
            out.clear();
            Extent::Everything
        }
    }

    const AT: Moment = Moment {
        now: Micros(1),
        round: Round(1),
    };

    fn request() -> (Request, Cached) {
        (fixture::request(9), fixture::cached(9))
    }

    fn routing(policy: &Handle) -> PolicyHost {
        policy.set(|script| script.hooks = HookSet::from_iter([Hook::Routing]));
        let mut host = PolicyHost::new(Patience::default());
        let number = host.add(start(policy.source()).unwrap()).unwrap();
        let hooks = HookSet::from_iter([Hook::Routing]);
        host.bind(Micros(0), number, hooks).unwrap();
        policy.calls();
        host
    }

    #[test]
    fn a_copy_is_told_of_the_request_and_asked_and_the_policy_in_force_knows_nothing_of_it() {
        let policy = scripted("p");
        policy.set(|script| script.description.needs = Needs::every(RowKinds::ALL));
        let host = routing(&policy);
        let before: Vec<_> = host.status().collect();
        let (request, cached) = request();
        let rehearsal = host.rehearse_by(0, &Nobody, AT).unwrap();
        let verdict = routing::Verdict {
            choice: routing::Choice::Place(vec![ExecutorId(99)]),
            reason: 0,
        };
        assert_eq!(
            policy.calls(),
            [""; 0],
            "nothing is made before it is asked"
        );
        assert_eq!(rehearsal.route(&request, &cached), Ok(verdict));
        let calls = [
            "configure {}",
            "observe 1 Everything 0",
            "observe 1 SinceLast 1",
            "route",
        ];
        assert_eq!(policy.calls(), calls);
        assert_eq!(host.status().collect::<Vec<_>>(), before);
    }

    #[test]
    fn who_routes_for_a_tenant_is_the_canary_where_that_has_it() {
        let mut machine = Machine::new(Config::default()).unwrap();
        let tenants: Vec<TenantId> = (0..100)
            .map(|n| machine.intern(AT.now, &format!("tenant {n}")))
            .collect();
        let mut host = routing(&scripted("steady"));
        let tried = scripted("tried");
        tried.set(|script| script.hooks = HookSet::from_iter([Hook::Routing]));
        let number = host.add(start(tried.source()).unwrap()).unwrap();
        let half = Percent::new(50).unwrap().into();
        let routes = HookSet::from_iter([Hook::Routing]);
        host.bind_canary(AT.now, number, routes, half).unwrap();
        let canary = host.canary(Hook::Routing).unwrap();
        let view = machine.view();
        let mut of_the_canary = 0;
        for tenant in tenants {
            let (mut request, _) = request();
            request.tenant = tenant;
            let name = view.name(NameKind::Tenant, tenant.0).unwrap();
            let router = if canary.has(name.as_bytes()) {
                number
            } else {
                0
            };
            assert_eq!(host.router_of(&view, &request), Some(router), "{name}");
            of_the_canary += u32::from(router == number);
        }
        assert!((1..100).contains(&of_the_canary));
        let nobody = PolicyHost::new(Patience::default());
        assert_eq!(nobody.router_of(&view, &request().0), None);
    }
}
