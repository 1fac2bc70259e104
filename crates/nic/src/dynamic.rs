//! Targets of dynamic connections (DCT), which NVSHMEM makes whatever connections it uses. They
//! have a number and go through their states. Nobody can post to them here.

use std::{ffi::c_uint, ptr};

use outboard_verbs::abi::{ibv_context, ibv_qp, ibv_qp_init_attr_ex};

use crate::{
    abi::mlx5dv_qp_init_attr,
    extended::older_of,
    qp::{Kind, create},
    refused::{fail, refuse},
};

const MASK_DC: u64 = 1 << 1;
const TARGET: c_uint = 1;

/// # Safety
///
/// `asked` and `more` are null or what the program asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_create_qp(
    _context: *mut ibv_context,
    asked: *mut ibv_qp_init_attr_ex,
    more: *const mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    let name = "mlx5dv_create_qp";
    // SAFETY: null, or the program's.
    let (Some(asked), Some(more)) = (unsafe { (asked.as_mut(), more.as_ref()) }) else {
        return fail(libc::EINVAL);
    };
    if more.comp_mask != MASK_DC || more.dc_type != TARGET {
        refuse(
            name,
            "other than targets of dynamic connections are not served",
        );
        return ptr::null_mut();
    }
    let mut known = older_of(asked);
    // Nothing is sent.
    (known.cap.max_send_wr, known.cap.max_inline_data) = (1, 0);
    // SAFETY: the caller's duties are the same.
    unsafe { create(name, asked.pd, &mut known, Kind::Target) }
}
