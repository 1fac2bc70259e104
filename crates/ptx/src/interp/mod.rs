//! The warp-wide interpreter: one dispatch executes an instruction for up to 32 lanes.
//!
//! [`run::block`] runs the warps of one block and its barriers. [`run::warp`] keeps the lanes of a
//! warp in groups that share a program counter, and decides which group runs. [`run::dispatch`]
//! runs it, and [`core`] is the state that instructions work on. The other folders hold the
//! instructions by family: frequent ones have functions of their own in [`fast`], which [`steps`]
//! chooses when a module is loaded.

// Lanes are indexed, because one index runs through several rows in loops that must vectorise.
// Operands are separate arguments, and formulas read as in the ISA.
#![allow(
    clippy::needless_range_loop,
    clippy::too_many_arguments,
    clippy::precedence,
    clippy::if_same_then_else,
    clippy::manual_clamp,
    clippy::neg_cmp_op_on_partial_ord
)]

mod addresses;
mod collective;
pub(crate) mod core;
mod fast;
pub(crate) mod isa;
mod matrix;
pub(crate) mod memory;
pub(crate) mod range_cache;
pub(crate) mod run;
pub(crate) mod runtime;
mod special;
pub(crate) mod step;
pub(crate) mod steps;
pub(crate) mod storage;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::check::Watching;
use crate::code::Program;
use crate::execution::Execution;
use crate::heap::Heap;
use crate::interp::runtime::children::Children;
use crate::lanes::{Lanes32, Lanes64};
use crate::lower::Kernel;
use crate::output::Output;

/// State shared by all blocks of a launch.
pub(crate) struct Env<'e> {
    pub(crate) program: &'e Program,
    /// The program as it is executed.
    pub(crate) steps: &'e steps::program::Steps,
    pub(crate) consts32: &'e [Lanes32],
    pub(crate) consts64: &'e [Lanes64],
    pub(crate) kernel: &'e Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Parameters, aligned to 16 bytes.
    pub(crate) params: &'e [u128],
    pub(crate) param_bytes: u64,
    pub(crate) shared_bytes: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) envregs: [u32; 32],
    pub(crate) output: &'e dyn Output,
    pub(crate) heap: Option<&'e Heap>,
    pub(crate) children: &'e Children<'e>,
    pub(crate) execution: Option<&'e dyn Execution>,
    pub(crate) launch_id: u64,
    pub(crate) workers: u32,
    pub(crate) start: Instant,
    pub(crate) watch: Option<&'e Watching<'e>>,
    /// Executions of each instruction, if they are counted.
    pub(crate) counts: Option<&'e [AtomicU64]>,
}

impl Env<'_> {
    /// Starts the graphs that kernels have fired. Called without any lock.
    pub(crate) fn start_fired(&self) {
        if let Some(execution) = self.execution {
            execution.start();
        }
    }

    /// Returns a block's number in launch order: x fastest.
    pub(crate) fn linear(&self, block: [u32; 3]) -> u64 {
        let [x, y, z] = block.map(u64::from);
        let [gx, gy, _] = self.grid.map(u64::from);
        x + gx * (y + gy * z)
    }

    fn count(&self, pcs: Range<u32>) {
        let counts = self.counts.unwrap_or_default();
        for count in counts
            .get(pcs.start as usize..pcs.end as usize)
            .unwrap_or_default()
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Instruction sets for which the dispatch loop is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Features {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Features {
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2");
            if avx2 {
                return Features::Avx2;
            }
        }
        Features::Baseline
    }
}
