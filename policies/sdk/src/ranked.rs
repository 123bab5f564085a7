//! Routing by rank: a policy says how an executor ranks, and the SDK does the rest.

use crate::case::Case;
use crate::executor::Executor;
use crate::explain;
use crate::fleet::{Fleet, Place};
use crate::groups::KnownGroups;
use crate::hooks::explanation::Explanation;
use crate::index::{ExecutorIndex, Reach};
use crate::mirror::Mirror;
use crate::needs::Description;
use crate::policy::Policy;
use crate::ranking::Ranking;
use crate::router::{Pick, Router};
use crate::turns::Turns;
use crate::wire::explanation::Candidate;
use crate::wire::lifecycle::{Feed, Setting};
use crate::wire::routing::Verdict;
use crate::wire::types::{Change, Request};

/// A policy that routes by ranking executors, the same way for every request.
///
/// [`ByRank`] makes a whole policy of it. Each request goes to the first executor in order of rank
/// that can take it, with the policy's first reason; one that no executor can take waits, with the
/// second. Equals come in attach order, or in turn where the policy keeps [`Turns`]. A request that asks for a
/// group stays in it while an executor there may take it once it has room, for as long as the host lets it be
/// held.
///
/// ```
/// use pointsman_sdk::{ByRank, Description, NoSettings, Place, Policy, Ranked, Readiness, export};
///
/// /// Each request goes where the fewest requests run.
/// struct Idlest;
///
/// impl Ranked for Idlest {
///     type Rank = (Readiness, u64);
///
///     fn rank(&self, place: &Place<'_>) -> (Readiness, u64) {
///         (place.readiness(), place.depth())
///     }
/// }
///
/// impl Policy for Idlest {
///     type Settings = NoSettings;
///
///     fn describe() -> Description {
///         Description {
///             name: "idlest".into(),
///             version: "1.0.0".into(),
///             summary: "Each request goes where the fewest requests run.".into(),
///             reasons: vec!["the fewest requests".into(), "no room anywhere".into()],
///             state_version: 1,
///         }
///     }
///
///     fn new(_: NoSettings) -> Result<Self, String> {
///         Ok(Self)
///     }
/// }
///
/// export!(ByRank<Idlest>: routing, explanation);
/// ```
///
/// # Not here
///
/// Ranks that differ between requests, as by what is cached of a prompt: see
/// [`Router`](crate::Router), with a [`Ranking`](crate::Ranking) for what they have in common.
pub trait Ranked: Policy {
    /// The order of executors; the least is the best.
    type Rank: Ord + Send + 'static;

    /// The policy's reason for placing a request.
    const BEST: u16 = 0;

    /// The policy's reason for holding a request.
    const NO_ROOM: u16 = 1;

    /// The kinds of rows that the policy reads: what finds a request its place, and what else it
    /// names.
    const NEEDS: Feed = Feed::FIT;

    /// Executors whose ranks a placement changes.
    const REACH: Reach = Reach::Executor;

    /// The rank of an executor that has room, whatever the request: a function of the executor's
    /// own rows and of the placements on it. One that reads the blocks of its device too needs
    /// [`Reach::Device`].
    fn rank(&self, place: &Place<'_>) -> Self::Rank;

    /// Text about an executor that a person reads beside its place in the order.
    fn note(&self, executor: &Executor<'_>) -> String {
        let _ = executor;
        String::new()
    }

    /// The turns that the executors take with requests like this one, where equals take turns.
    fn turns(&mut self, request: &Request) -> Option<&mut Turns> {
        let _ = request;
        None
    }
}

/// The policy that [`Ranked`] describes, with its index. It has the hooks that `P` has too.
#[derive(Debug)]
pub struct ByRank<P: Ranked> {
    policy: P,
    ranking: Ranking<P::Rank>,
    /// Groups that were found to serve models, or not to, since the last `observe`.
    groups: KnownGroups,
}

// === impl ByRank ===

impl<P: Ranked> Policy for ByRank<P> {
    type Settings = P::Settings;

    fn describe() -> Description {
        P::describe()
    }

    fn settings() -> Vec<Setting> {
        P::settings()
    }

    fn new(settings: P::Settings) -> Result<Self, String> {
        Ok(Self {
            policy: P::new(settings)?,
            ranking: Ranking::default(),
            groups: KnownGroups::default(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        self.policy.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.policy.restore(state)
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(self)
    }

    fn cleared(&mut self) {
        self.policy.cleared();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.policy.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.groups.clear();
        self.policy.observed(mirror);
    }
}

impl<P: Ranked> ExecutorIndex for ByRank<P> {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let Self {
            policy, ranking, ..
        } = self;
        ranking.update(fleet, executors, |place| policy.rank(place));
        if let Some(index) = policy.index() {
            index.update(fleet, executors);
        }
    }

    fn reach(&self) -> Reach {
        P::REACH
    }
}

impl<P: Ranked> Router for ByRank<P> {
    const UNKNOWN: u16 = P::NO_ROOM;
    const NEEDS: Feed = <P as Ranked>::NEEDS;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        let best = match bound(case) {
            None => self.best(case, None),
            // In a group with room nobody has to look for executors without.
            Some(group) => match self.best(case, Some(group)) {
                None if !self.serves(case, group) => self.best(case, None),
                best => best,
            },
        };
        best.ok_or_else(|| case.hold(None, P::NO_ROOM))
    }

    fn picked(&mut self, case: &Case<'_>, pick: &Pick) {
        if let Some(turns) = self.policy.turns(case.request) {
            turns.took(case.request.model, pick.executors[0]);
        }
    }
}

impl<P: Ranked> Explanation for ByRank<P> {
    const NEEDS: Feed = <P as Ranked>::NEEDS.union(Feed::NAMES);

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let group = bound(case).filter(|group| self.serves(case, *group));
        let turns = self.policy.turns(case.request);
        let turn = turns.map(|turns| turns.of(case.request.model));
        let turn_of = |executor: &Executor<'_>| turn.as_ref().map(|turn| turn(executor.id()));
        let policy = &self.policy;
        let rank = |place: &Place<'_>| {
            if group.is_some_and(|group| group != place.executor.info.group) {
                return Err("it is of another group");
            }
            Ok((policy.rank(place), turn_of(&place.executor)))
        };
        let note = |executor: &Executor<'_>| match turn_of(executor) {
            Some(turn) => explain::joined(turn.note(), &policy.note(executor)),
            None => policy.note(executor),
        };
        explain::by_rank(case, rank, note)
    }
}

impl<P: Ranked> ByRank<P> {
    /// The policy that ranks, which may have other hooks.
    pub(crate) fn inner(&mut self) -> &mut P {
        &mut self.policy
    }

    /// The first executor in order of rank that can take the request, in a group if one is given.
    fn best(&mut self, case: &Case<'_>, group: Option<u32>) -> Option<Pick> {
        let request = case.request;
        let turns = self.policy.turns(request);
        let last = turns.and_then(|turns| turns.last(request.model));
        let is_of = |id: u32, group| {
            let executor = case.fleet.mirror.executor(id);
            executor.is_some_and(|executor| executor.info.group == group)
        };
        let is_in_group = |id: &u32| group.is_none_or(|group| is_of(*id, group));
        let walk = self.ranking.best_first(request).in_group(group).after(last);
        case.first_of(walk.filter(is_in_group), P::BEST)
    }

    /// Returns true if the group has an executor which may take the request once there is room.
    fn serves(&mut self, case: &Case<'_>, group: u32) -> bool {
        self.groups.serves(case, group, || {
            let mut executors = case.fleet.mirror.executors();
            executors.any(|it| it.info.group == group && case.check_lasting(&it).is_ok())
        })
    }
}

/// The group that the request asks for, for as long as it can be held.
fn bound(case: &Case<'_>) -> Option<u32> {
    let group = case.request.group;
    group.filter(|_| case.hold_end().is_some())
}
