//! The limits of a compilation.

use pointsman_notation::named_limits;

const MIB: u64 = 1 << 20;

/// Limits of one compilation: what a component may consist of, and what the compiler may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileLimits {
    /// Memory of the compiler's process, in bytes.
    pub memory_bytes: u64,
    /// Processor time of the compiler's process, all threads together, in seconds.
    pub processor_seconds: u64,
    /// Time from the start of the compiler's process to its end, in seconds.
    pub wall_seconds: u64,
    /// Depth to which component types are nested.
    pub type_depth: u32,
    /// Depth to which components and modules are nested.
    pub component_depth: u32,
    /// Number of components and modules in the file.
    pub components: u32,
    /// Number of functions in the file.
    pub functions: u32,
    /// Size of one function's body in bytes.
    pub body_bytes: u32,
    /// Number of one function's locals.
    pub locals: u32,
    /// Size of all name sections together, in bytes.
    pub name_bytes: u32,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 4096 * MIB,
            processor_seconds: 300,
            wall_seconds: 600,
            type_depth: 32,
            component_depth: 16,
            components: 1000,
            functions: 200_000,
            body_bytes: 2 << 20,
            locals: 5000,
            name_bytes: 16 << 20,
        }
    }
}

const CEILING: CompileLimits = CompileLimits {
    memory_bytes: 1 << 40,
    processor_seconds: 86_400,
    wall_seconds: 86_400,
    type_depth: 1_000_000,
    component_depth: 1000,
    components: 1_000_000,
    functions: 10_000_000,
    body_bytes: 64 << 20,
    locals: 50_000,
    name_bytes: 64 << 20,
};

named_limits! {
    CompileLimits below CEILING;
    memory_bytes "memory-bytes",
    processor_seconds "processor-time" in seconds,
    wall_seconds "wall-time" in seconds,
    type_depth "type-depth",
    component_depth "component-depth",
    components "components",
    functions "functions",
    body_bytes "body-bytes",
    locals "locals",
    name_bytes "name-bytes",
}
