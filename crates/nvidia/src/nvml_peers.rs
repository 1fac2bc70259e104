//! The management library's answers about a device's connections: other devices, NVLinks, the
//! fabric, processors.

use std::mem::MaybeUninit;

use outboard_wire::doc::{
    NVML_LINK_CAPABILITIES, NVML_P2P_INDICES, NvmlAnswer, NvmlFabric, NvmlLink, NvmlPci, NvmlPeer,
};

use super::nvml::{DeviceHandle, FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NVLINKS_MAX, Nvml, PciInfo};

/// Length of a set of processors or NUMA nodes, in 64-bit words.
const SET_WORDS: u32 = 16;
/// `NVML_AFFINITY_SCOPE_NODE`.
const SCOPE_NODE: u32 = 0;

/// `nvmlGpuFabricInfo_v3_t`; version 2 ends before `health_summary`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct FabricInfo {
    version: u32,
    cluster_uuid: [u8; 16],
    status: u32,
    clique: u32,
    state: u8,
    health_mask: u32,
    health_summary: u8,
}

const FABRIC_V2: u32 = 36 | 2 << 24;
const FABRIC_V3: u32 = size_of::<FabricInfo>() as u32 | 3 << 24;

const _: () = {
    assert!(std::mem::offset_of!(FabricInfo, health_summary) == 36);
    assert!(size_of::<FabricInfo>() == 40);
};

impl Nvml {
    /// Describes the connection between a device and each of these devices.
    pub(super) fn peers(&self, device: DeviceHandle, uuids: &[String]) -> Vec<NvmlPeer> {
        uuids
            .iter()
            .map(|uuid| match self.device(uuid) {
                None => NvmlPeer::default(),
                Some(other) => NvmlPeer {
                    p2p_status: (0..NVML_P2P_INDICES)
                        .map(|index| self.p2p_status(device, other, index))
                        .collect(),
                    ancestor: self.ancestor(device, other),
                },
            })
            .collect()
    }

    fn p2p_status(&self, device: DeviceHandle, other: DeviceHandle, index: u32) -> NvmlAnswer {
        type Ask = unsafe extern "C" fn(DeviceHandle, DeviceHandle, u32, *mut u32) -> u32;
        let Some(function) = self.function::<Ask>("nvmlDeviceGetP2PStatus") else {
            return (FUNCTION_NOT_FOUND, 0);
        };
        let mut value = 0;
        // SAFETY: the devices are handles of this library; `value` has room for the answer.
        (unsafe { function(device, other, index, &mut value) }, value)
    }

    fn ancestor(&self, device: DeviceHandle, other: DeviceHandle) -> NvmlAnswer {
        type Ask = unsafe extern "C" fn(DeviceHandle, DeviceHandle, *mut u32) -> u32;
        let Some(function) = self.function::<Ask>("nvmlDeviceGetTopologyCommonAncestor") else {
            return (FUNCTION_NOT_FOUND, 0);
        };
        let mut value = 0;
        // SAFETY: the devices are handles of this library; `value` has room for the answer.
        (unsafe { function(device, other, &mut value) }, value)
    }

    /// Returns the NVLinks of a device, up to the first number that is not a link.
    pub(super) fn links(&self, device: DeviceHandle) -> Vec<NvmlLink> {
        (0..NVLINKS_MAX)
            .map_while(|link| {
                let ask = |name| self.answer(device, name, link);
                let state = ask("nvmlDeviceGetNvLinkState");
                (state.0 != INVALID_ARGUMENT).then(|| NvmlLink {
                    state,
                    version: ask("nvmlDeviceGetNvLinkVersion"),
                    capabilities: (0..NVML_LINK_CAPABILITIES)
                        .map(|capability| self.link_capability(device, link, capability))
                        .collect(),
                    remote_type: ask("nvmlDeviceGetNvLinkRemoteDeviceType"),
                    remote: self.link_remote(device, link),
                })
            })
            .collect()
    }

    /// Calls `nvmlReturn_t name(device, selector, unsigned *)`, and also returns its status.
    fn answer(&self, device: DeviceHandle, name: &str, selector: u32) -> NvmlAnswer {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut u32) -> u32;
        let Some(function) = self.function::<Ask>(name) else {
            return (FUNCTION_NOT_FOUND, 0);
        };
        let mut value = 0;
        // SAFETY: `value` has room for the answer.
        (unsafe { function(device, selector, &mut value) }, value)
    }

    fn link_capability(&self, device: DeviceHandle, link: u32, capability: u32) -> NvmlAnswer {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, u32, *mut u32) -> u32;
        let Some(function) = self.function::<Ask>("nvmlDeviceGetNvLinkCapability") else {
            return (FUNCTION_NOT_FOUND, 0);
        };
        let mut value = 0;
        // SAFETY: `value` has room for the answer.
        (
            unsafe { function(device, link, capability, &mut value) },
            value,
        )
    }

    fn link_remote(&self, device: DeviceHandle, link: u32) -> Option<NvmlPci> {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut PciInfo) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetNvLinkRemotePciInfo_v2")?;
        let mut info = MaybeUninit::<PciInfo>::zeroed();
        // SAFETY: `info` has room for the record.
        if unsafe { function(device, link, info.as_mut_ptr()) } != 0 {
            return None;
        }
        let mut pci = NvmlPci::default();
        // SAFETY: plain numbers, zeroed before the library filled them.
        unsafe { info.assume_init() }.fill(&mut pci);
        Some(pci)
    }

    pub(super) fn fabric(&self, device: DeviceHandle) -> Option<NvmlFabric> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut FabricInfo) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetGpuFabricInfoV")?;
        [FABRIC_V3, FABRIC_V2].into_iter().find_map(|version| {
            let mut info = FabricInfo {
                version,
                ..FabricInfo::default()
            };
            // SAFETY: the record is at least as long as its version says.
            let status = unsafe { function(device, &mut info) };
            (status == 0).then_some(NvmlFabric {
                cluster_uuid: info.cluster_uuid,
                status: info.status,
                clique: info.clique,
                state: info.state,
                health_mask: info.health_mask,
                health_summary: (version == FABRIC_V3).then_some(info.health_summary),
            })
        })
    }

    pub(super) fn cpu_affinity(&self, device: DeviceHandle) -> Option<Vec<u64>> {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut u64) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetCpuAffinity")?;
        let mut set = [0; SET_WORDS as usize];
        // SAFETY: `set` has as many words as said.
        (unsafe { function(device, SET_WORDS, set.as_mut_ptr()) } == 0).then(|| set.to_vec())
    }

    pub(super) fn memory_affinity(&self, device: DeviceHandle) -> Option<Vec<u64>> {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut u64, u32) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetMemoryAffinity")?;
        let mut set = [0; SET_WORDS as usize];
        // SAFETY: `set` has as many words as said.
        let status = unsafe { function(device, SET_WORDS, set.as_mut_ptr(), SCOPE_NODE) };
        (status == 0).then(|| set.to_vec())
    }
}
