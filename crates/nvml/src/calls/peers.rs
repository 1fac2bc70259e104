//! Pairs of devices. NCCL asks of every pair before anything else, a device and itself included.

use super::*;

/// `nvmlGpuP2PStatus_t`.
const P2P_STATUS_NOT_SUPPORTED: u32 = 5;
/// `NVML_P2P_CAPS_INDEX_UNKNOWN`, one past the last of `nvmlGpuP2PCapsIndex_t`.
const P2P_CAPS: u32 = 5;

/// No session reaches from one device into another: `cuDeviceCanAccessPeer` says so too. Of a device and itself a driver
/// says the same (580.159 on an H100, each of the five abilities).
pub(crate) unsafe fn nvmlDeviceGetP2PStatus(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    p2p_index: u32,
    p2p_status: *mut u32,
) -> Result {
    Device::find(device1, Age::Any)?;
    Device::find(device2, Age::Any)?;
    check(p2p_status)?;
    if p2p_index >= P2P_CAPS {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's pointer.
    unsafe { put(p2p_status, P2P_STATUS_NOT_SUPPORTED) }
}
