//! Steps that are launched at once: what a step launches is recorded when a step of its shape comes again,
//! and is one launch from then on.
//!
//! A recorded step is made for the addresses at which its memory was: once other memory is taken, it is
//! forgotten. So that it takes none itself, a shape is run as it is first. Whether memory was taken is counted rather
//! than seen by its address: ranks that compute a model together, of which the first decides for all, count the same.
//! Steps of decode are filled up so that few shapes come ([`filled_up`](crate::input::filled_up)).
//!
//! While a thread records, no other may have a driver wait for all of a device: that breaks the record, and fails
//! itself. What does so takes [`quiet`] first.
//!
//! # Invariants
//! Held by `tests/graphs.rs`.
//! 1. The third step of a shape is one launch and no other, unless memory was taken since the first.
//! 2. A record that is used is kept, whatever shapes come once.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};
use pointsman_engine::backend::DeviceError;

use crate::failed;

/// Most shapes that are remembered.
const SHAPES_MAX: usize = 64;

/// Keeps all threads from recording, or from what must not be done while one does: beginning and ending backends.
pub(crate) fn quiet() -> MutexGuard<'static, ()> {
    static QUIET: Mutex<()> = Mutex::new(());
    QUIET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thing that ends only while others are kept quiet.
#[derive(Debug)]
pub(crate) struct EndsQuietly<T>(Option<T>);

impl<T> EndsQuietly<T> {
    /// Keeps a thing that was made while others were quiet.
    pub(crate) fn new(thing: T) -> Self {
        Self(Some(thing))
    }

    /// Gives it to somebody who keeps others quiet.
    pub(crate) fn into_inner(mut self, _quiet: &MutexGuard<'static, ()>) -> T {
        self.0.take().expect("it is taken out once")
    }
}

impl<T> Deref for EndsQuietly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken out last")
    }
}

impl<T> Drop for EndsQuietly<T> {
    fn drop(&mut self) {
        if let Some(thing) = self.0.take() {
            let _quiet = quiet();
            drop(thing);
        }
    }
}

/// The shape of a step: launches of two of the same shape differ in what is at their addresses only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Number of rows whose logits are computed.
    pub(crate) wanted: usize,
    /// Number of rows whose hidden states are wanted.
    pub(crate) hidden: usize,
    /// Number of tiles of attention.
    pub(crate) tiles: usize,
    /// Number of pieces of attention for which there is room.
    pub(crate) pieces: usize,
}

/// The shapes of a backend's last steps.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    /// In the order in which they were used, the last at the end.
    shapes: VecDeque<Remembered>,
}

#[derive(Debug)]
struct Remembered {
    shape: StepShape,
    /// Number of times that memory had been taken for its steps.
    taken: u64,
    graph: Option<StepGraph>,
}

/// A recorded step.
pub(crate) struct StepGraph(CudaGraph);

// SAFETY: a graph belongs to a context, not to a thread, and its backend alone uses it.
unsafe impl Send for StepGraph {}

/// The way in which a step is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it was recorded.
    Recorded(StepShape),
    /// It is to be recorded, and then launched.
    Record(StepShape),
    /// One launch after the other; the shape is remembered, if another step may have it.
    EachAlone(Option<StepShape>),
}

impl Way {
    /// Keeps others quiet for as long as the step is recorded, if it is to be.
    pub(crate) fn quiet(self) -> Option<MutexGuard<'static, ()>> {
        matches!(self, Self::Record(_)).then(quiet)
    }
}

impl Graphs {
    /// Finds out how a step is to be made, once memory was taken so often.
    pub(crate) fn way(&self, shape: StepShape, taken: u64) -> Way {
        let known = self.place(shape, taken);
        match known.map(|place| &self.shapes[place].graph) {
            Some(Some(_)) => Way::Recorded(shape),
            Some(None) => Way::Record(shape),
            None => Way::EachAlone(Some(shape)),
        }
    }

    /// The record of such a step, which is used now.
    pub(crate) fn recorded(&mut self, shape: StepShape, taken: u64) -> Option<&StepGraph> {
        let place = self.place(shape, taken)?;
        let used = self.shapes.remove(place)?;
        self.shapes.push_back(used);
        self.shapes.back()?.graph.as_ref()
    }

    fn place(&self, shape: StepShape, taken: u64) -> Option<usize> {
        let mut shapes = self.shapes.iter();
        shapes.position(|known| known.shape == shape && known.taken == taken)
    }

    /// Remembers a step that was made, with its record if there is one.
    pub(crate) fn remember(&mut self, shape: StepShape, taken: u64, graph: Option<StepGraph>) {
        self.shapes.retain(|known| known.shape != shape);
        if self.shapes.len() == SHAPES_MAX {
            self.shapes.pop_front();
        }
        self.shapes.push_back(Remembered {
            shape,
            taken,
            graph,
        });
    }
}

impl StepGraph {
    /// Records what `launches` has a stream do, which is not done. Others are kept quiet.
    pub(crate) fn record(
        stream: &Arc<CudaStream>,
        launches: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        // Other threads may make steps meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(failed)?;
        let launched = launches();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        launched?;
        let nothing = || DeviceError("CUDA: nothing of a step was recorded".to_owned());
        graph.map_err(failed)?.map(Self).ok_or_else(nothing)
    }

    /// Has its stream do what was recorded.
    pub(crate) fn launch(&self) -> Result<(), DeviceError> {
        self.0.launch().map_err(failed)
    }
}

impl fmt::Debug for StepGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepGraph").finish_non_exhaustive()
    }
}
