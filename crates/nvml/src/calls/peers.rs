//! Connections between devices: pairs of them, NVLinks, the fabric, nearby processors. NCCL queries
//! all of them first, for each pair of devices.

use outboard_wire::doc::{NvmlAnswer, NvmlFabric, NvmlLink, NvmlPeer};

use super::{pci::record, *};
use crate::types::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t,
    struct_version,
};

/// `NVML_AFFINITY_SCOPE_SOCKET`, the last scope.
const SCOPE_LAST: u32 = 1;

/// Converts an answer of the server's library, a value or an error.
fn said((status, value): NvmlAnswer) -> Result<u32> {
    match nvmlReturn_t(status) {
        nvmlReturn_t::SUCCESS => Ok(value),
        error => Err(error),
    }
}

fn put_of_pair(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    out: Out<'_, u32>,
    answer: impl Fn(&NvmlPeer) -> Result<u32>,
) -> Result {
    let found = Device::find(device1, Age::Any)?;
    let other = Device::find(device2, Age::Any)?;
    out.check()?;
    let peer = known(found.get()?.peers.get(other.index))?;
    out.put(answer(peer)?)
}

pub(crate) fn nvmlDeviceGetP2PStatus(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    p2p_index: u32,
    p2p_status: Out<'_, u32>,
) -> Result {
    let answer = |peer: &NvmlPeer| {
        // The answer for the first invalid index holds for all invalid ones.
        let known = peer.p2p_status.get(p2p_index as usize);
        said(
            *known
                .or(peer.p2p_status.last())
                .ok_or(nvmlReturn_t::NOT_SUPPORTED)?,
        )
    };
    put_of_pair(device1, device2, p2p_status, answer)
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(
    device1: nvmlDevice_t,
    device2: nvmlDevice_t,
    path_info: Out<'_, u32>,
) -> Result {
    put_of_pair(device1, device2, path_info, |peer| said(peer.ancestor))
}

/// Lists the devices that are at most as far from a device as the level says.
pub(crate) unsafe fn nvmlDeviceGetTopologyNearestGpus(
    device: nvmlDevice_t,
    level: u32,
    count: InOut<'_, u32>,
    devices: *mut nvmlDevice_t,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let room = count.get()? as usize;
    let peers = found.get()?.peers.iter().enumerate();
    let near: Vec<nvmlDevice_t> = peers
        .filter(|(index, peer)| {
            *index != found.index && said(peer.ancestor).is_ok_and(|ancestor| ancestor <= level)
        })
        .map(|(index, _)| handle_of(index))
        .collect();
    if room > 0 {
        check(devices)?;
    }
    for (index, handle) in near.iter().take(room).enumerate() {
        // SAFETY: not null, with room for `*count` handles: NVML asks it of its callers.
        unsafe { devices.add(index).write_unaligned(*handle) };
    }
    count.put(near.len() as u32)
}

fn put_of_link<T>(
    device: nvmlDevice_t,
    link: u32,
    out: Out<'_, T>,
    answer: impl Fn(&NvmlLink) -> Result<T>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    out.check()?;
    let links = &found.get()?.nvlinks;
    if links.is_empty() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let link = links
        .get(link as usize)
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    out.put(answer(link)?)
}

pub(crate) fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: u32,
    is_active: Out<'_, u32>,
) -> Result {
    put_of_link(device, link, is_active, |l| said(l.state))
}

pub(crate) fn nvmlDeviceGetNvLinkVersion(
    device: nvmlDevice_t,
    link: u32,
    version: Out<'_, u32>,
) -> Result {
    put_of_link(device, link, version, |l| said(l.version))
}

pub(crate) fn nvmlDeviceGetNvLinkCapability(
    device: nvmlDevice_t,
    link: u32,
    capability: u32,
    result: Out<'_, u32>,
) -> Result {
    let answer = |l: &NvmlLink| {
        let known = l.capabilities.get(capability as usize);
        said(*known.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?)
    };
    put_of_link(device, link, result, answer)
}

pub(crate) fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: u32,
    remote_type: Out<'_, u32>,
) -> Result {
    put_of_link(device, link, remote_type, |l| said(l.remote_type))
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: u32,
    pci: Out<'_, nvmlPciInfo_t>,
) -> Result {
    let answer = |l: &NvmlLink| Ok(record(known(l.remote.as_ref())?));
    put_of_link(device, link, pci, answer)
}

fn first_fabric(of: &NvmlFabric) -> nvmlGpuFabricInfo_t {
    nvmlGpuFabricInfo_t {
        cluster_uuid: of.cluster_uuid,
        status: nvmlReturn_t(of.status),
        clique_id: of.clique,
        state: of.state,
    }
}

pub(crate) fn nvmlDeviceGetGpuFabricInfo(
    device: nvmlDevice_t,
    info: Out<'_, nvmlGpuFabricInfo_t>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let of = known(found.get()?.fabric)?;
    info.put(first_fabric(&of))
}

pub(crate) fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    info: Versioned<'_, nvmlGpuFabricInfo_v2_t>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    info.check()?;
    let of = known(found.get()?.fabric)?;
    let mut second = nvmlGpuFabricInfo_v2_t {
        version: struct_version::<nvmlGpuFabricInfo_v2_t>(2),
        v1: first_fabric(&of),
        health_mask: of.health_mask,
    };
    if let Ok(info) = info.of(second.version) {
        return info.put(second);
    }
    let version = struct_version::<nvmlGpuFabricInfo_v3_t>(3);
    // SAFETY: a record of the third version says so, as one of the second does.
    let info: Versioned<'_, nvmlGpuFabricInfo_v3_t> = unsafe { info.cast() };
    let info = info.of(version)?;
    second.version = version;
    let third = nvmlGpuFabricInfo_v3_t {
        v2: second,
        health_summary: of.health_summary.unwrap_or_default(),
    };
    info.put(third)
}

/// # Safety
/// `set` must be null or have room for `words` words.
unsafe fn put_set(
    device: nvmlDevice_t,
    words: u32,
    set: *mut u64,
    answer: impl Fn(&NvmlDevice) -> Option<&Vec<u64>>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    check(set)?;
    if words == 0 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let of = known(answer(found.get()?))?;
    if of.iter().skip(words as usize).any(|word| *word != 0) {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    for index in 0..words as usize {
        let word = of.get(index).copied().unwrap_or_default();
        // SAFETY: not null, and `index` is below `words`.
        unsafe { set.add(index).write_unaligned(word) };
    }
    Ok(())
}

pub(crate) unsafe fn nvmlDeviceGetCpuAffinity(
    device: nvmlDevice_t,
    words: u32,
    set: *mut u64,
) -> Result {
    // SAFETY: null or room for `words` words: NVML asks it of its callers.
    unsafe { put_set(device, words, set, |d| d.cpu_affinity.as_ref()) }
}

pub(crate) unsafe fn nvmlDeviceGetCpuAffinityWithinScope(
    device: nvmlDevice_t,
    words: u32,
    set: *mut u64,
    scope: u32,
) -> Result {
    if scope > SCOPE_LAST {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // SAFETY: null or room for `words` words: NVML asks it of its callers.
    unsafe { nvmlDeviceGetCpuAffinity(device, words, set) }
}

pub(crate) unsafe fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    words: u32,
    set: *mut u64,
    scope: u32,
) -> Result {
    if scope > SCOPE_LAST {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // SAFETY: null or room for `words` words: NVML asks it of its callers.
    unsafe { put_set(device, words, set, |d| d.memory_affinity.as_ref()) }
}
