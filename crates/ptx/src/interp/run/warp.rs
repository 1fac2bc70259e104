//! A warp: its registers, and its lanes in groups.

use crate::error::FaultKind;
use crate::interp::Env;
use crate::interp::run::group::{Group, GroupState};
use crate::interp::storage::{Frame, Storage};

pub(crate) struct Warp {
    pub(crate) index: u32,
    /// Lanes that exist: the last warp of a block may have fewer than 32.
    pub(crate) exists: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) storage: Storage,
    /// The block size that `tid` was computed for.
    shape: [u32; 3],
    pub(super) clock: u64,
}

impl Warp {
    pub(crate) fn new(index: u32) -> Self {
        Warp {
            index,
            exists: 0,
            live: 0,
            groups: Vec::new(),
            storage: Storage::new(),
            shape: [0; 3],
            clock: 0,
        }
    }

    /// Sets the warp to the kernel's first instruction.
    pub(crate) fn start(&mut self, env: &Env<'_>, function: u32) -> Result<(), FaultKind> {
        self.storage.taken = [0; 32];
        let [x, y, z] = env.block;
        let threads = x * y * z;
        let first = self.index * 32;
        self.exists = if threads - first >= 32 {
            u32::MAX
        } else {
            (1 << (threads - first)) - 1
        };
        self.live = self.exists;
        self.storage.carry = 0;
        // Registers and local memory keep what an earlier block of the launch left, as on a GPU:
        // clearing them would take longer than many a short kernel.
        self.storage.preds.fill(0);
        if self.shape != env.block {
            self.shape = env.block;
            for lane in 0..32 {
                let thread = first + lane;
                let at = [thread % x, thread / x % y, thread / (x * y)];
                for (axis, value) in at.into_iter().enumerate() {
                    self.storage.tid[axis].0[lane as usize] = value;
                }
            }
        }
        let frame = Frame {
            function,
            ..Frame::default()
        };
        self.storage.reserve(env, &frame)?;
        let pc = env.program.functions[function as usize].entry.unwrap_or(0);
        self.groups.clear();
        self.groups.push(Group {
            pc,
            mask: self.exists,
            frame,
            state: GroupState::Ready,
            last_run: 0,
        });
        Ok(())
    }
}
