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
use std::time::Duration;

use pointsman_interface::rows::{Cached, Change, Extent, Request};
use pointsman_interface::{Bounds, FaultKind, HookSet, Micros, Moment, Question, Reply};
use pointsman_notation::untrusted;
use wasmtime::{Store, Trap};

use crate::component::PolicyComponent;
use crate::fault::Fault;
use crate::instance::{Candidate, Instance, LogLine, PolicyDescription};
use crate::limits::Limits;
use crate::store::{StoreState, thread_time};
use faults::{EndedCall, fault};
pub(crate) use hooks::Indices;
use hooks::{Buffers, Guest, exported};
use lifted::Lifted;
use lowered::Row;
use pace::Pace;

mod faults;
mod hooks;
mod lifted;
mod lowered;
mod pace;
#[cfg(test)]
mod tests;

/// Conversions between the core's types and those that wasmtime generates.
mod convert {
    crate::conversions!(crate::bindings);
}

/// Largest size of the reason for which a policy refuses settings or a state, in bytes.
const REFUSAL_BYTES: usize = 1024;

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
    pace: Pace,
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
        let running = component.engine().begin_call();
        let guest = begin(&mut store, &limits, limits.lifecycle_fuel)
            .and_then(|()| component.pre().instantiate(&mut store))
            .and_then(|instance| Guest::load(&mut store, &instance, component.indices()))
            .map_err(|error| {
                let call = EndedCall {
                    what: "its start",
                    fuel: limits.lifecycle_fuel,
                };
                fault(call, &error, (store.data(), &limits)).at_start()
            })?;
        drop(running);
        Ok(Self {
            component: component.clone(),
            limits,
            store,
            guest,
            buffers: Buffers::default(),
            has_faulted: false,
            fuel_last: 0,
            pace: Pace::default(),
        })
    }

    /// Makes one call with `fuel`, of which its result takes a part.
    fn call<R: Lifted>(
        &mut self,
        what: &'static str,
        fuel: u64,
        call: Call<'_, R>,
    ) -> Result<R, Fault> {
        if self.has_faulted {
            return Err(Fault::new(
                FaultKind::Trap,
                format!("has faulted before, and was called for {what} again"),
            ));
        }
        let engine = self.component.engine();
        let begun = self.pace.begin(engine);
        let running = engine.begin_call();
        let result = begin(&mut self.store, &self.limits, fuel)
            .and_then(|()| call(&mut self.store, &self.guest, &self.buffers));
        drop(running);
        let used = fuel.saturating_sub(self.store.get_fuel().unwrap_or(0));
        let used = used.saturating_add(result.as_ref().map_or(0, Lifted::fuel));
        self.fuel_last = used.min(fuel);
        let result = result.and_then(|result| {
            if used > fuel {
                return Err(Trap::OutOfFuel.into());
            }
            Ok(result)
        });
        let ended = EndedCall { what, fuel };
        let result =
            result.map_err(|error| fault(ended, &error, (self.store.data(), &self.limits)));
        let result = result.and_then(|result| self.keep_pace(what, &begun).map(|()| result));
        self.has_faulted = result.is_err();
        result
    }

    /// Checks that the call which has just ended took no more time than its fuel is worth.
    fn keep_pace(&mut self, what: &'static str, begun: &pace::Begun) -> Result<(), Fault> {
        let fuel = self.fuel_last;
        let allowed = Duration::from_nanos(fuel.saturating_mul(self.limits.fuel_nanos));
        match self.pace.end(begun, self.component.engine(), allowed) {
            None => Ok(()),
            Some(taken) => {
                let taken = taken.as_millis();
                let said = format!(
                    "took too long at {what}: {taken} ms of processor time for {fuel} of fuel"
                );
                Err(Fault::new(FaultKind::Deadline, said))
            }
        }
    }

    /// Makes a call about the policy's state, for which the driver waits.
    fn call_state<R: Lifted>(&mut self, what: &'static str, call: Call<'_, R>) -> Result<R, Fault> {
        self.call(what, self.limits.call_fuel_max, call)
    }

    /// Makes a call to an instance that has made no decision yet, about the whole fleet or none of
    /// it.
    fn call_lifecycle<R: Lifted>(
        &mut self,
        what: &'static str,
        call: Call<'_, R>,
    ) -> Result<R, Fault> {
        self.call(what, self.limits.lifecycle_fuel, call)
    }

    /// Makes a call that passes `rows` rows.
    fn pass<R: Lifted>(
        &mut self,
        what: &'static str,
        rows: usize,
        call: Call<'_, R>,
    ) -> Result<R, Fault> {
        self.call(what, self.limits.fuel_of_rows(rows), call)
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

    fn configure(&mut self, settings: &str, bounds: &Bounds) -> Result<Result<(), String>, Fault> {
        let bounds = convert::bounds(bounds);
        let refused = self.call_lifecycle("configure", &mut |store, guest, _| {
            guest.lifecycle.call_configure(store, settings, bounds)
        })?;
        Ok(refused.map_err(|why| untrusted::line(&why, REFUSAL_BYTES)))
    }

    fn observe(&mut self, now: Micros, extent: Extent, changes: &[Change]) -> Result<(), Fault> {
        let (extent, rows) = (convert::extent(extent), Row::all(changes));
        self.pass("observe", changes.len(), &mut |store, guest, _| {
            let observe = lowered::observe(*guest.lifecycle.func_observe().func());
            observe.call(store, (now.0, extent, rows))
        })
    }

    fn ask(&mut self, at: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        self.buffers.fill(question);
        let (hook, at) = (question.hook().as_str(), convert::moment(at));
        self.pass(hook, question.rows(), &mut |store, guest, buffers| {
            guest.ask(store, at, question, buffers)
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
        let note_bytes = usize::try_from(self.limits.text_bytes).unwrap_or(usize::MAX);
        let candidates = candidates.into_iter().map(|candidate| {
            let mut candidate = convert::candidate(candidate);
            candidate.note = untrusted::line(&candidate.note, note_bytes);
            candidate
        });
        Ok(candidates.collect())
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        self.call_state("snapshot", &mut |store, guest, _| {
            guest.lifecycle.call_snapshot(store)
        })
    }

    fn restore(&mut self, state: &[u8]) -> Result<Result<(), String>, Fault> {
        let refused = self.call_state("restore", &mut |store, guest, _| {
            guest.lifecycle.call_restore(store, state)
        })?;
        Ok(refused.map_err(|why| untrusted::line(&why, REFUSAL_BYTES)))
    }

    fn last_fuel(&self) -> Option<u64> {
        Some(self.fuel_last)
    }

    fn take_log(&mut self, out: &mut Vec<LogLine>) -> u64 {
        self.store.data_mut().log.take(out)
    }
}
