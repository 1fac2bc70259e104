//! The part of libibverbs's ABI that is served: `infiniband/verbs.h` of rdma-core, interface
//! `IBVERBS_1.1`, on 64-bit Linux. Names are the header's.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_device {
    pub(crate) _ops: [*mut c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// Calls that programs make without a symbol. All are null but those below.
#[repr(C)]
pub struct ibv_context_ops {
    pub(crate) _control: [*mut c_void; 32],
}

#[repr(C)]
pub struct ibv_context {
    pub(crate) device: *const ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    /// Null: the header's inline functions call symbols, and nothing before this structure.
    pub(crate) abi_compat: *mut c_void,
}

#[repr(C)]
pub struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub struct ibv_device_attr {
    pub(crate) fw_ver: [u8; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    /// Zero of datagrams of other kinds, multicast, memory windows and shared queues.
    pub(crate) _none: [c_int; 14],
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// As far as a caller of the symbol has room: what newer ones have behind it, they zero.
#[repr(C)]
pub struct compat_ibv_port_attr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
}

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
