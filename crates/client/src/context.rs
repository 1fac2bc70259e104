//! One context, as each thread knows the one that is current.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use outboard_api::{
    cuda::{CUcontext, CUdevice},
    enums::*,
};
use outboard_wire::doc::DeviceCard;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

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
    /// Whether the server has created it.
    pub(crate) created: AtomicBool,
    pub(crate) destroyed: AtomicBool,
    /// Numbers of the contexts whose memory this context's kernels may use
    /// (`cuCtxEnablePeerAccess`).
    pub(crate) peers: Mutex<FxHashSet<u64>>,
    /// Limits of its device.
    pub(crate) limits: LaunchLimits,
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
