//! Rows in the form that they have in a guest's memory (the canonical ABI of the component model).
//!
//! The code that wasmtime generates looks up the guest's memory for each field, which takes longer than all else that
//! is done for a row. A row without lists and texts is written here, all of it at one place that is looked up once. The
//! others go the generated way.
//!
//! # Invariants
//! 1. Either way gives the same bytes (`tests::rows_are_written_as_the_generated_code_writes_them`).

use std::mem::MaybeUninit;

use pointsman_interface::rows::{Change, Request};
use wasmtime::component::__internal::{
    CanonicalAbiInfo, ComponentVariant, InstanceType, InterfaceType, LowerContext,
};
use wasmtime::component::{ComponentType, Func, Lower, TypedFunc};

use super::convert;
use crate::bindings::types;

#[cfg(test)]
mod tests;

/// Bytes of a row.
const ROW_BYTES: usize = <types::Change as ComponentType>::SIZE32;
/// The place of a row's fields, after the number of its case.
const FIELDS_AT: usize = <types::Change as ComponentVariant>::PAYLOAD_OFFSET32;

/// The function `observe` of a guest.
pub(super) type Observe<'r> = TypedFunc<(u64, types::Extent, &'r [Row]), ()>;

/// The function `observe`, which takes rows as they are.
#[expect(
    unsafe_code,
    reason = "the function's type is known by another name of the same type"
)]
pub(super) fn observe<'r>(func: Func) -> Observe<'r> {
    // SAFETY: the generated code has checked that the function takes `types::Change`, and a `Row` is the same to guests.
    unsafe { TypedFunc::new_unchecked(func) }
}

/// A row that is passed to a guest.
#[repr(transparent)]
pub(super) struct Row(Change);

// === impl Row ===

impl Row {
    /// Rows that are passed to a guest.
    #[expect(unsafe_code, reason = "saves a copy of each row")]
    pub(super) fn all(changes: &[Change]) -> &[Self] {
        let all: *const [Change] = changes;
        // SAFETY: a `Row` is a `Change` and nothing else, and these are borrowed for as long.
        unsafe { &*(all as *const [Self]) }
    }
}

/// Returns whether a request has a list, which needs memory of its own.
fn has_list(row: &Request) -> bool {
    !row.labels.is_empty() || row.allowed.is_some() || !row.failed_on.is_empty()
}

#[expect(unsafe_code, reason = "wasmtime's trait for what guests are passed")]
// SAFETY: everything is that of the generated type.
unsafe impl ComponentType for Row {
    type Lower = <types::Change as ComponentType>::Lower;

    const ABI: CanonicalAbiInfo = <types::Change as ComponentType>::ABI;

    fn typecheck(ty: &InterfaceType, types: &InstanceType<'_>) -> wasmtime::Result<()> {
        <types::Change as ComponentType>::typecheck(ty, types)
    }
}

#[expect(unsafe_code, reason = "wasmtime's trait for what guests are passed")]
// SAFETY: what the generated code does not write is written within the row's place in the guest's memory, which wasmtime
// hands out with its bounds.
unsafe impl Lower for Row {
    fn linear_lower_to_flat<T>(
        &self,
        cx: &mut LowerContext<'_, T>,
        ty: InterfaceType,
        dst: &mut MaybeUninit<Self::Lower>,
    ) -> wasmtime::Result<()> {
        convert::change(&self.0).linear_lower_to_flat(cx, ty, dst)
    }

    #[inline]
    fn linear_lower_to_memory<T>(
        &self,
        cx: &mut LowerContext<'_, T>,
        ty: InterfaceType,
        offset: usize,
    ) -> wasmtime::Result<()> {
        if Case(cx.get(offset)).write(&self.0) {
            return Ok(());
        }
        convert::change(&self.0).linear_lower_to_memory(cx, ty, offset)
    }
}

/// The place of a row in a guest's memory.
struct Case<'m>(&'m mut [u8; ROW_BYTES]);

/// The fields of a row, one after the other.
struct Fields<'m> {
    to: &'m mut [u8; ROW_BYTES],
    /// The end of those written.
    end: usize,
}

/// A field that is written as it is.
trait Field {
    const ALIGN: usize;
    /// Bytes that it takes, a multiple of [`Self::ALIGN`].
    const SIZE: usize;

    fn write(&self, to: &mut [u8]);
}

/// A row without lists and texts.
trait Record {
    fn put(&self, to: &mut Fields<'_>);
}

// === impl Case ===

impl Case<'_> {
    /// Writes a row, unless it has a list or a text: then it returns false.
    #[inline]
    fn write(self, row: &Change) -> bool {
        match row {
            Change::Name(_) | Change::Executor(_) => return false,
            Change::Waiting(row) if has_list(row) => return false,
            Change::Load(row) => self.put(2, &convert::executor_load(row)),
            Change::ExecutorGone(id) => self.put(3, &id.0),
            Change::Residency(row) => self.put(4, &convert::residency(row)),
            Change::ResidencyGone(row) => self.put(5, &convert::presence(*row)),
            Change::Device(row) => self.put(6, &convert::device(row)),
            Change::Model(row) => self.put(7, &convert::model(row)),
            Change::Tenant(row) => self.put(8, &convert::tenant(row)),
            Change::Waiting(row) => self.put(9, &convert::request(row)),
            Change::WaitingGone(id) => self.put(10, &id.0),
            Change::Sequence(row) => self.put(11, &convert::sequence(row)),
            Change::SequenceGone(id) => self.put(12, &id.0),
            Change::Completed(row) => self.put(13, &convert::completion(row)),
        }
        true
    }

    /// Writes a row by the number of its case in `wit/types.wit`.
    #[inline]
    fn put(self, case: u8, row: &impl Record) {
        self.0[0] = case;
        row.put(&mut Fields {
            to: self.0,
            end: FIELDS_AT,
        });
    }
}

// === impl Fields ===

impl Fields<'_> {
    #[inline]
    fn put<F: Field>(&mut self, field: &F) {
        let at = self.end.next_multiple_of(F::ALIGN);
        self.end = at + F::SIZE;
        field.write(&mut self.to[at..self.end]);
    }
}

// === impl Field ===

/// Numbers have their size for alignment, and their lowest byte first.
macro_rules! numbers {
    ($($number:ty),+) => {
        $(impl Field for $number {
            const ALIGN: usize = Self::SIZE;
            const SIZE: usize = size_of::<Self>();

            #[inline]
            fn write(&self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }
        })+
    };
}

numbers!(u32, i32, u64);

impl Field for bool {
    const ALIGN: usize = 1;
    const SIZE: usize = 1;

    #[inline]
    fn write(&self, to: &mut [u8]) {
        to[0] = u8::from(*self);
    }
}

/// The case of an enumeration is its number.
macro_rules! enumerations {
    ($($enumeration:ident),+) => {
        $(impl Field for types::$enumeration {
            const ALIGN: usize = 1;
            const SIZE: usize = 1;

            #[inline]
            fn write(&self, to: &mut [u8]) {
                to[0] = *self as u8;
            }
        })+
    };
}

enumerations!(Health, RequestClass, SequenceState, Stage);

impl<N: Field> Field for Option<N> {
    const ALIGN: usize = N::ALIGN;
    const SIZE: usize = N::ALIGN + N::SIZE;

    #[inline]
    fn write(&self, to: &mut [u8]) {
        to[0] = u8::from(self.is_some());
        if let Some(number) = self {
            number.write(&mut to[N::ALIGN..]);
        }
    }
}

/// A list that is absent: a row with another one goes the generated way.
impl Field for Option<Vec<u32>> {
    const ALIGN: usize = 4;
    const SIZE: usize = 12;

    #[inline]
    fn write(&self, to: &mut [u8]) {
        debug_assert!(self.is_none());
        to[0] = 0;
    }
}

// === impl Record ===

impl<N: Field> Record for N {
    #[inline]
    fn put(&self, to: &mut Fields<'_>) {
        to.put(self);
    }
}

/// The fields of records, in the order of `wit/types.wit`.
macro_rules! records {
    ($($record:ident { $($field:ident),+ })+) => {
        $(impl Record for types::$record {
            #[inline]
            fn put(&self, to: &mut Fields<'_>) {
                let Self { $($field),+ } = self;
                $(to.put($field);)+
            }
        })+
    };
}

records! {
    ExecutorLoad {
        id, health, slots_used, queued_critical, queued_throughput, saturated, prefill_tokens_pending, blocks_used,
        placed_total, ttft_micros, itl_micros
    }
    Residency { executor, model, sequences, warm_until, started, first_token, loaded }
    Presence { executor, model }
    Device {
        id, block_bytes, blocks_total, blocks_free, blocks_cached, blocks_evicted_total, host_blocks_total,
        host_blocks_free
    }
    Model { id, running_max, running, waiting }
    Tenant { id, weight, tokens_per_minute, running, waiting, prompt_tokens_total, output_tokens_total }
    Request {
        id, model, adapter, tenant, session, class, priority, head_start, stage, labels, arrived, deadline, may_wait,
        prompt_tokens, output_tokens_max, output_tokens_expected, group, allowed, failed_on, preferred, attempts,
        hold_end
    }
    Sequence {
        request, executor, model, tenant, class, priority, state, started, prompt_tokens, tokens_generated, blocks,
        blocks_exclusive, preemptible, swappable, preemptions
    }
    Completion {
        request, executor, model, tenant, prompt_tokens, cached_tokens, output_tokens, queued_micros, ttft_micros,
        total_micros, ok
    }
}
