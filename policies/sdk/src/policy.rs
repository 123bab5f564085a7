//! The traits that a policy implements: [`Policy`], and one for each decision that it makes.

use serde::de::DeserializeOwned;

use crate::case::Case;
use crate::index::ExecutorIndex;
use crate::mirror::Mirror;
use crate::needs::Description;
use crate::placements::BatchPlacements;
use crate::wire::lifecycle::{Feed, Setting};
use crate::wire::types::{AskedRequest, Cached, Change, Moment};
use crate::wire::{admission, budget, explanation, preemption, routing};

/// A policy: its name, settings and state.
pub trait Policy: Sized + Send + 'static {
    /// The operator's settings. Derive `Deserialize` with `deny_unknown_fields` and `default`: a
    /// misspelt key is then an error that lists the known ones.
    type Settings: DeserializeOwned;

    /// Name, version and reasons of the policy.
    fn describe() -> Description;

    /// The settings, for people and for tools: meaning, values and default of each. `configure`
    /// refuses a number that is out of its range here, before [`new`](Self::new) is called.
    /// `fixture::check_settings` is the test that they are those of [`Settings`](Self::Settings).
    #[must_use]
    fn settings() -> Vec<Setting> {
        Vec::new()
    }

    /// Makes a policy with these settings.
    ///
    /// # Errors
    ///
    /// A sentence for the operator about the setting that is wrong.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// State worth carrying over a reload or a fault. Not the mirror.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over a snapshot.
    ///
    /// # Errors
    ///
    /// A sentence about the bytes that are of no use; the policy then starts without state.
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Ok(())
    }

    /// The index of executors that the SDK keeps up to date, where the policy has one.
    #[inline]
    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        None
    }

    /// Forgets all rows: the mirror was cleared, and everything follows. For a policy that keeps
    /// counts of other rows than executors.
    fn cleared(&mut self) {}

    /// Takes note of a row that is about to change. `mirror` still holds the row that `change`
    /// replaces or removes. For a policy that keeps such counts, or learns from completions.
    #[inline]
    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        let _ = (mirror, change);
    }

    /// Takes note of all rows of one `observe`, which are in the mirror and the index. Work that
    /// grows with the fleet belongs here: an `observe` has fuel for each row, a question only for
    /// the requests it names.
    #[inline]
    fn observed(&mut self, mirror: &Mirror) {
        let _ = mirror;
    }
}

/// Decides whether requests may wait at all.
///
/// ```
/// # use pointsman_sdk::{Admission, Description, Feed, Mirror, Moment, Policy};
/// use pointsman_sdk::wire::admission::{Choice, Verdict};
/// use pointsman_sdk::wire::types::AskedRequest;
///
/// # struct Doorman;
/// impl Admission for Doorman {
///     const NEEDS: Feed = Feed::empty();
///
///     fn admit(
///         &mut self,
///         _: &Mirror,
///         _: Moment,
///         arrivals: &[AskedRequest],
///         room: u32,
///     ) -> Vec<Verdict> {
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
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = |request| AskedRequest { request, cached_tokens: 0 };
/// # let at = Moment { now: 0, round: 0 };
/// # let verdicts = Doorman.admit(&Mirror::default(), at, &[asked(1), asked(2)], 1);
/// # assert_eq!(verdicts[0].choice, Choice::Admit);
/// # assert_eq!(verdicts[1].choice, Choice::Park);
/// ```
pub trait Admission: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Gives one verdict per arrival, in order. `room` is the number of requests that may still
    /// enter the queue.
    fn admit(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<admission::Verdict>;
}

/// Decides in which order waiting requests are tried.
///
/// ```
/// # use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Priority};
/// use pointsman_sdk::wire::types::AskedRequest;
///
/// # struct Shortest;
/// impl Priority for Shortest {
///     const NEEDS: Feed = Feed::WAITING;
///
///     fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
///         let known = requests.iter().filter_map(|asked| {
///             let prompt_tokens = mirror.request(asked.request)?.prompt_tokens;
///             Some((prompt_tokens.saturating_sub(asked.cached_tokens), asked.request))
///         });
///         let mut order: Vec<_> = known.collect();
///         order.sort_unstable();
///         order.into_iter().map(|(_, id)| id).collect()
///     }
/// }
/// # impl Policy for Shortest {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = [AskedRequest { request: 1, cached_tokens: 0 }];
/// # assert!(Shortest.order(&Mirror::default(), Moment { now: 0, round: 0 }, &asked).is_empty());
/// ```
pub trait Priority: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// True if the policy is asked about a single request too. There is nothing to order; but one that
    /// learns from what it is told before each question needs the question.
    const ORDERS_ONE: bool = false;

    /// Orders these requests, most urgent first. Requests left out come after, by arrival.
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[AskedRequest]) -> Vec<u64>;
}

/// Decides where requests run.
///
/// Most policies implement [`Ranked`](crate::Ranked) or [`Router`](crate::Router) instead, which
/// are asked about one request at a time.
///
/// ```
/// # use pointsman_sdk::{BatchPlacements, Description, Feed, Mirror, Moment, Policy, Routing};
/// use pointsman_sdk::wire::{routing::{Choice, Verdict}, types::Cached};
/// use pointsman_sdk::{Case, Fleet};
///
/// # struct First;
/// impl Routing for First {
///     const NEEDS: Feed = Feed::FIT;
///
///     fn route(
///         &mut self,
///         mirror: &Mirror,
///         placed: &mut BatchPlacements,
///         at: Moment,
///         requests: &[Cached],
///     ) -> Vec<Verdict> {
///         let mut verdicts = Vec::with_capacity(requests.len());
///         for asked in requests {
///             let mut choice = Choice::Hold(None);
///             if let Some(request) = mirror.request(asked.request) {
///                 let case = Case::new(Fleet { mirror, placed }, request, at.now);
///                 let fits = |executor| Some((executor, case.fit(&executor).ok()?));
///                 if let Some((executor, seat)) = mirror.executors().find_map(fits) {
///                     placed.place(mirror, request, &executor, seat);
///                     choice = Choice::Place(vec![executor.id()]);
///                 }
///             }
///             verdicts.push(Verdict { choice, reason: 0 });
///         }
///         verdicts
///     }
/// }
/// # impl Policy for First {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = Cached { request: 1, overlaps: None, floor_tokens: 0, shared_tokens: 0 };
/// # let at = Moment { now: 0, round: 0 };
/// # let mut placed = BatchPlacements::default();
/// # let verdicts = First.route(&Mirror::default(), &mut placed, at, &[asked]);
/// # assert_eq!(verdicts[0].choice, Choice::Hold(None));
/// ```
pub trait Routing: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Gives one verdict per request, in the same order. Placements are counted in `placed`, which
    /// the SDK clears at every `observe`.
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<routing::Verdict>;
}

/// Decides which placed sequences give way.
///
/// ```
/// # use pointsman_sdk::wire::types::{Change, Extent, Sequence};
/// # use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Preemption, export, fixture};
/// use pointsman_sdk::Urgency;
/// use pointsman_sdk::wire::preemption::{Cause, Eviction, How, Shortage, Victim};
///
/// # struct Newest;
/// impl Preemption for Newest {
///     const NEEDS: Feed = Feed::WAITING.union(Feed::SEQUENCES);
///
///     /// Where a slot is missing, the newest of the less urgent sequences gives its own.
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
/// #     fn describe() -> Description {
/// #         Description {
/// #             name: String::new(),
/// #             version: String::new(),
/// #             summary: String::new(),
/// #             reasons: Vec::new(),
/// #             state_version: 1,
/// #         }
/// #     }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # export!(Newest: preemption);
/// # let mut policy = instance();
/// # policy.configure("{}", fixture::bounds()).unwrap();
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
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Names victims that cover the whole shortage when they leave. Without an answer the needy
    /// request keeps waiting.
    fn evict(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        shortage: &preemption::Shortage,
    ) -> Option<preemption::Eviction>;
}

/// Decides how many tokens each engine of a device may schedule in a step, and on what it spends
/// them.
///
/// ```
/// # use pointsman_sdk::{Budget, Description, Feed, Mirror, Moment, Policy};
/// use pointsman_sdk::wire::budget::{Allotment, Allotments, DeviceTokens};
///
/// # struct Equal;
/// impl Budget for Equal {
///     const NEEDS: Feed = Feed::empty();
///
///     fn allot(&mut self, _: &Mirror, _: Moment, tokens: &DeviceTokens) -> Allotments {
///         let engines = u32::try_from(tokens.used.len()).unwrap_or(u32::MAX).max(1);
///         let tokens_max = tokens.tokens_total / engines;
///         let allotment = |executor| Allotment { executor, tokens_max };
///         let engines = tokens.used.iter().map(|used| allotment(used.executor)).collect();
///         Allotments { engines, again: None }
///     }
/// }
/// # impl Policy for Equal {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let tokens = DeviceTokens { device: 0, tokens_total: 100, used: Vec::new() };
/// # let said = Equal.allot(&Mirror::default(), Moment { now: 0, round: 0 }, &tokens);
/// # assert!(said.engines.is_empty());
/// ```
pub trait Budget: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Shares the tokens of a step among the engines of a device.
    fn allot(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        tokens: &budget::DeviceTokens,
    ) -> budget::Allotments;

    /// Says how an engine spends its steps on these sequences, which it runs. By default the most
    /// urgent ones come first, and prompts take what they can.
    fn arrange(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        executor: u32,
        sequences: &[u64],
    ) -> budget::Arrangement {
        let _ = (mirror, at, executor, sequences);
        budget::Arrangement {
            prefill_max: None,
            first: Vec::new(),
        }
    }
}

/// Explains where a request would go.
///
/// ```
/// # use pointsman_sdk::{Case, Description, Explanation, Feed, Policy};
/// use pointsman_sdk::wire::explanation::Candidate;
///
/// # struct Open;
/// impl Explanation for Open {
///     const NEEDS: Feed = Feed::FIT;
///
///     fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
///         let candidate = |executor: pointsman_sdk::Executor<'_>| Candidate {
///             executor: executor.id(),
///             eligible: case.fit(&executor).is_ok(),
///             cost: i64::from(executor.load.slots_used),
///             note: "slots in use".into(),
///         };
///         case.fleet.mirror.executors().map(candidate).collect()
///     }
/// }
/// # impl Policy for Open {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// ```
pub trait Explanation: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Lists every executor, for a request that comes alone. The request need not be in the
    /// mirror.
    fn explain(&mut self, case: &Case<'_>) -> Vec<explanation::Candidate>;
}
