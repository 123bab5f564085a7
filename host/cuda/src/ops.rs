//! [`Ops`] on a CUDA device, for one step. Each operation only has the stream run it later; the first
//! that the driver refuses is kept, and those after it are left out.

#[cfg(feature = "test-util")]
pub mod ops_case;

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use pointsman_engine::backend::DeviceError;
use pointsman_model::config::LlamaConfig;
use pointsman_model::graph::HeadNorms;
use pointsman_model::ops::Ops;
use pointsman_model::split::Rank;

use crate::blas::Blas;
use crate::buffer::{Rows, address, room_for};
use crate::comm::{Comm, Launching};
use crate::graphs::StepShape;
use crate::input::{HeadParts, InputAt, InputBatch, as_i32, pieces_of};
use crate::module::{Arg, Grid, Kernel, Module};
use crate::nccl::Bf16At;
use crate::products::{Outputs, Products};
use crate::step::StepRows;
use crate::weights::DeviceMatrix;

/// Threads of a block.
const THREADS: u32 = 128;
/// Threads that run together.
const WARP: u32 = 32;
/// Such groups in a block of [`THREADS`].
const WARPS: usize = (THREADS / WARP) as usize;
/// Most threads of a block that has a row alone.
const ROW_THREADS: u32 = 512;
/// Numbers that a thread has at once.
const STEP: usize = 8;
/// Bytes for the sums of pieces: of more rows than fit, some are computed after the others.
const SUMS_BYTES: usize = 128 << 20;

/// The widest heads for which there are kernels.
pub(crate) const WIDTH_MAX: usize = 128;
/// Kernels by the width of heads: 32, 64, 128.
const SPLIT: [Kernel; 3] = [
    Kernel::AttentionSplit32,
    Kernel::AttentionSplit64,
    Kernel::AttentionSplit128,
];
/// The same for chunks of many tokens.
const WHOLE: [Kernel; 3] = [
    Kernel::AttentionWhole32,
    Kernel::AttentionWhole64,
    Kernel::AttentionWhole128,
];

const BF16: usize = size_of::<u16>();
const F32: usize = size_of::<f32>();

/// The memory that attention needs between its two kernels.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    pub(crate) sums: Rows,
    pub(crate) stats: Rows,
}

pub(crate) struct CudaOps<'a> {
    pub(crate) config: &'a LlamaConfig,
    /// Tokens in a block.
    pub(crate) slots: u32,
    /// Numbers for which a block of the device has room, in bf16.
    pub(crate) block_size: usize,
    pub(crate) module: &'a Module,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) blas: &'a Blas,
    pub(crate) pool: u64,
    pub(crate) angles: u64,
    pub(crate) input: &'a InputBatch,
    pub(crate) at: InputAt,
    pub(crate) attention: &'a mut Attention,
    /// Weights on their way from FP8 to a product.
    pub(crate) widened: &'a mut Rows,
    /// The way to the other ranks, if there are any.
    pub(crate) comm: Option<&'a mut Comm>,
    pub(crate) launching: Launching,
    /// The first failure.
    pub(crate) failed: Option<DeviceError>,
}

impl Ops for CudaOps<'_> {
    type Activations = Rows;
    type Matrix = DeviceMatrix;
    type Vector = CudaSlice<f32>;

    fn embed(&mut self, table: &DeviceMatrix, out: &mut Rows) {
        self.attempt(|ops| {
            let rows = ops.at.rows;
            let args = [
                Arg::Address(out.provide(ops.stream, rows, table.cols * BF16)?),
                ops.memory(table.bf16()?),
                Arg::Address(ops.at.tokens),
                int(table.cols),
            ];
            ops.launch(Kernel::Embed, rows, &args)
        });
    }

    fn rmsnorm(&mut self, hidden: &Rows, weight: &CudaSlice<f32>, out: &mut Rows) {
        self.attempt(|ops| {
            let (rows, size) = (hidden.count, weight.len());
            let args = [
                Arg::Address(out.provide(ops.stream, rows, size * BF16)?),
                ops.rows(hidden),
                ops.memory(weight),
                Arg::Float(ops.config.rms_norm_eps),
                int(size),
            ];
            ops.launch_wide(Kernel::RmsNorm, (rows, size), &args)
        });
    }

    fn add_rmsnorm(
        &mut self,
        delta: &Rows,
        hidden: &mut Rows,
        weight: &CudaSlice<f32>,
        out: &mut Rows,
    ) {
        self.attempt(|ops| {
            let (rows, size) = (hidden.count, weight.len());
            let args = [
                Arg::Address(out.provide(ops.stream, rows, size * BF16)?),
                ops.rows(hidden),
                ops.rows(delta),
                ops.memory(weight),
                Arg::Float(ops.config.rms_norm_eps),
                int(size),
            ];
            ops.launch_wide(Kernel::AddRmsNorm, (rows, size), &args)
        });
    }

    fn linear(
        &mut self,
        x: &Rows,
        weight: &DeviceMatrix,
        bias: Option<&CudaSlice<f32>>,
        out: &mut Rows,
    ) {
        self.attempt(|ops| {
            ops.product(x, weight, Outputs::Bf16, out)?;
            let Some(bias) = bias else {
                return Ok(());
            };
            let args = [ops.rows(out), ops.memory(bias), int(bias.len())];
            ops.launch(Kernel::AddBias, out.count, &args)
        });
    }

    /// The first rank has them alone.
    fn logits(&mut self, x: &Rows, head: &DeviceMatrix, out: &mut Rows) {
        let rank = self.comm.as_ref().map_or(Rank::ONLY, |comm| comm.rank());
        if rank.is_first() {
            self.attempt(|ops| ops.product(x, head, Outputs::F32, out));
        }
    }

    fn sum(&mut self, rows: &mut Rows) {
        self.attempt(|ops| {
            let Some(comm) = &mut ops.comm else {
                return Ok(());
            };
            let numbers = Bf16At {
                at: rows.address(ops.stream),
                count: rows.count * ops.config.hidden_size,
            };
            comm.sum(ops.stream, numbers, ops.launching)
        });
    }

    fn norm_heads(&mut self, qkv: &mut Rows, norms: &HeadNorms<CudaSlice<f32>>) {
        self.attempt(|ops| {
            let config = ops.config;
            let args = [
                ops.rows(qkv),
                ops.memory(&norms.query),
                ops.memory(&norms.key),
                Arg::Float(config.rms_norm_eps),
                int(config.heads),
                int(config.kv_heads),
                int(config.head_dim),
            ];
            let grid = Grid {
                blocks: (qkv.count, config.heads + config.kv_heads, 1),
                threads: WARP,
            };
            ops.module
                .launch(ops.stream, Kernel::NormHeads, grid, &args)
        });
    }

    fn rope_write_kv(&mut self, layer: usize, qkv: &mut Rows) {
        self.attempt(|ops| {
            let mut args = vec![
                ops.rows(qkv),
                Arg::Address(ops.pool),
                Arg::Address(ops.angles),
            ];
            args.extend(ops.tables());
            args.extend(ops.heads(layer));
            let pairs = ops.config.qkv_size() / 2;
            let grid = Grid {
                blocks: (ops.at.rows, pairs.div_ceil(THREADS as usize), 1),
                threads: THREADS,
            };
            ops.module
                .launch(ops.stream, Kernel::RopeWriteKv, grid, &args)
        });
    }

    fn attention(&mut self, layer: usize, qkv: &Rows, out: &mut Rows) {
        self.attempt(|ops| {
            let row_bytes = ops.config.q_size() * BF16;
            let out = out.provide(ops.stream, ops.at.rows, row_bytes)?;
            let at = (qkv.address(ops.stream), out);
            ops.attend_many(layer, at)?;
            let few = ops.input.few();
            let pieces = ops.input.pieces();
            let rows_max = sums_rows_max(ops.config, pieces);
            let mut done = 0;
            while done < few.len() {
                let part = few.part(done, rows_max);
                done = part.end;
                ops.attend_few(layer, part, pieces, at)?;
            }
            Ok(())
        });
    }

    fn silu_mul(&mut self, gate_up: &Rows, out: &mut Rows) {
        self.attempt(|ops| {
            let (rows, size) = (gate_up.count, ops.config.intermediate_size);
            let args = [
                Arg::Address(out.provide(ops.stream, rows, size * BF16)?),
                ops.rows(gate_up),
                int(size),
            ];
            let grid = Grid {
                blocks: (rows, size.div_ceil(STEP * THREADS as usize), 1),
                threads: THREADS,
            };
            ops.module.launch(ops.stream, Kernel::SiluMul, grid, &args)
        });
    }

    fn last_rows(&mut self, x: &Rows, out: &mut Rows) {
        let InputAt { last, wanted, .. } = self.at;
        self.take_rows(x, (last, wanted), out);
    }

    fn hidden_rows(&mut self, x: &Rows, out: &mut Rows) {
        let InputAt {
            last,
            wanted,
            hidden,
            ..
        } = self.at;
        let after = last + (wanted * size_of::<i32>()) as u64;
        self.take_rows(x, (after, hidden), out);
    }
}

impl CudaOps<'_> {
    /// Does something, unless something failed before.
    fn attempt(&mut self, does: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.failed.is_none() {
            self.failed = does(self).err();
        }
    }

    /// Takes as many rows as are listed at an address.
    fn take_rows(&mut self, x: &Rows, (list, rows): (u64, usize), out: &mut Rows) {
        self.attempt(|ops| {
            let size = ops.config.hidden_size;
            let args = [
                Arg::Address(out.provide(ops.stream, rows, size * BF16)?),
                ops.rows(x),
                Arg::Address(list),
                int(size),
            ];
            ops.launch(Kernel::LastRows, rows, &args)
        });
    }

    fn rows(&self, rows: &Rows) -> Arg {
        Arg::Address(rows.address(self.stream))
    }

    fn memory<T>(&self, memory: &CudaSlice<T>) -> Arg {
        Arg::Address(address(memory, self.stream))
    }

    /// Launches a kernel with a block for each row.
    fn launch(&self, kernel: Kernel, rows: usize, args: &[Arg]) -> Result<(), DeviceError> {
        let grid = Grid {
            blocks: (rows, 1, 1),
            threads: THREADS,
        };
        self.module.launch(self.stream, kernel, grid, args)
    }

    /// Launches a kernel with a block for each row of so many numbers, which its threads have at once, or
    /// nearly.
    fn launch_wide(
        &self,
        kernel: Kernel,
        (rows, size): (usize, usize),
        args: &[Arg],
    ) -> Result<(), DeviceError> {
        let threads = u32::try_from(size.div_ceil(STEP)).unwrap_or(ROW_THREADS);
        let grid = Grid {
            blocks: (rows, 1, 1),
            threads: threads.next_multiple_of(WARP).min(ROW_THREADS),
        };
        self.module.launch(self.stream, kernel, grid, args)
    }

    /// The parts of the input by which rows find their keys and values.
    fn tables(&self) -> [Arg; 3] {
        let InputAt {
            positions,
            starts,
            tables,
            ..
        } = self.at;
        [positions, starts, tables].map(Arg::Address)
    }

    /// The shape of the pool, and the layer in it.
    fn heads(&self, layer: usize) -> [Arg; 6] {
        let config = self.config;
        [
            int(layer),
            int(self.block_size),
            int(config.heads),
            int(config.kv_heads),
            int(config.head_dim),
            Arg::Int(self.slots.cast_signed()),
        ]
    }

    /// The shape of attention, from the queries on to the scale, with these arguments before the scale.
    fn shape(&self, layer: usize, (qkv, tiles): (u64, u64), rest: [usize; 2]) -> Vec<Arg> {
        let mut args = vec![Arg::Address(qkv), Arg::Address(self.pool)];
        args.extend(self.tables());
        args.push(Arg::Address(tiles));
        args.extend(self.heads(layer));
        args.extend(rest.map(int));
        // Weights are powers of two.
        let scale = std::f32::consts::LOG2_E / (self.config.head_dim as f32).sqrt();
        args.push(Arg::Float(scale));
        args
    }

    /// Computes the attention of chunks of many tokens; `at` has the addresses of queries and outputs.
    fn attend_many(&self, layer: usize, at: (u64, u64)) -> Result<(), DeviceError> {
        let (config, many) = (self.config, &self.at.many);
        let parts = HeadParts::of(config);
        let mut args = vec![Arg::Address(at.1)];
        let rest = [many.count, parts.heads];
        args.extend(self.shape(layer, (at.0, many.tile(0)), rest));
        let grid = Grid {
            blocks: (many.count.div_ceil(WARPS), config.kv_heads * parts.count, 1),
            threads: THREADS,
        };
        let kernel = by_width(config, WHOLE);
        self.module.launch(self.stream, kernel, grid, &args)
    }

    /// Computes the attention of these of the chunks of few tokens.
    fn attend_few(
        &mut self,
        layer: usize,
        tiles: Range<usize>,
        pieces: usize,
        at: (u64, u64),
    ) -> Result<(), DeviceError> {
        let (config, few) = (self.config, &self.at.few);
        let (first, end) = (
            self.input.few().place(tiles.start),
            self.input.few().place(tiles.end),
        );
        let rows = end - first;
        let Attention {
            sums: memory,
            stats,
        } = &mut *self.attention;
        let memory = memory.provide(self.stream, rows, sums_row_bytes(config, pieces))?;
        let stats = stats.provide(self.stream, rows, stats_row_bytes(config, pieces))?;
        let (sums, stats) = (Arg::Address(memory), Arg::Address(stats));
        let parts = HeadParts::of(config);
        let mut args = vec![sums, stats];
        let rest = [parts.heads, pieces];
        args.extend(self.shape(layer, (at.0, few.tile(tiles.start)), rest));
        let blocks = config.kv_heads * parts.count;
        let grid = Grid {
            blocks: (tiles.len(), blocks, pieces.div_ceil(WARPS)),
            threads: THREADS,
        };
        let kernel = by_width(config, SPLIT);
        self.module.launch(self.stream, kernel, grid, &args)?;
        let args = [
            Arg::Address(at.1),
            sums,
            stats,
            Arg::Address(few.row(first)),
            Arg::Address(self.at.positions),
            int(pieces),
            int(config.head_dim),
        ];
        let grid = Grid {
            blocks: (rows, config.heads, 1),
            threads: THREADS,
        };
        self.module
            .launch(self.stream, Kernel::AttentionMerge, grid, &args)
    }

    /// Multiplies `x` by the transpose of `weight`.
    fn product(
        &mut self,
        x: &Rows,
        weight: &DeviceMatrix,
        outputs: Outputs,
        out: &mut Rows,
    ) -> Result<(), DeviceError> {
        let mut products = Products {
            module: self.module,
            stream: self.stream,
            blas: self.blas,
            widened: self.widened,
        };
        products.multiply(x, weight, outputs, out)
    }
}

impl Attention {
    /// Bytes that are taken at most for a step of so many rows.
    pub(crate) fn bytes_max(config: &LlamaConfig, rows: StepRows) -> usize {
        let row_bytes = sums_row_bytes(config, pieces_of(config.context_tokens as usize));
        // A chunk of few tokens is a tile, of which one at least is computed at once.
        let tile = HeadParts::of(config).tokens();
        let rows = rows.tokens.min(rows.sequences * tile);
        let sums = (rows * row_bytes).min(SUMS_BYTES.max(tile * row_bytes));
        // Beside the sums of a head there are two numbers.
        room_for(sums) + room_for(2 * sums.div_ceil(config.head_dim))
    }
}

/// Bytes of a row of sums of so many pieces.
fn sums_row_bytes(config: &LlamaConfig, pieces: usize) -> usize {
    config.q_size() * pieces * F32
}

/// Bytes of a row of what is beside such sums: two numbers for each piece of a head.
fn stats_row_bytes(config: &LlamaConfig, pieces: usize) -> usize {
    config.heads * pieces * 2 * F32
}

/// Rows whose sums of so many pieces have room.
pub(crate) fn sums_rows_max(config: &LlamaConfig, pieces: usize) -> usize {
    SUMS_BYTES / sums_row_bytes(config, pieces)
}

/// The shape of a step, if another one of that shape launches the same: none that has chunks of many tokens, or
/// whose attention is computed in parts.
pub(crate) fn shape(config: &LlamaConfig, input: &InputBatch, at: &InputAt) -> Option<StepShape> {
    let pieces = input.pieces();
    let is_one = at.many.count == 0 && at.rows <= sums_rows_max(config, pieces);
    is_one.then_some(StepShape {
        rows: at.rows,
        wanted: at.wanted,
        hidden: at.hidden,
        tiles: at.few.count,
        pieces,
    })
}

/// The kernel whose heads are as wide as the model's, or the least bit wider.
fn by_width(config: &LlamaConfig, kernels: [Kernel; 3]) -> Kernel {
    let widths = [32, 64, WIDTH_MAX];
    let place = widths.iter().position(|width| config.head_dim <= *width);
    kernels[place.unwrap_or(widths.len() - 1)]
}

fn int(value: usize) -> Arg {
    Arg::Int(as_i32(value))
}
