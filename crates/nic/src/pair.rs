//! Queue pairs of verbs, and their way from reset to ready to send.
//!
//! The table of queue pairs is locked before a queue pair, and that before the adapter.

use std::{
    collections::HashMap,
    ffi::{c_int, c_uint, c_void},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{Access, Mapped, PairSetup, Retries, wqe::BLOCK_BYTES};
use outboard_verbs::abi::*;
use parking_lot::{Mutex, RwLock};

use crate::{
    abi::{mlx5dv_qp, mlx5dv_ring},
    address::{ELSEWHERE, leads_here},
    domain::{Given, PORT},
    host::{Refusal, connect, leave, with},
    pages::Page,
    rings::{RECEIVE_BYTES, Receives, Request, Sends},
    srq::Shared,
};

/// Most reads and atomics under way of a queue pair.
pub(crate) const READS_MAX: u8 = 16;
/// Most segments of a request.
pub(crate) const SEND_SEGMENTS_MAX: u32 = 8;
const ACCESS_SERVED: c_uint = 15;
/// Unit of the timeout, which is a power of two of it.
const TIMEOUT_UNIT_NS: u64 = 4096;
const TIMEOUT_MAX: u8 = 31;
const RETRIES_MAX: u8 = 7;

pub(crate) const TO_INIT: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
pub(crate) const TO_RTR: c_int = IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const TARGET_TO_RTR: c_int = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER;
pub(crate) const TO_RTS: c_int =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
/// Attributes of every state.
pub(crate) const KEPT: c_int = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

pub(crate) static PAIRS: LazyLock<RwLock<HashMap<u32, Arc<Pair>>>> = LazyLock::new(RwLock::default);

/// A queue pair; programs have the address of its first field.
#[repr(C)]
pub(crate) struct Object {
    pub(crate) qp: ibv_qp_ex,
    pub(crate) pair: Arc<Pair>,
    pub(crate) is_extended: bool,
}

/// Requests of a program that is about to post them.
#[derive(Default)]
pub(crate) struct Building {
    pub(crate) requests: Vec<Request>,
    pub(crate) failed: c_int,
}

/// A queue pair, as those have it that complete its requests.
pub(crate) struct Pair {
    pub(crate) qpn: u32,
    pub(crate) record: Mapped,
    pub(crate) doorbell: Mapped,
    /// Memory that is the program's.
    pub(crate) given: Mutex<Given>,
    pub(crate) _page: Page,
    pub(crate) signals_all: bool,
    /// A target of dynamic connections, which is connected to nobody.
    pub(crate) is_target: bool,
    pub(crate) segments_max: usize,
    pub(crate) inline_bytes_max: usize,
    pub(crate) sends: Mutex<Sends>,
    pub(crate) receives: Mutex<Receives>,
    /// Receives that it shares, in place of its own.
    pub(crate) shared: Option<Arc<Shared>>,
    pub(crate) building: Mutex<Building>,
    pub(crate) setup: PairSetup,
    pub(crate) state: AtomicU32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) attributes: Mutex<ibv_qp_attr>,
}

pub(crate) fn pair_of(qpn: u32) -> Option<Arc<Pair>> {
    PAIRS.read().get(&qpn).cloned()
}

/// # Safety
///
/// `qp` is null or from `ibv_create_qp`, and is not destroyed meanwhile.
pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Option<&'a Pair> {
    // SAFETY: null, or the beginning of an object of ours.
    unsafe { qp.cast::<Object>().as_ref() }.map(|object| &*object.pair)
}

impl Pair {
    pub(crate) fn state(&self) -> c_uint {
        self.state.load(Ordering::Acquire)
    }

    pub(crate) fn peer(&self) -> u32 {
        self.attributes.lock().dest_qp_num
    }

    /// Describes the queue pair as adapters' formats have it.
    pub(crate) fn described(&self) -> mlx5dv_qp {
        let ring = |at: u64, bytes: usize, stride: usize| mlx5dv_ring {
            buf: at as *mut c_void,
            wqe_cnt: (bytes / stride) as u32,
            stride: stride as u32,
        };
        let sends = &self.setup.ring;
        let receives = self.setup.receives.as_ref().map(|(ring, _)| ring);
        let (at, bytes) = receives.map_or((0, 0), |ring| (ring.address(), ring.len()));
        mlx5dv_qp {
            dbrec: self.record.address() as *mut c_void,
            sq: ring(
                sends.address(),
                BLOCK_BYTES << self.setup.log_blocks,
                BLOCK_BYTES,
            ),
            rq: ring(at, bytes, RECEIVE_BYTES),
            bf_reg: self.doorbell.address() as *mut c_void,
            // No entry is written to the page itself.
            bf_size: 0,
            comp_mask: 0,
        }
    }

    /// Tells the adapter of the entries that were written.
    pub(crate) fn ring(&self, head: u16) {
        let index = u32::from(head);
        self.record.u32(4).store(index.to_be(), Ordering::Release);
        let rung = u64::from(index << 8) << 32 | u64::from(self.qpn << 8);
        self.doorbell.u64(0).store(rung.to_be(), Ordering::Release);
    }

    pub(crate) fn received(&self, index: u16) -> u64 {
        match &self.shared {
            Some(shared) => shared.complete(index),
            None => self.receives.lock().complete(index),
        }
    }

    pub(crate) fn sent(&self, index: u16) -> (u64, c_uint) {
        self.sends.lock().complete(index)
    }

    pub(crate) fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), Refusal> {
        let wrong = |why: &str| Err((libc::EINVAL, why.to_owned()));
        let mut known = self.attributes.lock();
        let now = self.state();
        let next = match mask & IBV_QP_STATE {
            0 => now,
            _ => attr.qp_state,
        };
        if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != now {
            return wrong("it is in another state than the program says");
        }
        let (required, optional) = match (now, next) {
            (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
            (IBV_QPS_RESET, IBV_QPS_INIT) => (TO_INIT, 0),
            (IBV_QPS_INIT, IBV_QPS_INIT) => (0, TO_INIT),
            (IBV_QPS_INIT, IBV_QPS_RTR) if self.is_target => (TARGET_TO_RTR, 0),
            (IBV_QPS_INIT, IBV_QPS_RTR) => (TO_RTR, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX),
            (IBV_QPS_RTR, IBV_QPS_RTS) => (TO_RTS, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER),
            (IBV_QPS_RTS, IBV_QPS_RTS) => (0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER),
            _ => return wrong(&format!("there is no way from state {now} to {next}")),
        };
        let (missing, more) = (
            required & !mask,
            mask & !(required | optional | IBV_QP_STATE | IBV_QP_CUR_STATE),
        );
        if missing != 0 || more != 0 {
            return wrong(&format!(
                "from state {now} to {next}, attributes {missing:#x} are missing, {more:#x} too many"
            ));
        }
        let mut wanted = *known;
        take(&mut wanted, attr, mask)?;
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            let access = Access(wanted.qp_access_flags & ACCESS_SERVED);
            with(|adapter| adapter.set_access(self.qpn, access))?;
        }
        match next {
            IBV_QPS_RESET => {
                self.reset()?;
                wanted = ibv_qp_attr::default();
            }
            IBV_QPS_ERR => with(|adapter| adapter.fail(self.qpn))?,
            IBV_QPS_RTR if next != now && !self.is_target => connect(self.qpn, wanted.dest_qp_num)?,
            IBV_QPS_RTS if next != now => self.be_patient(&wanted)?,
            _ => {}
        }
        *known = wanted;
        self.state.store(next, Ordering::Release);
        Ok(())
    }

    fn be_patient(&self, attr: &ibv_qp_attr) -> Result<(), Refusal> {
        let retries = Retries {
            timeout_ns: match attr.timeout {
                0 => u64::MAX,
                timeout => TIMEOUT_UNIT_NS << timeout,
            },
            count_max: attr.retry_cnt.into(),
            not_ready_count_max: attr.rnr_retry.into(),
            ..Retries::default()
        };
        with(|adapter| adapter.set_retries(self.qpn, retries))
    }

    /// Empties the rings of a queue pair that was reset, once none of its completions is left:
    /// each gives the place of its entry back.
    pub(crate) fn empty(&self) {
        self.sends.lock().reset();
        self.receives.lock().reset();
    }

    /// Starts the adapter's halves of the queues again, empty.
    fn reset(&self) -> Result<(), Refusal> {
        leave(self.qpn);
        let _posting = (self.sends.lock(), self.receives.lock());
        self.record.u64(0).store(0, Ordering::Release);
        self.doorbell.u64(0).store(0, Ordering::Release);
        with(|adapter| {
            adapter.reset(self.qpn, self.setup.clone())?;
            if let Some(shared) = &self.shared {
                adapter.share_receives(self.qpn, shared.receives.clone())?;
            }
            adapter.set_access(self.qpn, Access::ALL)
        })
    }
}

/// Takes the attributes of a mask, as far as they are served.
fn take(to: &mut ibv_qp_attr, from: &ibv_qp_attr, mask: c_int) -> Result<(), Refusal> {
    let has = |one: c_int| mask & one != 0;
    let is_wrong = (has(IBV_QP_PORT) && from.port_num != PORT)
        || (has(IBV_QP_PKEY_INDEX) && from.pkey_index != 0)
        || (has(IBV_QP_PATH_MTU) && !(1..=5).contains(&from.path_mtu))
        || (has(IBV_QP_TIMEOUT) && from.timeout > TIMEOUT_MAX)
        || (has(IBV_QP_RETRY_CNT) && from.retry_cnt > RETRIES_MAX)
        || (has(IBV_QP_RNR_RETRY) && from.rnr_retry > RETRIES_MAX)
        || (has(IBV_QP_MAX_QP_RD_ATOMIC) && from.max_rd_atomic > READS_MAX)
        || (has(IBV_QP_MAX_DEST_RD_ATOMIC) && from.max_dest_rd_atomic > READS_MAX)
        || (has(IBV_QP_ACCESS_FLAGS) && from.qp_access_flags & !ACCESS_SERVED != 0);
    if is_wrong {
        return Err((libc::EINVAL, "an attribute is out of range".into()));
    }
    if has(IBV_QP_AV) && !leads_here(&from.ah_attr) {
        return Err((libc::EINVAL, ELSEWHERE.into()));
    }
    macro_rules! keep {
        ($($flag:ident: $($field:ident),+;)*) => {
            $(if has($flag) { $(to.$field = from.$field;)+ })*
        };
    }
    keep! {
        IBV_QP_PORT: port_num;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
    }
    Ok(())
}
