//! The device of connections that only ask as the management library does: it opens no GPU.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use outboard_api::CUresult;
use outboard_device::{Cx, Device, Failure, Host, Printed};
use outboard_wire::{
    doc::{self, DeviceCard, NVML_FACTS, NvmlSnapshot},
    messages,
};
use rustix::fs::{MemfdFlags, SealFlags};

use super::{
    devices::{DeviceOptions, Monitor},
    limits,
};

/// Writes the facts that a spare worker found when it opened the devices, a document of
/// `NVML_FACTS`, to a sealed file that every later worker inherits.
pub(super) fn seal_facts(document: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("outboard-facts", flags)?);
    file.write_all(document)?;
    let seals = SealFlags::SEAL | SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    rustix::fs::fcntl_add_seals(file.as_fd(), seals)?;
    Ok(file.into())
}

/// Reads what [`seal_facts`] wrote, at explicit offsets because other processes share the file
/// position.
fn read_facts(fd: OwnedFd) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    let len = file.metadata()?.len().min(limits::FACTS_BYTES_MAX);
    let mut document = vec![0; len as usize];
    file.read_exact_at(&mut document, 0)?;
    Ok(document)
}

/// Answers from the facts if they suffice; otherwise opens the management library.
pub(super) struct Reporter {
    options: DeviceOptions,
    facts: Option<Vec<u8>>,
    monitor: Option<Monitor>,
}

impl Reporter {
    pub(super) fn new(options: &DeviceOptions, facts: Option<OwnedFd>) -> Reporter {
        let facts = facts.and_then(|fd| {
            read_facts(fd)
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

    fn reserve_window(&mut self) -> Result<(u64, u64), Failure> {
        Err(Failure::unsupported("device memory"))
    }

    fn take_printed(&mut self, _: &mut Printed, _: bool) {}

    fn take_host_calls(&mut self, _: &mut Vec<(u64, CUresult)>) {}

    fn take_host_pages(&mut self, _: &mut dyn FnMut(u64, &[u8])) {}

    fn awaits_host_calls(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_by_many_and_changed_by_none() {
        let sealed = seal_facts(b"facts").unwrap();
        for _ in 0..2 {
            let inherited = sealed.try_clone().unwrap();
            assert_eq!(read_facts(inherited).unwrap(), b"facts");
        }
        let file = File::from(sealed);
        assert!(file.write_all_at(b"F", 0).is_err());
        assert!(file.set_len(0).is_err());
    }
}
