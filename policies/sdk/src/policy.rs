//! What a policy implements: [`Policy`], and a trait for each decision it makes.

use serde::de::DeserializeOwned;

use crate::mirror::Mirror;
use crate::tentative::Tentative;
use crate::wire::lifecycle::Description;
use crate::wire::types::{Cached, Change, Moment, Request};
use crate::wire::{admission, budget, explanation, preemption, routing};

/// What every policy is.
pub trait Policy: Sized + Send + 'static {
    /// The operator's settings. Derive `Deserialize` with `deny_unknown_fields` and `default`: a
    /// misspelt key is then an error that lists the known ones.
    type Settings: DeserializeOwned;

    /// Who it is, and what it wants to be told.
    fn describe() -> Description;

    /// A policy with these settings.
    ///
    /// # Errors
    ///
    /// What is wrong with them, for the operator.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// State worth carrying over a reload or a fault. Not the mirror.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over a snapshot.
    ///
    /// # Errors
    ///
    /// Why it is of no use; then the policy starts cold.
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Ok(())
    }

    /// The mirror was cleared: everything follows. For a policy that keeps an index of its own.
    fn cleared(&mut self) {}

    /// A row is about to change. `mirror` still holds what `change` replaces or removes. For a
    /// policy that keeps an index of its own, or learns from completions.
    #[inline]
    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        let _ = (mirror, change);
    }

    /// The rows of one `observe` are in the mirror. The place to bring an index up to date: the
    /// fuel of an `observe` grows with its rows, that of a question does not.
    #[inline]
    fn observed(&mut self, mirror: &Mirror) {
        let _ = mirror;
    }
}

/// Whether requests may wait at all.
///
/// ```
/// # use pointsman_sdk::{Admission, Mirror, Moment, Policy, wire::lifecycle};
/// use pointsman_sdk::wire::admission::{Choice, Verdict};
///
/// # struct Doorman;
/// impl Admission for Doorman {
///     fn admit(&mut self, _: &Mirror, _: Moment, arrivals: &[u64], room: u32) -> Vec<Verdict> {
///         let room = usize::try_from(room).unwrap_or(usize::MAX);
///         let verdict = |index| Verdict {
///             choice: if index < room { Choice::Admit } else { Choice::Park },
///             reason: 0,
///         };
///         (0..arrivals.len()).map(verdict).collect()
///     }
/// }
/// # impl Policy for Doorman {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let verdicts = Doorman.admit(&Mirror::default(), Moment { now: 0, round: 0 }, &[1, 2], 1);
/// # assert_eq!(verdicts[0].choice, Choice::Admit);
/// # assert_eq!(verdicts[1].choice, Choice::Park);
/// ```
pub trait Admission: Policy {
    /// One verdict per arrival, in order. `room` is how many more may wait.
    fn admit(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        arrivals: &[u64],
        room: u32,
    ) -> Vec<admission::Verdict>;
}

/// In which order waiting requests are tried.
///
/// ```
/// # use pointsman_sdk::{Mirror, Moment, Policy, Priority, wire::lifecycle};
/// # struct Shortest;
/// impl Priority for Shortest {
///     fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[u64]) -> Vec<u64> {
///         let known = requests.iter().filter_map(|&id| mirror.request(id));
///         let mut order: Vec<_> = known.map(|row| (row.prompt_tokens, row.id)).collect();
///         order.sort_unstable();
///         order.into_iter().map(|(_, id)| id).collect()
///     }
/// }
/// # impl Policy for Shortest {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # assert!(Shortest.order(&Mirror::default(), Moment { now: 0, round: 0 }, &[1]).is_empty());
/// ```
pub trait Priority: Policy {
    /// These requests, most urgent first; those left out come after, in order of arrival.
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[u64]) -> Vec<u64>;
}

/// Where a request runs.
///
/// ```
/// # use pointsman_sdk::{Mirror, Moment, Policy, Routing, Tentative, wire::lifecycle};
/// use pointsman_sdk::wire::{routing::{Choice, Verdict}, types::Cached};
/// use pointsman_sdk::{Need, fit};
///
/// # struct First;
/// impl Routing for First {
///     fn route(
///         &mut self,
///         mirror: &Mirror,
///         placed: &mut Tentative,
///         at: Moment,
///         requests: &[Cached],
///     ) -> Vec<Verdict> {
///         let mut verdicts = Vec::with_capacity(requests.len());
///         for asked in requests {
///             let mut choice = Choice::Hold(None);
///             if let Some(request) = mirror.request(asked.request) {
///                 let need = Need::new(mirror, placed, request, at.now);
///                 for executor in mirror.executors() {
///                     if let Ok(seat) = fit(mirror, placed, &need, &executor) {
///                         placed.place(mirror, &need, &executor, seat);
///                         choice = Choice::Place(vec![executor.id()]);
///                         break;
///                     }
///                 }
///             }
///             verdicts.push(Verdict { choice, reason: 0 });
///         }
///         verdicts
///     }
/// }
/// # impl Policy for First {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = Cached { request: 1, overlaps: None, floor_tokens: 0, shared_tokens: 0 };
/// # let at = Moment { now: 0, round: 0 };
/// # let verdicts = First.route(&Mirror::default(), &mut Tentative::default(), at, &[asked]);
/// # assert_eq!(verdicts[0].choice, Choice::Hold(None));
/// ```
pub trait Routing: Policy {
    /// One verdict per request, in the same order. What it places it counts in `placed`, which
    /// the SDK clears at every `observe`.
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<routing::Verdict>;
}

/// Which placed sequences give way.
///
/// ```
/// # use pointsman_sdk::wire::types::{Change, Extent, Sequence};
/// # use pointsman_sdk::{Mirror, Moment, Policy, Preemption, export, fixture, wire::lifecycle};
/// use pointsman_sdk::Urgency;
/// use pointsman_sdk::wire::preemption::{Cause, Eviction, How, Shortage, Victim};
///
/// # struct Newest;
/// impl Preemption for Newest {
///     /// A slot is given by the newest of those that are less urgent, and nothing else is given.
///     fn evict(&mut self, mirror: &Mirror, _: Moment, shortage: &Shortage) -> Option<Eviction> {
///         let needy = Urgency::from(mirror.request(shortage.needy)?);
///         let gives = |row: &&Sequence| {
///             shortage.cause == Cause::Slots && row.preemptible && Urgency::from(*row) < needy
///         };
///         let newest = mirror.sequences().filter(gives).max_by_key(|row| row.request)?;
///         let victim = Victim { request: newest.request, how: How::Recompute };
///         Some(Eviction { executor: newest.executor, victims: vec![victim], reason: 0 })
///     }
/// }
/// # impl Policy for Newest {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description {
/// #         lifecycle::Description {
/// #             name: String::new(),
/// #             version: String::new(),
/// #             summary: String::new(),
/// #             feed: lifecycle::Feed::WAITING | lifecycle::Feed::SEQUENCES,
/// #             reasons: Vec::new(),
/// #             state_version: 1,
/// #         }
/// #     }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # export!(Newest: preemption);
/// # let mut policy = instance();
/// # policy.configure("{}").unwrap();
/// # let sequence = |request| Sequence { priority: -1, ..fixture::sequence(request, 0) };
/// # policy.observe(0, Extent::Everything, vec![
/// #     Change::Executor(fixture::executor(0)),
/// #     Change::Load(fixture::load(0)),
/// #     Change::Sequence(sequence(1)),
/// #     Change::Sequence(sequence(2)),
/// #     Change::Sequence(Sequence { preemptible: false, ..sequence(3) }),
/// #     Change::Waiting(fixture::request(4)),
/// # ]);
/// # let shortage = |cause| Shortage { cause, needy: 4, executor: None, blocks: 0 };
/// # let eviction = policy.evict(fixture::at(0), shortage(Cause::Slots)).unwrap();
/// # assert_eq!((eviction.executor, eviction.victims[0].request), (0, 2));
/// # assert!(policy.evict(fixture::at(0), shortage(Cause::Blocks)).is_none());
/// ```
pub trait Preemption: Policy {
    /// Victims whose leaving covers the whole shortage; none: the needy one keeps waiting.
    fn evict(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        shortage: &preemption::Shortage,
    ) -> Option<preemption::Eviction>;
}

/// How many tokens each engine of a device may schedule in a step.
///
/// ```
/// # use pointsman_sdk::{Budget, Mirror, Moment, Policy, wire::lifecycle};
/// use pointsman_sdk::wire::budget::Allotment;
///
/// # struct Equal;
/// impl Budget for Equal {
///     fn allot(&mut self, mirror: &Mirror, _: Moment, device: u32, total: u32) -> Vec<Allotment> {
///         let engines: Vec<_> = mirror.executors_on(device).collect();
///         let share = total / u32::try_from(engines.len()).unwrap_or(u32::MAX).max(1);
///         let allotment = |executor| Allotment { executor, tokens_max: share };
///         engines.iter().map(|engine| allotment(engine.id())).collect()
///     }
/// }
/// # impl Policy for Equal {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # assert!(Equal.allot(&Mirror::default(), Moment { now: 0, round: 0 }, 0, 100).is_empty());
/// ```
pub trait Budget: Policy {
    /// Shares of `tokens_total` among the engines of `device`.
    fn allot(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        device: u32,
        tokens_total: u32,
    ) -> Vec<budget::Allotment>;
}

/// Why a request would go where it would go.
///
/// ```
/// # use pointsman_sdk::{Explanation, Mirror, Moment, Policy, wire::lifecycle};
/// use pointsman_sdk::wire::{explanation::Candidate, types::{Cached, Request}};
///
/// # struct Open;
/// impl Explanation for Open {
///     fn explain(&mut self, mirror: &Mirror, _: Moment, _: &Request, _: &Cached) -> Vec<Candidate> {
///         mirror
///             .executors()
///             .map(|executor| Candidate {
///                 executor: executor.id(),
///                 eligible: executor.is_live(),
///                 cost: i64::from(executor.load.slots_used),
///                 note: "slots in use".into(),
///             })
///             .collect()
///     }
/// }
/// # impl Policy for Open {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// ```
pub trait Explanation: Policy {
    /// Every executor it considered. The request need not be in the mirror.
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<explanation::Candidate>;
}
