//! Native policies behind the host's [`Instance`].
//!
//! The SDK's [`pointsman_sdk::Instance`] has the interface's types and may panic. The host's
//! [`Instance`] has the core's types and reports faults.
//!
//! # Invariants
//! 1. A panic becomes a [`Fault`] with the panic's message, and so does every later call
//!    (`native::tests`).

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use pointsman_component::{
    Candidate, Digest, Fault, Instance, Limits, LogLevel, LogLine, PolicyDescription,
};
use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Bounds, FaultKind, HookSet, Micros, Moment, Question, Reply, RequestId};
use pointsman_policy::PolicySource;
use pointsman_sdk as sdk;
use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// Conversions between the core's types and those of the SDK.
mod wire {
    pointsman_component::conversions!(pointsman_sdk::wire);
}

/// A function that makes a new instance, not configured. The SDK's `export!` defines one.
pub type Make = fn() -> Box<dyn sdk::Instance>;

/// Makes a source of instances from `make`, configured with `settings`. The host knows the policy's
/// code by `name`.
#[must_use]
pub fn source(name: &str, make: Make, settings: &Map<String, Value>) -> PolicySource {
    let digest = Digest::of(format!("native {name}").as_bytes());
    PolicySource::native(digest, move || boxed(make), settings, Limits::default())
}

/// Makes one instance behind the host's trait.
pub(crate) fn boxed(make: Make) -> Box<dyn Instance> {
    Box::new(Native::new(make))
}

/// A native instance behind the host's trait.
struct Native {
    state: State,
    hooks: HookSet,
    explains: bool,
}

enum State {
    Well(Box<dyn sdk::Instance>),
    /// Unusable after a panic, with these words about it.
    Panicked(String),
}

// === impl Native ===

impl Native {
    fn new(make: Make) -> Self {
        let mut native = Self {
            state: State::Panicked(String::new()),
            hooks: HookSet::EMPTY,
            explains: false,
        };
        // If this panics, the next call, which is `describe`, reports it.
        native.state = match caught(move || {
            let instance = make();
            let hooks = instance.hooks();
            (instance, hooks)
        }) {
            Ok((instance, hooks)) => {
                for hook in hooks {
                    match wire::hook(hook) {
                        Some(hook) => native.hooks.insert(hook),
                        None => native.explains = true,
                    }
                }
                State::Well(instance)
            }
            Err(words) => State::Panicked(words),
        };
        native
    }

    /// Calls the instance, unless it has panicked.
    fn call<R>(&mut self, call: impl FnOnce(&mut dyn sdk::Instance) -> R) -> Result<R, Fault> {
        let answer = match &mut self.state {
            State::Well(instance) => caught(|| call(instance.as_mut())),
            State::Panicked(words) => Err(words.clone()),
        };
        answer.map_err(|words| {
            self.state = State::Panicked(words.clone());
            Fault::new(FaultKind::Trap, words)
        })
    }
}

thread_local! {
    /// The place in the source of this thread's last panic.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has the places of panics noted from now on. Otherwise a panic is told as before.
fn note_places() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let told = take_hook();
        set_hook(Box::new(move |panic| {
            if let Some(place) = panic.location() {
                let place = format!("{}:{}", place.file(), place.line());
                PLACE.with_borrow_mut(|last| *last = place);
            }
            told(panic);
        }));
    });
}

/// Returns the result of `call`, or its panic in the words of a component. The instance is dropped
/// after a panic, so its state is not used again.
fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    note_places();
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        let message = panic_message(payload.as_ref());
        let message = message.lines().next().unwrap_or_default();
        PLACE.with_borrow(|place| format!("panicked at {place}: {message}"))
    })
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "of an unknown kind".to_owned()
    }
}

// === impl Instance ===

impl Instance for Native {
    fn hooks(&self) -> HookSet {
        self.hooks
    }

    fn explains(&self) -> bool {
        self.explains
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        let said = self.call(|policy| policy.describe())?;
        Ok(wire::description(said))
    }

    fn configure(&mut self, settings: &str, bounds: &Bounds) -> Result<Result<(), String>, Fault> {
        let bounds = wire::bounds(bounds);
        self.call(|policy| policy.configure(settings, bounds))
    }

    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault> {
        let extent = wire::extent(extent);
        let changes = changes.iter().map(wire::change).collect();
        self.call(|policy| {
            policy.observe(now.0, extent, changes);
        })
    }

    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        let at = wire::moment(at);
        Ok(match question {
            Question::Admission { arrivals, room } => {
                let arrivals = arrivals.iter().map(wire::asked_request).collect();
                let verdicts = self.call(|policy| policy.admit(at, arrivals, *room))?;
                let verdicts = verdicts.into_iter().map(wire::admission_verdict);
                Reply::Admission(verdicts.collect())
            }
            Question::Priority(requests) => {
                let requests = requests.iter().map(wire::asked_request).collect();
                let order = self.call(|policy| policy.order(at, requests))?;
                Reply::Priority(order.into_iter().map(RequestId).collect())
            }
            Question::Routing(requests) => {
                let requests = requests.iter().map(wire::cached).collect();
                let verdicts = self.call(|policy| policy.route(at, requests))?;
                let verdicts = verdicts.into_iter().map(wire::routing_verdict);
                Reply::Routing(verdicts.collect())
            }
            Question::Preemption(shortage) => {
                let shortage = wire::shortage(shortage);
                let eviction = self.call(|policy| policy.evict(at, shortage))?;
                Reply::Preemption(eviction.map(wire::eviction))
            }
            Question::Budget {
                device,
                tokens_total,
                used,
            } => {
                let tokens = wire::device_tokens((*device, *tokens_total), used);
                let allotments = self.call(|policy| policy.allot(at, tokens))?;
                Reply::Budget(wire::allotments(allotments))
            }
            Question::Arrangement {
                executor,
                sequences,
            } => {
                let sequences = sequences.iter().map(|id| id.0).collect();
                let said = self.call(|policy| policy.arrange(at, executor.0, sequences))?;
                Reply::Arrangement(wire::arrangement(said))
            }
        })
    }

    fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Result<Vec<Candidate>, Fault> {
        let (at, request, cached) = (
            wire::moment(at),
            wire::request(request),
            wire::cached(cached),
        );
        let candidates = self.call(|policy| policy.explain(at, request, cached))?;
        Ok(candidates.into_iter().map(wire::candidate).collect())
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        self.call(|policy| policy.snapshot())
    }

    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault> {
        let state = state.to_vec();
        self.call(|policy| policy.restore(state))
    }

    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        out.extend(sdk::log::take().into_iter().map(|(level, message)| {
            let level = match level {
                sdk::log::Level::Debug => LogLevel::Debug,
                sdk::log::Level::Info => LogLevel::Info,
                sdk::log::Level::Warn => LogLevel::Warn,
            };
            LogLine { level, message }
        }));
        0
    }
}
