//! One context, as each thread knows the one that is current.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use outboard_api::{
    cuda::{CUcontext, CUdevice},
    enums::*,
};
use outboard_wire::doc::DeviceCard;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// A context. It is never freed: it may be current in threads that do not know of its destruction.
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    /// The number of its server.
    pub(crate) server: u8,
    /// The program's number of its device.
    pub(crate) device: CUdevice,
    pub(crate) primary: bool,
    pub(crate) flags: AtomicU32,
    /// The last preference of `cuCtxSetCacheConfig`.
    pub(crate) cache_config: AtomicU32,
    pub(crate) api_version: u32,
    /// Result of `cuCtxGetId`.
    pub(crate) number: u64,
    /// Number of holders of a primary context, which is active while there are any.
    pub(crate) retained: AtomicU32,
    /// Held while a holder comes or goes, until the message that makes or ends the context is sent.
    /// Neither a function of the program nor a reply is waited for under it.
    pub(crate) holders: Mutex<()>,
    /// Held from the question whether there is the context until `created` and what was sent agree.
    pub(crate) making: Mutex<()>,
    /// Whether the server has created it.
    pub(crate) created: AtomicBool,
    pub(crate) destroyed: AtomicBool,
    /// Numbers of the contexts whose memory this context's kernels may use
    /// (`cuCtxEnablePeerAccess`).
    pub(crate) peers: Mutex<FxHashSet<u64>>,
    /// Limits of its device.
    pub(crate) limits: LaunchLimits,
    /// Answers to `cuCtxGetLimit`.
    pub(crate) asked_limits: Mutex<AskedLimits>,
}

/// The answers of `cuCtxGetLimit` in a context, as far as they still hold.
#[derive(Debug, Default)]
pub(crate) struct AskedLimits {
    /// The number of changes. An answer to a question from before the last one is not kept.
    changes: u64,
    /// By the limit's number: the value, and the number of the last message sent before the
    /// question.
    answers: FxHashMap<u32, (u64, u64)>,
}

impl AskedLimits {
    /// Returns the value of a limit, if it is known after the messages up to the number `sent`. A
    /// driver enlarges the stack for a kernel that needs more, so its size holds until the next
    /// message.
    pub(crate) fn known(&self, limit: u32, sent: u64) -> Option<u64> {
        let (value, asked_at) = self.answers.get(&limit)?;
        (limit != CU_LIMIT_STACK_SIZE || *asked_at == sent).then_some(*value)
    }

    /// Returns the number of changes, for [`AskedLimits::keep`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Keeps an answer to a question asked after `changes` changes and `sent` messages.
    pub(crate) fn keep(&mut self, limit: u32, value: u64, changes: u64, sent: u64) {
        if self.changes == changes {
            self.answers.insert(limit, (value, sent));
        }
    }

    /// Forgets all answers, before and after a change.
    pub(crate) fn forget(&mut self) {
        self.changes += 1;
        self.answers.clear();
    }
}

impl Context {
    /// Marks a primary context as destroyed after its last holder released it. Where it is current,
    /// calls report that.
    pub(crate) fn end(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Grants access to the memory of a context. Returns false if it was already granted.
    pub(crate) fn enable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().insert(peer.number)
    }

    /// Revokes access. Returns false if it was not granted.
    pub(crate) fn disable_peer(&self, peer: &Context) -> bool {
        self.peers.lock().remove(&peer.number)
    }

    /// Revokes all access, at the end of the context.
    pub(crate) fn forget_peers(&self) {
        self.peers.lock().clear();
    }

    /// Marks a primary context as held again.
    pub(crate) fn revive(&self) {
        self.destroyed.store(false, Ordering::Release);
    }
}

/// Limits of all launches, from a device's attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchLimits {
    pub(crate) grid_max: [u32; 3],
    pub(crate) block_max: [u32; 3],
    pub(crate) threads_max: u32,
}

impl LaunchLimits {
    pub(crate) fn of(card: &DeviceCard) -> LaunchLimits {
        let a = |attribute: u32| {
            let value = card.attributes.get(attribute as usize).copied().flatten();
            value.map_or(0, |v| v as u32)
        };
        LaunchLimits {
            grid_max: [
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
            ]
            .map(a),
            block_max: [
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
            ]
            .map(a),
            threads_max: a(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_about_limits_hold_until_something_may_change_them() {
        let mut limits = AskedLimits::default();
        let changes = limits.changes();
        limits.keep(CU_LIMIT_MALLOC_HEAP_SIZE, 8, changes, 5);
        limits.keep(CU_LIMIT_STACK_SIZE, 1024, changes, 5);
        assert_eq!(limits.known(CU_LIMIT_MALLOC_HEAP_SIZE, 5), Some(8));
        assert_eq!(limits.known(CU_LIMIT_STACK_SIZE, 5), Some(1024));
        // A launch may have enlarged the stack.
        assert_eq!(limits.known(CU_LIMIT_MALLOC_HEAP_SIZE, 6), Some(8));
        assert_eq!(limits.known(CU_LIMIT_STACK_SIZE, 6), None);
        // Another thread changes a limit while the answer is on its way.
        limits.forget();
        limits.keep(CU_LIMIT_MALLOC_HEAP_SIZE, 8, changes, 6);
        assert_eq!(limits.known(CU_LIMIT_MALLOC_HEAP_SIZE, 6), None);
    }
}
