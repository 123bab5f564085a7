//! The hooks of a component: its exported functions, and the questions to them.

use pointsman_interface::{Question, Reply, RequestId};
use wasmtime::Store;
use wasmtime::component::InstancePre;

use super::convert;
use crate::bindings::{
    admission, budget, explanation, lifecycle, preemption, priority, routing, types,
};
use crate::component::LoadError;
use crate::scan::Exports;
use crate::store::StoreState;

/// Buffers into which rows are converted.
#[derive(Default)]
pub(super) struct Buffers {
    asked: Vec<types::AskedRequest>,
    sequences: Vec<u64>,
    cached: Vec<types::Cached>,
}

/// Defines [`Indices`] and [`Guest`] for `lifecycle` and for these interfaces, which a component
/// may leave out.
macro_rules! interfaces {
    ($($interface:ident),+) => {
        /// The positions of the component's exported functions.
        pub(crate) struct Indices {
            lifecycle: lifecycle::GuestIndices,
            $($interface: Option<$interface::GuestIndices>,)+
        }

        /// The functions that the component exports.
        pub(super) struct Guest {
            pub(super) lifecycle: lifecycle::Guest,
            $(pub(super) $interface: Option<$interface::Guest>,)+
        }

        impl Indices {
            /// Finds the functions of the interfaces that a component exports.
            pub(crate) fn find(
                pre: &InstancePre<StoreState>,
                exports: &Exports,
            ) -> Result<Self, LoadError> {
                Ok(Self {
                    lifecycle: whole("lifecycle", lifecycle::GuestIndices::new(pre))?,
                    $($interface: exports
                        .has(stringify!($interface))
                        .then(|| whole(stringify!($interface), $interface::GuestIndices::new(pre)))
                        .transpose()?,)+
                })
            }
        }

        impl Guest {
            pub(super) fn load(
                store: &mut Store<StoreState>,
                instance: &wasmtime::component::Instance,
                indices: &Indices,
            ) -> wasmtime::Result<Self> {
                Ok(Self {
                    lifecycle: indices.lifecycle.load(&mut *store, instance)?,
                    $($interface: indices
                        .$interface
                        .as_ref()
                        .map(|indices| indices.load(&mut *store, instance))
                        .transpose()?,)+
                })
            }
        }
    };
}

interfaces!(
    admission,
    priority,
    routing,
    preemption,
    budget,
    explanation
);

fn whole<I>(interface: &'static str, found: wasmtime::Result<I>) -> Result<I, LoadError> {
    found.map_err(|error| LoadError::WrongShape {
        interface,
        detail: format!("{error:#}"),
    })
}

impl Buffers {
    /// Converts the rows that a question passes.
    pub(super) fn fill(&mut self, question: &Question<'_>) {
        match question {
            Question::Admission {
                arrivals: requests, ..
            }
            | Question::Priority(requests) => {
                self.asked.clear();
                self.asked
                    .extend(requests.iter().map(convert::asked_request));
            }
            Question::Routing(requests) => {
                self.cached.clear();
                self.cached.extend(requests.iter().map(convert::cached));
            }
            Question::Arrangement { sequences, .. } => {
                self.sequences.clear();
                self.sequences.extend(sequences.iter().map(|id| id.0));
            }
            Question::Preemption(_) | Question::Budget { .. } => {}
        }
    }
}

/// Returns the function of a hook. A hook that `hooks` does not name is never called; a call would
/// be a fault.
pub(super) fn exported<'a, G>(guest: &'a Option<G>, hook: &'static str) -> wasmtime::Result<&'a G> {
    guest
        .as_ref()
        .ok_or_else(|| wasmtime::Error::msg(format!("{hook} is not exported")))
}

impl Guest {
    /// Asks a question whose rows are in `buffers`.
    pub(super) fn ask(
        &self,
        store: &mut Store<StoreState>,
        at: types::Moment,
        question: &Question<'_>,
        buffers: &Buffers,
    ) -> wasmtime::Result<Reply> {
        let hook = question.hook().as_str();
        Ok(match question {
            Question::Admission { room, .. } => {
                let admission = exported(&self.admission, hook)?;
                let verdicts = admission.call_admit(store, at, &buffers.asked, *room)?;
                let verdicts = verdicts.into_iter().map(convert::admission_verdict);
                Reply::Admission(verdicts.collect())
            }
            Question::Priority(_) => {
                let priority = exported(&self.priority, hook)?;
                let order = priority.call_order(store, at, &buffers.asked)?;
                Reply::Priority(order.into_iter().map(RequestId).collect())
            }
            Question::Routing(_) => {
                let routing = exported(&self.routing, hook)?;
                let verdicts = routing.call_route(store, at, &buffers.cached)?;
                let verdicts = verdicts.into_iter().map(convert::routing_verdict);
                Reply::Routing(verdicts.collect())
            }
            Question::Preemption(shortage) => {
                let preemption = exported(&self.preemption, hook)?;
                let eviction = preemption.call_evict(store, at, convert::shortage(shortage))?;
                Reply::Preemption(eviction.map(convert::eviction))
            }
            Question::Budget {
                device,
                tokens_total,
                used,
            } => {
                let budget = exported(&self.budget, hook)?;
                let tokens = convert::device_tokens((*device, *tokens_total), used);
                let allotments = budget.call_allot(store, at, &tokens)?;
                Reply::Budget(convert::allotments(allotments))
            }
            Question::Arrangement { executor, .. } => {
                let budget = exported(&self.budget, hook)?;
                let sequences = &buffers.sequences;
                let said = budget.call_arrange(store, at, executor.0, sequences)?;
                Reply::Arrangement(convert::arrangement(said))
            }
        })
    }
}
