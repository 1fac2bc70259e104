//! Receives that several queue pairs share.

use std::{
    collections::HashMap,
    ffi::c_int,
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{Mapped, SharedReceives};
use outboard_verbs::abi::{ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_init_attr};
use parking_lot::Mutex;

use crate::{
    domain::Domain,
    host::{check_process, why},
    refused::fail,
    rings::{ENTRIES_MAX, RECEIVE_BYTES, RECEIVE_SEGMENTS_MAX, encode_receive, segments},
};

/// Shared queues by their numbers, as commands name them.
static QUEUES: LazyLock<Mutex<HashMap<u32, Weak<Shared>>>> = LazyLock::new(Mutex::default);

/// A shared queue of receives; programs have the address of its first field.
#[repr(C)]
pub(crate) struct Object {
    srq: ibv_srq,
    shared: Arc<Shared>,
    /// Queue pairs that take from it.
    pub(crate) pairs: AtomicU32,
}

/// A shared queue, as its queue pairs have it.
pub(crate) struct Shared {
    pub(crate) receives: Arc<SharedReceives>,
    ring: Mapped,
    posted: Mutex<Posted>,
}

struct Posted {
    head: u16,
    /// Numbers of the receives that are not polled yet: several completion queues may complete
    /// them in another order.
    waiting: Vec<Option<u64>>,
}

/// # Safety
///
/// `srq` is null or from `ibv_create_srq`, and is not destroyed meanwhile.
pub(crate) unsafe fn object_of<'a>(srq: *mut ibv_srq) -> Option<&'a Object> {
    // SAFETY: null, or the beginning of an object of ours.
    unsafe { srq.cast::<Object>().as_ref() }
}

impl Object {
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    pub(crate) fn number(&self) -> u32 {
        self.srq.handle
    }
}

/// Returns the shared queue of a number.
pub(crate) fn shared_of(number: u32) -> Option<Arc<Shared>> {
    QUEUES.lock().get(&number).and_then(Weak::upgrade)
}

impl Shared {
    fn new(count: u32) -> Option<Shared> {
        let log = count.next_power_of_two().ilog2();
        let ring = Mapped::allocate(RECEIVE_BYTES << log)?;
        let receives = SharedReceives::new(ring.clone(), log).map_err(why).ok()?;
        Some(Shared {
            receives: Arc::new(receives),
            ring,
            posted: Mutex::new(Posted {
                head: 0,
                waiting: vec![None; 1 << log],
            }),
        })
    }

    /// Returns the number of the receive of this index, whose place is free from now on.
    pub(crate) fn complete(&self, index: u16) -> u64 {
        let mut posted = self.posted.lock();
        let slot = usize::from(index) & (posted.waiting.len() - 1);
        posted.waiting[slot].take().unwrap_or(0)
    }

    /// # Safety
    ///
    /// `wr` is a receive of the program's, with its segments.
    unsafe fn push(&self, wr: &ibv_recv_wr) -> Result<(), c_int> {
        let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
        if count > RECEIVE_SEGMENTS_MAX as usize {
            return Err(libc::EINVAL);
        }
        // SAFETY: a receive has as many segments as it says.
        let into = unsafe { segments(wr.sg_list, count) }?;
        let mut posted = self.posted.lock();
        let slot = usize::from(posted.head) & (posted.waiting.len() - 1);
        if posted.waiting[slot].is_some() {
            return Err(libc::ENOMEM);
        }
        let bytes = encode_receive(into.first().copied());
        self.ring.write(slot * RECEIVE_BYTES, &bytes);
        posted.waiting[slot] = Some(wr.wr_id);
        posted.head = posted.head.wrapping_add(1);
        self.receives.post(posted.head);
        Ok(())
    }
}

/// # Safety
///
/// `pd` is null or from `ibv_alloc_pd`, and `asked` null or what the program asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_create_srq(
    pd: *mut ibv_pd,
    asked: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: null, or the beginning of a domain of ours; null, or the program's.
    let (domain, asked) = unsafe { (pd.cast::<Domain>().as_ref(), asked.as_mut()) };
    let (Some(domain), Some(asked)) = (domain, asked) else {
        return fail(libc::EINVAL);
    };
    let attr = &mut asked.attr;
    if !(1..=ENTRIES_MAX).contains(&attr.max_wr) || attr.max_sge > RECEIVE_SEGMENTS_MAX {
        return fail(libc::EINVAL);
    }
    let Some(shared) = Shared::new(attr.max_wr) else {
        return fail(libc::ENOMEM);
    };
    attr.max_wr = shared.posted.lock().waiting.len() as u32;
    static LAST: AtomicU32 = AtomicU32::new(0);
    let (shared, handle) = (Arc::new(shared), LAST.fetch_add(1, Ordering::Relaxed) + 1);
    QUEUES.lock().insert(handle, Arc::downgrade(&shared));
    domain.uses.fetch_add(1, Ordering::AcqRel);
    Box::into_raw(Box::new(Object {
        srq: ibv_srq {
            context: domain.pd.context,
            srq_context: asked.srq_context,
            pd,
            handle,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        },
        shared,
        pairs: AtomicU32::new(0),
    }))
    .cast()
}

/// # Safety
///
/// `srq` is null or from `ibv_create_srq`, its domain is not deallocated, and it is not used again
/// if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: null, or the beginning of an object of ours.
    match unsafe { object_of(srq) } {
        None => libc::EINVAL,
        Some(of) if of.pairs.load(Ordering::Acquire) > 0 => libc::EBUSY,
        Some(of) => {
            // SAFETY: a domain has no fewer lives than its shared queues.
            let domain = unsafe { &*of.srq.pd.cast::<Domain>() };
            domain.uses.fetch_sub(1, Ordering::AcqRel);
            QUEUES.lock().remove(&of.number());
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(srq.cast::<Object>()) });
            0
        }
    }
}

/// # Safety
///
/// `srq` is a shared queue, `wr` a list of receives, and `bad` has room.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: null, or the program's.
    let Some(object) = (unsafe { object_of(srq) }) else {
        return libc::EINVAL;
    };
    // SAFETY: null, or the program's receive.
    while let Some(next) = unsafe { wr.as_ref() } {
        // SAFETY: with its segments.
        let pushed = check_process().and_then(|()| unsafe { object.shared.push(next) });
        if let Err(number) = pushed {
            // SAFETY: room, or null.
            if let Some(bad) = unsafe { bad.as_mut() } {
                *bad = wr;
            }
            return number;
        }
        wr = next.next;
    }
    0
}
