//! The device of connections that only ask as the management library does: it opens no GPU.

use std::os::fd::OwnedFd;

use outboard_api::CUresult;
use outboard_device::{Cx, Device, Failure, Host, Printed};
use outboard_wire::{
    doc::{self, DeviceCard, NVML_FACTS, NvmlSnapshot},
    messages,
};

use super::{
    devices::{DeviceOptions, Monitor},
    limits, sealed,
};

/// Answers from the facts if they suffice; otherwise opens the management library.
pub(super) struct Reporter {
    options: DeviceOptions,
    facts: Option<Vec<u8>>,
    monitor: Option<Monitor>,
}

impl Reporter {
    pub(super) fn new(options: &DeviceOptions, facts: Option<OwnedFd>) -> Reporter {
        let facts = facts.and_then(|fd| {
            sealed::read(fd, limits::FACTS_BYTES_MAX)
                .inspect_err(|error| tracing::debug!(%error, "facts that cannot be read"))
                .ok()
        });
        Reporter {
            options: options.clone(),
            facts,
            monitor: None,
        }
    }

    fn monitor(&mut self) -> Result<&mut Monitor, Failure> {
        match &mut self.monitor {
            Some(monitor) => Ok(monitor),
            none => {
                let facts = self.facts.as_deref();
                let facts = facts.and_then(|f| doc::from_bytes::<NvmlSnapshot>(f).ok());
                Ok(none.insert(Monitor::open(&self.options, facts.as_ref())?))
            }
        }
    }
}

impl Device for Reporter {
    fn nvml_snapshot(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::NvmlSnapshot,
    ) -> Result<messages::NvmlSnapshotReply<'static>, Failure> {
        if m.detail == NVML_FACTS
            && let Some(facts) = &self.facts
        {
            return Ok(messages::NvmlSnapshotReply {
                document: facts.clone().into(),
            });
        }
        self.monitor()?.snapshot(cx, m)
    }
}

/// Has no devices, and nothing runs on it.
impl Host for Reporter {
    fn cards(&mut self, _: u32) -> Result<Vec<DeviceCard>, Failure> {
        Ok(Vec::new())
    }

    fn driver_version(&mut self) -> u32 {
        0
    }

    fn reserve_window(&mut self, _: u8) -> Result<(u64, u64), Failure> {
        Err(Failure::unsupported("device memory"))
    }

    fn take_printed(&mut self, _: &mut Printed, _: bool) {}

    fn take_host_calls(&mut self, _: &mut Vec<(u64, CUresult)>) {}

    fn take_host_pages(&mut self, _: &mut dyn FnMut(u64, &[u8])) {}

    fn awaits_host_calls(&self) -> bool {
        false
    }
}
