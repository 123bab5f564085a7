//! The operations of a step on a device, one at a time, for tests: on numbers of this machine, as the processors' own
//! operations have them.
//!
//! All memory that an operation gets on the device is as long as what is in it, and begins as not-a-number where
//! something is to be written: a sanitizer sees a kernel that leaves it, and a test numbers that were left out.

use std::sync::MutexGuard;

use cudarc::driver::DeviceRepr;
use half::bf16;
use pointsman_engine::backend::{Chunk, KvShape, Logits};
use pointsman_model::weights::{Matrix, Values};

use super::*;
use crate::buffer::alloc;
use crate::device::open;
use crate::failed;
use crate::graphs::{EndsQuietly, quiet};
use crate::input::DeviceNumbers;
use crate::weights::Numbers;

/// Bytes for the sums of attention that are computed at once.
pub const SUMS_BYTES_MAX: usize = SUMS_BYTES;

/// The promise that a test relies on.
const COMPUTES: &str = "a device under test does what it is asked for";

/// The first device, with the kernels on it.
#[derive(Debug)]
pub struct OpsDevice(EndsQuietly<Parts>);

/// The parts of a device that operations are run with.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) blas: Blas,
    pub(crate) module: Module,
    pub(crate) stream: Arc<CudaStream>,
}

/// A step of a model, as [`Ops`]. Numbers are rounded to bf16 on their way to the device. An operation ends its test if
/// the device fails.
#[derive(Debug)]
pub struct OpsCase<'a> {
    /// The device.
    pub device: &'a OpsDevice,
    /// The model's shape.
    pub config: &'a LlamaConfig,
    /// The shape of the pool.
    pub shape: KvShape,
    /// The chunks of the step.
    pub chunks: &'a [Chunk<'a>],
    /// The pool, by the bits of bf16: for each block as many numbers, which may be more than the model needs.
    pub pool: Vec<u16>,
    /// For each position the cosines of the angles by which it turns, then their sines.
    pub angles: Vec<f32>,
}

/// Memory on the device that some operations need beside their rows.
#[derive(Default)]
struct Beside {
    pool: u64,
    angles: u64,
    attention: Attention,
}

impl Parts {
    /// Loads the kernels onto the first device, while others are kept quiet.
    pub(crate) fn open(_quiet: &MutexGuard<'static, ()>) -> Result<Self, DeviceError> {
        let context = open(0)?;
        let module = Module::load(&context)?;
        let stream = context.new_stream().map_err(failed)?;
        Ok(Self {
            blas: Blas::new(&stream)?,
            module,
            stream,
        })
    }

    /// Memory with these numbers.
    pub(crate) fn given<T: DeviceRepr>(&self, numbers: &[T]) -> Result<CudaSlice<T>, DeviceError> {
        let mut memory = alloc(&self.stream, numbers.len())?;
        let copied = self.stream.memcpy_htod(numbers, &mut memory);
        copied.map_err(failed)?;
        Ok(memory)
    }
}

impl OpsDevice {
    /// Loads the kernels onto the first device.
    ///
    /// # Errors
    /// If there is none, or it fails.
    pub fn open() -> Result<Self, DeviceError> {
        let quiet = quiet();
        Ok(Self(EndsQuietly::new(Parts::open(&quiet)?)))
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    /// Memory with these numbers.
    fn given<T: DeviceRepr>(&self, numbers: &[T]) -> CudaSlice<T> {
        self.0.given(numbers).expect(COMPUTES)
    }

    fn matrix(&self, matrix: &Matrix) -> DeviceMatrix {
        let bits: Vec<u16> = match &matrix.values {
            Values::Bf16(numbers) => numbers.iter().map(|number| number.to_bits()).collect(),
            Values::F32(numbers) => rounded(numbers),
        };
        DeviceMatrix {
            rows: bits.len() / matrix.cols,
            cols: matrix.cols,
            numbers: Numbers::Bf16(self.given(&bits)),
        }
    }

    /// Rows with room for so many numbers in bf16, to be written.
    fn room(&self, len: usize) -> Rows {
        Rows::of_bits(self.stream(), 0, &vec![u16::MAX; len]).expect(COMPUTES)
    }

    /// The numbers in rows.
    fn numbers(&self, rows: &Rows, len: usize) -> Vec<f32> {
        let bits = rows.bits(self.stream(), len).expect(COMPUTES);
        bits.map(|bits| bf16::from_bits(bits).to_f32()).collect()
    }
}

fn rounded(numbers: &[f32]) -> Vec<u16> {
    let bits = numbers
        .iter()
        .map(|number| bf16::from_f32(*number).to_bits());
    bits.collect()
}

impl OpsCase<'_> {
    /// Number of rows of the step.
    fn rows(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens.len()).sum()
    }

    /// Number of chunks that want something.
    fn wanting(&self, is_it: impl Fn(Logits) -> bool) -> usize {
        let wanted = self.chunks.iter().map(|chunk| chunk.logits);
        wanted.filter(|logits| is_it(*logits)).count()
    }

    /// A row of numbers for each of the step.
    fn given(&self, numbers: &[f32]) -> Rows {
        let bits = rounded(numbers);
        Rows::of_bits(self.device.stream(), self.rows(), &bits).expect(COMPUTES)
    }

    fn input(&self) -> InputBatch {
        InputBatch::new(self.chunks, self.config, self.shape)
    }

    /// Memory for the sums of attention, of as many rows as may be computed at once.
    fn sums(&self) -> Attention {
        let input = self.input();
        let (few, pieces) = (input.few(), input.pieces());
        let rows = few.place(few.len()).min(sums_rows_max(self.config, pieces));
        let row_bytes = [
            sums_row_bytes(self.config, pieces),
            stats_row_bytes(self.config, pieces),
        ];
        let [sums, stats] = row_bytes.map(|row_bytes| self.device.room(rows * row_bytes / BF16));
        Attention { sums, stats }
    }

    /// Has the device do something with the step, and waits for that.
    fn compute(&self, beside: Beside, does: impl FnOnce(&mut CudaOps<'_>)) {
        let Parts {
            blas,
            module,
            stream,
        } = &*self.device.0;
        let input = self.input();
        let mut numbers = DeviceNumbers::default();
        let at = InputAt::copy(&mut numbers, stream, &input).expect(COMPUTES);
        let (mut attention, mut widened) = (beside.attention, Rows::default());
        let taken = attention.sums.taken + attention.stats.taken;
        let mut ops = CudaOps {
            config: self.config,
            slots: self.shape.tokens_per_block,
            block_size: self.pool.len() / self.shape.blocks_total as usize,
            module,
            stream,
            blas,
            pool: beside.pool,
            angles: beside.angles,
            input: &input,
            at,
            attention: &mut attention,
            widened: &mut widened,
            comm: None,
            launching: Launching::Now,
            failed: None,
        };
        does(&mut ops);
        assert_eq!(ops.failed, None);
        stream.synchronize().expect(COMPUTES);
        let other = attention.sums.taken + attention.stats.taken;
        assert_eq!(other, taken, "sums have memory of their size");
    }

    /// Has the device compute rows, of so many numbers in all.
    fn output(
        &self,
        len: usize,
        beside: Beside,
        does: impl FnOnce(&mut CudaOps<'_>, &mut Rows),
    ) -> Vec<f32> {
        let mut out = self.device.room(len);
        self.compute(beside, |ops| does(ops, &mut out));
        assert_eq!(out.taken, 1, "outputs have memory of their size");
        self.device.numbers(&out, len)
    }

    /// Has the device change rows.
    fn change(
        &self,
        rows: &mut Vec<f32>,
        beside: Beside,
        does: impl FnOnce(&mut CudaOps<'_>, &mut Rows),
    ) {
        let mut there = self.given(rows);
        self.compute(beside, |ops| does(ops, &mut there));
        *rows = self.device.numbers(&there, rows.len());
    }
}

impl Ops for OpsCase<'_> {
    type Activations = Vec<f32>;
    type Matrix = Matrix;
    type Vector = Vec<f32>;

    fn embed(&mut self, table: &Matrix, out: &mut Vec<f32>) {
        let (len, table) = (self.rows() * table.cols, self.device.matrix(table));
        *out = self.output(len, Beside::default(), |ops, out| ops.embed(&table, out));
    }

    fn rmsnorm(&mut self, hidden: &Vec<f32>, weight: &Vec<f32>, out: &mut Vec<f32>) {
        let (rows, weight) = (self.given(hidden), self.device.given(weight));
        *out = self.output(hidden.len(), Beside::default(), |ops, out| {
            ops.rmsnorm(&rows, &weight, out);
        });
    }

    fn add_rmsnorm(
        &mut self,
        delta: &Vec<f32>,
        hidden: &mut Vec<f32>,
        weight: &Vec<f32>,
        out: &mut Vec<f32>,
    ) {
        let (more, mut rows) = (self.given(delta), self.given(hidden));
        let weight = self.device.given(weight);
        *out = self.output(hidden.len(), Beside::default(), |ops, out| {
            ops.add_rmsnorm(&more, &mut rows, &weight, out);
        });
        *hidden = self.device.numbers(&rows, hidden.len());
    }

    fn linear(
        &mut self,
        x: &Vec<f32>,
        weight: &Matrix,
        bias: Option<&Vec<f32>>,
        out: &mut Vec<f32>,
    ) {
        let (rows, weight) = (self.given(x), self.device.matrix(weight));
        let bias = bias.map(|bias| self.device.given(bias));
        let len = rows.count * weight.rows;
        *out = self.output(len, Beside::default(), |ops, out| {
            ops.linear(&rows, &weight, bias.as_ref(), out);
        });
    }

    fn norm_heads(&mut self, qkv: &mut Vec<f32>, norms: &HeadNorms<Vec<f32>>) {
        let norms = HeadNorms {
            query: self.device.given(&norms.query),
            key: self.device.given(&norms.key),
        };
        self.change(qkv, Beside::default(), |ops, rows| {
            ops.norm_heads(rows, &norms);
        });
    }

    fn rope_write_kv(&mut self, layer: usize, qkv: &mut Vec<f32>) {
        let stream = self.device.stream();
        let (pool, angles) = (
            self.device.given(&self.pool),
            self.device.given(&self.angles),
        );
        let beside = Beside {
            pool: address(&pool, stream),
            angles: address(&angles, stream),
            attention: Attention::default(),
        };
        self.change(qkv, beside, |ops, rows| ops.rope_write_kv(layer, rows));
        let copied = stream.memcpy_dtoh(&pool, &mut self.pool);
        copied.expect(COMPUTES);
        stream.synchronize().expect(COMPUTES);
    }

    fn attention(&mut self, layer: usize, qkv: &Vec<f32>, out: &mut Vec<f32>) {
        let (rows, pool) = (self.given(qkv), self.device.given(&self.pool));
        let beside = Beside {
            pool: address(&pool, self.device.stream()),
            angles: 0,
            attention: self.sums(),
        };
        let len = rows.count * self.config.q_size();
        *out = self.output(len, beside, |ops, out| ops.attention(layer, &rows, out));
    }

    fn silu_mul(&mut self, gate_up: &Vec<f32>, out: &mut Vec<f32>) {
        let rows = self.given(gate_up);
        *out = self.output(gate_up.len() / 2, Beside::default(), |ops, out| {
            ops.silu_mul(&rows, out);
        });
    }

    fn logits(&mut self, x: &Vec<f32>, head: &Matrix, out: &mut Vec<f32>) {
        let (rows, head) = (self.given(x), self.device.matrix(head));
        let len = rows.count * head.rows;
        // A number in f32 has the room of two in bf16.
        let mut there = self.device.room(2 * len);
        self.compute(Beside::default(), |ops| {
            ops.logits(&rows, &head, &mut there);
        });
        assert_eq!(there.taken, 1, "logits have memory of their size");
        *out = vec![0.0; len];
        let stream = self.device.stream();
        there.read(stream, out.as_mut_slice()).expect(COMPUTES);
        stream.synchronize().expect(COMPUTES);
    }

    fn last_rows(&mut self, x: &Vec<f32>, out: &mut Vec<f32>) {
        let wanted = self.wanting(|logits| matches!(logits, Logits::Last | Logits::Kept));
        let (rows, len) = (self.given(x), wanted * self.config.hidden_size);
        *out = self.output(len, Beside::default(), |ops, out| ops.last_rows(&rows, out));
    }

    fn hidden_rows(&mut self, x: &Vec<f32>, out: &mut Vec<f32>) {
        let wanted = self.wanting(|logits| logits == Logits::Hidden);
        let (rows, len) = (self.given(x), wanted * self.config.hidden_size);
        *out = self.output(len, Beside::default(), |ops, out| {
            ops.hidden_rows(&rows, out);
        });
    }
}
