//! Registration of memory: of this process, and of GPUs.

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    sync::atomic::Ordering,
};

use outboard_net::{Access, Mapped, Registered, is_mapped};
use outboard_verbs::abi::{ibv_mr, ibv_pd};

use crate::{
    domain::Domain,
    gpu,
    host::with,
    refused::{fail, refuse},
};

/// Access that registrations have here, and what asks for no more than that.
const ACCESS_SERVED: u32 = 15;
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;
const WRITES_OF_PEERS: u32 = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;

/// # Safety
///
/// `pd` is null or from `ibv_alloc_pd`, and the memory stays mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's duties are the same.
    unsafe {
        register(
            "ibv_reg_mr",
            pd,
            memory,
            bytes,
            memory as u64,
            access as u32,
        )
    }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as u32;
    // SAFETY: the caller's duties are the same.
    unsafe { register("ibv_reg_mr_iova", pd, memory, bytes, address, access) }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's duties are the same.
    unsafe { register("ibv_reg_mr_iova2", pd, memory, bytes, address, access) }
}

/// # Safety
///
/// As of `ibv_reg_mr`.
unsafe fn register(
    name: &str,
    pd: *mut ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    address: u64,
    access: u32,
) -> *mut ibv_mr {
    let Some(at) = NonNull::new(memory.cast::<u8>()).filter(|_| bytes > 0) else {
        return fail(libc::EINVAL);
    };
    // SAFETY: the caller's duties are the same.
    let Some(found) = (unsafe { reached(at, bytes, address, access & 1 != 0) }) else {
        return fail(libc::EFAULT);
    };
    // SAFETY: the caller's duties are the same.
    unsafe { add(name, pd, found, [memory as usize, bytes], access) }
}

/// Returns memory of a GPU or of this process; `None` if it is not there, or may not be written.
///
/// # Safety
///
/// As of `ibv_reg_mr`.
pub(crate) unsafe fn reached(
    memory: NonNull<u8>,
    bytes: usize,
    address: u64,
    is_written: bool,
) -> Option<Registered> {
    let at = memory.as_ptr() as u64;
    if let Some(at) = gpu::memory(at, bytes) {
        return Some(Registered::Distant { address, bytes, at });
    }
    // SAFETY: mapped, as is looked up, and it stays so by the caller's duty.
    let mapped = || unsafe { Mapped::new(memory, bytes, address) }.into();
    is_mapped(at as usize, bytes, is_written).then(mapped)
}

/// # Safety
///
/// As of `ibv_reg_mr`.
unsafe fn add(
    name: &str,
    pd: *mut ibv_pd,
    found: Registered,
    [memory, bytes]: [usize; 2],
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: null, or the beginning of a domain of ours.
    let Some(domain) = (unsafe { pd.cast::<Domain>().as_ref() }) else {
        return fail(libc::EINVAL);
    };
    let more = access & !ACCESS_SERVED & !ACCESS_OPTIONAL;
    if more != 0 {
        refuse(name, &format!("access {more:#x} is not served"));
        return ptr::null_mut();
    }
    // Peers write only where the process may: ibv_reg_mr(3).
    if access & WRITES_OF_PEERS != 0 && access & Access::LOCAL_WRITE.0 == 0 {
        return fail(libc::EINVAL);
    }
    let access = Access(access & ACCESS_SERVED);
    let key = match with(|adapter| adapter.register(domain.pd.handle, found, access)) {
        Ok(key) => key,
        Err((number, _)) => return fail(number),
    };
    domain.uses.fetch_add(1, Ordering::AcqRel);
    Box::into_raw(Box::new(ibv_mr {
        context: domain.pd.context,
        pd,
        addr: memory as *mut c_void,
        length: bytes,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

/// Takes memory of a GPU by its address alone: of the buffer it is enough that it is open.
///
/// # Safety
///
/// As of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    bytes: usize,
    address: u64,
    descriptor: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let name = "ibv_reg_dmabuf_mr";
    if !gpu::is_there() {
        refuse(name, "without a driver of GPUs in the program");
        return ptr::null_mut();
    }
    // SAFETY: asks for flags of a descriptor, which need not be open.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return fail(libc::EBADF);
    }
    if bytes == 0 {
        return fail(libc::EINVAL);
    }
    let Some(at) = gpu::memory(address, bytes) else {
        refuse(name, "an address that is not that of a GPU's memory");
        return ptr::null_mut();
    };
    let found = Registered::Distant { address, bytes, at };
    // SAFETY: the caller's duties are the same.
    unsafe { add(name, pd, found, [address as usize, bytes], access as u32) }
}

/// # Safety
///
/// `mr` is null or from a registration, its domain is not deallocated, and it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: null, or a registration.
    let Some(of) = (unsafe { mr.as_ref() }) else {
        return libc::EINVAL;
    };
    if let Err((number, _)) = with(|adapter| adapter.unregister(of.lkey)) {
        return number;
    }
    // SAFETY: a domain has no fewer lives than its registrations.
    let domain = unsafe { &*of.pd.cast::<Domain>() };
    domain.uses.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(mr) });
    0
}
