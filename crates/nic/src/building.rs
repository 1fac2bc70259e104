//! Requests that are posted by several calls of a queue pair, between `ibv_wr_start` and
//! `ibv_wr_complete`, which hold its `building`.

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
};

use outboard_net::wqe::{Data, Operation, Remote, Segment};
use outboard_verbs::abi::{IBV_SEND_INLINE, ibv_data_buf, ibv_qp, ibv_qp_ex, ibv_sge};

use crate::{
    pair::{self, Building, Pair},
    post::{inline, post},
    rings::{Request, segments},
};

/// A queue pair with the calls that post to it.
pub(crate) fn operations(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(compare_swap),
        wr_atomic_fetch_add: Some(fetch_add),
        wr_bind_mw: ptr::null_mut(),
        wr_local_inv: ptr::null_mut(),
        wr_rdma_read: Some(read),
        wr_rdma_write: Some(write),
        wr_rdma_write_imm: Some(write_imm),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_send_inv: ptr::null_mut(),
        wr_send_tso: ptr::null_mut(),
        wr_set_ud_addr: ptr::null_mut(),
        wr_set_xrc_srqn: ptr::null_mut(),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_inline_data_list: Some(set_inline_data_list),
        wr_set_sge: Some(set_sge),
        wr_set_sge_list: Some(set_sge_list),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: ptr::null_mut(),
    }
}

/// # Safety
///
/// `qp` is null or a queue pair of the program's.
unsafe fn pair<'a>(qp: *mut ibv_qp_ex) -> Option<&'a Pair> {
    // SAFETY: the queue pair begins with the older structure.
    unsafe { pair::of(qp.cast()) }
}

/// Returns what the program has begun.
///
/// # Safety
///
/// The caller's thread is between start and complete or abort.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Pair, &'a mut Building)> {
    // SAFETY: the program's queue pair.
    let pair = unsafe { pair(qp) }?;
    // SAFETY: locked since the start, by this thread.
    Some((pair, unsafe { &mut *pair.building.data_ptr() }))
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's queue pair.
    if let Some(pair) = unsafe { pair(qp) } {
        let mut building = pair.building.lock();
        building.requests.clear();
        building.failed = 0;
        // Completing or aborting unlocks it.
        std::mem::forget(building);
    }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has started.
    let Some((pair, building)) = (unsafe { building(qp) }) else {
        return libc::EINVAL;
    };
    let posted = match building.failed {
        0 => post(pair, &building.requests),
        failed => failed,
    };
    // SAFETY: locked by the start, and not used from here on.
    unsafe { pair.building.force_unlock() };
    posted
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's queue pair, which was locked by the start.
    if let Some(pair) = unsafe { pair(qp) } {
        // SAFETY: locked by the start.
        unsafe { pair.building.force_unlock() };
    }
}

/// Begins a request; its data are set by the next call.
///
/// # Safety
///
/// The program has started.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: the program has started.
    if let Some((_, building)) = unsafe { building(qp) } {
        // SAFETY: the program's queue pair.
        let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
        building.requests.push(Request {
            wr_id,
            // Data say by their call how they are sent.
            flags: flags & !IBV_SEND_INLINE,
            operation,
        });
    }
}

fn nothing() -> Data {
    Data::Gather(Default::default())
}

unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let (remote, imm, data) = (Remote { address, rkey }, None, nothing());
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::Write { remote, imm, data }) }
}

unsafe extern "C" fn write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    let (remote, data) = (Remote { address, rkey }, nothing());
    let imm = Some(u32::from_be(imm));
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::Write { remote, imm, data }) }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    let (imm, data) = (None, nothing());
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::Send { imm, data }) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    let (imm, data) = (Some(u32::from_be(imm)), nothing());
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::Send { imm, data }) }
}

unsafe extern "C" fn read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let (remote, into) = (Remote { address, rkey }, Default::default());
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::Read { remote, into }) }
}

const NOWHERE: Segment = Segment {
    length: 0,
    lkey: 0,
    address: 0,
};

unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    let (remote, into) = (Remote { address, rkey }, NOWHERE);
    // SAFETY: the program has started.
    unsafe { begin(qp, Operation::FetchAdd { remote, add, into }) }
}

unsafe extern "C" fn compare_swap(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let operation = Operation::CompareSwap {
        remote: Remote { address, rkey },
        compare,
        swap,
        into: NOWHERE,
    };
    // SAFETY: the program has started.
    unsafe { begin(qp, operation) }
}

/// Sets the data of the request that was begun last.
fn set(building: &mut Building, given: Data) {
    let Some(last) = building.requests.last_mut() else {
        building.failed = libc::EINVAL;
        return;
    };
    match (&mut last.operation, given) {
        (Operation::Write { data, .. } | Operation::Send { data, .. }, given) => *data = given,
        (Operation::Read { into, .. }, Data::Gather(given)) => *into = given,
        (
            Operation::FetchAdd { into, .. } | Operation::CompareSwap { into, .. },
            Data::Gather(given),
        ) if given.len() == 1 => *into = given[0],
        _ => building.failed = libc::EINVAL,
    }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one = ibv_sge { addr, length, lkey };
    // SAFETY: the program has started, and one segment is given.
    unsafe { set_sge_list(qp, 1, &raw const one) }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the program has started.
    if let Some((pair, building)) = unsafe { building(qp) } {
        if count > pair.segments_max {
            building.failed = libc::EINVAL;
            return;
        }
        // SAFETY: as many segments as the call says.
        match unsafe { segments(list, count) } {
            Ok(given) => set(building, Data::Gather(given.into())),
            Err(number) => building.failed = number,
        }
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: the program has started, and one piece is given.
    unsafe { set_inline_data_list(qp, 1, &raw const one) }
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program has started.
    let Some((pair, building)) = (unsafe { building(qp) }) else {
        return;
    };
    let pieces = match list.is_null() {
        true => &[],
        // SAFETY: not null, and as many pieces as the call says.
        false => unsafe { slice::from_raw_parts(list, count) },
    };
    let bytes = pieces
        .iter()
        .fold(0, |sum: usize, one| sum.saturating_add(one.length));
    if bytes > pair.inline_bytes_max {
        building.failed = libc::EINVAL;
        return;
    }
    let pieces = pieces.iter().map(|one| (one.addr as u64, one.length));
    // SAFETY: pieces are addresses of the program's own, with their lengths.
    let given = unsafe { inline(pieces) };
    set(building, given);
}
