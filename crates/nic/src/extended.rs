//! Calls of newer interfaces, which programs make through a context and not by symbols.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use outboard_verbs::abi::{ibv_context, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex};

use crate::{
    cq::create_cq_ex,
    domain::{alloc_td, dealloc_td},
    qp::{Kind, create},
    refused::{fail, refuse, set_errno},
};

const INIT_PD: u32 = 1;
const INIT_SEND_OPS: u32 = 1 << 6;
/// Writes, sends, reads and atomics of 8 bytes.
const SEND_OPS_SERVED: u64 = 0x7f;

/// Functions that return a pointer and are not served: null, and a line that names them.
macro_rules! no_pointer {
    ($name:literal) => {{
        extern "C" fn refused() -> *mut c_void {
            refuse($name, "not served");
            ptr::null_mut()
        }
        refused as *mut c_void
    }};
}

/// Functions that return a status and are not served.
macro_rules! no_status {
    ($name:literal) => {{
        extern "C" fn refused() -> c_int {
            refuse($name, "not served")
        }
        refused as *mut c_void
    }};
}

/// The calls between `query_port` and `create_qp_ex`, in the header's order. Those for which it has
/// another way are null.
pub(crate) fn newer(
    alloc_parent_domain: *mut c_void,
    query_device_ex: *mut c_void,
) -> [*mut c_void; 32] {
    let none = ptr::null_mut();
    [
        no_status!("ibv_advise_mr"),
        no_pointer!("ibv_alloc_null_mr"),
        no_status!("ibv_read_counters"),
        no_status!("ibv_attach_counters_point_flow"),
        no_pointer!("ibv_create_counters"),
        no_status!("ibv_destroy_counters"),
        no_pointer!("ibv_reg_dm_mr"),
        no_pointer!("ibv_alloc_dm"),
        no_status!("ibv_free_dm"),
        no_status!("ibv_modify_flow_action_esp"),
        no_status!("ibv_destroy_flow_action"),
        no_pointer!("ibv_create_flow_action_esp"),
        no_status!("ibv_modify_qp_rate_limit"),
        alloc_parent_domain,
        dealloc_td as *mut c_void,
        alloc_td as *mut c_void,
        no_status!("ibv_modify_cq"),
        no_status!("ibv_post_srq_ops"),
        no_status!("ibv_destroy_rwq_ind_table"),
        no_pointer!("ibv_create_rwq_ind_table"),
        no_status!("ibv_destroy_wq"),
        no_status!("ibv_modify_wq"),
        no_pointer!("ibv_create_wq"),
        no_status!("ibv_query_rt_values_ex"),
        create_cq_ex as *mut c_void,
        none, // the library's own
        query_device_ex,
        no_status!("ibv_destroy_flow"),
        none,
        no_pointer!("ibv_create_flow"),
        none,
        no_pointer!("ibv_open_qp"),
    ]
}

/// The calls behind `create_qp_ex`, and a placeholder.
pub(crate) fn older() -> [*mut c_void; 5] {
    [
        no_status!("ibv_get_srq_num"),
        no_pointer!("ibv_create_srq_ex"),
        no_pointer!("ibv_open_xrcd"),
        no_status!("ibv_close_xrcd"),
        ptr::null_mut(),
    ]
}

/// # Safety
///
/// `asked` is null or what the program asks for.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    asked: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let name = "ibv_create_qp_ex";
    // SAFETY: null, or the program's.
    let Some(more) = (unsafe { asked.as_mut() }) else {
        return fail(libc::EINVAL);
    };
    let unknown = more.comp_mask & !(INIT_PD | INIT_SEND_OPS);
    let has_operations = more.comp_mask & INIT_SEND_OPS != 0;
    if unknown != 0 || (has_operations && more.send_ops_flags & !SEND_OPS_SERVED != 0) {
        refuse(
            name,
            &format!(
                "attributes {unknown:#x} or operations {:#x} are not served",
                more.send_ops_flags
            ),
        );
        return ptr::null_mut();
    }
    if more.comp_mask & INIT_PD == 0 {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let kind = match has_operations {
        true => Kind::Extended,
        false => Kind::Plain,
    };
    let mut known = older_of(more);
    // SAFETY: the caller's duties are the same.
    let made = unsafe { create(name, more.pd, &mut known, kind) };
    more.cap = known.cap;
    made
}

/// The part of the attributes that older calls have, too.
pub(crate) fn older_of(more: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: more.qp_context,
        send_cq: more.send_cq,
        recv_cq: more.recv_cq,
        srq: more.srq,
        cap: more.cap,
        qp_type: more.qp_type,
        sq_sig_all: more.sq_sig_all,
    }
}
