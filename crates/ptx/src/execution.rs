//! Launches of graphs by kernels (CUDA C++ Programming Guide, "Device Graph Launch"), as a kernel
//! sees them.

/// The execution of a graph that a kernel belongs to.
pub trait Execution: Send + Sync {
    /// Returns the handle of the graph that runs, 0 if kernels may not launch it:
    /// `cudaGetCurrentGraphExec`.
    fn current(&self) -> u64;

    /// Asks for a launch: `cudaGraphLaunch`. Returns a `cudaError_t`. May be called under the
    /// memory's range lock.
    fn launch(&self, handle: u64, stream: u64) -> u64;

    /// Starts the launches asked for that wait for nothing. Called without any lock.
    fn start(&self);
}
