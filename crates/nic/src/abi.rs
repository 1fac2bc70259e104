//! The part of libmlx5's ABI that is served: `infiniband/mlx5dv.h` of rdma-core, on 64-bit Linux.
//! Names are the header's. libibverbs's is [`outboard_verbs::abi`].
#![allow(non_camel_case_types)]

use std::ffi::c_void;

#[repr(C)]
pub struct mlx5dv_devx_umem {
    pub(crate) umem_id: u32,
}

#[repr(C)]
pub struct mlx5dv_devx_uar {
    pub(crate) reg_addr: *mut c_void,
    pub(crate) base_addr: *mut c_void,
    pub(crate) page_id: u32,
    pub(crate) mmap_off: libc::off_t,
    pub(crate) comp_mask: u64,
}

#[repr(C)]
pub struct mlx5dv_pd {
    pub(crate) pdn: u32,
    pub(crate) comp_mask: u64,
}

/// Pairs of what is described, and where.
#[repr(C)]
pub struct mlx5dv_obj {
    pub(crate) _others: [[*mut c_void; 2]; 6],
    pub(crate) pd: [*mut c_void; 2],
}
