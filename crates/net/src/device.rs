//! An RDMA device of this machine, and memory of a program that is registered with it.

use std::{collections::HashMap, env, ffi::c_void, os::fd::OwnedFd, sync::Arc, time::SystemTime};

use outboard_budget::Charge;
use outboard_verbs::{
    self as verbs, Chosen, DeviceMemory, Domain, Lasting, Mlx5, Options, PSN_MASK, Parent, Piece,
    Reach, Region, Remote, choose, devices,
};
use parking_lot::RwLock;

use crate::{driver, error::Error, keys::Access, mapping::is_mapped, memory::Mapped, wqe::Segment};

/// Variable with options for the device, as links have them: `device=mlx5_0&port=1&gid=3`.
const VARIABLE: &str = "OUTBOARD_RDMA";
/// An option of links alone.
const OF_LINKS: &str = "gpu_memory";
/// Memory of GPUs is given out by dma-bufs in pages of the host.
const PAGE_BYTES: u64 = 4096;
/// Bytes of the kernel's for a registration: its objects, and the address of each page.
const REGISTRATION_BYTES: u64 = 4096;
const ENTRY_BYTES: u64 = 8;

/// An opened device, a domain of it, and what is registered there.
pub(crate) struct Device {
    regions: RwLock<HashMap<u32, Registration>>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) chosen: Chosen,
}

/// Memory that is registered. What keeps it mapped is dropped last.
struct Registration {
    region: Region,
    access: Access,
    /// The memory may go before the device is dropped: then its registration ends first.
    may_go: bool,
    /// Memory of the kernel that it takes, counted to a server's worker.
    _charge: Charge,
    _keeps: Option<Mapped>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Device").finish_non_exhaustive()
    }
}

impl Device {
    /// Opens the first device of which a function makes something, or the one that the environment
    /// names.
    pub(crate) fn open<T>(
        make: impl Fn(&Arc<Domain>) -> Result<T, verbs::Error>,
    ) -> Result<(Device, T), Error> {
        Device::open_of(&options()?, make)
    }

    /// Opens the device that the options name, or the first one of which a function makes
    /// something.
    pub(crate) fn open_of<T>(
        options: &Options,
        make: impl Fn(&Arc<Domain>) -> Result<T, verbs::Error>,
    ) -> Result<(Device, T), Error> {
        let names = match &options.device {
            Some(name) => vec![name.clone()],
            None => devices()?.into_iter().map(|device| device.name).collect(),
        };
        let mut first = None;
        for name in names {
            match open(options, name, &make) {
                Ok(opened) => return Ok(opened),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(verbs::Error::NoDevice).into())
    }

    /// Registers memory of the host, or of a GPU. Returns its key.
    ///
    /// # Safety
    ///
    /// Memory that is there now stays there until the device is dropped.
    pub(crate) unsafe fn register(
        &self,
        at: *mut c_void,
        bytes: u64,
        access: Access,
    ) -> Result<u32, Error> {
        // SAFETY: the caller's duty is this one's.
        unsafe { self.register_kept(at, bytes, access, None) }
    }

    /// Registers memory of an adapter, which programs know by its addresses in this process.
    pub(crate) fn register_mapped(&self, memory: &Mapped, access: Access) -> Result<u32, Error> {
        self.check_here(memory)?;
        let at = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
        let bytes = memory.len() as u64;
        // SAFETY: mapped until the last clone is dropped, and one is kept beside the registration.
        unsafe { self.register_kept(at, bytes, access, Some(memory.clone())) }
    }

    /// Fails if programs know memory by other addresses than this process.
    pub(crate) fn check_here(&self, memory: &Mapped) -> Result<(), Error> {
        match memory.is_here() {
            true => Ok(()),
            false => Err(Error::Device(
                "memory that programs know by other addresses cannot be registered by verbs".into(),
            )),
        }
    }

    /// Registers memory, and keeps what it is kept mapped by.
    ///
    /// # Safety
    ///
    /// Memory that is there now stays there until the registration, and then what is kept, is
    /// dropped.
    unsafe fn register_kept(
        &self,
        at: *mut c_void,
        bytes: u64,
        access: Access,
        keeps: Option<Mapped>,
    ) -> Result<u32, Error> {
        let address = at as u64;
        if address == 0 {
            return Err(Error::Null("memory"));
        }
        let end = address.checked_add(bytes);
        let end = end.ok_or(Error::Wraps { address, bytes })?;
        let (rights, charge) = (rights_of(access), charge(bytes)?);
        let region = if is_mapped(address as usize, bytes as usize, access.writes()) {
            // SAFETY: the caller keeps the memory mapped, and others change it by atomics alone.
            let memory = unsafe { Lasting::new(address, bytes as usize) };
            Region::of_lasting(&self.domain, memory, rights)?
        } else if driver::range_of(address).is_some_and(|range| end <= range.end) {
            // SAFETY: the caller keeps the memory for as long as the device.
            unsafe { self.of_gpu(address, bytes, rights) }?
        } else {
            let is_written = access.writes();
            return Err(Error::NotMapped {
                address,
                bytes,
                is_written,
            });
        };
        Ok(self.add(Registration {
            region,
            access,
            may_go: false,
            _charge: charge,
            _keeps: keeps,
        }))
    }

    /// Registers memory of a GPU in the first of these ways that the device takes, until it is
    /// forgotten.
    pub(crate) fn register_reached(
        &self,
        by: Vec<DeviceMemory>,
        bytes: u64,
        access: Access,
    ) -> Result<u32, Error> {
        let (rights, charge) = (rights_of(access), charge(bytes)?);
        let mut reasons = Vec::new();
        for memory in by {
            match Region::of_device_for(&self.domain, &memory, rights) {
                Ok(region) => {
                    return Ok(self.add(Registration {
                        region,
                        access,
                        may_go: true,
                        _charge: charge,
                        _keeps: None,
                    }));
                }
                Err(why) => reasons.push(why.to_string()),
            }
        }
        Err(Error::Device(format!(
            "memory of a GPU: {}",
            reasons.join("; ")
        )))
    }

    /// Ends the registrations of a GPU's memory of which some is in this range.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let is_there = |of: &Region| of.address() < end && address < of.address() + of.len() as u64;
        let mut regions = self.regions.write();
        regions.retain(|_, one| !(one.may_go && is_there(&one.region)));
    }

    fn add(&self, registration: Registration) -> u32 {
        // A key that no peer uses may be none.
        let key = match registration.region.rkey() {
            0 => registration.region.lkey(),
            key => key,
        };
        self.regions.write().insert(key, registration);
        key
    }

    /// Registers memory of a GPU, by a dma-buf or by what the driver's module for adapters knows.
    ///
    /// # Safety
    ///
    /// As for [`Device::register`].
    unsafe fn of_gpu(
        &self,
        address: u64,
        bytes: u64,
        access: verbs::Access,
    ) -> Result<Region, Error> {
        let register = |reach| {
            // SAFETY: the caller keeps the memory for as long as the device.
            let memory = unsafe { DeviceMemory::new(address, bytes as usize, reach) };
            Region::of_device_for(&self.domain, &memory, access).map_err(|error| error.to_string())
        };
        let by_buffer = buffer(address, bytes).and_then(|fd| register(Reach::DmaBuf(fd)));
        by_buffer.or_else(|first| {
            register(Reach::Address).map_err(|second| {
                let why = format!(
                    "memory of a GPU: by a dma-buf: {first}; by nvidia-peermem, if that is loaded: {second}"
                );
                Error::Device(why)
            })
        })
    }

    /// Returns the number of registrations, and the bytes of all.
    pub(crate) fn registrations(&self) -> (usize, u64) {
        let regions = self.regions.read();
        let bytes = regions.values().map(|one| one.region.len() as u64);
        (regions.len(), bytes.sum())
    }

    /// Ends a registration.
    pub(crate) fn unregister(&self, key: u32) {
        self.regions.write().remove(&key);
    }

    /// Returns a key if both sides have it for memory, as posters of entries need it. Ends the
    /// registration otherwise.
    pub(crate) fn same_key(&self, key: u32) -> Result<u32, Error> {
        if self.local_key(key) == Some(key) {
            return Ok(key);
        }
        self.unregister(key);
        Err(Error::Device(
            "memory has one key for this side and another for peers".into(),
        ))
    }

    /// Returns the key that this side has for memory that is registered by a key.
    pub(crate) fn local_key(&self, key: u32) -> Option<u32> {
        self.regions.read().get(&key).map(|of| of.region.lkey())
    }

    /// Returns registered bytes as requests of this side name them.
    pub(crate) fn piece(&self, segment: &Segment, access: Access) -> Option<Piece> {
        let regions = self.regions.read();
        let of = regions.get(&segment.lkey)?;
        let (region, permitted) = (&of.region, of.access);
        let offset = segment.address.checked_sub(region.address())?;
        let end = offset.checked_add(segment.bytes())?;
        let is_permitted =
            end <= region.len() as u64 && (access == Access::LOCAL_READ || permitted.writes());
        is_permitted.then(|| Piece {
            address: segment.address,
            len: segment.bytes() as u32,
            lkey: region.lkey(),
        })
    }

    /// Names the device, and the port and address that are used.
    fn described(&self) -> String {
        let chosen = &self.chosen;
        let (name, layer) = (chosen.context.name(), chosen.link_layer());
        format!(
            "{name}, port {}: {layer}, GID {}",
            chosen.port, chosen.gid_index
        )
    }

    /// Returns what a peer has to know of a queue pair.
    pub(crate) fn reached(&self, number: u32, psn: u32) -> Remote {
        Remote {
            number,
            psn,
            gid: self.chosen.gid,
            lid: self.chosen.lid,
            mtu: self.chosen.mtu,
        }
    }
}

/// Says which device there is.
pub(crate) fn any() -> Result<String, Error> {
    let (device, ()) = Device::open(|_| Ok(()))?;
    Ok(device.described())
}

/// Says which mlx5 adapter there is. Pages with doorbells are few, and taken by queues alone, if
/// the adapter takes commands.
pub(crate) fn mlx5() -> Result<String, Error> {
    let (device, adapter) = Device::open(Mlx5::of)?;
    let described = device.described();
    if adapter.events().is_ok() {
        return Ok(described);
    }
    Parent::new(&adapter)?;
    Ok(format!(
        "{described}, by verbs: it takes no commands (DEVX)"
    ))
}

/// Charges the kernel's memory for a registration, whose length is in bytes.
pub(crate) fn charge(bytes: u64) -> Result<Charge, Error> {
    let tables = bytes.div_ceil(PAGE_BYTES) * ENTRY_BYTES;
    let charge = Charge::take(REGISTRATION_BYTES + tables);
    charge.map_err(|why| Error::Device(why.to_string()))
}

fn rights_of(access: Access) -> verbs::Access {
    verbs::Access::Some {
        // Adapters let peers write only where the process may (ibv_reg_mr(3)).
        local_write: access.writes(),
        write: access.permits(Access::REMOTE_WRITE),
        read: access.permits(Access::REMOTE_READ),
        atomic: access.permits(Access::REMOTE_ATOMIC),
    }
}

fn open<T>(
    options: &Options,
    name: String,
    make: impl Fn(&Arc<Domain>) -> Result<T, verbs::Error>,
) -> Result<(Device, T), verbs::Error> {
    let device = Some(name);
    let options = Options {
        device,
        ..options.clone()
    };
    let chosen = choose(&options, None, None)?;
    let domain = Domain::new(&chosen.context)?;
    let made = make(&domain)?;
    let regions = RwLock::default();
    let device = Device {
        regions,
        domain,
        chosen,
    };
    Ok((device, made))
}

fn options() -> Result<Options, Error> {
    let said = env::var(VARIABLE).unwrap_or_default();
    let failed = |why| Error::Device(format!("{VARIABLE}={said:?}: {why}"));
    parsed(&said).map_err(failed)
}

/// Reads options for a device. None leave all of it open.
pub(crate) fn parsed(said: &str) -> Result<Options, String> {
    let (mut options, mut has_of_links) = (Options::default(), false);
    for part in said.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let is_again = match name {
            OF_LINKS => std::mem::replace(&mut has_of_links, true),
            _ => options.set(name, value)?,
        };
        if is_again {
            return Err(format!("{name} is said twice"));
        }
    }
    Ok(options)
}

fn buffer(address: u64, bytes: u64) -> Result<OwnedFd, String> {
    if !(address | bytes).is_multiple_of(PAGE_BYTES) {
        return Err("it is not of whole pages".into());
    }
    driver::buffer_of(address, bytes)
}

/// Returns the number of the first packet of a connection: another than that of an earlier one.
pub(crate) fn first_psn() -> u32 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.map_or(0, |time| time.subsec_nanos()) & PSN_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_said_once() {
        assert!(parsed("device=mlx5_1&port=1&gid=3&gpu_memory=off").is_ok());
        for twice in [
            "port=1&port=2",
            "gid=3&port=1&gid=3",
            "gpu_memory=off&gpu_memory=off",
        ] {
            assert!(
                parsed(twice).is_err_and(|why| why.ends_with("is said twice")),
                "{twice}"
            );
        }
    }
}
