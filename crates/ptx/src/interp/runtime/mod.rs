//! CUDA's device runtime: the functions that kernels call, and grids that kernels launch.

pub(crate) mod children;
pub(crate) mod functions;
