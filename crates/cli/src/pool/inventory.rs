//! `outboard pool inventory`: the GPUs of this machine, as a box reports them.

use std::process::ExitCode;

use outboard_pool::{
    near::{Level, NvlinkKind},
    record::GpuFacts,
};
use outboard_server::DeviceOptions;

use crate::{args::PoolInventoryArgs, serve::choose_device};

pub(super) fn inventory(args: &PoolInventoryArgs) -> anyhow::Result<ExitCode> {
    let options = DeviceOptions {
        kind: choose_device(args.device)?,
        memory_bytes: None,
        threads: None,
        devices: 1,
        chosen: None,
        gpu_percent: None,
        board: outboard_soft::BOARD,
        capability: outboard_soft::Capability::default(),
        watch: outboard_soft::Watch::default(),
    };
    let gpus = outboard_server::inventory(&options)?;
    args.json.say(&gpus, || gpus.iter().map(listed).collect())
}

fn listed(gpu: &GpuFacts) -> String {
    let (major, minor) = gpu.capability;
    let gib = gpu.memory_bytes >> 30;
    let mut out = format!(
        "{} {}, {gib} GiB, capability {major}.{minor}, PCI {}",
        gpu.uuid,
        gpu.model,
        address(gpu.pci)
    );
    if let Some(numa) = gpu.near.numa {
        out.push_str(&format!(", NUMA node {numa}"));
    }
    out.push('\n');
    for end in &gpu.near.nvlinks {
        let kind = match end.kind {
            NvlinkKind::Gpu => "the GPU",
            NvlinkKind::Switch => "the switch",
            NvlinkKind::Other => "the device",
        };
        let at = address(end.pci);
        out.push_str(&format!("  {} NVLinks to {kind} at {at}\n", end.links));
    }
    for near in &gpu.near.gpus {
        let by = common(near.level);
        out.push_str(&format!("  GPU {} has {by} in common\n", near.slot));
    }
    for nic in &gpu.near.nics {
        let rdma = nic.rdma.as_ref();
        let rdma = rdma.map_or(String::new(), |rdma| format!(" ({rdma})"));
        let (by, at) = (common(nic.level), address(nic.pci));
        out.push_str(&format!(
            "  network adapter {}{rdma} at {at} has {by} in common\n",
            nic.name
        ));
    }
    out
}

fn common(level: Level) -> &'static str {
    match level {
        Level::Internal => "the board",
        Level::Single => "a PCIe switch",
        Level::Multiple => "a tree of PCIe switches",
        Level::HostBridge => "the host bridge",
        Level::Node => "the NUMA node",
        Level::System => "the machine",
    }
}

fn address((domain, bus, device): (u32, u32, u32)) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}
