//! Requests of programs, as entries of send queues and receives.

use std::{ffi::c_int, slice, sync::atomic::Ordering};

use outboard_net::wqe::{Data, Operation, Remote, Segment};
use outboard_verbs::abi::*;

use crate::{
    host::{check_process, ring},
    pair::{Pair, of},
    refused::refuse,
    rings::{Request, segments},
};

const SEND_FLAGS: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// Posts requests, all of them or none. Returns a number of `errno`, or 0.
pub(crate) fn post(pair: &Pair, requests: &[Request]) -> c_int {
    if let Err(number) = check_process() {
        return number;
    }
    if pair.state() < IBV_QPS_RTS {
        return libc::EINVAL;
    }
    let mut sends = pair.sends.lock();
    let before = sends.head();
    for request in requests {
        if let Err(number) = sends.push(pair.qpn, pair.signals_all, request) {
            // The adapter reads no entry that is not rung for.
            sends.take_back(before);
            return number;
        }
    }
    if sends.head() != before {
        pair.ring(sends.head());
        drop(sends);
        ring();
    }
    0
}

/// Copies bytes that are sent inline.
///
/// # Safety
///
/// Each piece has as many bytes as it says.
pub(crate) unsafe fn inline(pieces: impl Iterator<Item = (u64, usize)>) -> Data {
    let mut bytes = Vec::new();
    for (at, count) in pieces.filter(|(_, count)| *count > 0) {
        // SAFETY: a piece with bytes, all of which the caller has.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(at as *const u8, count) });
    }
    Data::Inline(bytes.into())
}

/// # Safety
///
/// `wr` is a request of the program's, with its segments.
unsafe fn request(pair: &Pair, wr: &ibv_send_wr) -> Result<Request, c_int> {
    let name = "ibv_post_send";
    let more = wr.send_flags & !SEND_FLAGS;
    if more != 0 {
        return Err(refuse(name, &format!("flags {more:#x} are not served")));
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > pair.segments_max {
        return Err(libc::EINVAL);
    }
    // SAFETY: a request has as many segments as it says.
    let given = unsafe { segments(wr.sg_list, count) }?;
    let operation = match wr.opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => atomic(wr, &given)?,
        IBV_WR_RDMA_READ => Operation::Read {
            remote: remote(wr),
            into: given.into(),
        },
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => {
            // SAFETY: segments of a request lie in the program's memory.
            let data = unsafe { data(pair, wr, given) }?;
            let imm = u32::from_be(wr.imm_data);
            match wr.opcode {
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write {
                    remote: remote(wr),
                    imm: (wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM).then_some(imm),
                    data,
                },
                _ => Operation::Send {
                    imm: (wr.opcode == IBV_WR_SEND_WITH_IMM).then_some(imm),
                    data,
                },
            }
        }
        other => return Err(refuse(name, &format!("opcode {other} is not served"))),
    };
    Ok(Request {
        wr_id: wr.wr_id,
        flags: wr.send_flags,
        operation,
    })
}

fn remote(wr: &ibv_send_wr) -> Remote {
    // SAFETY: every member of the union is plain numbers.
    let rdma = unsafe { wr.wr.rdma };
    Remote {
        address: rdma.remote_addr,
        rkey: rdma.rkey,
    }
}

fn atomic(wr: &ibv_send_wr, given: &[Segment]) -> Result<Operation, c_int> {
    // SAFETY: every member of the union is plain numbers.
    let atomic = unsafe { wr.wr.atomic };
    let remote = Remote {
        address: atomic.remote_addr,
        rkey: atomic.rkey,
    };
    let [into] = *given else {
        return Err(libc::EINVAL);
    };
    Ok(match wr.opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote,
            compare: atomic.compare_add,
            swap: atomic.swap,
            into,
        },
        _ => Operation::FetchAdd {
            remote,
            add: atomic.compare_add,
            into,
        },
    })
}

/// # Safety
///
/// If the request is inline, its segments are the program's memory.
unsafe fn data(pair: &Pair, wr: &ibv_send_wr, given: Vec<Segment>) -> Result<Data, c_int> {
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        return Ok(Data::Gather(given.into()));
    }
    let bytes: usize = given.iter().map(|one| one.length as usize).sum();
    if bytes > pair.inline_bytes_max {
        return Err(libc::EINVAL);
    }
    let pieces = given.iter().map(|one| (one.address, one.length as usize));
    // SAFETY: segments of inline requests are addresses of the program's own, with their lengths.
    Ok(unsafe { inline(pieces) })
}

/// # Safety
///
/// `qp` is a queue pair, `wr` a list of requests, and `bad` has room.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program's queue pair.
    let Some(pair) = (unsafe { of(qp) }) else {
        return libc::EINVAL;
    };
    // SAFETY: null, or the program's request.
    while let Some(next) = unsafe { wr.as_ref() } {
        // SAFETY: with its segments.
        let request = unsafe { request(pair, next) };
        let posted = match &request {
            Ok(request) => post(pair, slice::from_ref(request)),
            Err(number) => *number,
        };
        if posted != 0 {
            // SAFETY: room, or null.
            if let Some(bad) = unsafe { bad.as_mut() } {
                *bad = wr;
            }
            return posted;
        }
        wr = next.next;
    }
    0
}

/// # Safety
///
/// `qp` is a queue pair, `wr` a list of receives, and `bad` has room.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's queue pair.
    let Some(pair) = (unsafe { of(qp) }) else {
        return libc::EINVAL;
    };
    if let Err(number) = check_process() {
        // SAFETY: room, or null.
        if let Some(bad) = unsafe { bad.as_mut() } {
            *bad = wr;
        }
        return number;
    }
    let is_ready = pair.state() >= IBV_QPS_INIT && pair.shared.is_none();
    let mut receives = pair.receives.lock();
    let mut posted = Ok(());
    // SAFETY: null, or the program's receive.
    while let Some(next) = unsafe { wr.as_ref() } {
        posted = match next.num_sge {
            0 | 1 if is_ready => {
                // SAFETY: none, or the one segment that the receive has.
                let into = unsafe { segments(next.sg_list, next.num_sge as usize) };
                into.and_then(|into| receives.push(next.wr_id, into.first().copied()))
            }
            _ => Err(libc::EINVAL),
        };
        if posted.is_err() {
            break;
        }
        wr = next.next;
    }
    let head = u32::from(receives.head()).to_be();
    pair.record.u32(0).store(head, Ordering::Release);
    // SAFETY: room, or null.
    if let (Err(_), Some(bad)) = (posted, unsafe { bad.as_mut() }) {
        *bad = wr;
    }
    posted.err().unwrap_or(0)
}
