//! A backend as a rank among several that compute a model together ([`crate::ranks`]).

use std::sync::Arc;

use pointsman_engine::backend::DeviceError;
use pointsman_model::split::Rank;

use super::CudaBackend;
use crate::buffer::{address, alloc};
use crate::comm::{Alarm, Comm, Launching};
use crate::failed;
use crate::graphs::{Graphs, Way};
use crate::input::{InputAt, InputBatch};
use crate::nccl::{Bf16At, Nccl, UniqueId};

/// Rows of the first sums: NCCL makes connections for few numbers and for many, which takes long.
const FIRST_SUMS: [usize; 2] = [1, 256];

impl CudaBackend {
    /// Makes the way to the other ranks, once all of them do so.
    pub(crate) fn join(
        &mut self,
        by: (&'static Nccl, UniqueId),
        rank: Rank,
        alarm: &Arc<Alarm>,
    ) -> Result<(), DeviceError> {
        self.life.bind()?;
        let mut comm = Comm::join(by, rank, alarm)?;
        let width = self.open.config().hidden_size;
        for rows in FIRST_SUMS {
            let count = rows * width;
            let memory = alloc::<u16>(&self.stream, count)?;
            let at = address(&memory, &self.stream);
            comm.sum(&self.stream, Bf16At { at, count }, Launching::Now)?;
            comm.wait(&self.stream)?;
        }
        self.comm = Some(comm);
        Ok(())
    }

    /// Makes the first rank's part of a step, and waits for it.
    pub(crate) fn make(
        &mut self,
        way: Way,
        input: &InputBatch,
        at: &InputAt,
    ) -> Result<(), DeviceError> {
        self.launch(way, input, at)?;
        match &mut self.comm {
            Some(comm) => comm.wait(&self.stream)?,
            None => return Err(DeviceError("the rank has left the others".to_owned())),
        }
        self.life.context.check_err().map_err(failed)
    }

    /// Makes another rank's part of a step, in the way that the first has found out, and waits for it.
    pub(crate) fn follow(&mut self, way: Way, input: &InputBatch) -> Result<(), DeviceError> {
        let (at, _) = self.begin(input)?;
        self.make(way, input, &at)
    }

    /// Ends the way to the other ranks, and sums that wait for them. Steps that were recorded go first.
    pub(crate) fn leave(&mut self) {
        self.graphs = Graphs::default();
        self.comm = None;
    }

    /// The number of the device.
    pub(crate) fn ordinal(&self) -> usize {
        self.life.context.ordinal()
    }

    /// Finds out whether the device is lost for all its backends, after a rank has failed.
    pub(crate) fn look(&self) {
        self.life.look();
    }
}
