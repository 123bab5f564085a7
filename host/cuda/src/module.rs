//! The kernels as the driver loads them, and their launches.
//!
//! The parameters of each kernel are read from the PTX, and a launch with others is refused: the
//! driver itself would take whatever lies at an address.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::Ptx;
use pointsman_engine::backend::DeviceError;
use pointsman_packed::{Damaged, Packed};

use crate::failed;

/// The kernels, compiled by `cargo xtask kernels` and packed by the build script.
const PTX: Packed = Packed::new(
    "pointsman.ptx",
    include_bytes!(concat!(env!("OUT_DIR"), "/pointsman.ptx.packed")),
);

/// The PTX of the kernels.
///
/// # Errors
/// If the program is damaged.
pub fn ptx() -> Result<String, Damaged> {
    let bytes = PTX.unpack()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is described where it is written, in `kernels`"
)]
pub enum Kernel {
    Embed,
    RmsNorm,
    AddRmsNorm,
    AddBias,
    NormHeads,
    RopeWriteKv,
    AttentionSplit32,
    AttentionSplit64,
    AttentionSplit128,
    AttentionWhole32,
    AttentionWhole64,
    AttentionWhole128,
    AttentionMerge,
    SiluMul,
    LastRows,
    Choose,
    ProductFp8Few,
    ProductFp8Many,
    WidenFp8Rows,
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// The address of memory on the device.
    Address(u64),
    /// A whole number.
    Int(i32),
    /// A number.
    Float(f32),
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (usize, usize, usize),
    pub(crate) threads: u32,
}

/// The kernels, loaded into a context.
#[derive(Debug)]
pub(crate) struct Module {
    functions: Vec<(CudaFunction, Vec<Parameter>)>,
}

/// The type of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// The address of memory on the device.
    Address,
    /// A whole number of 32 bits.
    Int,
    /// A number of 32 bits.
    Float,
}

impl Kernel {
    /// All kernels, each at the place of its number.
    pub const ALL: [Self; 19] = [
        Self::Embed,
        Self::RmsNorm,
        Self::AddRmsNorm,
        Self::AddBias,
        Self::NormHeads,
        Self::RopeWriteKv,
        Self::AttentionSplit32,
        Self::AttentionSplit64,
        Self::AttentionSplit128,
        Self::AttentionWhole32,
        Self::AttentionWhole64,
        Self::AttentionWhole128,
        Self::AttentionMerge,
        Self::SiluMul,
        Self::LastRows,
        Self::Choose,
        Self::ProductFp8Few,
        Self::ProductFp8Many,
        Self::WidenFp8Rows,
    ];

    /// The name in the PTX.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::RmsNorm => "rmsnorm",
            Self::AddRmsNorm => "add_rmsnorm",
            Self::AddBias => "add_bias",
            Self::NormHeads => "norm_heads",
            Self::RopeWriteKv => "rope_write_kv",
            Self::AttentionSplit32 => "attention_split_32",
            Self::AttentionSplit64 => "attention_split_64",
            Self::AttentionSplit128 => "attention_split_128",
            Self::AttentionWhole32 => "attention_whole_32",
            Self::AttentionWhole64 => "attention_whole_64",
            Self::AttentionWhole128 => "attention_whole_128",
            Self::AttentionMerge => "attention_merge",
            Self::SiluMul => "silu_mul",
            Self::LastRows => "last_rows",
            Self::Choose => "choose",
            Self::ProductFp8Few => "product_fp8_8",
            Self::ProductFp8Many => "product_fp8_32",
            Self::WidenFp8Rows => "widen_fp8_rows",
        }
    }

    /// The parameters of the kernel in `ptx`; absent where it is not there, or has one of another type.
    #[must_use]
    pub fn parameters(self, ptx: &str) -> Option<Vec<Parameter>> {
        let entry = format!(".entry {}(", self.name());
        let (_, rest) = ptx.split_once(&entry)?;
        let (list, _) = rest.split_once(')')?;
        let types = list.split(',').filter(|part| !part.trim().is_empty());
        let types = types.map(|part| {
            let name = part.trim().strip_prefix(".param ")?;
            match name.split_whitespace().next()? {
                ".u64" => Some(Parameter::Address),
                ".u32" => Some(Parameter::Int),
                ".f32" => Some(Parameter::Float),
                _ => None,
            }
        });
        types.collect()
    }
}

impl Arg {
    fn parameter(self) -> Parameter {
        match self {
            Self::Address(_) => Parameter::Address,
            Self::Int(_) => Parameter::Int,
            Self::Float(_) => Parameter::Float,
        }
    }
}

impl Module {
    /// Loads the kernels. The driver compiles them for its device, or has them from before.
    pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Self, DeviceError> {
        let ptx = ptx().map_err(|damaged| DeviceError(damaged.to_string()))?;
        let module = context.load_module(Ptx::from_src(&ptx));
        let module = module.map_err(failed)?;
        let functions = Kernel::ALL.iter().map(|kernel| {
            let function = module.load_function(kernel.name()).map_err(failed)?;
            let parameters = kernel.parameters(&ptx).unwrap_or_default();
            Ok((function, parameters))
        });
        Ok(Self {
            functions: functions.collect::<Result<_, _>>()?,
        })
    }

    /// Has `stream` run a kernel. Addresses must be of memory that is large enough, and which lives
    /// until the stream has come to its end. Without blocks nothing is launched. Arguments that are not the
    /// kernel's are refused.
    pub(crate) fn launch(
        &self,
        stream: &CudaStream,
        kernel: Kernel,
        grid: Grid,
        args: &[Arg],
    ) -> Result<(), DeviceError> {
        let (function, parameters) = &self.functions[kernel as usize];
        let given = args.iter().map(|arg| arg.parameter());
        if !given.eq(parameters.iter().copied()) {
            let name = kernel.name();
            return Err(DeviceError(format!(
                "{name} does not take these parameters"
            )));
        }
        let (x, y, z) = grid.blocks;
        if x * y * z == 0 {
            return Ok(());
        }
        let [x, y, z] = [x, y, z].map(|size| u32::try_from(size).ok());
        let (Some(x), Some(y), Some(z)) = (x, y, z) else {
            return Err(DeviceError(format!(
                "{}: {} blocks are beyond a launch",
                kernel.name(),
                grid.blocks.0
            )));
        };
        let mut launch = stream.launch_builder(function);
        for arg in args {
            match arg {
                Arg::Address(address) => launch.arg(address),
                Arg::Int(number) => launch.arg(number),
                Arg::Float(number) => launch.arg(number),
            };
        }
        let config = LaunchConfig {
            grid_dim: (x, y, z),
            block_dim: (grid.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments have the number and types of the kernel's parameters, as checked
        // above; what lies behind the addresses is the caller's promise.
        unsafe { launch.launch(config) }.map_err(failed)?;
        Ok(())
    }
}
