//! Products of activations with weights.
//!
//! Those in bf16 are cuBLAS's. Weights in FP8 stay so in memory: a product with few rows reads them as they are
//! (`kernels/fp8.cu`), one with many has them written in bf16, some rows at a time, for cuBLAS.

use std::sync::Arc;

use cudarc::cublas::{result::gemm_ex, sys as blas};
use cudarc::driver::CudaStream;
use pointsman_engine::backend::DeviceError;
use pointsman_model::open::OpenModel;
use pointsman_model::weights::StoredMatrix;

use crate::blas::Blas;
use crate::blas_failed;
use crate::buffer::{Rows, address, room_for};
use crate::input::as_i32;
use crate::module::{Arg, Grid, Kernel, Module};
use crate::weights::{DeviceMatrix, Fp8Numbers, Numbers};

/// Most rows whose product with FP8 is computed from the codes. With more, they would be read again and again, and
/// matrix units would wait for what is widened in front of them. What is widened is rounded with its scale: a row has other
/// last bits then.
const DIRECT_ROWS_MAX: usize = 64;
/// Rows of activations that a block of the kernels has: a few, or many.
const FEW: usize = 8;
const MANY: usize = 32;
/// Rows of weights that a block has, and its threads.
const WEIGHT_ROWS: usize = 16;
const THREADS: u32 = 256;
/// Threads of a block that widens a row.
const WIDEN_THREADS: u32 = 128;
/// Bytes for weights in bf16 that are FP8 in memory: of more rows than fit, some are multiplied after the others.
const WIDENED_BYTES: usize = 64 << 20;

/// The type of a product's outputs.
#[derive(Clone, Copy)]
pub(crate) enum Outputs {
    Bf16,
    F32,
}

/// Rows of weights in bf16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Weights {
    pub(crate) at: u64,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// The place of outputs: an address, and the numbers in a row there.
#[derive(Clone, Copy)]
pub(crate) struct OutputsAt {
    pub(crate) at: u64,
    pub(crate) cols: usize,
    pub(crate) kind: Outputs,
}

/// Computes products on a stream.
pub(crate) struct Products<'a> {
    pub(crate) module: &'a Module,
    pub(crate) stream: &'a Arc<CudaStream>,
    pub(crate) blas: &'a Blas,
    /// Memory for weights in bf16 that are FP8 in memory.
    pub(crate) widened: &'a mut Rows,
}

impl Outputs {
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 => size_of::<u16>(),
            Self::F32 => size_of::<f32>(),
        }
    }
}

impl Products<'_> {
    /// Multiplies `x` by the transpose of `weight`.
    pub(crate) fn multiply(
        &mut self,
        x: &Rows,
        weight: &DeviceMatrix,
        kind: Outputs,
        out: &mut Rows,
    ) -> Result<(), DeviceError> {
        let (rows, cols) = (weight.rows, weight.cols);
        let at = out.provide(self.stream, x.count, rows * kind.bytes())?;
        let out = OutputsAt {
            at,
            cols: rows,
            kind,
        };
        match (&weight.numbers, kind) {
            (Numbers::Bf16(numbers), _) => {
                let at = address(numbers, self.stream);
                multiply(
                    (self.blas, self.stream),
                    x,
                    Bf16Weights { at, rows, cols },
                    out,
                )
            }
            (Numbers::Fp8(fp8), Outputs::Bf16) if x.count <= DIRECT_ROWS_MAX => {
                self.read_codes(x, (weight, fp8), at)
            }
            (Numbers::Fp8(fp8), Outputs::Bf16 | Outputs::F32) => self.widen((weight, fp8), x, out),
        }
    }

    fn read_codes(
        &self,
        x: &Rows,
        (weight, fp8): (&DeviceMatrix, &Fp8Numbers),
        out: u64,
    ) -> Result<(), DeviceError> {
        let (kernel, each) = match x.count {
            ..=FEW => (Kernel::ProductFp8Few, FEW),
            _ => (Kernel::ProductFp8Many, MANY),
        };
        let args = [
            Arg::Address(out),
            Arg::Address(x.address(self.stream)),
            Arg::Address(address(&fp8.codes, self.stream)),
            Arg::Address(address(&fp8.scales, self.stream)),
            int(x.count),
            int(weight.rows),
            int(weight.cols),
            int(fp8.rows_each),
            int(fp8.cols_each),
        ];
        let blocks = (weight.rows.div_ceil(WEIGHT_ROWS), x.count.div_ceil(each), 1);
        let grid = Grid {
            blocks,
            threads: THREADS,
        };
        self.module.launch(self.stream, kernel, grid, &args)
    }

    /// Multiplies some rows of weights after the others, each time written in bf16 first.
    fn widen(
        &mut self,
        (weight, fp8): (&DeviceMatrix, &Fp8Numbers),
        x: &Rows,
        out: OutputsAt,
    ) -> Result<(), DeviceError> {
        let (at_once, row_bytes) = widened_rows((weight.rows, weight.cols));
        let at = self.widened.provide(self.stream, at_once, row_bytes)?;
        for first in (0..weight.rows).step_by(at_once) {
            let rows = at_once.min(weight.rows - first);
            let args = [
                Arg::Address(at),
                Arg::Address(address(&fp8.codes, self.stream)),
                Arg::Address(address(&fp8.scales, self.stream)),
                int(first),
                int(weight.cols),
                int(fp8.rows_each),
                int(fp8.cols_each),
            ];
            let grid = Grid {
                blocks: (rows, 1, 1),
                threads: WIDEN_THREADS,
            };
            self.module
                .launch(self.stream, Kernel::WidenFp8Rows, grid, &args)?;
            let part = Bf16Weights {
                at,
                rows,
                cols: weight.cols,
            };
            let out = OutputsAt {
                at: out.at + (first * out.kind.bytes()) as u64,
                ..out
            };
            multiply((self.blas, self.stream), x, part, out)?;
        }
        Ok(())
    }
}

/// Number of rows of weights that are written in bf16 at once, and the bytes of each.
fn widened_rows((rows, cols): (usize, usize)) -> (usize, usize) {
    let row_bytes = cols * size_of::<u16>();
    ((WIDENED_BYTES / row_bytes).clamp(1, rows), row_bytes)
}

/// Bytes that are taken at most for weights in bf16 that are FP8 in memory, in products with so many rows of activations.
pub(crate) fn widened_bytes_max(model: &OpenModel, rows: usize) -> usize {
    if rows <= DIRECT_ROWS_MAX {
        return 0;
    }
    let of_matrices = model.weights().matrices().map(|matrix| match matrix {
        StoredMatrix::Numbers(_) => 0,
        StoredMatrix::Fp8(stacked) => {
            let (at_once, row_bytes) = widened_rows((stacked.rows(), stacked.cols));
            room_for(at_once * row_bytes)
        }
    });
    of_matrices.max().unwrap_or(0)
}

/// Has a stream multiply `x` by the transpose of `weight`.
///
/// cuBLAS takes matrices column by column: to it, rows of ours are columns, and the product is computed as
/// its transpose.
pub(crate) fn multiply(
    (handle, stream): (&Blas, &Arc<CudaStream>),
    x: &Rows,
    weight: Bf16Weights,
    out: OutputsAt,
) -> Result<(), DeviceError> {
    let c_type = match out.kind {
        Outputs::Bf16 => blas::cudaDataType_t::CUDA_R_16BF,
        Outputs::F32 => blas::cudaDataType_t::CUDA_R_32F,
    };
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
            handle.handle(),
            blas::cublasOperation_t::CUBLAS_OP_T,
            blas::cublasOperation_t::CUBLAS_OP_N,
            m,
            n,
            k,
            (&raw const one).cast(),
            weight.at as *const _,
            input,
            k,
            x.address(stream) as *const _,
            input,
            k,
            (&raw const zero).cast(),
            out.at as *mut _,
            c_type,
            as_i32(out.cols),
            blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    product.map_err(blas_failed)
}

fn int(value: usize) -> Arg {
    Arg::Int(as_i32(value))
}

/// A product with weights in FP8, for tests.
#[cfg(feature = "test-util")]
pub mod fp8_case {
    use pointsman_model::weights::fp8::Scales;

    use super::*;
    use crate::graphs::quiet;
    use crate::ops::ops_case::Parts;

    /// Weights, and rows of numbers to multiply them with.
    #[derive(Clone, Copy, Debug)]
    pub struct Fp8Case<'a> {
        /// The codes of the weights.
        pub codes: &'a [u8],
        /// Their scales.
        pub scales: &'a Scales,
        /// Numbers in a row of weights, and of `x`.
        pub cols: usize,
        /// The rows, by the bits of bf16.
        pub x: &'a [u16],
    }

    impl Fp8Case<'_> {
        /// The product, by the bits of bf16, computed on the first device. There is an even number of rows of weights.
        ///
        /// # Errors
        /// If the device fails.
        pub fn product(&self) -> Result<Vec<u16>, DeviceError> {
            // Until all that is taken here is given back.
            let quiet = quiet();
            let parts = Parts::open(&quiet)?;
            let stream = &parts.stream;
            let (rows, count) = (self.codes.len() / self.cols, self.x.len() / self.cols);
            let weight = DeviceMatrix {
                rows,
                cols: self.cols,
                numbers: Numbers::Fp8(Fp8Numbers {
                    codes: parts.given(self.codes)?,
                    scales: parts.given(&self.scales.numbers)?,
                    rows_each: self.scales.rows_each,
                    cols_each: self.scales.cols_each,
                }),
            };
            // With no memory beside them, so that a sanitizer sees what is read or written there.
            let x = Rows::of_bits(stream, count, self.x)?;
            let mut out = Rows::of_bits(stream, 0, &vec![u16::MAX; count * rows])?;
            let mut widened = Rows::default();
            let mut products = Products {
                module: &parts.module,
                stream,
                blas: &parts.blas,
                widened: &mut widened,
            };
            products.multiply(&x, &weight, Outputs::Bf16, &mut out)?;
            Ok(out.bits(stream, count * rows)?.collect())
        }
    }
}
