//! A small world: two engines that share a memory, three requests, and everything that can happen next.
//!
//! Engines speak one message at a time, so every order of messages is an order of events. A round is an event
//! as well: several things may have happened before the machine decides.

use pointsman_core::rows::{Health, NameKind, RequestClass};
use pointsman_core::{
    Config, DeviceSpec, Effect, ExecutorId, ExecutorSpec, ExecutorUpdate, Fact, Incarnation, Input,
    Kept, KvSpec, Machine, Micros, NewRequest, Outcome, Policies, RequestId, RetryClass,
    SequenceRef, StartOrder, StepReport, TenantId, fixture,
};

use crate::digest::{self, BEGINNING, Digest};
use crate::event::{Event, name};
use crate::sequence::{At, Sequence};

/// The number of requests that may arrive at most, one of each kind, in any order.
pub(crate) const REQUESTS: u8 = 3;
/// The number of executors.
pub(crate) const EXECUTORS: u8 = 2;
/// Tokens in a block of the executors' memory.
pub(crate) const TOKENS_PER_BLOCK: u32 = 2;
const SECOND: u64 = 1_000_000;

/// A request as its client and its engine see it.
#[derive(Clone, Default)]
pub(crate) struct Client {
    pub(crate) id: Option<RequestId>,
    pub(crate) outcome: Option<Outcome>,
    /// The time since which the request is without a place.
    pub(crate) waiting_since: Option<Micros>,
    pub(crate) generated: u32,
    pub(crate) sequence: Option<Sequence>,
}

/// A machine, its engines and its clients.
#[derive(Clone)]
pub(crate) struct World {
    /// The machine.
    pub(crate) machine: Machine,
    pub(crate) now: Micros,
    /// The clients, by the kind of their request.
    pub(crate) clients: [Client; REQUESTS as usize],
    lives: [Incarnation; EXECUTORS as usize],
    is_up: [bool; EXECUTORS as usize],
    /// The kinds of requests that may arrive.
    kinds: u8,
    /// Failures and deaths that have happened, and that may happen.
    faults: (u8, u8),
    /// The first order of the machine that no engine could obey.
    pub(crate) wrong: Option<String>,
}

/// The bounds of a small world: as small as lets each of them run out.
fn config() -> Config {
    Config {
        queue_max: 2,
        parking_max: 1,
        attempts_max: 2,
        degraded_after: 1,
        down_after: 1,
        down_for: Micros(5 * SECOND),
        wait_max: Micros(10 * SECOND),
        unplaced_max: Micros(3 * SECOND),
        held_max: Micros(4 * SECOND),
        overtaken_max: 1,
        tokenless_steps_max: 2,
        evict_retry: Micros(SECOND),
        change_log_max: 64,
        completions_max: 1,
        ..Config::default()
    }
}

/// The requests: one that gives way and outgrows its room, one that is urgent, and one that gives way,
/// that is not to wait outside, and whose answer is worthless after a while.
fn request(kind: u8, now: Micros) -> NewRequest {
    let (prompt_tokens, output_tokens_max) = [(3, 3), (1, 3), (2, 2)][usize::from(kind)];
    NewRequest {
        class: if kind == 1 {
            RequestClass::LatencyCritical
        } else {
            RequestClass::Throughput
        },
        may_wait: kind != 2,
        deadline: (kind == 2).then(|| now.after(Micros(7 * SECOND))),
        ..NewRequest::new(TenantId(0), prompt_tokens, output_tokens_max)
    }
}

// === impl World: making ===

impl World {
    /// Two idle executors with a slot and a place in their queue each, on a device with four blocks of two
    /// tokens and host memory for two. So many kinds of requests may arrive, and so many failures and deaths
    /// may happen.
    pub(crate) fn new(kinds: u8, faults_max: u8) -> Self {
        let mut machine = Machine::new(config()).expect("the bounds are in their ranges");
        machine.handle(BEGINNING, Input::name(NameKind::Tenant, "tenant"));
        let device = DeviceSpec {
            kv: KvSpec::Owned {
                block_bytes: 1,
                blocks_total: 4,
                host_blocks: 2,
            },
            tokens_per_step: None,
            ..fixture::device_spec("device")
        };
        let device = machine.handle(BEGINNING, Input::DeviceAttached(device));
        let device = device.device().expect("it is the first one");
        for name in ["a", "b"] {
            let spec = ExecutorSpec {
                slots_total: 1,
                models_max: None,
                queue_limit: 1,
                tokens_per_block: Some(TOKENS_PER_BLOCK),
                preempts: true,
                ..fixture::executor_spec(name, device)
            };
            let attached = machine.handle(BEGINNING, Input::ExecutorAttached(spec));
            attached.executor().expect("it has a name of its own");
        }
        let mut world = Self {
            machine,
            now: BEGINNING,
            clients: Default::default(),
            lives: Default::default(),
            is_up: [true; EXECUTORS as usize],
            kinds,
            faults: (0, faults_max),
            wrong: None,
        };
        world.happen(Event::Round, &mut pointsman_core::NoPolicies);
        world
    }
}

// === impl World: reading ===

impl World {
    /// Everything that can happen now.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(16);
        let timeout = self.machine.next_timeout();
        if self.is_due() {
            events.push(Event::Round);
        } else if timeout.is_some() {
            events.push(Event::Time);
        }
        for (kind, client) in (0..).zip(&self.clients) {
            if client.id.is_none() {
                if kind >= self.kinds {
                    continue;
                }
                events.push(Event::Arrives(kind));
            } else if client.outcome.is_none() {
                events.push(Event::HangsUp(kind));
            }
            if let Some(sequence) = &client.sequence {
                events.extend(sequence.messages(kind));
                if self.may_fault() && sequence.progress != At::Leaving {
                    events.push(Event::Fails(kind));
                }
            }
        }
        for executor in 0..EXECUTORS {
            if !self.is_up[usize::from(executor)] {
                events.push(Event::Returns(executor));
            } else if self.may_fault() {
                events.push(Event::Dies(executor));
            }
        }
        events
    }

    /// Requests that arrived and have no outcome, by kind.
    pub(crate) fn unended(&self) -> impl Iterator<Item = u8> + '_ {
        let clients = (0..).zip(&self.clients);
        let unended = clients.filter(|(_, c)| c.id.is_some() && c.outcome.is_none());
        unended.map(|(kind, _)| kind)
    }

    /// A request that its engine was told to stop, and that goes on later.
    pub(crate) fn evicted(&self) -> Option<u8> {
        let mut clients = (0..).zip(&self.clients);
        let evicted = |client: &Client| {
            let leaves = |sequence: &Sequence| sequence.progress == At::Leaving;
            client.outcome.is_none() && client.sequence.as_ref().is_some_and(leaves)
        };
        clients.find_map(|(kind, client)| evicted(client).then_some(kind))
    }

    /// The kind of a request.
    pub(crate) fn kind(&self, id: RequestId) -> Option<u8> {
        let mut clients = (0..).zip(&self.clients);
        clients.find_map(|(kind, client)| (client.id == Some(id)).then_some(kind))
    }

    /// Faults that have happened.
    pub(crate) fn faults(&self) -> usize {
        self.faults.0.into()
    }

    fn may_fault(&self) -> bool {
        self.faults.0 < self.faults.1
    }

    /// Tells whether the machine has something to decide.
    pub(crate) fn is_due(&self) -> bool {
        let timeout = self.machine.next_timeout();
        self.machine.is_due() || timeout.is_some_and(|at| at <= self.now)
    }

    /// The digest of the whole state.
    pub(crate) fn digest(&self) -> u64 {
        let mut digest = digest::of(&self.machine, self.now);
        digest.add(u64::from(self.faults.0));
        for is_up in self.is_up {
            digest.add(u64::from(is_up));
        }
        for client in &self.clients {
            client.add_to(&mut digest);
        }
        digest.sum()
    }
}

impl Client {
    fn add_to(&self, digest: &mut Digest) {
        digest.add(self.id.map_or(0, |id| id.0 + 1));
        digest.add(u64::from(self.outcome.is_some()));
        digest.add(u64::from(self.generated));
        match &self.sequence {
            Some(sequence) => sequence.add_to(digest),
            None => digest.add(0),
        }
    }
}

// === impl World: changing ===

impl World {
    /// Lets something happen that can happen.
    pub(crate) fn happen(&mut self, event: Event, policies: &mut dyn Policies) {
        match event {
            Event::Arrives(kind) => self.arrive(kind),
            Event::HangsUp(kind) => {
                let id = self.clients[usize::from(kind)].id;
                let id = id.expect("only who has arrived hangs up");
                self.input(Input::RequestCancelled(id));
            }
            Event::Starts(kind) => {
                let sequence = self.sequence_mut(kind);
                if sequence.progress == At::Ordered {
                    sequence.progress = At::Running;
                }
                let of = sequence.of;
                self.input(Input::SequenceStarted(of));
            }
            Event::Token(kind) => self.make_token(kind),
            Event::Finishes(kind) => {
                let of = self.take(kind).of;
                self.input(Input::SequenceFinished(of));
            }
            Event::Leaves(kind) => {
                let sequence = self.take(kind);
                let swapped = sequence.swapped_tokens();
                self.input(Input::SequenceLeft(sequence.of, swapped));
            }
            Event::Fails(kind) => {
                self.faults.0 += 1;
                let sequence = self.take(kind).of;
                self.input(Input::SequenceFailed {
                    sequence,
                    retry: RetryClass::Elsewhere,
                    kept: self.clients[usize::from(kind)].generated,
                });
            }
            Event::Dies(executor) => self.die(executor),
            Event::Returns(executor) => {
                self.is_up[usize::from(executor)] = true;
                let up = ExecutorUpdate::Health(Health::Up);
                let id = ExecutorId(executor.into());
                self.input(Input::ExecutorUpdated(id, up));
            }
            Event::Round => self.machine.decide(self.now, policies),
            Event::Time => {
                let timeout = self.machine.next_timeout();
                self.now = self.now.max(timeout.unwrap_or(self.now));
                self.machine.decide(self.now, policies);
            }
        }
        self.carry_out();
    }

    fn input(&mut self, input: Input) {
        self.machine.handle(self.now, input);
    }

    fn arrive(&mut self, kind: u8) {
        let arrival = Input::arrival(request(kind, self.now));
        let id = self.machine.handle(self.now, arrival).request();
        let client = &mut self.clients[usize::from(kind)];
        client.id = Some(id);
        client.waiting_since = Some(self.now);
    }

    fn make_token(&mut self, kind: u8) {
        let sequence = self.sequence_mut(kind);
        let (of, made) = (sequence.of, sequence.advance());
        self.clients[usize::from(kind)].generated += 1;
        self.input(Input::StepFinished(StepReport {
            executor: of.executor,
            incarnation: of.incarnation,
            progress: vec![made],
        }));
    }

    fn die(&mut self, executor: u8) {
        self.faults.0 += 1;
        self.is_up[usize::from(executor)] = false;
        let id = ExecutorId(executor.into());
        let mut kept = Vec::new();
        for client in &mut self.clients {
            let here = |sequence: &mut Sequence| sequence.of.executor == id;
            if let Some(sequence) = client.sequence.take_if(here) {
                kept.push(Kept {
                    request: sequence.of.request,
                    generated: client.generated,
                });
            }
        }
        let life = &mut self.lives[usize::from(executor)];
        let incarnation = *life;
        life.0 += 1;
        self.input(Input::ExecutorLost {
            executor: id,
            incarnation,
            kept,
        });
    }

    fn sequence_mut(&mut self, kind: u8) -> &mut Sequence {
        let sequence = self.clients[usize::from(kind)].sequence.as_mut();
        sequence.expect("an engine speaks of what it runs")
    }

    fn take(&mut self, kind: u8) -> Sequence {
        let sequence = self.clients[usize::from(kind)].sequence.take();
        sequence.expect("an engine speaks of what it runs")
    }

    /// Obeys the machine's orders.
    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            if let Err(wrong) = self.obey(&effect) {
                self.wrong.get_or_insert(wrong);
            }
        }
        while let Some(stamped) = self.machine.poll_fact() {
            if let Fact::Placed { request, .. } = &stamped.fact {
                self.wait(*request, None);
            }
            if let Fact::Requeued(request, _) = &stamped.fact {
                self.wait(*request, Some(self.now));
            }
        }
    }

    fn wait(&mut self, id: RequestId, since: Option<Micros>) {
        if let Some(kind) = self.kind(id) {
            self.clients[usize::from(kind)].waiting_since = since;
        }
    }

    fn obey(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::Start(order) => self.start(order),
            Effect::Grant { sequence, blocks } => {
                let granted = self.running(*sequence)?;
                granted.blocks.extend_from_slice(blocks);
                Ok(())
            }
            Effect::Evict {
                sequence,
                host_blocks,
            } => {
                let has_host_blocks = !host_blocks.is_empty();
                let evicted = self.running(*sequence)?;
                evicted.progress = At::Leaving;
                evicted.has_host_blocks = has_host_blocks;
                Ok(())
            }
            Effect::Cancel(sequence) => {
                self.running(*sequence)?.progress = At::Leaving;
                Ok(())
            }
            Effect::Finish { request, outcome } => {
                let kind = self.kind(*request);
                let kind = kind.ok_or_else(|| format!("nobody asked for request {request}"))?;
                let client = &mut self.clients[usize::from(kind)];
                match client.outcome.replace(*outcome) {
                    None => Ok(()),
                    Some(earlier) => Err(format!("{} ended twice: {earlier:?}", name(kind))),
                }
            }
            Effect::SetBudget { .. } | Effect::Arrange { .. } | Effect::Detached { .. } => Ok(()),
        }
    }

    fn running(&mut self, of: SequenceRef) -> Result<&mut Sequence, String> {
        let mut sequences = self.clients.iter_mut().filter_map(|c| c.sequence.as_mut());
        let sequence = sequences.find(|sequence| sequence.of == of);
        sequence.ok_or_else(|| format!("no engine runs request {}", of.request))
    }

    fn start(&mut self, order: &StartOrder) -> Result<(), String> {
        let of = order.sequence;
        let executor = of.executor;
        let kind = self.kind(of.request);
        let kind = kind.ok_or_else(|| format!("nobody asked for request {}", of.request))?;
        let mut sequences = self.clients.iter().filter_map(|c| c.sequence.as_ref());
        if let Some(other) = sequences.find(|other| other.of.executor == executor) {
            let (id, other) = (of.request, other.of.request);
            return Err(format!(
                "executor {executor} has one slot, for requests {other} and {id}"
            ));
        }
        if !self.is_up[executor.0 as usize] || self.lives[executor.0 as usize] != of.incarnation {
            return Err(format!("executor {executor} is not there"));
        }
        let client = &mut self.clients[usize::from(kind)];
        if client.outcome.is_some() || client.sequence.is_some() {
            return Err(format!("{} runs or has ended, and is started", name(kind)));
        }
        client.sequence = Some(Sequence::new(order));
        Ok(())
    }
}
