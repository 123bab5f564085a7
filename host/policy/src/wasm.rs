//! An [`Instance`] of a WebAssembly component in a store of its own.
//!
//! A trap poisons a whole store, so a store holds exactly one instance, and both are dropped after
//! a fault. Fuel and deadline are set before each call. Most questions pass few rows, so the
//! buffers into which rows are converted are kept.
//!
//! # Invariants
//! 1. An instance that has faulted gives no more answers (`answers_nothing_after_a_fault`).
//! 2. Fuel, memory, results and processor time stay within [`Limits`] (`wasm::tests`).

use std::fmt;

use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{FaultKind, HookSet, Micros, Moment, Question, Reply, RequestId};
use wasmtime::{Store, Trap};

use crate::bindings::{
    admission, budget, explanation, lifecycle, preemption, priority, routing, types,
};
use crate::component::{Indices, PolicyComponent};
use crate::instance::{Candidate, Fault, Instance, LogLine, PolicyDescription, cut};
use crate::limits::Limits;
use crate::store::{StoreState, thread_time};

#[cfg(test)]
mod tests;

/// Conversions between the core's types and those that wasmtime generates.
mod convert {
    crate::conversions! {
        types: crate::bindings::types,
        lifecycle: crate::bindings::lifecycle,
        admission: crate::bindings::admission,
        routing: crate::bindings::routing,
        preemption: crate::bindings::preemption,
        budget: crate::bindings::budget,
        explanation: crate::bindings::explanation,
    }
}

/// Largest size of a fault's message and backtrace, in bytes.
const DETAIL_BYTES: usize = 4096;

/// A component in a store of its own.
pub struct WasmInstance {
    // Immutable.
    component: PolicyComponent,
    limits: Limits,
    // Owned state.
    store: Store<StoreState>,
    guest: Guest,
    buffers: Buffers,
    // Lifecycle.
    has_faulted: bool,
    fuel_last: u64,
}

/// Buffers into which rows are converted.
#[derive(Default)]
struct Buffers {
    ids: Vec<u64>,
    changes: Vec<types::Change>,
    cached: Vec<types::Cached>,
}

/// The functions that the component exports.
struct Guest {
    lifecycle: lifecycle::Guest,
    admission: Option<admission::Guest>,
    priority: Option<priority::Guest>,
    routing: Option<routing::Guest>,
    preemption: Option<preemption::Guest>,
    budget: Option<budget::Guest>,
    explanation: Option<explanation::Guest>,
}

/// The body of one call.
type Call<'a, R> =
    &'a mut dyn FnMut(&mut Store<StoreState>, &Guest, &Buffers) -> wasmtime::Result<R>;

impl WasmInstance {
    /// Instantiates `component` in a store of its own.
    ///
    /// # Errors
    /// [`FaultKind::Start`] if its start functions trap, it needs more than `limits` allow, or its
    /// functions do not have the types of their release.
    pub fn new(component: &PolicyComponent, limits: Limits) -> Result<Self, Fault> {
        let mut store = Store::new(component.engine().wasmtime(), StoreState::new(&limits));
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(usize::try_from(limits.result_bytes).unwrap_or(usize::MAX));
        store.epoch_deadline_callback(|mut context| {
            Ok(context.data_mut().deadline.pass(thread_time()))
        });
        let guest = begin(&mut store, &limits, limits.lifecycle_fuel)
            .and_then(|()| component.pre().instantiate(&mut store))
            .and_then(|instance| Guest::load(&mut store, &instance, component.indices()))
            .map_err(|error| {
                let fault = fault("instantiate", &error, store.data());
                Fault::new(
                    FaultKind::Start,
                    format!("{:?}: {}", fault.kind, fault.detail),
                )
            })?;
        Ok(Self {
            component: component.clone(),
            limits,
            store,
            guest,
            buffers: Buffers::default(),
            has_faulted: false,
            fuel_last: 0,
        })
    }

    /// Makes one call with `fuel`.
    fn call<R>(&mut self, what: &'static str, fuel: u64, call: Call<'_, R>) -> Result<R, Fault> {
        if self.has_faulted {
            return Err(Fault::new(
                FaultKind::Trap,
                format!("{what}: the instance has faulted before"),
            ));
        }
        let result = begin(&mut self.store, &self.limits, fuel)
            .and_then(|()| call(&mut self.store, &self.guest, &self.buffers));
        self.fuel_last = fuel.saturating_sub(self.store.get_fuel().unwrap_or(0));
        result.map_err(|error| {
            self.has_faulted = true;
            fault(what, &error, self.store.data())
        })
    }

    /// Makes a call about the policy's state, for which the driver waits.
    fn call_state<R>(&mut self, what: &'static str, call: Call<'_, R>) -> Result<R, Fault> {
        self.call(what, self.limits.call_fuel_max, call)
    }

    /// Makes a call to an instance that has made no decision yet, about the whole fleet or none of
    /// it.
    fn call_lifecycle<R>(&mut self, what: &'static str, call: Call<'_, R>) -> Result<R, Fault> {
        self.call(what, self.limits.lifecycle_fuel, call)
    }

    /// Makes a call that passes `rows` rows.
    fn pass<R>(&mut self, what: &'static str, rows: usize, call: Call<'_, R>) -> Result<R, Fault> {
        self.call(what, self.limits.fuel_of_rows(rows), call)
    }
}

impl Buffers {
    /// Converts the rows that a question passes.
    fn fill(&mut self, question: &Question<'_>) {
        match question {
            Question::Admission {
                arrivals: requests, ..
            }
            | Question::Priority(requests) => {
                self.ids.clear();
                self.ids.extend(requests.iter().map(|id| id.0));
            }
            Question::Routing(requests) => {
                self.cached.clear();
                self.cached.extend(requests.iter().map(convert::cached));
            }
            Question::Preemption(_) | Question::Budget { .. } => {}
        }
    }
}

impl fmt::Debug for WasmInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmInstance")
            .field("component", &self.component)
            .field("has_faulted", &self.has_faulted)
            .field("fuel_last", &self.fuel_last)
            .finish_non_exhaustive()
    }
}

/// Sets the fuel and deadline of the next call.
fn begin(store: &mut Store<StoreState>, limits: &Limits, fuel: u64) -> wasmtime::Result<()> {
    store.set_fuel(fuel)?;
    let ticks = store.data_mut().begin(limits, fuel);
    store.set_epoch_deadline(ticks);
    Ok(())
}

/// Returns the function of a hook. A hook that `hooks` does not name is never called; a call would
/// be a fault.
fn exported<'a, G>(guest: &'a Option<G>, hook: &'static str) -> wasmtime::Result<&'a G> {
    guest
        .as_ref()
        .ok_or_else(|| wasmtime::Error::msg(format!("{hook} is not exported")))
}

impl Guest {
    fn load(
        store: &mut Store<StoreState>,
        instance: &wasmtime::component::Instance,
        indices: &Indices,
    ) -> wasmtime::Result<Self> {
        macro_rules! hook {
            ($hook:ident) => {
                indices
                    .$hook
                    .as_ref()
                    .map(|indices| indices.load(&mut *store, instance))
                    .transpose()?
            };
        }
        Ok(Self {
            lifecycle: indices.lifecycle.load(&mut *store, instance)?,
            admission: hook!(admission),
            priority: hook!(priority),
            routing: hook!(routing),
            preemption: hook!(preemption),
            budget: hook!(budget),
            explanation: hook!(explanation),
        })
    }
}

// === Faults ===

fn fault(what: &'static str, error: &wasmtime::Error, state: &StoreState) -> Fault {
    let detail = cut(format!("{what}: {error:?}"), DETAIL_BYTES);
    Fault::new(kind_of(error, state), detail)
}

fn kind_of(error: &wasmtime::Error, state: &StoreState) -> FaultKind {
    let trap = error.downcast_ref::<Trap>();
    if trap == Some(&Trap::OutOfFuel) {
        FaultKind::Fuel
    } else if trap == Some(&Trap::Interrupt) {
        FaultKind::Deadline
    } else if is_oversize(error) {
        FaultKind::Oversize
    } else if state.limiter.denied {
        // Allocators abort when they get no memory.
        FaultKind::Memory
    } else {
        FaultKind::Trap
    }
}

/// True if the guest returned or logged more than the store allows. The error's type is private to
/// wasmtime; `wasm::tests` would notice another text.
fn is_oversize(error: &wasmtime::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.to_string().contains("fuel allocated for hostcalls"))
}

// === impl Instance ===

impl Instance for WasmInstance {
    fn hooks(&self) -> HookSet {
        self.component.hooks()
    }

    fn explains(&self) -> bool {
        self.component.explains()
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        self.call_lifecycle("describe", &mut |store, guest, _| {
            guest.lifecycle.call_describe(store)
        })
        .map(convert::description)
    }

    fn configure(&mut self, settings: &str) -> Result<Result<(), String>, Fault> {
        self.call_lifecycle("configure", &mut |store, guest, _| {
            guest.lifecycle.call_configure(store, settings)
        })
    }

    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault> {
        self.buffers.changes.clear();
        self.buffers
            .changes
            .extend(changes.iter().map(convert::change));
        self.pass("observe", changes.len(), &mut |store, guest, buffers| {
            let extent = convert::extent(extent);
            guest
                .lifecycle
                .call_observe(store, now.0, extent, &buffers.changes)
        })
    }

    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        self.buffers.fill(question);
        let (hook, at) = (question.hook().as_str(), convert::moment(at));
        self.pass(hook, question.rows(), &mut |store, guest, buffers| {
            Ok(match question {
                Question::Admission { room, .. } => {
                    let admission = exported(&guest.admission, hook)?;
                    let verdicts = admission.call_admit(store, at, &buffers.ids, *room)?;
                    let verdicts = verdicts.into_iter().map(convert::admission_verdict);
                    Reply::Admission(verdicts.collect())
                }
                Question::Priority(_) => {
                    let priority = exported(&guest.priority, hook)?;
                    let order = priority.call_order(store, at, &buffers.ids)?;
                    Reply::Priority(order.into_iter().map(RequestId).collect())
                }
                Question::Routing(_) => {
                    let routing = exported(&guest.routing, hook)?;
                    let verdicts = routing.call_route(store, at, &buffers.cached)?;
                    let verdicts = verdicts.into_iter().map(convert::routing_verdict);
                    Reply::Routing(verdicts.collect())
                }
                Question::Preemption(shortage) => {
                    let preemption = exported(&guest.preemption, hook)?;
                    let eviction = preemption.call_evict(store, at, convert::shortage(shortage))?;
                    Reply::Preemption(eviction.map(convert::eviction))
                }
                Question::Budget {
                    device,
                    tokens_total,
                } => {
                    let budget = exported(&guest.budget, hook)?;
                    let allotments = budget.call_allot(store, at, device.0, *tokens_total)?;
                    Reply::Budget(allotments.into_iter().map(convert::allotment).collect())
                }
            })
        })
    }

    fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Result<Vec<Candidate>, Fault> {
        let request = convert::request(request);
        let cached = convert::cached(cached);
        let candidates = self.call_lifecycle("explanation", &mut |store, guest, _| {
            exported(&guest.explanation, "explanation")?.call_explain(
                store,
                convert::moment(at),
                &request,
                &cached,
            )
        })?;
        Ok(candidates.into_iter().map(convert::candidate).collect())
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        self.call_state("snapshot", &mut |store, guest, _| {
            guest.lifecycle.call_snapshot(store)
        })
    }

    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault> {
        self.call_state("restore", &mut |store, guest, _| {
            guest.lifecycle.call_restore(store, state)
        })
    }

    fn last_fuel(&self) -> Option<u64> {
        Some(self.fuel_last)
    }

    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        self.store.data_mut().log.take(out)
    }
}
