//! The part of libmlx5's ABI that is served: `infiniband/mlx5dv.h` of rdma-core, on 64-bit Linux.
//! Names are the header's. libibverbs's is [`outboard_verbs::abi`].
#![allow(non_camel_case_types)]

use std::ffi::{c_uint, c_void};

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

/// An address, as entries of datagrams have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct mlx5_wqe_av {
    pub(crate) key: [u32; 2],
    pub(crate) dqp_dct: u32,
    pub(crate) stat_rate_sl: u8,
    pub(crate) fl_mlid: u8,
    pub(crate) rlid: u16,
    pub(crate) reserved0: [u8; 4],
    pub(crate) rmac: [u8; 6],
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
    pub(crate) grh_gid_fl: u32,
    pub(crate) rgid: [u8; 16],
}

const _: () = assert!(size_of::<mlx5_wqe_av>() == 48);

#[repr(C)]
pub(crate) struct mlx5dv_ah {
    pub(crate) av: *mut mlx5_wqe_av,
    pub(crate) comp_mask: u64,
}

#[repr(C)]
pub(crate) struct mlx5dv_cq {
    pub(crate) buf: *mut c_void,
    pub(crate) dbrec: *mut c_void,
    pub(crate) cqe_cnt: u32,
    pub(crate) cqe_size: u32,
    pub(crate) cq_uar: *mut c_void,
    pub(crate) cqn: u32,
    pub(crate) comp_mask: u64,
}

#[repr(C)]
pub(crate) struct mlx5dv_ring {
    pub(crate) buf: *mut c_void,
    pub(crate) wqe_cnt: u32,
    pub(crate) stride: u32,
}

/// Up to the members that a `comp_mask` asks for.
#[repr(C)]
pub(crate) struct mlx5dv_qp {
    pub(crate) dbrec: *mut c_void,
    pub(crate) sq: mlx5dv_ring,
    pub(crate) rq: mlx5dv_ring,
    pub(crate) bf_reg: *mut c_void,
    pub(crate) bf_size: u32,
    pub(crate) comp_mask: u64,
}

const _: () = assert!(std::mem::offset_of!(mlx5dv_qp, comp_mask) == 56);

#[repr(C)]
pub(crate) struct mlx5dv_srq {
    pub(crate) buf: *mut c_void,
    pub(crate) dbrec: *mut c_void,
    pub(crate) stride: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) comp_mask: u64,
    pub(crate) srqn: u32,
}

/// Purpose of a queue pair of [`mlx5dv_create_qp`](crate::dynamic).
#[repr(C)]
pub struct mlx5dv_qp_init_attr {
    pub(crate) comp_mask: u64,
    pub(crate) create_flags: u32,
    _aligned: u32,
    pub(crate) dc_type: c_uint,
    pub(crate) dct_access_key: u64,
    pub(crate) send_ops_flags: u64,
}

const _: () = assert!(std::mem::offset_of!(mlx5dv_qp_init_attr, dc_type) == 16);

/// Capabilities of an adapter, without the members that a mask asks for.
#[repr(C)]
pub struct mlx5dv_context {
    pub(crate) version: u8,
    pub(crate) flags: u64,
    pub(crate) comp_mask: u64,
}

const _: () = assert!(size_of::<mlx5dv_context>() == 24);

pub(crate) const MLX5DV_CONTEXT_FLAGS_CQE_V1: u64 = 1;
/// Ends of the members of [`mlx5dv_context`] that the bits of its mask ask for.
pub(crate) const MEMBERS_END: [usize; 14] =
    [32, 40, 60, 64, 68, 80, 84, 88, 96, 97, 120, 122, 136, 148];

/// Pairs of what is described, and where.
#[repr(C)]
pub struct mlx5dv_obj {
    pub(crate) qp: [*mut c_void; 2],
    pub(crate) cq: [*mut c_void; 2],
    pub(crate) srq: [*mut c_void; 2],
    pub(crate) _others: [[*mut c_void; 2]; 2],
    pub(crate) ah: [*mut c_void; 2],
    pub(crate) pd: [*mut c_void; 2],
}
