//! Limits of the crate, units last. Text and launches come from strangers, so nothing grows without
//! a limit.

/// The latest PTX version that is read. Its instructions that are unknown here are refused one by
/// one.
pub const PTX_VERSION_MAX: (u32, u32) = (9, 9);
/// PTX text of one module, and of all inputs of a link. NCCL's kernels are 130 MiB.
pub const PTX_BYTES_MAX: usize = 256 << 20;
/// PTX text that is refused as a whole for an instruction that is not supported. A longer one is a
/// library of many kernels, and a kernel ends when it comes to such an instruction.
pub const PTX_WHOLE_BYTES_MAX: usize = 4 << 20;
/// Instructions of a long text that are not supported; one with more is refused as a whole.
pub const REFUSED_INSTRUCTIONS_MAX: usize = 1 << 16;
/// Memory that loading a long text takes, in bytes for each of its bytes: about 14 for NCCL.
pub const LOADING_BYTES_PER_BYTE: u64 = 16;
/// Depth of nested `{ }` in a function body and of nested initialiser lists.
pub const NESTING_DEPTH_MAX: usize = 64;
/// Instructions of one module after lowering.
pub const INSTRUCTIONS_MAX: usize = 8 << 20;
/// Registers that one function may declare. `%r<N>` is a few bytes of text, so N needs a limit.
pub const REGISTERS_PER_FUNCTION_MAX: u32 = 1 << 18;
/// Predicate registers of one function: their slots are 16 bits wide.
pub const PREDICATES_PER_FUNCTION_MAX: u32 = 0x7ff0;
/// Registers of all functions of one module together, so that many small functions cannot add up.
pub const REGISTERS_PER_MODULE_MAX: u64 = 1 << 24;
/// One variable in `.global`, `.const`, `.local` or `.param`.
pub const VARIABLE_BYTES_MAX: u64 = 8 << 30;
/// Parameters of one kernel, as in CUDA 12.1 and later (PTX 8.1, sm_70 and later).
pub const PARAM_BYTES_MAX: u32 = 32_764;
/// Constant memory of one module (sm_80: 64 KiB).
pub const CONST_BYTES_MAX: u64 = 64 << 10;
/// Local memory of one thread (sm_80: 512 KiB).
pub const LOCAL_BYTES_MAX: u32 = 512 << 10;

/// Lanes of a warp. The interpreter's masks are 32 bits wide.
pub const WARP_LANES: usize = 32;
/// Threads of a block (sm_80).
pub const BLOCK_THREADS_MAX: u32 = 1024;
/// Block extent by dimension (sm_80).
pub const BLOCK_EXTENT_MAX: [u32; 3] = [1024, 1024, 64];
/// Grid extent by dimension (sm_80).
pub const GRID_EXTENT_MAX: [u32; 3] = [0x7fff_ffff, 65_535, 65_535];
/// Unit in which a block gets shared memory (from sm_80 on).
pub const SHARED_UNIT_BYTES: u32 = 128;
/// Static and dynamic shared memory of a block whose kernel opted in (sm_90; a device of lower
/// capability checks for less).
pub const SHARED_OPTIN_BYTES_MAX: u32 = 227 << 10;
/// Range in which the static shared variables of a module have their places; a kernel has the
/// memory up to its last one.
pub const SHARED_PLACED_BYTES_MAX: u64 = 1 << 20;
/// Shared memory of a block without opting in; static shared memory of any kernel.
pub const SHARED_DEFAULT_BYTES_MAX: u32 = 48 << 10;
/// Blocks of a cooperative launch, which are all in memory together: 108 multiprocessors of 32
/// blocks, as on an A100.
pub const COOPERATIVE_BLOCKS_MAX: u64 = 108 * 32;
/// Named barriers of a block.
pub const BARRIERS: usize = 16;

/// Call depth of one thread.
pub const CALL_DEPTH_MAX: usize = 2048;
/// Register rows of one warp's call stack, so that recursion ends in a fault before it fills the
/// host's memory.
pub const REGISTER_ROWS_MAX: usize = 1 << 17;
/// Format string and `%s` arguments of a device `printf`.
pub const PRINTF_STRING_BYTES_MAX: usize = 64 << 10;
/// Field width and precision of a device `printf` conversion.
pub const PRINTF_WIDTH_MAX: usize = 4096;
/// Depth to which kernels may launch kernels, as on a GPU, and launches that one grid's threads may
/// request.
pub const CHILD_DEPTH_MAX: u32 = 24;
pub const CHILDREN_MAX: usize = 1 << 16;
