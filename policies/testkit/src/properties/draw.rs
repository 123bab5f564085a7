//! Random fleets with random events, drawn one after the other as steps of a scenario.
//!
//! Of four seeds that follow each other one makes *weather*: executors fail, drain, come and go,
//! limits change, clients leave. One makes a *rush*: for a while more requests arrive than a small
//! fleet can serve. All are equally urgent, so a request that is left behind is left behind by the
//! policy. One makes a fleet for *patience*: few models at a time, kept warm for long, groups,
//! sessions, and answers that take many seconds. It keeps moving, but what a policy waits for on
//! purpose comes later than the first liveness clock runs out. One makes a *crowd*: long work of
//! little urgency fills a small fleet, and urgent requests come, for which some of it has to give way.
//!
//! # Not here
//! The run ([`play`](super::play)).

use std::fmt::Write as _;

use fastrand::Rng;

use super::event::{Event, Table};
use crate::run::ScenarioRun;

/// Tokens of a block on every device.
const BLOCK: u32 = 8;
/// Number of tenants, of models and of conversations.
const KINDS: u32 = 3;
/// A second in microseconds.
const SECOND: u64 = 1_000_000;

/// A kind of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Weather,
    Rush,
    Patience,
    Crowd,
}

/// A drawer of one run.
#[derive(Debug)]
pub(super) struct Draw {
    rng: Rng,
    kind: Kind,
    devices: u32,
    /// True if the host manages the blocks of a device: then prompts have texts.
    has_blocks: bool,
    attached: u32,
    arrived: u32,
    /// Executors still to be attached at the start.
    to_attach: u32,
}

/// The keys of an arrival besides its name.
#[derive(Default)]
struct Keys(String);

// === impl Kind ===

impl Kind {
    fn of(seed: u64) -> Self {
        match seed % 4 {
            0 => Self::Patience,
            1 => Self::Weather,
            2 => Self::Rush,
            _ => Self::Crowd,
        }
    }
}

// === impl Keys ===

impl Keys {
    fn add(&mut self, key: &str, value: impl std::fmt::Display) {
        write!(self.0, ", {key} = {value}").expect("a text takes any other");
    }

    fn add_text(&mut self, key: &str, value: impl std::fmt::Display) {
        self.add(key, format!("\"{value}\""));
    }
}

// === impl Draw ===

impl Draw {
    /// Begins a run: returns its drawer, and the tables of the scenario before its steps, without the
    /// policy.
    pub(super) fn new(seed: u64) -> (Self, Vec<Table>) {
        let mut rng = Rng::with_seed(seed);
        let mut tables = vec![Table::machine(&[
            format!("queue-max = {}", rng.u32(4..200)),
            format!("parking-max = {}", rng.u32(0..40)),
            format!("batch-max = {}", rng.u32(1..16)),
            "change-log-max = 64".to_owned(),
        ])];
        for n in 0..KINDS {
            tables.push(Table::named("model", &format!("m{n}"), &[]));
            let mut keys = vec![format!("weight = {}", rng.u32(1..5))];
            if rng.bool() {
                keys.push(format!("tokens-per-minute = {}", rng.u64(1..10_000)));
            }
            tables.push(Table::named("tenant", &format!("t{n}"), &keys));
        }
        let devices = rng.u32(1..4);
        let mut has_blocks = false;
        for n in 0..devices {
            let mut keys = Vec::new();
            if rng.u32(0..4) > 0 {
                has_blocks = true;
                keys.push(format!("kv-blocks = {}", rng.u32(8..80)));
                if rng.u32(0..3) == 0 {
                    keys.push(format!("host-blocks = {}", rng.u32(1..40)));
                }
            }
            if rng.bool() {
                keys.push(format!("tokens-per-step = {}", rng.u32(40..200)));
            }
            tables.push(Table::named("device", &format!("d{n}"), &keys));
        }
        let kind = Kind::of(seed);
        let to_attach = match kind {
            Kind::Weather | Kind::Rush | Kind::Crowd => rng.u32(1..5),
            Kind::Patience => rng.u32(2..5),
        };
        let draw = Self {
            rng,
            kind,
            devices,
            has_blocks,
            attached: 0,
            arrived: 0,
            to_attach,
        };
        (draw, tables)
    }

    /// The next of the events with which the run begins; absent: all executors are there.
    pub(super) fn begin(&mut self) -> Option<Event> {
        self.to_attach = self.to_attach.checked_sub(1)?;
        Some(match self.kind {
            Kind::Weather | Kind::Rush | Kind::Crowd => self.attach(),
            Kind::Patience => self.attach_patient(),
        })
    }

    /// The next event. In a rush up to `rush` requests arrive at once.
    pub(super) fn next(&mut self, run: &ScenarioRun, rush: u32) -> Event {
        match self.kind {
            Kind::Weather => self.weather(run),
            Kind::Rush => self.rush(run, rush),
            Kind::Patience => self.patience(),
            Kind::Crowd => self.crowd(run),
        }
    }

    /// The events that bring every executor up again and let every request end.
    pub(super) fn end(run: &ScenarioRun) -> Vec<Event> {
        let executors = run.attached().into_iter();
        let recover =
            executors.map(|name| Event::new(format!("recover = \"{name}\"")).using([name]));
        let models = (0..KINDS).map(|n| Event::new(format!("set-model = {{ name = \"m{n}\" }}")));
        let out = Event::new("run-out = \"10min\"".to_owned());
        recover.chain(models).chain([out]).collect()
    }

    // === Executors ===

    /// An executor on one of the devices. That the host may refuse it (a device too small for one
    /// more engine) is part of the run.
    fn attach(&mut self) -> Event {
        self.attached += 1;
        let rng = &mut self.rng;
        let mut keys = Keys::default();
        keys.add_text("device", format!("d{}", rng.u32(0..self.devices)));
        keys.add("slots", rng.u32(1..5));
        keys.add("group", rng.u32(0..2));
        keys.add("share-weight", rng.u32(0..4));
        if rng.u32(0..4) == 0 {
            keys.add("serves", "[\"m0\", \"m1\"]");
        }
        if rng.u32(0..4) == 0 {
            keys.add("models-max", rng.u32(1..3));
        }
        keys.add("queue-limit", if rng.bool() { 0 } else { rng.u32(0..3) });
        keys.add("tokens-per-block", BLOCK);
        keys.add("preempts", rng.u32(0..4) > 0);
        keys.add_text("model-unload-delay", format!("{}s", rng.u64(0..3)));
        self.attached_with(&keys)
    }

    /// A slow executor of a group that runs one model at a time, and keeps it warm.
    fn attach_patient(&mut self) -> Event {
        self.attached += 1;
        let mut keys = Keys::default();
        keys.add("slots", self.rng.u32(1..4));
        keys.add("group", self.attached % 2);
        keys.add("models-max", 1);
        keys.add_text("model-unload-delay", format!("{}s", self.rng.u64(0..40)));
        keys.add("engine", "{ step = \"500ms\" }");
        self.attached_with(&keys)
    }

    fn attached_with(&self, Keys(keys): &Keys) -> Event {
        let name = format!("e{}", self.attached);
        let text = format!("attach = {{ name = \"{name}\"{keys} }}");
        Event::new(text).defining(name)
    }

    // === Requests ===

    /// A request that fits on every executor: one that fits nowhere says nothing about a policy.
    /// Returns the executor that it prefers with it.
    fn request(&mut self, run: &ScenarioRun) -> (Keys, Option<String>) {
        let preferred = self.some_executor(run);
        let rng = &mut self.rng;
        let mut keys = Keys::default();
        let tokens = rng.u32(1..40);
        if self.has_blocks {
            keys.add_text("prompt", format!("c{}:{tokens}", rng.u32(0..KINDS)));
        } else {
            keys.add("prompt", tokens);
        }
        keys.add_text("tenant", format!("t{}", rng.u32(0..KINDS)));
        if rng.u32(0..5) > 0 {
            keys.add_text("model", format!("m{}", rng.u32(0..KINDS)));
        }
        if rng.u32(0..8) == 0 && self.kind == Kind::Weather {
            keys.add_text("deadline", format!("{}us", rng.u64(0..10 * SECOND)));
        }
        if rng.bool() {
            keys.add("output-expected", rng.u32(1..40));
        }
        if rng.u32(0..8) == 0 {
            keys.add("group", rng.u32(0..2));
        }
        let preferred = preferred.filter(|_| rng.u32(0..3) == 0);
        if let Some(executor) = &preferred {
            keys.add_text("preferred", executor);
        }
        (keys, preferred)
    }

    /// The arrival of a request with these keys, of which it generates `output` tokens.
    fn arrival(&mut self, (mut keys, preferred): (Keys, Option<String>), output: u32) -> Event {
        self.arrived += 1;
        keys.add("output", output);
        let name = format!("r{}", self.arrived);
        let text = format!("arrive = {{ name = \"{name}\"{} }}", keys.0);
        Event::new(text).defining(name).using(preferred)
    }

    /// Time passes, less than `at_most` microseconds.
    fn advance(&mut self, at_most: u64) -> String {
        format!("advance = \"{}us\"", self.rng.u64(0..at_most))
    }

    fn some_executor(&mut self, run: &ScenarioRun) -> Option<String> {
        self.rng.choice(run.attached())
    }

    // === Kinds of events ===

    fn rush(&mut self, run: &ScenarioRun, at_once: u32) -> Event {
        let mut event = Event::default();
        for _ in 0..self.rng.u32(0..at_once.max(1)) {
            let mut new = self.request(run);
            new.0.add("output-max", self.rng.u32(1..24));
            let output = self.rng.u32(1..24);
            event.append(self.arrival(new, output));
        }
        event.append(Event::new(self.advance(SECOND / 4)));
        event
    }

    /// A request that some rule of a policy may make wait, of an answer of up to 20 s.
    fn patience(&mut self) -> Event {
        let rng = &mut self.rng;
        let mut keys = Keys::default();
        keys.add_text("model", format!("m{}", rng.u32(0..KINDS)));
        keys.add_text("tenant", format!("t{}", rng.u32(0..KINDS)));
        if rng.u32(0..3) == 0 {
            keys.add("group", rng.u32(0..2));
        }
        if rng.bool() {
            keys.add_text("session", format!("s{}", rng.u64(0..6)));
        }
        keys.add("prompt", rng.u32(1..40));
        let output = rng.u32(2..40);
        let mut event = self.arrival((keys, None), output);
        event.append(Event::new(self.advance(8 * SECOND)));
        event
    }

    fn crowd(&mut self, run: &ScenarioRun) -> Event {
        let is_urgent = self.rng.u32(0..4) == 0;
        let mut new = self.request(run);
        let rng = &mut self.rng;
        let output = if is_urgent {
            new.0.add("priority", rng.i32(0..3));
            rng.u32(1..8)
        } else {
            new.0.add_text("class", "throughput");
            new.0.add("priority", rng.i32(-2..1));
            rng.u32(20..60)
        };
        let mut event = self.arrival(new, output);
        event.append(Event::new(self.advance(SECOND / 4)));
        event
    }

    fn weather(&mut self, run: &ScenarioRun) -> Event {
        let settled = |mut event: Event| {
            event.append(Event::new("settle = true".to_owned()));
            event
        };
        match self.rng.u32(0..100) {
            0..45 => {
                let mut new = self.request(run);
                let rng = &mut self.rng;
                if rng.bool() {
                    new.0.add_text("class", "throughput");
                }
                new.0.add("priority", rng.i32(-1..3));
                new.0.add("may-wait", rng.u32(0..5) > 0);
                new.0.add("output-max", rng.u32(1..24));
                let output = rng.u32(1..24);
                settled(self.arrival(new, output))
            }
            45..50 => match self.rng.choice(run.unended()) {
                Some(name) => settled(Event::new(format!("cancel = \"{name}\"")).using([name])),
                None => Event::new(self.advance(SECOND)),
            },
            50..54 => settled(self.fleet_weather(run)),
            54..58 => {
                let name = format!("m{}", self.rng.u32(0..KINDS));
                let limit = if self.rng.bool() {
                    format!(", running-max = {}", self.rng.u32(1..3))
                } else {
                    String::new()
                };
                settled(Event::new(format!(
                    "set-model = {{ name = \"{name}\"{limit} }}"
                )))
            }
            58..60 => match self.rng.choice(run.unended()) {
                Some(name) => {
                    let text = format!("fail = {{ request = \"{name}\" }}");
                    settled(Event::new(text).using([name]))
                }
                None => Event::new(self.advance(SECOND)),
            },
            _ => Event::new(self.advance(SECOND)),
        }
    }

    fn fleet_weather(&mut self, run: &ScenarioRun) -> Event {
        let Some(executor) = self.some_executor(run) else {
            return self.attach();
        };
        let rng = &mut self.rng;
        let update = |keys: String| format!("update = {{ executor = \"{executor}\", {keys} }}");
        let text = match rng.u32(0..8) {
            0 => format!("lose = \"{executor}\""),
            1 => format!("drain = \"{executor}\""),
            2 => format!("degrade = \"{executor}\""),
            3 => format!("recover = \"{executor}\""),
            4 => update(format!("slots = {}", rng.u32(1..5))),
            5 => update(format!("share-weight = {}", rng.u32(0..5))),
            6 => format!("detach = \"{executor}\""),
            _ => return self.attach(),
        };
        Event::new(text).using([executor])
    }
}
