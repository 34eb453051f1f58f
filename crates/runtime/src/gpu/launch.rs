//! A launch of a kernel: its name and its grid.

/// The files of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// Products of few tokens.
    Gemv,
    /// Rows of weights to floats.
    Decode,
    /// Casts, gathers, biases, SwiGLU.
    Elementwise,
    /// RMSNorm.
    Norm,
    /// Rotary positions.
    Rope,
    /// Writing keys and values.
    Cache,
    /// Attention.
    Attend,
    /// 8-bit activations.
    Quantize,
    /// Products of 8-bit codes.
    Integer,
}

impl Module {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Module::Gemv => "gemv",
            Module::Decode => "decode",
            Module::Elementwise => "elementwise",
            Module::Norm => "norm",
            Module::Rope => "rope",
            Module::Cache => "cache",
            Module::Attend => "attend",
            Module::Quantize => "quantize",
            Module::Integer => "integer",
        }
    }
}

/// A kernel and how many threads run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// File of the launch.
    pub module: Module,
    /// Function of the launch.
    pub kernel: String,
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Columns that a block of the kernels over `[tokens, columns]` takes.
const WIDE: usize = 1024;

impl Launch {
    /// A grid of so many blocks.
    pub fn new(module: Module, kernel: impl Into<String>, grid: [usize; 3], block: u32) -> Self {
        // Beyond what a grid can be, the driver refuses the launch.
        let [x, y, z] = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Launch { module, kernel: kernel.into(), grid: (x, y, z), block, shared: 0 }
    }

    /// Over `[tokens, columns]`.
    pub fn over(module: Module, kernel: impl Into<String>, tokens: usize, columns: usize) -> Self {
        Launch::new(module, kernel, [tokens, columns.div_ceil(WIDE), 1], 256)
    }

    /// Adds dynamic shared memory.
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }
}
