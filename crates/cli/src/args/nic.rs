//! Options of `outboard nic`.

use std::{ffi::OsString, path::PathBuf};

use clap::Subcommand;

/// Run programs for RDMA adapters where there is none
#[derive(Debug, Subcommand)]
pub(crate) enum NicCommand {
    /// Run a program with an adapter in software in place of an RDMA adapter
    Run(NicRunArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The program loads stand-ins for libibverbs.so.1 and libmlx5.so.1. It sees one adapter, mlx5_0, whose queue pairs reach
those of all programs of this user that run so on this machine, or of those that name the same folder. A function that
is not served fails, and standard error names it (docs/net.md has the list).

Examples:
  outboard nic run -- ibv_devinfo -v
  outboard nic run -- ibv_rc_pingpong -g 0               in one terminal, and in another:
  outboard nic run -- ibv_rc_pingpong -g 0 localhost
  outboard run --gpu shm:///tmp/gpu.sock -- outboard nic run -- ./program   with the GPU of a server, too

The exit code is the program's own; 126 or 127 where it cannot be started.")]
pub(crate) struct NicRunArgs {
    /// The folder in which the adapters of several programs meet; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) fabric: Option<PathBuf>,
    /// The program and its arguments; one whose name begins with - comes after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}
