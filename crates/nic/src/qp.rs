//! The making of verbs' queue pairs, and their memory.

use std::{
    ffi::c_int,
    mem::take,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{
    Mapped, PairSetup, Retries, State,
    wqe::{BLOCK_BYTES, INLINE_BYTES_MAX, SEGMENT_BYTES},
};
use outboard_verbs::abi::*;
use parking_lot::Mutex;

use crate::{
    building::operations,
    cq::{Queue, queue_of},
    domain::{Domain, Given},
    host::{Refusal, leave, with},
    pages::Page,
    pair::{KEPT, Object, PAIRS, Pair, SEND_SEGMENTS_MAX, TO_INIT, TO_RTR, TO_RTS},
    refused::{fail, refuse, say, set_errno},
    rings::{ENTRIES_MAX, RECEIVE_BYTES, RECEIVE_SEGMENTS_MAX, Receives, Sends},
    srq::{self, Shared, object_of},
};

/// Offset of the doorbell in its page.
const DOORBELL: usize = 0x800;
const RECORD_BYTES: usize = 8;
/// Bytes before the data of an entry: control and remote address, and those of inline data.
const HEAD_BYTES: usize = 2 * SEGMENT_BYTES;
const INLINE_HEAD_BYTES: usize = 4;

/// Sizes of a queue pair that has room for what a program asks for.
struct Sizes {
    blocks_max: usize,
    blocks: usize,
    receives: Option<usize>,
    cap: ibv_qp_cap,
}

fn sizes(asked: &ibv_qp_cap) -> Result<Sizes, Refusal> {
    let wrong = |why: String| Err((libc::EINVAL, why));
    if asked.max_send_sge > SEND_SEGMENTS_MAX || asked.max_recv_sge > RECEIVE_SEGMENTS_MAX {
        return wrong(format!(
            "a request has {SEND_SEGMENTS_MAX} segments at most, a receive {RECEIVE_SEGMENTS_MAX}"
        ));
    }
    if asked.max_inline_data as usize > INLINE_BYTES_MAX {
        return wrong(format!("{INLINE_BYTES_MAX} bytes at most are sent inline"));
    }
    // An atomic has a segment more than a write.
    let segments = asked.max_send_sge.max(1) as usize + 1;
    let inline = INLINE_HEAD_BYTES + asked.max_inline_data as usize;
    let bytes = HEAD_BYTES + (segments * SEGMENT_BYTES).max(inline);
    let blocks_max = bytes.div_ceil(BLOCK_BYTES);
    let blocks = (asked.max_send_wr.max(1) as usize)
        .saturating_mul(blocks_max)
        .next_power_of_two();
    if blocks > ENTRIES_MAX as usize || asked.max_recv_wr > ENTRIES_MAX {
        return wrong(format!(
            "a queue has {ENTRIES_MAX} blocks at most, of which a request takes {blocks_max}"
        ));
    }
    let receives = match asked.max_recv_wr {
        0 => None,
        count => Some(count.next_power_of_two() as usize),
    };
    let inline = blocks_max * BLOCK_BYTES - HEAD_BYTES - INLINE_HEAD_BYTES;
    let cap = ibv_qp_cap {
        max_send_wr: (blocks / blocks_max) as u32,
        max_recv_wr: receives.unwrap_or(0) as u32,
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: asked.max_recv_sge,
        max_inline_data: inline.min(INLINE_BYTES_MAX) as u32,
    };
    Ok(Sizes {
        blocks_max,
        blocks,
        receives,
        cap,
    })
}

fn make(
    domain: &Domain,
    queues: [&Queue; 2],
    asked: &ibv_qp_cap,
    shared: Option<Arc<Shared>>,
    (signals_all, is_target): (bool, bool),
) -> Result<Pair, Refusal> {
    let Sizes {
        blocks_max,
        blocks,
        receives,
        cap,
    } = sizes(asked)?;
    let ring_bytes = blocks * BLOCK_BYTES;
    let receive_bytes = receives.unwrap_or(0) * RECEIVE_BYTES;
    // Receives come first; the send queue begins at a block.
    let ring_at = receive_bytes.next_multiple_of(BLOCK_BYTES);
    let no_memory = || (libc::ENOMEM, "no memory".to_owned());
    let mut given = Given::default();
    let buffer = given.take(domain, ring_at + ring_bytes, MLX5DV_RES_TYPE_QP);
    let record = given.take(domain, RECORD_BYTES, MLX5DV_RES_TYPE_DBR);
    let (buffer, record) = (buffer.ok_or_else(no_memory)?, record.ok_or_else(no_memory)?);
    let page = Page::take(domain.is_of_threads).ok_or_else(no_memory)?;
    let part = |of: &Mapped, at, bytes| of.part(at, bytes).ok_or_else(no_memory);
    let ring = part(&buffer, ring_at, ring_bytes)?;
    let received = match receives {
        Some(count) => Some((part(&buffer, 0, receive_bytes)?, count.ilog2())),
        None => None,
    };
    let [send, receive] = queues;
    let setup = PairSetup {
        domain: domain.pd.handle,
        send_completions: send.number,
        receive_completions: receive.number,
        ring: ring.clone().into(),
        log_blocks: blocks.ilog2(),
        receives: received.clone(),
        record: record.clone().into(),
        page: page.memory(),
        retries: Retries::default(),
    };
    let qpn = with(|adapter| {
        let qpn = adapter.create_pair(setup.clone())?;
        if let Some(shared) = &shared {
            adapter.share_receives(qpn, shared.receives.clone())?;
        }
        Ok(qpn)
    })?;
    Ok(Pair {
        qpn,
        record,
        doorbell: part(&page.memory(), DOORBELL, 8)?,
        given: Mutex::new(given),
        _page: page,
        signals_all,
        is_target,
        segments_max: cap.max_send_sge as usize,
        inline_bytes_max: cap.max_inline_data as usize,
        sends: Mutex::new(Sends::new(ring, blocks_max as u16)),
        receives: Mutex::new(Receives::new(received.map(|(ring, _)| ring))),
        shared,
        building: Mutex::default(),
        setup,
        state: AtomicU32::new(IBV_QPS_RESET),
        cap,
        attributes: Mutex::default(),
    })
}

/// Ways to post to a queue pair that is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// By the newer calls, too.
    Extended,
    /// None: it is a target of dynamic connections.
    Target,
}

/// Makes a queue pair, for the functions that do so.
///
/// # Safety
///
/// `pd` and the queues of `asked` are null or the program's.
pub(crate) unsafe fn create(
    name: &str,
    pd: *mut ibv_pd,
    asked: &mut ibv_qp_init_attr,
    kind: Kind,
) -> *mut ibv_qp {
    // SAFETY: null, or the beginnings of a domain and of queues of ours.
    let (domain, queues) = unsafe {
        let queues = [asked.send_cq, asked.recv_cq].map(|cq| queue_of(cq));
        (pd.cast::<Domain>().as_ref(), queues)
    };
    let (Some(domain), [Some(send), Some(receive)]) = (domain, queues) else {
        return fail(libc::EINVAL);
    };
    if kind != Kind::Target && asked.qp_type != IBV_QPT_RC {
        refuse(name, "queue pairs that are not of reliable connections");
        return ptr::null_mut();
    }
    // SAFETY: null, or the beginning of a shared queue of ours.
    let shared = unsafe { object_of(asked.srq.cast()) };
    let queues = [send, receive];
    if shared.is_some() {
        asked.cap.max_recv_wr = 0;
    }
    let made = make(
        domain,
        queues,
        &asked.cap,
        shared.map(srq::Object::shared),
        (asked.sq_sig_all != 0, kind == Kind::Target),
    );
    let pair = match made {
        Ok(pair) => Arc::new(pair),
        Err((number, why)) => {
            say(&format!("outboard nic: {name}: {why}"));
            return fail(number);
        }
    };
    asked.cap = pair.cap;
    domain.uses.fetch_add(1, Ordering::AcqRel);
    for queue in queues {
        queue.pairs.fetch_add(1, Ordering::AcqRel);
    }
    if let Some(shared) = shared {
        shared.pairs.fetch_add(1, Ordering::AcqRel);
    }
    PAIRS.write().insert(pair.qpn, pair.clone());
    let qp = ibv_qp {
        context: domain.pd.context,
        qp_context: asked.qp_context,
        pd,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        handle: pair.qpn,
        qp_num: pair.qpn,
        state: IBV_QPS_RESET,
        qp_type: IBV_QPT_RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let qp = operations(qp);
    Box::into_raw(Box::new(Object {
        qp,
        pair,
        is_extended: kind == Kind::Extended,
    }))
    .cast()
}

/// # Safety
///
/// `pd` is null or a domain, and `asked` null or what the program asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_create_qp(
    pd: *mut ibv_pd,
    asked: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: null, or the program's.
    match unsafe { asked.as_mut() } {
        // SAFETY: the caller's duties are the same.
        Some(asked) => unsafe { create("ibv_create_qp", pd, asked, Kind::Plain) },
        None => fail(libc::EINVAL),
    }
}

/// # Safety
///
/// `qp` is null or from `ibv_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: null, or the beginning of an object of ours.
    match unsafe { qp.cast::<Object>().as_ref() } {
        Some(object) if object.is_extended => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// # Safety
///
/// `qp` is null or from `ibv_create_qp`, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: null, or the beginning of an object of ours.
    let Some(object) = (unsafe { qp.cast::<Object>().as_ref() }) else {
        return libc::EINVAL;
    };
    let (qpn, base) = (object.pair.qpn, &object.qp.qp_base);
    leave(qpn);
    if let Err((number, _)) = with(|adapter| adapter.destroy_pair(qpn)) {
        return set_errno(number);
    }
    clean(base, qpn);
    PAIRS.write().remove(&qpn);
    drop(take(&mut *object.pair.given.lock()));
    for cq in [base.send_cq, base.recv_cq] {
        // SAFETY: a queue has no fewer lives than its queue pairs.
        if let Some(queue) = unsafe { queue_of(cq) } {
            queue.pairs.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // SAFETY: null, or a shared queue that has no fewer lives than its queue pairs.
    if let Some(shared) = unsafe { object_of(base.srq.cast()) } {
        shared.pairs.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: a domain has no fewer lives than its queue pairs.
    let domain = unsafe { &*base.pd.cast::<Domain>() };
    domain.uses.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(qp.cast::<Object>()) });
    0
}

/// Forgets the completions of a queue pair.
fn clean(base: &ibv_qp, qpn: u32) {
    for cq in [base.send_cq, base.recv_cq] {
        // SAFETY: a queue has no fewer lives than its queue pairs.
        if let Some(queue) = unsafe { queue_of(cq) } {
            queue.clean(qpn);
        }
    }
}

/// # Safety
///
/// `qp` is null or a queue pair, and `attr` null or its attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: null, or the program's.
    let (Some(object), Some(attr)) = (unsafe { (qp.cast::<Object>().as_mut(), attr.as_ref()) })
    else {
        return libc::EINVAL;
    };
    let more = mask & !(TO_INIT | TO_RTR | TO_RTS | KEPT);
    if more != 0 {
        return refuse(
            "ibv_modify_qp",
            &format!("attributes {more:#x} are not served"),
        );
    }
    match object.pair.modify(attr, mask) {
        Ok(()) => {
            object.qp.qp_base.state = object.pair.state();
            if object.pair.state() == IBV_QPS_RESET {
                clean(&object.qp.qp_base, object.pair.qpn);
                object.pair.empty();
            }
            0
        }
        Err((number, why)) => {
            say(&format!("outboard nic: ibv_modify_qp: {why}"));
            set_errno(number)
        }
    }
}

/// # Safety
///
/// `qp` is null or a queue pair; `attr` and `init` are null or have room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: null, or the program's.
    let (Some(object), Some(attr)) = (unsafe { (qp.cast::<Object>().as_mut(), attr.as_mut()) })
    else {
        return libc::EINVAL;
    };
    let (pair, base) = (&object.pair, &object.qp.qp_base);
    let status = match with(|adapter| adapter.status(pair.qpn)) {
        Ok(status) => status,
        Err((number, _)) => return set_errno(number),
    };
    *attr = *pair.attributes.lock();
    attr.qp_state = match status.state {
        State::Error => IBV_QPS_ERR,
        _ => pair.state(),
    };
    (attr.cur_qp_state, attr.cap) = (attr.qp_state, pair.cap);
    // SAFETY: null, or room.
    if let Some(init) = unsafe { init.as_mut() } {
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: pair.cap,
            qp_type: base.qp_type,
            sq_sig_all: pair.signals_all.into(),
        };
    }
    0
}
