//! Registers and stacks of a warp, and the frames of its functions.

use outboard_budget::Exhausted;

use crate::code::Function;
use crate::error::FaultKind;
use crate::interp::Env;
use crate::interp::addresses::{Addresses, SEEN};
use crate::lanes::{Files, Lanes32, Lanes64};
use crate::limits::{LOCAL_BYTES_MAX, REGISTER_ROWS_MAX};
use crate::room;

/// Start of a frame's registers and local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
    pub(crate) local: u32,
    pub(crate) depth: u32,
    pub(crate) function: u32,
}

/// The return position of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) pc: u32,
    pub(crate) call: u32,
    pub(crate) frame: Frame,
}

/// Registers and stacks. Each lane uses its own column of a row, so lanes with different frames
/// share rows.
pub(crate) struct Storage {
    pub(crate) r32: Vec<Lanes32>,
    pub(crate) r64: Vec<Lanes64>,
    pub(crate) preds: Vec<u32>,
    /// Local memory of 32 lanes, `stride` bytes each.
    pub(crate) local: Vec<u128>,
    pub(crate) stride: u32,
    /// For each lane, bytes that `alloca` has allocated.
    pub(crate) taken: [u32; 32],
    /// By the callee's depth minus 1, then by lane.
    pub(crate) returns: Vec<[Return; 32]>,
    /// Carry flags.
    pub(crate) carry: u32,
    pub(crate) tid: [Lanes32; 4],
    /// Facts about rows of addresses, found by earlier loads and stores.
    pub(crate) seen: [Addresses; SEEN + 1],
}

/// Returns a lane's part of local memory that has room for so many bytes.
fn stride_for(bytes: u32) -> u32 {
    bytes.next_power_of_two().max(256)
}

impl Storage {
    pub(crate) fn new() -> Self {
        Storage {
            r32: Vec::new(),
            r64: Vec::new(),
            preds: Vec::new(),
            local: Vec::new(),
            stride: 0,
            taken: [0; 32],
            returns: Vec::new(),
            carry: 0,
            tid: [Lanes32([0; 32]); 4],
            seen: Default::default(),
        }
    }

    /// Returns the bytes that a kernel's own frame needs.
    pub(crate) fn first_bytes(function: &Function) -> u64 {
        let rows = |rows: u32, bytes: usize| u64::from(rows) * bytes as u64;
        let local = match function.frame_bytes {
            0 => 0,
            bytes => 32 * u64::from(stride_for(bytes)),
        };
        rows(function.rows32, size_of::<Lanes32>())
            + rows(function.rows64, size_of::<Lanes64>())
            + rows(function.preds, size_of::<u32>())
            + local
    }

    /// Makes room for a frame of `function`; an error if that exceeds a warp's limits
    /// or this process's memory.
    pub(crate) fn reserve(&mut self, env: &Env<'_>, frame: &Frame) -> Result<(), FaultKind> {
        let function = &env.program.functions[frame.function as usize];
        let (r32, r64) = (
            (frame.r32 + function.rows32) as usize,
            (frame.r64 + function.rows64) as usize,
        );
        let preds = (frame.preds + function.preds) as usize;
        let local = u64::from(frame.local) + u64::from(function.frame_bytes);
        // A kernel's own frame is always granted; only calls can overflow.
        if frame.depth > 0
            && (local > u64::from(env.stack_bytes.min(LOCAL_BYTES_MAX))
                || r32.max(r64).max(preds) > REGISTER_ROWS_MAX)
        {
            return Err(FaultKind::StackOverflow { bytes: local });
        }
        room::lengthen(&mut self.r32, r32, Lanes32([0; 32]))?;
        room::lengthen(&mut self.r64, r64, Lanes64([0; 32]))?;
        room::lengthen(&mut self.preds, preds, 0)?;
        if u64::from(self.stride) < local {
            self.grow_local(stride_for(local as u32))?;
        }
        Ok(())
    }

    pub(crate) fn grow_local(&mut self, stride: u32) -> Result<(), Exhausted> {
        const UNIT: usize = size_of::<u128>();
        let (old, new) = (self.stride as usize / UNIT, stride as usize / UNIT);
        // Zeroed pages cost nothing until a thread touches them.
        let mut local = room::take((32 * new * UNIT) as u64, || vec![0u128; 32 * new])?;
        if old > 0 {
            for (from, to) in self
                .local
                .chunks_exact(old)
                .zip(local.chunks_exact_mut(new))
            {
                to[..old].copy_from_slice(from);
            }
        }
        (self.local, self.stride) = (local, stride);
        Ok(())
    }

    pub(crate) fn files(&mut self, env: &Env<'_>, frame: &Frame) -> Files {
        #[cfg(debug_assertions)]
        let function = &env.program.functions[frame.function as usize];
        Files {
            #[cfg(debug_assertions)]
            counts: crate::lanes::Counts {
                r32: function.rows32,
                r64: function.rows64,
                preds: function.preds,
                c32: env.consts32.len(),
                c64: env.consts64.len(),
            },
            r32: self.r32.as_mut_ptr().wrapping_add(frame.r32 as usize),
            r64: self.r64.as_mut_ptr().wrapping_add(frame.r64 as usize),
            preds: self.preds.as_mut_ptr().wrapping_add(frame.preds as usize),
            c32: env.consts32.as_ptr(),
            c64: env.consts64.as_ptr(),
        }
    }
}
