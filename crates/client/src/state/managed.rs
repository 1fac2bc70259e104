//! Managed memory: host memory that kernels can always use, counted against the device's memory.
//!
//! Its bytes stay in host memory. Over shm both sides map the same pages, over other links the
//! server keeps a mirror (`mirrors.rs`). Advice and prefetches only change the answers of
//! `cuMemRangeGetAttribute`.

use std::{collections::BTreeMap, ffi::c_void};

use outboard_api::{CUresult, cuda::CUcontext};
use outboard_pages::{PAGE_BYTES, pages_around};
use outboard_wire::messages;

use super::{Driver, advice::Advices, current_context, host_memory::Origin, wire_context};
use crate::{
    log,
    session::{Group, Sink},
};

/// `__managed__` variables: address and bytes.
pub(crate) type Variables = BTreeMap<u64, u64>;

/// Returns the pages that a variable shares with no other one: first address and end. Only its
/// first and last page can be shared.
fn lone_pages(variables: &Variables, base: u64, bytes: u64) -> (u64, u64) {
    let (mut start, mut end) = pages_around(base, bytes);
    let is_taken = |page: u64| {
        let mut before = variables.range(..page + PAGE_BYTES).rev();
        before.any(|(other, bytes)| *other != base && other + bytes > page)
    };
    if start < end && is_taken(start) {
        start += PAGE_BYTES;
    }
    if start < end && is_taken(end - PAGE_BYTES) {
        end -= PAGE_BYTES;
    }
    (start, end)
}

/// Maps zeroed pages at exactly this address. Returns false if something else is mapped there.
fn map_pages(start: u64, end: u64) -> bool {
    if start >= end {
        return true;
    }
    // SAFETY: a fresh mapping that replaces nothing.
    let got = unsafe {
        libc::mmap(
            start as *mut c_void,
            (end - start) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if got != libc::MAP_FAILED && got as u64 != start {
        // SAFETY: a kernel before 4.17 took the address as a hint only; the mapping just made is
        // ours.
        unsafe { libc::munmap(got, (end - start) as usize) };
    }
    got as u64 == start
}

/// Unmaps pages that [`map_pages`] mapped.
fn unmap_pages(start: u64, end: u64) {
    if start < end {
        // SAFETY: pages of one variable only, whose library is gone.
        unsafe { libc::munmap(start as *mut c_void, (end - start) as usize) };
    }
}

impl Driver {
    /// `cuMemAllocManaged`
    pub(crate) fn allocate_managed(&self, bytes: u64) -> Result<u64, CUresult> {
        let context = self.contexts.current()?;
        self.memory.lock().charge(context.device, bytes)?;
        let base = self
            .place_host(bytes, 0, Origin::Managed(Advices::default()))
            .and_then(|base| {
                // Kernels may find pointers to managed memory anywhere, and use it without naming
                // it.
                self.make_reachable(base).map(|()| base).inspect_err(|_| {
                    let _ = self.host_free(base);
                })
            });
        base.inspect_err(|_| self.memory.lock().refund(context.device, bytes))
    }

    /// `cuMemFree` of managed memory.
    pub(crate) fn free_managed(&self, base: u64) -> Result<(), CUresult> {
        let (device, bytes) = {
            let host = self.host.read();
            let range = host
                .find(base)
                .filter(|r| r.base == base && r.advices().is_some() && !r.is_variable())
                .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            let device = self.contexts.get(range.context).map_or(0, |c| c.device);
            (device, range.bytes)
        };
        self.host_free(base)?;
        self.memory.lock().refund(device, bytes);
        Ok(())
    }

    /// Maps the server's `__managed__` variable here, at the same address.
    pub(crate) fn adopt_variable(&self, base: u64, bytes: u64) -> Result<(), CUresult> {
        let mut variables = self.variables.lock();
        if let Some(known) = variables.get(&base) {
            return match *known == bytes {
                true => Ok(()),
                false => Err(CUresult::CUDA_ERROR_UNKNOWN),
            };
        }
        let (start, end) = lone_pages(&variables, base, bytes);
        if bytes == 0 || base.checked_add(bytes).is_none() || !map_pages(start, end) {
            log::warn(format_args!(
                "__managed__: this process uses {base:#x}, where the GPU has a variable of {bytes} bytes"
            ));
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        variables.insert(base, bytes);
        drop(variables);
        let origin = Origin::Variable(Advices::default());
        let context = current_context().unwrap_or(CUcontext(0));
        self.insert_host(base, bytes, 0, context, origin, false);
        let fetched = self
            .make_reachable(base)
            .and_then(|()| self.fetch_mirrors());
        fetched.inspect_err(|_| self.disown_variable(base))
    }

    /// Waits for the mirrors' contents on the server: the reply to a fence comes after them.
    fn fetch_mirrors(&self) -> Result<(), CUresult> {
        let group = Group::new(1);
        let fence = messages::FenceContext { slot: 0, value: 0 };
        self.session
            .ask(wire_context(), &fence, &group, Sink::Group)?;
        self.session.wait(&group).map(drop)
    }

    /// Removes a `__managed__` variable whose library is unloaded.
    pub(crate) fn disown_variable(&self, base: u64) {
        let mut variables = self.variables.lock();
        let Some(bytes) = variables.remove(&base) else {
            return;
        };
        let (start, end) = lone_pages(&variables, base, bytes);
        drop(variables);
        // If the session is lost the server cannot be told; the memory is unmapped all the same.
        drop(self.remove_host(base, false));
        unmap_pages(start, end);
    }

    /// Returns whether an address is in managed memory.
    pub(crate) fn is_managed(&self, address: u64) -> bool {
        let host = self.host.read();
        host.find(address).is_some_and(|r| r.advices().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_variables_are_shared_at_their_ends() {
        let variables = Variables::from([(0x10010, 8), (0x13ff0, 0x20), (0x1_0018, 8)]);
        assert_eq!(lone_pages(&variables, 0x10010, 8), (0x11000, 0x11000));
        assert_eq!(lone_pages(&variables, 0x10020, 0x3000), (0x11000, 0x13000));
        assert_eq!(lone_pages(&variables, 0x20000, 1), (0x20000, 0x21000));
        assert_eq!(lone_pages(&variables, 0x13ff0, 0x20), (0x13000, 0x15000));
    }
}
