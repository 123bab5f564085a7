//! The whole-state checker: every invariant of the machine, from scratch.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_events::rows::{Health, Stage};
use pointsman_events::{DeviceId, ExecutorId, ModelId, RequestId, TenantId};

use super::ledger::{Attachment, Device, Executor, Ledger, SlotUse};
use super::requests::{InSlot, Phase, Request};
use super::{CLASSES, Machine, count};

/// An invariant that does not hold: a bug in the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BrokenInvariant(String);

type Check = Result<(), BrokenInvariant>;

/// Facts of both sides by the key of the other one, gathered in one walk over each: to look through all
/// requests for each executor, or the other way round, was most of what a simulation of a large fleet took.
struct Gathered {
    /// The sums over the requests that have a place or kept room on each executor.
    requests_of: BTreeMap<ExecutorId, RequestsOf>,
    /// The requests that are short of blocks, by device.
    short_on: BTreeMap<DeviceId, BTreeSet<RequestId>>,
    /// The requests in the slots and queues of executors, in order.
    in_books: Vec<(RequestId, ExecutorId)>,
}

/// Sums over the requests of one executor.
#[derive(Clone, Debug, Default)]
struct RequestsOf {
    prefill_tokens_pending: u64,
    tokens_placed: u64,
    /// The requests of each model that are placed there or have room kept.
    sequences: BTreeMap<ModelId, u32>,
    /// The models of the requests that are placed there.
    models: BTreeSet<ModelId>,
}

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(BrokenInvariant(format!($($message)+)));
        }
    };
}

impl Machine {
    /// Checks the whole state against itself:
    ///
    /// 1. a request is either waiting, in exactly one of the lists, or placed, in exactly one
    ///    slot or device queue, never both;
    /// 2. slots in use are ledger entries with one owner, at most `slots-total` of them where it
    ///    was not lowered since;
    /// 3. blocks free + cached + held are the pool's total, and each lease, and what counts since a
    ///    report, has a live owner on that device;
    /// 4. distinct models placed on an executor are at most `models-max`, running requests of a
    ///    model at most `running-max` where it was not lowered since;
    /// 5. counters of models, tenants and executors equal what they count;
    /// 6. budgets of a device sum to at most its tokens per step;
    /// 7. the queue and the parking list keep their bounds (returned requests aside);
    /// 8. timers belong to live requests;
    /// 9. each block of host memory is free or one request's, which waits with its KV there, or has not
    ///    been taken up again, or leaves the executor that fills it;
    /// 10. each executor is in the list of its device, nothing waits in its queue in vain, and none that is down
    ///     is in use.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), BrokenInvariant> {
        let gathered = Gathered::of(self);
        for request in self.requests.iter() {
            self.check_request(request, &gathered)?;
        }
        for executor in self.ledger.executors() {
            self.check_executor(executor, &gathered)?;
        }
        for device in self.ledger.devices() {
            self.check_device(device, &gathered)?;
        }
        self.check_counters()?;
        self.check_swapped()?;
        self.check_lists()
    }

    /// Checks, right after a round, that no waiting request is past the bounds of the liveness
    /// clocks: neither feasible and unplaced for longer than `unplaced-max` while it was not held on
    /// purpose, nor held on purpose for longer than `held-max`.
    ///
    /// # Errors
    /// The first request that is.
    pub fn check_liveness(&self) -> Result<(), BrokenInvariant> {
        let grace = self.config.evict_retry;
        for id in self.requests.watched() {
            let waiting = self.requests.find(*id).and_then(Request::waiting);
            let Some(waiting) = waiting else {
                continue;
            };
            let now = self.out.now();
            let unplaced_at = waiting.unplaced_at(self.config.unplaced_max);
            ensure!(
                unplaced_at.is_none_or(|at| now <= at.after(grace)),
                "request {id} could have been placed for {}us longer than `unplaced-max`",
                unplaced_at.map_or(0, |at| now.since(at).0)
            );
            let held = waiting.held_by(now);
            ensure!(
                held <= self.config.held_max,
                "request {id} was held on purpose for {held}us"
            );
        }
        Ok(())
    }

    fn check_request(&self, request: &Request, gathered: &Gathered) -> Check {
        let id = request.id();
        let lists = [
            self.requests.arrivals().contains(&id),
            self.requests.parking().contains(&id),
            self.requests.queue().contains(&id),
        ];
        let listed = lists.iter().filter(|listed| **listed).count();
        let expected = usize::from(request.waiting().is_some());
        ensure!(listed == expected, "request {id} is in {listed} lists");
        if request.waiting().is_some() {
            let stage = match request.row.stage {
                Stage::Arrived => lists[0],
                Stage::Parked => lists[1],
                Stage::Queued => lists[2],
                Stage::Placed => false,
            };
            ensure!(stage, "request {id} is not where its stage says");
        }
        if request.is_queued_on_executor() {
            let stage = request.row.stage;
            ensure!(
                stage == Stage::Placed,
                "request {id} is in the queue of an executor and {stage:?}"
            );
        }
        if let Some(reservation) = request.reservation() {
            let executor = self.ledger.find(reservation.executor);
            let claims = executor.map(|executor| &self.ledger[executor.spec.device].claims);
            let claimed = claims.is_some_and(|claims| claims.contains(&id));
            ensure!(claimed, "reservation of request {id} has no claim");
        }
        let placed_on: Vec<ExecutorId> = gathered.executors_with(id).collect();
        let expected = request.placed().map(|placed| placed.executor);
        ensure!(
            placed_on == expected.as_slice(),
            "request {id} is placed on {expected:?} and in the books of {placed_on:?}"
        );
        let executor = request.placed().map(|placed| &self.ledger[placed.executor]);
        let preempts = executor.is_some_and(|executor| executor.spec.preempts);
        let expected = preempts && matches!(request.phase, Phase::Placed(_));
        let preemptible = &self.ledger.sets().preemptible;
        let listed = preemptible.contains(&(request.urgency(), id));
        ensure!(listed == expected, "request {id} is preemptible: {listed}");
        Ok(())
    }

    fn check_executor(&self, executor: &Executor, gathered: &Gathered) -> Check {
        let id = executor.id;
        for (owner, slot) in &executor.slots {
            let request = self.requests.find(*owner);
            let reservation = request.and_then(Request::reservation);
            let fits = match (slot, request.map(|request| &request.phase)) {
                (SlotUse::Running, Some(Phase::Placed(placed))) => {
                    placed.in_slot == InSlot::Running
                }
                (SlotUse::Leaving, Some(Phase::Leaving(..))) => true,
                (SlotUse::Reserved, _) => reservation.is_some_and(|r| r.executor == id),
                _ => false,
            };
            ensure!(fits, "slot of request {owner} on executor {id} is {slot:?}");
        }
        for (class, kept) in CLASSES.into_iter().zip(executor.kept.queued) {
            let queued = executor.queue.len(class);
            ensure!(
                queued <= executor.spec.queue_limit.max(kept),
                "{queued} {class:?} requests queued on executor {id}"
            );
        }
        ensure!(
            self.ledger.sets().open.contains(&id) == executor.is_open(),
            "executor {id} is open: {}",
            executor.is_open()
        );
        let listed = self.ledger[executor.spec.device].executors.contains(&id);
        ensure!(listed, "executor {id} is not in the list of its device");
        let is_over = executor.attachment == Attachment::Detaching && executor.is_idle();
        ensure!(!is_over, "executor {id} is idle and not removed");
        let is_down_in_use = executor.health == Health::Down && !executor.is_idle();
        ensure!(!is_down_in_use, "executor {id} is down and in use");
        let queued = executor.queue.iter();
        let mut queued = queued.filter_map(|it| self.requests.find(it));
        let is_stranded = queued.any(|request| executor.strands(request.row.model));
        ensure!(!is_stranded, "requests wait in vain on executor {id}");
        let none = RequestsOf::default();
        let requests = gathered.requests_of.get(&id).unwrap_or(&none);
        check_load(executor, requests)?;
        check_presence(executor, requests)
    }

    fn check_device(&self, device: &Device, gathered: &Gathered) -> Check {
        let id = device.id;
        if let Some(pool) = device.pool() {
            pool.check()
                .map_err(|broken| BrokenInvariant(format!("device {id}: {broken}")))?;
            for (owner, executor) in pool.leases() {
                let request = self.requests.find(owner);
                let here = request.and_then(Request::executor) == Some(executor)
                    && device.executors.contains(&executor);
                ensure!(here, "request {owner} holds blocks of device {id}");
            }
        }
        for placed in device.placed_since() {
            let executor = self.requests.find(placed).and_then(Request::executor);
            let here = executor.is_some_and(|executor| device.executors.contains(&executor));
            ensure!(here, "request {placed} has left, and counts on device {id}");
        }
        let none = BTreeSet::new();
        let short = gathered.short_on.get(&id).unwrap_or(&none);
        ensure!(*short == device.short, "device {id} is short for {short:?}");
        for claimant in &device.claims {
            let request = self.requests.find(*claimant);
            let is_reserved = request.is_some_and(|request| request.reservation().is_some());
            let has_claim = is_reserved || short.contains(claimant);
            ensure!(has_claim, "request {claimant} claims room of device {id}");
        }
        if let Some(total) = device.spec.tokens_per_step {
            let budgets = self.ledger.executors_on(id).filter_map(|e| e.tokens_max);
            let sum: u64 = budgets.map(u64::from).sum();
            ensure!(
                sum <= u64::from(total),
                "budgets of device {id} sum to {sum} of {total}"
            );
        }
        Ok(())
    }

    fn check_swapped(&self) -> Check {
        self.ledger.check_arenas().map_err(BrokenInvariant)?;
        for (id, executor, tokens) in self.ledger.swapped() {
            let request = self.requests.find(id);
            ensure!(request.is_some(), "request {id} has ended in host memory");
            let fits = request.is_some_and(|request| match &request.phase {
                Phase::Waiting(_) => tokens > 0 && tokens <= request.row.prompt_tokens,
                Phase::Placed(placed) => {
                    placed.executor == executor && tokens > 0 && placed.started_at.is_none()
                }
                Phase::Leaving(placed, _) => placed.executor == executor,
            });
            ensure!(
                fits && self.ledger.find(executor).is_some(),
                "request {id} has {tokens} tokens in host memory for executor {executor}"
            );
        }
        Ok(())
    }

    fn check_counters(&self) -> Check {
        let mut tenants: BTreeMap<TenantId, (u32, u32)> = BTreeMap::new();
        let mut models: BTreeMap<ModelId, (u32, u32)> = BTreeMap::new();
        for request in self.requests.iter() {
            let tenant = tenants.entry(request.row.tenant).or_default();
            let model = request
                .row
                .model
                .map(|model| models.entry(model).or_default());
            let (runs, waits) = match &request.phase {
                Phase::Waiting(_) => (0, 1),
                Phase::Placed(_) | Phase::Leaving(..) => (1, 0),
            };
            tenant.0 += runs;
            tenant.1 += waits;
            if let Some(model) = model {
                model.0 += runs + u32::from(request.reservation().is_some());
                model.1 += waits;
            }
        }
        for (id, tenant) in self.ledger.tenants() {
            let expected = tenants.get(&id).copied().unwrap_or_default();
            let counted = (tenant.running, tenant.waiting);
            ensure!(
                counted == expected,
                "tenant {id}: {counted:?}, {expected:?}"
            );
        }
        for (id, model) in self.ledger.models() {
            let expected = models.get(&id).copied().unwrap_or_default();
            let counted = (model.running, model.waiting);
            ensure!(counted == expected, "model {id}: {counted:?}, {expected:?}");
        }
        Ok(())
    }

    fn check_lists(&self) -> Check {
        let (queue, parking) = (self.requests.queue(), self.requests.parking());
        for id in queue.iter().chain(parking).chain(self.requests.arrivals()) {
            let live = self.requests.find(*id).is_some();
            ensure!(live, "request {id} is listed and has ended");
        }
        let parked = count(parking.len());
        ensure!(parked <= self.config.parking_max, "{parked} are parked");
        let returned = self.requests.queued();
        let returned = returned.filter(|request| request.row.attempts > 0).count();
        let queued = count(queue.len() - returned);
        ensure!(queued <= self.config.queue_max, "{queued} are queued");
        for id in self.out.timers.requests() {
            let live = self.requests.find(id).is_some();
            ensure!(live, "request {id} has a timer and has ended");
        }
        Ok(())
    }
}

fn check_load(executor: &Executor, requests: &RequestsOf) -> Check {
    let id = executor.id;
    let (pending, tokens) = (requests.prefill_tokens_pending, requests.tokens_placed);
    ensure!(
        pending == executor.prefill_tokens_pending,
        "executor {id} counts {} prefill tokens, there are {pending}",
        executor.prefill_tokens_pending
    );
    ensure!(
        tokens == executor.tokens_placed,
        "executor {id} counts {} tokens placed there, there are {tokens}",
        executor.tokens_placed
    );
    ensure!(
        executor.saturated == executor.is_saturated(),
        "executor {id} has a saturation that was not told"
    );
    Ok(())
}

fn check_presence(executor: &Executor, requests: &RequestsOf) -> Check {
    let id = executor.id;
    let counted = executor.models.iter().filter(|(_, p)| p.sequences > 0);
    let counted: BTreeMap<ModelId, u32> = counted.map(|(m, p)| (*m, p.sequences)).collect();
    ensure!(
        counted == requests.sequences,
        "executor {id} counts the models {counted:?}, there are {:?}",
        requests.sequences
    );
    ensure!(
        executor.models_active == count(counted.len()),
        "executor {id} counts {} active models",
        executor.models_active
    );
    if let Some(models_max) = executor.spec.models_max {
        let n = count(requests.models.len());
        let max = models_max.max(executor.kept.models);
        ensure!(n <= max, "{n} models are placed on executor {id}");
    }
    Ok(())
}

// === impl Gathered ===

impl Gathered {
    fn of(machine: &Machine) -> Self {
        let mut gathered = Self {
            requests_of: BTreeMap::new(),
            short_on: BTreeMap::new(),
            in_books: Vec::new(),
        };
        for request in machine.requests.iter() {
            gathered.note_request(request, &machine.ledger);
        }
        for executor in machine.ledger.executors() {
            gathered.note_executor(executor);
        }
        gathered.in_books.sort_unstable();
        gathered
    }

    fn note_request(&mut self, request: &Request, ledger: &Ledger) {
        let Some(executor) = request.executor() else {
            return;
        };
        let sums = self.requests_of.entry(executor).or_default();
        if let Some(model) = request.row.model {
            *sums.sequences.entry(model).or_default() += 1;
        }
        let Some(placed) = request.placed() else {
            return;
        };
        let prompt = request.row.prompt_tokens;
        sums.prefill_tokens_pending += u64::from(prompt.saturating_sub(placed.prefilled));
        sums.tokens_placed += u64::from(prompt) + u64::from(placed.generated);
        sums.models.extend(request.row.model);
        if placed.short.is_some()
            && let Some(executor) = ledger.find(executor)
        {
            let short = self.short_on.entry(executor.spec.device).or_default();
            short.insert(request.id());
        }
    }

    fn note_executor(&mut self, executor: &Executor) {
        let slots = executor.slots.iter();
        let in_slots = slots.filter(|(_, slot)| **slot != SlotUse::Reserved);
        let in_slots = in_slots.map(|(request, _)| *request);
        let requests = in_slots.chain(executor.queue.iter());
        self.in_books
            .extend(requests.map(|request| (request, executor.id)));
    }

    /// The executors whose slots or queue have a request: more than one is a mistake.
    fn executors_with(&self, request: RequestId) -> impl Iterator<Item = ExecutorId> {
        let first = self.in_books.partition_point(|(id, _)| *id < request);
        let from_first = self.in_books[first..].iter();
        let of_request = from_first.take_while(move |(id, _)| *id == request);
        of_request.map(|(_, executor)| *executor)
    }
}
