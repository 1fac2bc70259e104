//! Descriptions of verbs' objects for programs that go by adapters' formats (`mlx5dv_init_obj`).

use std::ffi::c_int;

use outboard_verbs::abi::ibv_pd;

use crate::{
    abi::{mlx5dv_ah, mlx5dv_cq, mlx5dv_obj, mlx5dv_pd, mlx5dv_qp, mlx5dv_srq},
    address,
    cq::queue_of,
    pair,
    refused::{refuse, set_errno},
    srq::object_of,
};

const QP: u64 = 1;
const CQ: u64 = 1 << 1;
const SRQ: u64 = 1 << 2;
const AH: u64 = 1 << 5;
const PD: u64 = 1 << 6;
/// The program has room for a shared queue's number.
const HAS_NUMBER: u64 = 1;

/// # Safety
///
/// `objects` is null or has the objects that `kinds` names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_init_obj(
    objects: *mut mlx5dv_obj,
    kinds: u64,
) -> c_int {
    // SAFETY: null, or the program's objects.
    let Some(objects) = (unsafe { objects.as_ref() }) else {
        return set_errno(libc::EINVAL);
    };
    let more = kinds & !(QP | CQ | SRQ | AH | PD);
    if more != 0 || kinds == 0 {
        return refuse(
            "mlx5dv_init_obj",
            &format!("kinds {more:#x} are not served"),
        );
    }
    type Describe = unsafe fn(&mlx5dv_obj) -> Option<()>;
    let all: [(u64, Describe); 5] = [
        (QP, queue_pair),
        (CQ, completions),
        (SRQ, receives),
        (AH, route),
        (PD, domain),
    ];
    for (kind, describe) in all {
        // SAFETY: the program's objects of this kind.
        if kinds & kind != 0 && unsafe { describe(objects) }.is_none() {
            return set_errno(libc::EINVAL);
        }
    }
    0
}

/// # Safety
///
/// The pair of the objects is null, or a queue pair and room.
unsafe fn queue_pair(objects: &mlx5dv_obj) -> Option<()> {
    let [of, out] = objects.qp;
    // SAFETY: null, or a queue pair; null, or room.
    let (pair, out) = unsafe { (pair::of(of.cast())?, out.cast::<mlx5dv_qp>().as_mut()?) };
    *out = pair.described();
    Some(())
}

/// # Safety
///
/// The pair of the objects is null, or a completion queue and room.
unsafe fn completions(objects: &mlx5dv_obj) -> Option<()> {
    let [of, out] = objects.cq;
    // SAFETY: null, or a queue; null, or room.
    let (queue, out) = unsafe { (queue_of(of.cast())?, out.cast::<mlx5dv_cq>().as_mut()?) };
    *out = queue.described();
    Some(())
}

/// # Safety
///
/// The pair of the objects is null, or a shared queue and room.
unsafe fn receives(objects: &mlx5dv_obj) -> Option<()> {
    let [of, out] = objects.srq;
    // SAFETY: null, or a shared queue; null, or room.
    let (object, out) = unsafe { (object_of(of.cast())?, out.cast::<mlx5dv_srq>().as_mut()?) };
    // Receives are posted by calls here.
    (out.buf, out.dbrec) = (std::ptr::null_mut(), std::ptr::null_mut());
    (out.stride, out.head, out.tail) = (0, 0, 0);
    if out.comp_mask & HAS_NUMBER != 0 {
        out.srqn = object.number();
    }
    out.comp_mask &= HAS_NUMBER;
    Some(())
}

/// # Safety
///
/// The pair of the objects is null, or an address and room.
unsafe fn route(objects: &mlx5dv_obj) -> Option<()> {
    let [of, out] = objects.ah;
    // SAFETY: null, or an address; null, or room.
    let (vector, out) = unsafe {
        (
            address::vector(of.cast()),
            out.cast::<mlx5dv_ah>().as_mut()?,
        )
    };
    (out.av, out.comp_mask) = (vector, 0);
    (!vector.is_null()).then_some(())
}

/// # Safety
///
/// The pair of the objects is null, or a domain and room.
unsafe fn domain(objects: &mlx5dv_obj) -> Option<()> {
    let [of, out] = objects.pd;
    // SAFETY: null, or a domain; null, or room.
    let (of, out) = unsafe {
        (
            of.cast::<ibv_pd>().as_ref()?,
            out.cast::<mlx5dv_pd>().as_mut()?,
        )
    };
    (out.pdn, out.comp_mask) = (of.handle, 0);
    Some(())
}
