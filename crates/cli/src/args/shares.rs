//! The share of a server's machine that one program may use.

use clap::Args;

use super::parse_size;

#[derive(Debug, Clone, Args)]
pub(crate) struct SharesArgs {
    /// This machine's own memory that a worker may use for its program, device memory and memory
    /// shared with the program apart. Above it calls fail with CUDA_ERROR_OUT_OF_MEMORY [default: a
    /// quarter of this machine's, at least 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) host_memory: Option<u64>,
}
