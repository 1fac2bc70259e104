//! The management library's view of the software GPU: memory sizes and use are known, sensors do
//! not exist.

use std::fs;

use outboard_wire::doc::{
    NVML_P2P_INDICES, NvmlDevice, NvmlMemory, NvmlPci, NvmlPeer, NvmlProcess, NvmlSnapshot,
};

use super::{Soft, card};

/// Driver version, in the form that programs parse.
const DRIVER_VERSION: &str = "580.0.0";
const DRIVER_BRANCH: &str = "r580_00";
/// Base class and subclass on the PCI bus: a display controller, for 3D.
const CONTROLLER_3D: (u32, u32) = (3, 2);
/// The one performance state: P0.
const STATE: u32 = 0;
/// Graphics, SM, memory, video: as the driver's attributes say. There is no video engine.
const CLOCKS_MHZ: [Option<u32>; 4] = {
    let mhz = Some((card::CLOCK_KHZ / 1000) as u32);
    [mhz, mhz, mhz, None]
};

impl Soft {
    pub(super) fn snapshot(&self) -> NvmlSnapshot {
        NvmlSnapshot {
            driver_version: DRIVER_VERSION.into(),
            nvml_version: format!("13.{DRIVER_VERSION}"),
            cuda_version: outboard_api::CUDA_VERSION as i32,
            devices: (0..self.used_bytes.len())
                .map(|ordinal| self.nvml_device(ordinal))
                .collect(),
            driver_branch: Some(DRIVER_BRANCH.into()),
        }
    }

    fn nvml_device(&self, ordinal: usize) -> NvmlDevice {
        let card = self.card(ordinal);
        let number = self.numbers[ordinal];
        let used_bytes = self.used_bytes[ordinal];
        let busy = u32::from(!self.gpu.is_idle()) * 100;
        let facts = self.capability.facts();
        let process = NvmlProcess {
            pid: std::process::id(),
            used_bytes: Some(used_bytes),
            name: fs::read_to_string("/proc/self/comm")
                .ok()
                .map(|name| name.trim().to_owned()),
        };
        NvmlDevice {
            name: card.name,
            uuid: uuid_text(&card.uuid),
            architecture: Some(facts.nvml_architecture),
            compute_capability: (facts.major as i32, facts.minor as i32),
            minor_number: Some(number as u32),
            pci: NvmlPci {
                device: number as u32,
                bus_id: format!("00000000:00:{number:02X}.0"),
                class: Some(CONTROLLER_3D),
                ..NvmlPci::default()
            },
            memory: NvmlMemory {
                total_bytes: self.memory_bytes,
                free_bytes: self.memory_bytes - used_bytes,
                used_bytes,
                reserved_bytes: Some(0),
            },
            utilization_gpu: Some(busy),
            utilization_memory: Some(busy),
            performance_state: Some(STATE),
            performance_states: vec![STATE],
            clocks_mhz: CLOCKS_MHZ,
            clocks_max_mhz: CLOCKS_MHZ,
            clocks_application_mhz: [CLOCKS_MHZ[0], None, CLOCKS_MHZ[2], None],
            compute_mode: Some(0),
            persistence_mode: Some(0),
            display_mode: Some(0),
            display_active: Some(0),
            processes_compute: if self.contexts.is_empty() {
                Vec::new()
            } else {
                vec![process]
            },
            peers: (0..self.used_bytes.len())
                .map(|other| peer(ordinal, other))
                .collect(),
            ..NvmlDevice::default()
        }
    }
}

/// Describes the connection to another device: all devices of a session share one memory and one
/// board.
fn peer(ordinal: usize, other: usize) -> NvmlPeer {
    const SUCCESS: u32 = 0;
    const INVALID_ARGUMENT: u32 = 2;
    const STATUS_OK: u32 = 0;
    const STATUS_NOT_SUPPORTED: u32 = 5;
    /// `NVML_P2P_CAPS_INDEX_NVLINK`.
    const NVLINK: u32 = 2;
    const ANCESTOR_INTERNAL: u32 = 0;
    let status = |index| match index {
        _ if index + 1 == NVML_P2P_INDICES => (INVALID_ARGUMENT, 0),
        _ if ordinal == other || index == NVLINK => (SUCCESS, STATUS_NOT_SUPPORTED),
        _ => (SUCCESS, STATUS_OK),
    };
    NvmlPeer {
        p2p_status: (0..NVML_P2P_INDICES).map(status).collect(),
        ancestor: (SUCCESS, ANCESTOR_INTERNAL),
    }
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 16)
    )
}
