//! Device memory at addresses that the client chose, counted against each device's size.

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure};
use outboard_ptx::device::Physical;
use outboard_wire::messages;

use super::{
    Soft,
    wait::{failure, invalid},
};

/// Granularity of `cuMemCreate` in bytes, that of a GPU.
pub(super) const GRANULARITY_BYTES: u64 = 2 << 20;

/// A physical allocation (`cuMemCreate`).
pub(super) struct Allocation {
    pub(super) physical: Physical,
    pub(super) charge: Charge,
    /// Number of its mappings. Its memory counts until the last mapping and the handle are gone.
    mappings: usize,
    released: bool,
}

/// Memory that counts against a device's size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    pub(super) device: usize,
    bytes: u64,
}

impl Charge {
    /// A charge of nothing, for another session's memory, which counts there.
    pub(super) fn foreign(device: usize) -> Charge {
        Charge { device, bytes: 0 }
    }
}

/// Memory mapped by `mem_map`, or imported from another session.
pub(super) struct Mapped {
    pub(super) bytes: u64,
    pub(super) charge: Charge,
    /// The memory as other sessions receive it, once it was exported.
    pub(super) shared: Option<Physical>,
}

/// A part of an allocation at an address. Kernels may touch it once access is granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    allocation: u64,
    bytes: u64,
    offset: u64,
    /// Devices that may use it, one bit each.
    users: u64,
}

impl Allocation {
    /// An allocation of another session's memory.
    pub(super) fn foreign(physical: Physical, device: usize) -> Allocation {
        Allocation {
            physical,
            charge: Charge::foreign(device),
            mappings: 0,
            released: false,
        }
    }
}

impl Soft {
    pub(super) fn charge(&mut self, device: usize, bytes: u64) -> Result<Charge, Failure> {
        let used = self.used_bytes[device];
        if bytes > self.memory_bytes.saturating_sub(used) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!(
                    "{bytes} bytes wanted, {used} of the software GPU's {} are in use",
                    self.memory_bytes
                ),
            ));
        }
        self.in_use.add(device, bytes)?;
        self.used_bytes[device] += bytes;
        Ok(Charge { device, bytes })
    }

    pub(super) fn refund(&mut self, charge: Charge) {
        self.used_bytes[charge.device] -= charge.bytes;
        self.in_use.remove(charge.device, charge.bytes);
    }

    pub(super) fn mem_map(&mut self, cx: &mut Cx<'_>, m: &messages::MemMap) -> Result<(), Failure> {
        let device = self.context(cx.context)?.device;
        let charge = self.charge(device, m.len)?;
        if let Err(error) = self.gpu.map(m.va, m.len) {
            self.refund(charge);
            return Err(failure(error));
        }
        let mapped = Mapped {
            bytes: m.len,
            charge,
            shared: None,
        };
        self.mapped.insert(m.va, mapped);
        Ok(())
    }

    pub(super) fn mem_unmap(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::MemUnmap,
    ) -> Result<(), Failure> {
        let charge = self
            .mapped
            .get(&m.va)
            .filter(|mapped| mapped.bytes == m.len)
            .map(|mapped| mapped.charge)
            .ok_or_else(|| {
                invalid(format!(
                    "{} bytes at {:#x} are not one mapping",
                    m.len, m.va
                ))
            })?;
        self.gpu.unmap(m.va).map_err(failure)?;
        self.mapped.remove(&m.va);
        self.shares.exports.withdraw_memory(m.va);
        self.refund(charge);
        Ok(())
    }

    pub(super) fn allocation_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::AllocationCreate,
    ) -> Result<(), Failure> {
        if m.len == 0 || !m.len.is_multiple_of(GRANULARITY_BYTES) {
            return Err(invalid(format!(
                "{} bytes are no multiple of {GRANULARITY_BYTES}",
                m.len
            )));
        }
        let device = self.device(m.device)?;
        let charge = self.charge(device, m.len)?;
        let physical = Physical::new(m.len).map_err(|error| {
            Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("{} bytes of memory: {error}", m.len),
            )
        });
        let allocation = physical.and_then(|physical| {
            let allocation = Allocation {
                physical,
                charge,
                mappings: 0,
                released: false,
            };
            self.allocations.insert(m.allocation, allocation)
        });
        if allocation.is_err() {
            self.refund(charge);
        }
        allocation
    }

    pub(super) fn allocation_release(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::AllocationRelease,
    ) -> Result<(), Failure> {
        let allocation = self.live_allocation(m.allocation)?;
        allocation.released = true;
        self.drop_unused(m.allocation)
    }

    pub(super) fn live_allocation(&mut self, id: u64) -> Result<&mut Allocation, Failure> {
        let allocation = self.allocations.get_mut(id)?;
        if allocation.released {
            return Err(Failure::wild("allocation", id));
        }
        Ok(allocation)
    }

    /// Frees an allocation once its handle is released and nothing maps it; mapped memory outlives
    /// its handle, as `cuMemRelease` promises.
    fn drop_unused(&mut self, id: u64) -> Result<(), Failure> {
        let allocation = self.allocations.get(id)?;
        if allocation.released && allocation.mappings == 0 {
            let charge = allocation.charge;
            self.allocations.remove(id)?;
            self.shares.exports.withdraw_allocation(id);
            self.refund(charge);
        }
        Ok(())
    }

    pub(super) fn allocation_map(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::AllocationMap,
    ) -> Result<(), Failure> {
        let allocation = self.live_allocation(m.allocation)?;
        let end = m.offset.checked_add(m.len);
        let aligned = [m.va, m.len, m.offset]
            .iter()
            .all(|n| n.is_multiple_of(GRANULARITY_BYTES));
        let fits = end.is_some_and(|end| end <= allocation.physical.bytes());
        if !aligned || !fits || m.len == 0 || m.va.checked_add(m.len).is_none() {
            return Err(invalid(format!(
                "{} bytes at {} of an allocation of {}, at {:#x}",
                m.len,
                m.offset,
                allocation.physical.bytes(),
                m.va
            )));
        }
        let before = self.mappings.range(..m.va + m.len).next_back();
        if before.is_some_and(|(va, mapping)| va + mapping.bytes > m.va) {
            return Err(invalid(format!(
                "something is mapped at {:#x} already",
                m.va
            )));
        }
        let mapping = Mapping {
            allocation: m.allocation,
            bytes: m.len,
            offset: m.offset,
            users: 0,
        };
        self.mappings.insert(m.va, mapping);
        self.live_allocation(m.allocation)?.mappings += 1;
        Ok(())
    }

    pub(super) fn allocation_unmap(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::AllocationUnmap,
    ) -> Result<(), Failure> {
        for (va, mapping) in self.mappings_within(m.va, m.len)? {
            if mapping.users != 0 {
                self.gpu.unmap(va).map_err(failure)?;
            }
            self.mappings.remove(&va);
            self.allocations.get_mut(mapping.allocation)?.mappings -= 1;
            self.drop_unused(mapping.allocation)?;
        }
        Ok(())
    }

    /// Sets the access to mapped memory. Without access the addresses count as unmapped.
    pub(super) fn allocation_access(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::AllocationAccess,
    ) -> Result<(), Failure> {
        let accessible = match m.flags {
            CU_MEM_ACCESS_FLAGS_PROT_NONE => false,
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => true,
            CU_MEM_ACCESS_FLAGS_PROT_READ => {
                return Err(Failure::unsupported("device memory that can only be read"));
            }
            flags => return Err(invalid(format!("access flags {flags:#x}"))),
        };
        let bit = 1 << self.device(m.device)?;
        for (va, mapping) in self.mappings_within(m.va, m.len)? {
            let users = match accessible {
                true => mapping.users | bit,
                false => mapping.users & !bit,
            };
            if let Some(mapping) = self.mappings.get_mut(&va) {
                mapping.users = users;
            }
            // All devices share one view of memory, so only the first grant and the last revocation
            // change it.
            if (mapping.users != 0) == (users != 0) {
                continue;
            }
            if accessible {
                let physical = self.allocations.get(mapping.allocation)?.physical.clone();
                self.gpu
                    .map_physical(va, mapping.bytes, &physical, mapping.offset)
                    .map_err(failure)?;
            } else {
                self.gpu.unmap(va).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Returns the mappings that fill `[va, va + len)`.
    fn mappings_within(&self, va: u64, len: u64) -> Result<Vec<(u64, Mapping)>, Failure> {
        let end = va.saturating_add(len);
        let found: Vec<_> = self
            .mappings
            .range(va..end)
            .map(|(va, m)| (*va, *m))
            .collect();
        let mut at = va;
        for (start, mapping) in &found {
            if *start != at {
                break;
            }
            at += mapping.bytes;
        }
        if at != end || found.is_empty() {
            return Err(invalid(format!(
                "{len} bytes at {va:#x} are not whole mappings"
            )));
        }
        Ok(found)
    }
}
