//! Components in the policy host of a server, which come and go as its reconciler lets them.
//!
//! # Invariants
//! 1. A component that is vouched for never faults, and none of its answers is refused for something that it could
//!    have known.
//! 2. A policy in quarantine answers nothing, and none faults more often than it takes to get there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{LazyLock, Mutex};

use pointsman_component::Limits;
use pointsman_core::{
    Answer, Asked, Author, Bounds, Hook, HookSet, Machine, Micros, Policies, Refusal, RefusalCause,
    Reply, RequestId, Strike, View,
};
use pointsman_policy::{
    Assignment, BindError, Briefing, Commit, CommitError, Install, Mode, OnFailure, Patience,
    PolicyEventKind, PolicyHost, PolicySource, Probation, Runner, start,
};
use pointsman_testkit::component::Components;
use pointsman_tests::fleet;

use crate::case::Component;
use crate::run::Vouched;

/// The components compiled so far, for all threads.
static COMPILED: LazyLock<Mutex<Components>> = LazyLock::new(Mutex::default);

/// A policy host, watched.
pub(crate) struct Hosted {
    host: PolicyHost,
    bounds: Bounds,
    vouched: Vouched,
    /// The name of each policy that was taken in.
    names: BTreeMap<u32, String>,
    /// The times of the faults of each policy, within the window of the host's patience.
    faults: BTreeMap<u32, VecDeque<Micros>>,
    quarantined: BTreeSet<u32>,
    wrong: Option<String>,
}

impl Hosted {
    pub(crate) fn new(bounds: Bounds, vouched: Vouched) -> Self {
        Self {
            host: PolicyHost::new(Patience::default()),
            bounds,
            vouched,
            names: BTreeMap::new(),
            faults: BTreeMap::new(),
            quarantined: BTreeSet::new(),
            wrong: None,
        }
    }

    // === Changes, between two events ===

    /// Takes in the default policies, each for the hooks that are its own.
    pub(crate) fn begin(&mut self, now: Micros, machine: &Machine) {
        for (name, hooks) in fleet::DEFAULTS {
            let hooks: HookSet = hooks.iter().copied().collect();
            let component = Component {
                name: name.to_owned(),
                settings: BTreeMap::new(),
                mode: Mode::Enforce,
                probation: None,
            };
            let Some(policy) = self.ready(now, machine, &component, hooks) else {
                continue;
            };
            self.take_in(
                now,
                name,
                Install {
                    policy,
                    assignment: Assignment::Enforce(hooks),
                    default_of: hooks,
                    probation: None,
                },
            );
        }
    }

    /// Takes a component in, unless it does not start or the host refuses it.
    pub(crate) fn put(&mut self, now: Micros, machine: &Machine, component: &Component) {
        let assignment = |hooks: HookSet| match component.mode {
            Mode::Canary(_) => {
                let by_request = hooks.iter().filter(|hook| hook.is_by_request());
                Assignment::new(component.mode, by_request.collect())
            }
            Mode::Enforce | Mode::Shadow => Assignment::new(component.mode, hooks),
        };
        let Some(policy) = self.ready(now, machine, component, HookSet::EMPTY) else {
            return;
        };
        let assignment = assignment(policy.hooks());
        if assignment.hooks().is_empty() {
            return;
        }
        let terms = |questions| Probation {
            questions,
            micros: 1_000_000,
            ..Probation::default()
        };
        let install = Install {
            assignment,
            policy,
            default_of: HookSet::EMPTY,
            probation: component.probation.map(terms),
        };
        self.take_in(now, &component.name, install);
    }

    /// An instance with the state of the one in force that it displaces, told what there is; none if it
    /// does not start so.
    fn ready(
        &mut self,
        now: Micros,
        machine: &Machine,
        component: &Component,
        hooks: HookSet,
    ) -> Option<Runner> {
        let source = source(component, self.vouched).within(self.bounds);
        let started = start(source);
        if (self.vouched)(&component.name)
            && let Err(error) = &started
        {
            self.complain(format!("{} does not start: {error}", component.name));
        }
        let mut policy = started.ok()?;
        let hooks = if hooks.is_empty() {
            policy.hooks()
        } else {
            hooks
        };
        let old = hooks.iter().find_map(|hook| self.host.holder(hook));
        if let Some(snapshot) = old.and_then(|old| self.host.handover(now, old)) {
            policy.restore(&snapshot).ok()?;
        }
        let needs = policy.description().needs;
        policy
            .brief(Briefing::new(&machine.view(), now, needs))
            .ok()?;
        Some(policy)
    }

    fn take_in(&mut self, now: Micros, name: &str, install: Install) {
        let commit = Commit {
            install: vec![install],
            ..Commit::default()
        };
        match self.host.commit(now, commit) {
            Ok(committed) => {
                let named = committed.installed.iter().map(|it| (*it, name.to_owned()));
                self.names.extend(named);
            }
            Err(CommitError::Install {
                error: BindError::Quarantined(_) | BindError::TooManyShadows(_),
                ..
            }) => {}
            Err(error) => self.complain(format!("{name} is not taken in: {error}")),
        }
    }

    /// Drops the holder of a hook.
    pub(crate) fn remove(&mut self, now: Micros, hook: Hook) {
        let remove = self.host.holder(hook).into_iter().collect();
        self.commit(
            now,
            Commit {
                remove,
                ..Commit::default()
            },
        );
    }

    /// Gives a hook back to its default.
    pub(crate) fn eject(&mut self, now: Micros, hook: Hook) {
        let eject = HookSet::from_iter([hook]);
        self.commit(
            now,
            Commit {
                eject,
                ..Commit::default()
            },
        );
    }

    /// Lets admission fail closed.
    pub(crate) fn fail_closed(&mut self, now: Micros) {
        let on_failure = Some(OnFailure::Closed);
        self.commit(
            now,
            Commit {
                on_failure,
                ..Commit::default()
            },
        );
    }

    fn commit(&mut self, now: Micros, commit: Commit) {
        if let Err(error) = self.host.commit(now, commit) {
            self.complain(format!("a change is refused: {error}"));
        }
    }

    /// The hooks that others answer for than when this was last called.
    pub(crate) fn take_rebound(&mut self, now: Micros) -> HookSet {
        self.host.take_rebound(now)
    }

    // === Watching ===

    /// Fails with the first thing that must not be, and was.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.hear();
        self.wrong.take().map_or(Ok(()), Err)
    }

    fn complain(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }

    /// Takes note of what happened to policies, and drops what they left.
    fn hear(&mut self) {
        while let Some(event) = self.host.poll_event() {
            if let PolicyEventKind::Quarantined { .. } = event.kind {
                self.quarantined.insert(event.policy);
            }
            if let PolicyEventKind::Faulted(fault) = event.kind {
                self.note_fault(event.at, event.policy, &fault.to_string());
            }
        }
        drop(self.host.poll_retired());
    }

    fn name(&self, policy: u32) -> &str {
        self.names.get(&policy).map_or("nobody", String::as_str)
    }

    fn note_fault(&mut self, now: Micros, policy: u32, why: &str) {
        let patience = Patience::default();
        let times = self.faults.entry(policy).or_default();
        times.push_back(now);
        while times
            .front()
            .is_some_and(|at| now.since(*at).0 > patience.window_micros)
        {
            times.pop_front();
        }
        let is_too_often = times.len() > patience.faults_max as usize;
        let name = self.name(policy).to_owned();
        if is_too_often {
            self.complain(format!("{name} faults again and again, and goes on"));
        }
        if (self.vouched)(&name) {
            self.complain(format!("{name} faulted: {why}"));
        }
    }

    fn watch(&mut self, now: Micros, answer: &Answer<Reply>) {
        for fault in &answer.faults {
            self.note_fault(now, fault.policy, &fault.detail);
        }
        if let Author::Policy(policy) = answer.author
            && self.quarantined.contains(&policy)
        {
            let name = self.name(policy).to_owned();
            self.complain(format!("{name} answers from its quarantine"));
        }
    }
}

impl Policies for Hosted {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        self.hear();
        let answer = self.host.ask(asked);
        self.watch(asked.at.now, &answer);
        answer
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        self.host.run(view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        if let Author::Policy(policy) = author
            && (self.vouched)(self.name(policy))
            && !is_taken_into_account(refusal.cause)
        {
            let (name, hook) = (self.name(policy).to_owned(), hook.as_str());
            self.complain(format!("{name} was refused at {hook}: {}", refusal.cause));
        }
        self.host.refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        self.host.struck(view, strike);
    }
}

/// True of a refusal that a policy takes into account: nobody tells it of the blocks that are promised to others.
fn is_taken_into_account(cause: RefusalCause) -> bool {
    cause == RefusalCause::NotCovered
}

/// A source of a component, in limits in which the clock has no say: fuel is the same on every machine,
/// time is not. One that is not vouched for has less of everything, so that it is soon at its end.
fn source(component: &Component, vouched: Vouched) -> PolicySource {
    let limits = Limits {
        fuel_nanos: 1000,
        deadline_extensions: 1000,
        ..Limits::default()
    };
    let limits = if vouched(&component.name) {
        limits
    } else {
        Limits {
            call_fuel: 1_000_000,
            row_fuel: 20_000,
            call_fuel_max: 5_000_000,
            memory_bytes: 8 << 20,
            ..limits
        }
    };
    let settings = component.settings.clone().into_iter().collect();
    let mut compiled = COMPILED.lock().expect("nobody panics while it compiles");
    let compiled = compiled.component(&component.name);
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
    PolicySource::component(compiled, &settings, limits).named(&component.name.replace('/', "-"))
}
