//! Limits of a launch: the sizes of its grid, blocks, shared memory and parameters.

use crate::error::Error;
use crate::limits::{BLOCK_EXTENT_MAX, BLOCK_THREADS_MAX, GRID_EXTENT_MAX, SHARED_OPTIN_BYTES_MAX};
use crate::lower::Kernel;

/// Checks that sm_80 would run a kernel with these sizes.
pub(crate) fn validate(
    kernel: &Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    param_bytes: usize,
) -> Result<(), Error> {
    let limit = |what, actual, limit| within(kernel, what, actual, limit);
    validate_extents(kernel, grid, block)?;
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    let most = kernel.max_threads.map_or(BLOCK_THREADS_MAX, |t| {
        t.iter().product::<u32>().min(BLOCK_THREADS_MAX)
    });
    limit("threads of a block", threads, most.into())?;
    if let Some(required) = kernel.required_threads
        && required != block
    {
        return Err(Error::LaunchLimit {
            kernel: kernel.name.clone(),
            what: "block other than .reqntid, whose threads",
            actual: threads,
            limit: required.iter().map(|&n| u64::from(n)).product(),
        });
    }
    let shared = u64::from(kernel.shared_bytes) + u64::from(dynamic_shared_bytes);
    limit(
        "shared memory in bytes",
        shared,
        SHARED_OPTIN_BYTES_MAX.into(),
    )?;
    if param_bytes < kernel.param_bytes as usize {
        return Err(Error::LaunchParams {
            kernel: kernel.name.clone(),
            actual: param_bytes as u64,
            expected: kernel.param_bytes.into(),
        });
    }
    Ok(())
}

/// Checks that no extent is zero or larger than sm_80 allows.
fn validate_extents(kernel: &Kernel, grid: [u32; 3], block: [u32; 3]) -> Result<(), Error> {
    let maxima = GRID_EXTENT_MAX.into_iter().zip(BLOCK_EXTENT_MAX);
    for ((grid, block), (grid_max, block_max)) in grid.into_iter().zip(block).zip(maxima) {
        within(kernel, "grid extent", grid.into(), grid_max.into())?;
        within(kernel, "block extent", block.into(), block_max.into())?;
        if grid == 0 || block == 0 {
            return Err(Error::LaunchLimit {
                kernel: kernel.name.clone(),
                what: "an extent of zero",
                actual: 0,
                limit: 1,
            });
        }
    }
    Ok(())
}

fn within(kernel: &Kernel, what: &'static str, actual: u64, limit: u64) -> Result<(), Error> {
    match actual <= limit {
        true => Ok(()),
        false => Err(Error::LaunchLimit {
            kernel: kernel.name.clone(),
            what,
            actual,
            limit,
        }),
    }
}
