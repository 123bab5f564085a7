//! [`Ops`] on a CUDA device, for one step. Each operation only has the stream run it later; the first
//! that the driver refuses is kept, and those after it are left out.

use std::ops::Range;
use std::sync::Arc;

use cudarc::cublas::{CudaBlas, result::gemm_ex, sys as blas};
use cudarc::driver::{CudaSlice, CudaStream};
use pointsman_engine::model::backend::DeviceError;
use pointsman_engine::model::config::LlamaConfig;
use pointsman_engine::model::graph::HeadNorms;
use pointsman_engine::model::ops::Ops;

use crate::blas_failed;
use crate::buffer::{Rows, address};
use crate::input::{InputAt, InputBatch, as_i32};
use crate::module::{Arg, Grid, Kernel, Module};
use crate::weights::DeviceMatrix;

/// Threads of a block.
const THREADS: u32 = 128;
/// Threads that run together.
const WARP: u32 = 32;
/// Positions that a block of attention walks: so many that there is work, so few that a long sequence
/// alone keeps a device busy. A row's pieces depend on its own position only, and so does its result.
const PIECE: usize = 128;
/// Positions in a tile, where their keys and values fit into shared memory.
const TILE: usize = 64;
/// Bytes of shared memory that every launch may have.
const SHARED_BYTES: usize = 48 << 10;
/// Bytes for the sums of pieces: of more rows than fit, some are computed after the others.
const SUMS_BYTES: usize = 64 << 20;

const BF16: usize = size_of::<u16>();
const F32: usize = size_of::<f32>();

/// The memory that attention needs between its two kernels.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    sums: Rows,
    stats: Rows,
}

pub(crate) struct CudaOps<'a> {
    pub(crate) config: &'a LlamaConfig,
    /// Tokens in a block.
    pub(crate) slots: u32,
    pub(crate) module: &'a Module,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) blas: &'a CudaBlas,
    pub(crate) pool: u64,
    pub(crate) angles: u64,
    pub(crate) input: &'a InputBatch,
    pub(crate) at: InputAt,
    pub(crate) attention: &'a mut Attention,
    /// The first failure.
    pub(crate) failed: Option<DeviceError>,
}

/// The type of a product's outputs.
#[derive(Clone, Copy)]
enum Outputs {
    Bf16,
    F32,
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
                ops.memory(&table.numbers),
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
            ops.launch(Kernel::RmsNorm, rows, &args)
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
            ops.launch(Kernel::AddRmsNorm, rows, &args)
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

    fn logits(&mut self, x: &Rows, head: &DeviceMatrix, out: &mut Rows) {
        self.attempt(|ops| ops.product(x, head, Outputs::F32, out));
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
                shared_bytes: 0,
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
            args.extend(ops.tables(0));
            args.extend(ops.heads(layer));
            ops.launch(Kernel::RopeWriteKv, ops.at.rows, &args)
        });
    }

    fn attention(&mut self, layer: usize, qkv: &Rows, out: &mut Rows) {
        self.attempt(|ops| {
            let config = ops.config;
            let rows = ops.at.rows;
            let row_bytes = config.q_size() * BF16;
            let qkv = qkv.address(ops.stream);
            let out = out.provide(ops.stream, rows, row_bytes)?;
            let mut done = 0;
            while done < rows {
                let part = ops.attention_rows(done..rows);
                let next = part.end;
                let qkv = qkv + (done * config.qkv_size() * BF16) as u64;
                let out = out + (done * row_bytes) as u64;
                ops.attend(layer, part, (qkv, out))?;
                done = next;
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
            ops.launch(Kernel::SiluMul, rows, &args)
        });
    }

    fn last_rows(&mut self, x: &Rows, out: &mut Rows) {
        self.attempt(|ops| {
            let (rows, size) = (ops.at.wanted, ops.config.hidden_size);
            let args = [
                Arg::Address(out.provide(ops.stream, rows, size * BF16)?),
                ops.rows(x),
                Arg::Address(ops.at.last),
                int(size),
            ];
            ops.launch(Kernel::LastRows, rows, &args)
        });
    }
}

impl CudaOps<'_> {
    /// Does something, unless something failed before.
    fn attempt(&mut self, does: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.failed.is_none() {
            self.failed = does(self).err();
        }
    }

    fn rows(&self, rows: &Rows) -> Arg {
        Arg::Address(rows.address(self.stream))
    }

    fn memory<T>(&self, memory: &CudaSlice<T>) -> Arg {
        Arg::Address(address(memory, self.stream))
    }

    /// Launches a kernel with a block for each row; nothing without rows, which a grid cannot be.
    fn launch(&self, kernel: Kernel, rows: usize, args: &[Arg]) -> Result<(), DeviceError> {
        if rows == 0 {
            return Ok(());
        }
        let grid = Grid {
            blocks: (rows, 1, 1),
            threads: THREADS,
            shared_bytes: 0,
        };
        self.module.launch(self.stream, kernel, grid, args)
    }

    /// The parts of the input by which rows from `first` on find their keys and values.
    fn tables(&self, first: usize) -> [Arg; 3] {
        let skipped = (first * size_of::<i32>()) as u64;
        [
            Arg::Address(self.at.positions + skipped),
            Arg::Address(self.at.starts + skipped),
            Arg::Address(self.at.tables),
        ]
    }

    /// The shape of the pool, and the layer in it.
    fn heads(&self, layer: usize) -> [Arg; 6] {
        let config = self.config;
        [
            int(layer),
            int(config.layers),
            int(config.heads),
            int(config.kv_heads),
            int(config.head_dim),
            Arg::Int(self.slots.cast_signed()),
        ]
    }

    /// The first of these rows, as many as there is memory for the sums of.
    fn attention_rows(&self, rows: Range<usize>) -> Range<usize> {
        let pieces = self.input.seen_max(rows.clone()).div_ceil(PIECE);
        let row_bytes = self.config.q_size() * pieces * F32;
        let most = (SUMS_BYTES / row_bytes).max(1);
        rows.start..rows.end.min(rows.start + most)
    }

    /// Computes the attention of these rows; `at` has the addresses of their queries and outputs.
    fn attend(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        at: (u64, u64),
    ) -> Result<(), DeviceError> {
        let (config, count) = (self.config, rows.len());
        let pieces = self.input.seen_max(rows.clone()).div_ceil(PIECE);
        let heads = config.heads * pieces;
        let Attention { sums, stats } = &mut *self.attention;
        let sums = sums.provide(self.stream, count, heads * config.head_dim * F32)?;
        let stats = stats.provide(self.stream, count, heads * 2 * F32)?;
        let (sums, stats) = (Arg::Address(sums), Arg::Address(stats));
        let tile = tile(config);
        let mut args = vec![sums, stats, Arg::Address(at.0), Arg::Address(self.pool)];
        args.extend(self.tables(rows.start));
        args.extend(self.heads(layer));
        args.extend([int(PIECE), int(tile)]);
        args.push(Arg::Float(1.0 / (config.head_dim as f32).sqrt()));
        let grid = Grid {
            blocks: (count, config.kv_heads, pieces),
            threads: THREADS,
            shared_bytes: shared_bytes(config, tile),
        };
        self.module
            .launch(self.stream, Kernel::Attention, grid, &args)?;
        let args = [
            Arg::Address(at.1),
            sums,
            stats,
            int(pieces),
            int(config.head_dim),
        ];
        let grid = Grid {
            blocks: (count, config.heads, 1),
            threads: THREADS,
            shared_bytes: 0,
        };
        self.module
            .launch(self.stream, Kernel::AttentionMerge, grid, &args)
    }

    /// Multiplies `x` by the transpose of `weight`.
    ///
    /// cuBLAS takes matrices column by column: to it, rows of ours are columns, and the product is
    /// computed as its transpose.
    fn product(
        &self,
        x: &Rows,
        weight: &DeviceMatrix,
        outputs: Outputs,
        out: &mut Rows,
    ) -> Result<(), DeviceError> {
        let (c_type, bytes) = match outputs {
            Outputs::Bf16 => (blas::cudaDataType_t::CUDA_R_16BF, BF16),
            Outputs::F32 => (blas::cudaDataType_t::CUDA_R_32F, F32),
        };
        let out = out.provide(self.stream, x.count, weight.rows * bytes)?;
        if x.count == 0 {
            return Ok(());
        }
        let (one, zero) = (1.0_f32, 0.0_f32);
        let input = blas::cudaDataType_t::CUDA_R_16BF;
        let (m, n, k) = (as_i32(weight.rows), as_i32(x.count), as_i32(weight.cols));
        // SAFETY: the addresses are of whole matrices of these sizes, which live until the stream has
        // come to its end; the factors are read before the call returns.
        let product = unsafe {
            gemm_ex(
                *self.blas.handle(),
                blas::cublasOperation_t::CUBLAS_OP_T,
                blas::cublasOperation_t::CUBLAS_OP_N,
                m,
                n,
                k,
                (&raw const one).cast(),
                address(&weight.numbers, self.stream) as *const _,
                input,
                k,
                x.address(self.stream) as *const _,
                input,
                k,
                (&raw const zero).cast(),
                out as *mut _,
                c_type,
                m,
                blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        product.map_err(blas_failed)
    }
}

/// The positions in a tile: fewer where heads are so wide that their keys and values do not fit.
fn tile(config: &LlamaConfig) -> usize {
    let mut tile = TILE;
    while shared_bytes(config, tile) > SHARED_BYTES && tile > 1 {
        tile /= 2;
    }
    tile
}

/// Bytes of shared memory that a block of attention takes, as `kernels/attention.cu` says.
fn shared_bytes(config: &LlamaConfig, tile: usize) -> usize {
    let group = config.group_size();
    2 * tile * (config.head_dim + 8) * BF16 + group * (2 * config.head_dim + tile + 3) * F32
}

fn int(value: usize) -> Arg {
    Arg::Int(as_i32(value))
}
