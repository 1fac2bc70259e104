//! Queues of mlx5 adapters that take no commands, made by verbs in a program's memory. libmlx5 asks
//! the program for it, and describes what it has made, so that others than this process post.
//!
//! A domain of threads gives a queue pair a doorbell of its own.

use std::{
    ffi::{c_int, c_void},
    mem::offset_of,
    ptr::{self, NonNull},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    Chosen, Error, Remote,
    abi::*,
    choose::mtu_code,
    mlx5::{Mlx5, failed, nothing},
    pair::route,
};

const OBJECT_QP: u64 = 1;
const OBJECT_CQ: u64 = 1 << 1;
const BLOCK_BYTES: u32 = 64;
const CQE_BYTES: u32 = 64;
const RECEIVE_BYTES: u32 = 16;
/// Bytes that fit in a block beside the way to the peer.
const INLINE_BYTES: u32 = 28;

#[repr(C)]
#[derive(Clone, Copy)]
struct Ring {
    buf: *mut c_void,
    wqe_cnt: u32,
    stride: u32,
}

#[repr(C)]
struct DescribedPair {
    dbrec: *mut c_void,
    sq: Ring,
    rq: Ring,
    bf_reg: *mut c_void,
    bf_size: u32,
    comp_mask: u64,
    _more: [u64; 5],
}

#[repr(C)]
struct DescribedCompletions {
    buf: *mut c_void,
    dbrec: *mut c_void,
    cqe_cnt: u32,
    cqe_size: u32,
    cq_uar: *mut c_void,
    cqn: u32,
    comp_mask: u64,
}

/// Memory of the object that is made next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub address: u64,
    pub bytes: usize,
    /// Address of the doorbell record.
    pub record: u64,
}

/// Returns a newer call of a context, if its library has it.
fn newer(context: *mut ibv_context, place: usize) -> Result<*mut c_void, Error> {
    // SAFETY: the context is open.
    let is_whole = unsafe { (*context).abi_compat } as usize == usize::MAX;
    let whole: *const verbs_context = context
        .wrapping_byte_sub(offset_of!(verbs_context, context))
        .cast();
    let at = offset_of!(verbs_context, _newer) + place * size_of::<*mut c_void>();
    // SAFETY: the context is the end of the larger one, whose `sz` says how much there is of it.
    let found = match is_whole && unsafe { (*whole).sz } >= size_of::<verbs_context>() - at {
        // SAFETY: there is as much of the larger one as was asked.
        true => unsafe { (*whole)._newer[place] },
        false => ptr::null_mut(),
    };
    match found.is_null() {
        true => Err(Error::Incomplete {
            what: "has no domains of threads or no newer completion queues",
        }),
        false => Ok(found),
    }
}

/// Gives libmlx5 the memory that was named for the object.
unsafe extern "C" fn alloc(
    _domain: *mut ibv_pd,
    context: *mut c_void,
    bytes: usize,
    alignment: usize,
    kind: u64,
) -> *mut c_void {
    // SAFETY: the context of a `Parent`, which lives as long as its domain.
    let mut place = unsafe { &*context.cast::<Mutex<Place>>() }.lock();
    let address = match kind {
        MLX5DV_RES_TYPE_DBR => std::mem::take(&mut place.record),
        MLX5DV_RES_TYPE_QP | MLX5DV_RES_TYPE_CQ if bytes <= place.bytes => {
            std::mem::take(&mut place.address)
        }
        MLX5DV_RES_TYPE_QP | MLX5DV_RES_TYPE_CQ => 0,
        _ => IBV_ALLOCATOR_USE_DEFAULT as u64,
    };
    let is_aligned = address.is_multiple_of(alignment.max(1) as u64);
    let is_given = is_aligned || address == IBV_ALLOCATOR_USE_DEFAULT as u64;
    ptr::with_exposed_provenance_mut(if is_given { address as usize } else { 0 })
}

/// The memory stays the program's.
unsafe extern "C" fn free(_: *mut ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

/// A domain whose queues lie where a program says, and share one doorbell.
pub struct Parent {
    raw: NonNull<ibv_pd>,
    threads: NonNull<ibv_td>,
    place: Box<Mutex<Place>>,
    mlx5: Arc<Mlx5>,
}

// SAFETY: the libraries' objects may be used from any thread, by their documentation.
unsafe impl Send for Parent {}
// SAFETY: several threads may use the libraries' objects at once, by their documentation.
unsafe impl Sync for Parent {}

impl Parent {
    pub fn new(mlx5: &Arc<Mlx5>) -> Result<Arc<Parent>, Error> {
        type AllocThreads =
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td;
        type AllocParent =
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;
        let context = mlx5.domain.context.raw;
        let (threads, parent) = (
            newer(context, ALLOC_TD)?,
            newer(context, ALLOC_PARENT_DOMAIN)?,
        );
        // SAFETY: the calls of these places have these types, by the library's header.
        let (alloc_threads, alloc_parent) = unsafe {
            (
                std::mem::transmute::<*mut c_void, AllocThreads>(threads),
                std::mem::transmute::<*mut c_void, AllocParent>(parent),
            )
        };
        let mut attr = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open, and `attr` outlives the call.
        let threads = NonNull::new(unsafe { alloc_threads(context, &mut attr) });
        let threads = threads.ok_or_else(|| failed("ibv_alloc_td"))?;
        let place = Box::<Mutex<Place>>::default();
        let mut attr = ibv_parent_domain_init_attr {
            pd: mlx5.domain.raw,
            td: threads.as_ptr(),
            comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(alloc),
            free: Some(free),
            pd_context: (&raw const *place).cast_mut().cast(),
        };
        // SAFETY: the context is open, and the place lives as long as the domain.
        let raw = NonNull::new(unsafe { alloc_parent(context, &mut attr) });
        let Some(raw) = raw else {
            let error = failed("ibv_alloc_parent_domain");
            dealloc_threads(threads);
            return Err(error);
        };
        Ok(Arc::new(Parent {
            raw,
            threads,
            place,
            mlx5: Arc::clone(mlx5),
        }))
    }
}

fn dealloc_threads(threads: NonNull<ibv_td>) {
    type Dealloc = unsafe extern "C" fn(*mut ibv_td) -> c_int;
    // SAFETY: made by `ibv_alloc_td`.
    let context = unsafe { threads.as_ref() }.context;
    if let Ok(call) = newer(context, DEALLOC_TD) {
        // SAFETY: the call of this place has this type, and the domain is not used any more.
        let _ = unsafe { std::mem::transmute::<*mut c_void, Dealloc>(call)(threads.as_ptr()) };
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let context = &self.mlx5.domain.context;
        if context.is_ours() {
            // SAFETY: made by `new`; what was made with it is destroyed.
            let _ = unsafe { (context.verbs.ibv_dealloc_pd)(self.raw.as_ptr()) };
            dealloc_threads(self.threads);
        }
    }
}

fn elsewhere<T>(what: &'static str, why: String) -> Result<T, Error> {
    Err(Error::Call {
        call: what,
        reason: format!("libmlx5 has made {why}"),
    })
}

/// A completion queue in a program's memory, which nobody overruns.
pub struct OwnCompletions {
    raw: NonNull<ibv_cq>,
    parent: Arc<Parent>,
}

// SAFETY: as of `Parent`.
unsafe impl Send for OwnCompletions {}
// SAFETY: as of `Parent`.
unsafe impl Sync for OwnCompletions {}

impl OwnCompletions {
    /// Makes a queue of 2^`log` completions.
    ///
    /// # Safety
    ///
    /// Until it is dropped, the memory stays mapped, and nothing relies on its contents.
    pub unsafe fn new(
        parent: &Arc<Parent>,
        place: Place,
        log: u32,
    ) -> Result<OwnCompletions, Error> {
        const CALL: &str = "ibv_create_cq_ex";
        type Create =
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq;
        let context = parent.mlx5.domain.context.raw;
        let call = newer(context, CREATE_CQ_EX)?;
        // SAFETY: the call of this place has this type: what it returns begins as older queues do.
        let create = unsafe { std::mem::transmute::<*mut c_void, Create>(call) };
        let mut attr = ibv_cq_init_attr_ex {
            cqe: (1 << log) - 1,
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
            flags: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
            parent_domain: parent.raw.as_ptr(),
        };
        *parent.place.lock() = place;
        // SAFETY: the context is open, and `attr` outlives the call.
        let raw =
            NonNull::new(unsafe { create(context, &mut attr) }).ok_or_else(|| failed(CALL))?;
        let made = OwnCompletions {
            raw,
            parent: Arc::clone(parent),
        };
        // SAFETY: numbers and null pointers.
        let mut described: DescribedCompletions = unsafe { std::mem::zeroed() };
        let mut objects = nothing();
        objects.cq = [raw.as_ptr().cast(), (&raw mut described).cast()];
        // SAFETY: the queue was just made, and its description has room.
        unsafe { parent.mlx5.describe(&mut objects, OBJECT_CQ) }?;
        let (at, count, bytes) = (described.buf as u64, described.cqe_cnt, described.cqe_size);
        match (at, count, bytes) == (place.address, 1 << log, CQE_BYTES) {
            true => Ok(made),
            false => elsewhere(
                CALL,
                format!("{count} completions of {bytes} bytes at {at:#x}"),
            ),
        }
    }
}

impl Drop for OwnCompletions {
    fn drop(&mut self) {
        let context = &self.parent.mlx5.domain.context;
        if context.is_ours() {
            // SAFETY: made by `new`; its queue pair is destroyed.
            let _ = unsafe { (context.verbs.ibv_destroy_cq)(self.raw.as_ptr()) };
        }
    }
}

/// Sizes of a queue pair whose receives come before its ring.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub log_blocks: u32,
    pub receives: u32,
    /// Address of the ring, behind the receives.
    pub ring: u64,
}

/// Times and counts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub not_ready_timer: u8,
    pub retries: u8,
    pub not_ready_retries: u8,
    /// Reads and atomics under way.
    pub reads: u8,
}

/// A queue pair in a program's memory.
pub struct OwnPair {
    raw: NonNull<ibv_qp>,
    doorbell: u64,
    parent: Arc<Parent>,
}

// SAFETY: as of `Parent`.
unsafe impl Send for OwnPair {}
// SAFETY: as of `Parent`.
unsafe impl Sync for OwnPair {}

impl OwnPair {
    /// Makes a queue pair, which is not connected.
    ///
    /// # Safety
    ///
    /// Until it is dropped, the memory stays mapped, and nothing relies on its contents.
    pub unsafe fn new(
        parent: &Arc<Parent>,
        [sends, receives]: [&OwnCompletions; 2],
        place: Place,
        sizes: Sizes,
    ) -> Result<OwnPair, Error> {
        const CALL: &str = "ibv_create_qp";
        // A library reserves blocks for the longest request that there is, some for each.
        let made = (0..=sizes.log_blocks).rev().find_map(|log| {
            *parent.place.lock() = place;
            let cap = ibv_qp_cap {
                max_send_wr: 1 << log,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: sizes.receives.min(1),
                max_inline_data: INLINE_BYTES,
            };
            create(parent, [sends, receives], cap)
        });
        let raw = made.ok_or_else(|| failed(CALL))?;
        let mut made = OwnPair {
            raw,
            doorbell: 0,
            parent: Arc::clone(parent),
        };
        // SAFETY: numbers and null pointers.
        let mut described: DescribedPair = unsafe { std::mem::zeroed() };
        let mut objects = nothing();
        objects.qp = [raw.as_ptr().cast(), (&raw mut described).cast()];
        // SAFETY: the queue pair was just made, and its description has room.
        unsafe { parent.mlx5.describe(&mut objects, OBJECT_QP) }?;
        let DescribedPair { dbrec, sq, rq, .. } = described;
        let has_receives = sizes.receives == 0
            || (rq.buf as u64, rq.wqe_cnt, rq.stride)
                == (place.address, sizes.receives, RECEIVE_BYTES);
        let has_ring = (sq.buf as u64, sq.wqe_cnt, sq.stride)
            == (sizes.ring, 1 << sizes.log_blocks, BLOCK_BYTES);
        if !has_ring || !has_receives || dbrec as u64 != place.record {
            let why = format!(
                "{} entries of {} bytes at {:p}, {} receives of {} at {:p}",
                sq.wqe_cnt, sq.stride, sq.buf, rq.wqe_cnt, rq.stride, rq.buf
            );
            return elsewhere(CALL, why);
        }
        made.doorbell = described.bf_reg as u64;
        Ok(made)
    }

    pub fn number(&self) -> u32 {
        // SAFETY: made by `new`; the library does not change it.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Returns the address of the doorbell.
    pub fn doorbell(&self) -> u64 {
        self.doorbell
    }

    /// Connects the queue pair, and lets it send.
    pub fn connect(
        &self,
        chosen: &Chosen,
        psn: u32,
        remote: &Remote,
        patience: Patience,
    ) -> Result<(), Error> {
        let rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_INIT,
                pkey_index: chosen.pkey_index,
                port_num: chosen.port,
                qp_access_flags: rights as u32,
                ..ibv_qp_attr::default()
            },
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: mtu_code(chosen.mtu.min(remote.mtu)),
            dest_qp_num: remote.number,
            rq_psn: remote.psn,
            max_dest_rd_atomic: patience.reads,
            min_rnr_timer: patience.not_ready_timer,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr = route(chosen, remote);
        self.modify(
            attr,
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            ibv_qp_attr {
                qp_state: IBV_QPS_RTS,
                sq_psn: psn,
                timeout: chosen.ack_timeout.code(),
                retry_cnt: patience.retries,
                rnr_retry: patience.not_ready_retries,
                max_rd_atomic: patience.reads,
                ..ibv_qp_attr::default()
            },
            IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Flushes what was posted.
    pub fn fail(&self) -> Result<(), Error> {
        self.to(IBV_QPS_ERR)
    }

    /// Takes the queue pair back to where it was made.
    pub fn reset(&self) -> Result<(), Error> {
        self.to(IBV_QPS_RESET)
    }

    fn to(&self, qp_state: u32) -> Result<(), Error> {
        let attr = ibv_qp_attr {
            qp_state,
            ..ibv_qp_attr::default()
        };
        self.modify(attr, 0)
    }

    fn modify(&self, mut attr: ibv_qp_attr, mask: c_int) -> Result<(), Error> {
        let verbs = self.parent.mlx5.domain.context.verbs;
        let mask = mask | IBV_QP_STATE;
        // SAFETY: the queue pair is ours, and `attr` has the members that `mask` names.
        let rc = unsafe { (verbs.ibv_modify_qp)(self.raw.as_ptr(), &mut attr, mask) };
        Error::of(
            rc,
            "changing an RDMA queue pair (is the peer's address reachable from this device?)",
        )
    }
}

fn create(
    parent: &Parent,
    [sends, receives]: [&OwnCompletions; 2],
    cap: ibv_qp_cap,
) -> Option<NonNull<ibv_qp>> {
    let mut attr = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: sends.raw.as_ptr(),
        recv_cq: receives.raw.as_ptr(),
        srq: ptr::null_mut(),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let verbs = parent.mlx5.domain.context.verbs;
    // SAFETY: the queues are of the domain's context, and `attr` outlives the call.
    NonNull::new(unsafe { (verbs.ibv_create_qp)(parent.raw.as_ptr(), &mut attr) })
}

impl Drop for OwnPair {
    fn drop(&mut self) {
        let context = &self.parent.mlx5.domain.context;
        if context.is_ours() {
            // SAFETY: made by `new`, and nothing else uses it.
            let _ = unsafe { (context.verbs.ibv_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
