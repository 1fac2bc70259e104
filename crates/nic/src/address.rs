//! Addresses of peers (address handles): there is one, this adapter's own.

use std::{ffi::c_int, ptr, sync::atomic::Ordering};

use outboard_verbs::abi::{ibv_ah_attr, ibv_context, ibv_gid, ibv_pd};

use crate::{
    abi::mlx5_wqe_av,
    domain::{Domain, PORT},
    host::gid,
    refused::{fail, say, set_errno},
};

/// An address; programs have the address of its first field.
#[repr(C)]
pub struct Address {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    handle: u32,
    vector: mlx5_wqe_av,
}

/// Returns what entries of adapters have of an address.
///
/// # Safety
///
/// `address` is null or from `ibv_create_ah`.
pub(crate) unsafe fn vector(address: *mut Address) -> *mut mlx5_wqe_av {
    // SAFETY: null, or an address.
    unsafe { address.as_mut() }.map_or(ptr::null_mut(), |of| &raw mut of.vector)
}

/// Why a route is refused.
pub(crate) const ELSEWHERE: &str = "the peer's address is not that of the adapters of this folder: it is another folder's (OUTBOARD_NIC_FABRIC), or not a global one of index 0";

/// Returns true if the route leads to adapters of this folder: a global one, from the only address.
pub(crate) fn leads_here(route: &ibv_ah_attr) -> bool {
    let is_own = |to| gid().is_ok_and(|own| ibv_gid(own) == to);
    route.is_global != 0 && route.grh.sgid_index == 0 && is_own(route.grh.dgid)
}

/// # Safety
///
/// `pd` is null or from `ibv_alloc_pd`, and `route` null or a route.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_create_ah(
    pd: *mut ibv_pd,
    route: *const ibv_ah_attr,
) -> *mut Address {
    // SAFETY: null, or the beginning of a domain of ours; null, or a route.
    let (domain, route) = unsafe { (pd.cast::<Domain>().as_ref(), route.as_ref()) };
    let (Some(domain), Some(route)) = (domain, route) else {
        return fail(libc::EINVAL);
    };
    if route.port_num != PORT {
        return fail(libc::EINVAL);
    }
    if !leads_here(route) {
        say(&format!("outboard nic: ibv_create_ah: {ELSEWHERE}"));
        return fail(libc::EINVAL);
    }
    domain.uses.fetch_add(1, Ordering::AcqRel);
    Box::into_raw(Box::new(Address {
        context: domain.pd.context,
        pd,
        handle: 0,
        vector: mlx5_wqe_av {
            hop_limit: route.grh.hop_limit,
            rgid: route.grh.dgid.0,
            ..mlx5_wqe_av::default()
        },
    }))
}

/// # Safety
///
/// `address` is null or from `ibv_create_ah`, its domain is not deallocated, and it is not used
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_destroy_ah(address: *mut Address) -> c_int {
    if address.is_null() {
        return set_errno(libc::EINVAL);
    }
    // SAFETY: made by `Box::into_raw`, and given back once.
    let address = unsafe { Box::from_raw(address) };
    // SAFETY: a domain has no fewer lives than its addresses.
    let domain = unsafe { &*address.pd.cast::<Domain>() };
    domain.uses.fetch_sub(1, Ordering::AcqRel);
    0
}
