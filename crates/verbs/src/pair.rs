//! A queue pair: how it is made and connected, and how requests are posted to it.

use std::{
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    Error,
    abi::*,
    choose::{AckTimeout, Chosen, mtu_code},
    completions::Completions,
    domain::Domain,
};

/// Requests that may be outstanding.
pub const SEND_DEPTH: usize = 256;
/// Wake-ups that may arrive before the last ones were looked at; further ones wait at their sender.
pub(crate) const RECEIVE_DEPTH: usize = 16;
/// Asked of the device, which may grant less: a small frame then travels in the request itself and
/// need not be fetched.
const INLINE_BYTES: u32 = 220;

/// Times that an unacknowledged packet is sent again; then an adapter gives its peer up. Software
/// RoCE takes 7 for endless, and must have it: it counts every loss since the last acknowledgement,
/// with progress or not, and at a few per cent of losses a long write has more than six. There
/// [`check_progress`](crate::Queue::check_progress) ends a wait.
pub const RETRIES: u8 = 7;
/// Time before another attempt at a peer's device that has no request posted for a wake-up: 0.64
/// ms. Seven retries mean endless: such a device lives, and its process is watched by other means.
const NOT_READY_TIMER: u8 = 12;
const NOT_READY_RETRIES: u8 = 7;
pub const HOP_LIMIT: u8 = 64;
/// Bits of a packet's number, and of a queue pair's.
pub const PSN_MASK: u32 = 0xff_ffff;

/// Marks the ids of requests to receive.
pub(crate) const RECEIVE: u64 = 1;

/// Address and settings of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub number: u32,
    pub psn: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: u16,
}

/// A queue pair of a reliable connection, which one thread uses at a time.
pub(crate) struct Pair {
    raw: NonNull<ibv_qp>,
    domain: Arc<Domain>,
    /// Bytes that the device takes in a request itself.
    pub(crate) inline_bytes: usize,
    /// True if the device is told of requests by its descriptor: software has no doorbell.
    is_software: bool,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Pair {}

impl Pair {
    /// Makes a pair whose requests, of either kind, complete in `completions`.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        chosen: &Chosen,
        completions: &Completions,
    ) -> Result<Self, Error> {
        // The bytes that a device takes in a request are found by trying.
        [INLINE_BYTES, 64, 32, 0]
            .into_iter()
            .find_map(|inline_bytes| Self::made(domain, chosen, completions, inline_bytes))
            .ok_or_else(|| Error::last("making an RDMA queue pair"))
    }

    fn made(
        domain: &Arc<Domain>,
        chosen: &Chosen,
        completions: &Completions,
        inline_bytes: u32,
    ) -> Option<Self> {
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions.raw(),
            recv_cq: completions.raw(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: SEND_DEPTH as u32,
                max_recv_wr: RECEIVE_DEPTH as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain is of the context that the completion queue is of, and `attr` outlives
        // the call.
        let raw = unsafe { (domain.context.verbs.ibv_create_qp)(domain.raw, &mut attr) };
        Some(Self {
            raw: NonNull::new(raw)?,
            domain: Arc::clone(domain),
            inline_bytes: attr.cap.max_inline_data as usize,
            is_software: chosen.ack_timeout != AckTimeout::ADAPTER,
        })
    }

    /// Returns the number of the queue pair, which the peer addresses.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: made by `made`; the library does not change it.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Lets the pair take requests to receive, and the peer's accesses to memory.
    pub(crate) fn initialise(&self, chosen: &Chosen) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: chosen.pkey_index,
            port_num: chosen.port,
            qp_access_flags: (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) as u32,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, "preparing an RDMA queue pair")
    }

    /// Connects the pair: afterwards it receives, and sends packets from number `psn` on.
    pub(crate) fn connect(&self, chosen: &Chosen, psn: u32, remote: &Remote) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: mtu_code(chosen.mtu.min(remote.mtu)),
            dest_qp_num: remote.number,
            rq_psn: remote.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NOT_READY_TIMER,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr = route(chosen, remote);
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(
            &mut attr,
            mask,
            "connecting an RDMA queue pair (is the peer's address reachable from this device?)",
        )?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: psn,
            timeout: chosen.ack_timeout.0,
            retry_cnt: RETRIES,
            rnr_retry: NOT_READY_RETRIES,
            max_rd_atomic: 1,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, "starting an RDMA queue pair")
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: i32, doing: &'static str) -> Result<(), Error> {
        // SAFETY: the queue pair is ours, and `attr` has the members that `mask` names.
        let rc =
            unsafe { (self.domain.context.verbs.ibv_modify_qp)(self.raw.as_ptr(), attr, mask) };
        Error::of(rc, doing)
    }

    /// Posts a chain of requests by one doorbell. The device copies the requests.
    ///
    /// # Safety
    ///
    /// The pointers of the chain are valid during the call. The memory that its pieces name stays
    /// registered for as long as the pair lives, or the device refuses to use it.
    #[inline]
    pub(crate) unsafe fn post(&self, first: *mut ibv_send_wr) -> Result<(), Error> {
        if self.is_software {
            self.domain.context.check()?;
        }
        let Some(post) = self.ops().post_send else {
            return Err(Error::Incomplete {
                what: "has no call to post requests",
            });
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is ours; the caller promises the rest.
        let rc = unsafe { post(self.raw.as_ptr(), first, &mut bad) };
        Error::of(rc, "posting an RDMA request")
    }

    /// Posts a request that receives one wake-up of the peer's, and no bytes.
    pub(crate) fn post_receive(&self) -> Result<(), Error> {
        let mut request = ibv_recv_wr {
            wr_id: RECEIVE,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request outlives the call, which copies it; it names no memory.
        let rc = unsafe {
            match self.ops().post_recv {
                Some(post) => post(self.raw.as_ptr(), &mut request, &mut bad),
                None => libc::ENOSYS,
            }
        };
        Error::of(rc, "posting an RDMA receive request")
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the queue pair and its context live; the library fills the table before it
        // returns them.
        unsafe { &(*self.raw.as_ref().context).ops }
    }
}

/// Returns the way to a peer.
pub(crate) fn route(chosen: &Chosen, remote: &Remote) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr {
        port_num: chosen.port,
        dlid: remote.lid,
        ..ibv_ah_attr::default()
    };
    // RoCE has no other addresses; InfiniBand needs them between subnets.
    if chosen.is_ethernet || remote.gid[..8] != chosen.gid[..8] {
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid(remote.gid),
            flow_label: 0,
            sgid_index: chosen.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: chosen.traffic_class,
        };
    }
    attr
}

impl Drop for Pair {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if context.is_ours() {
            // SAFETY: `made` made it, and nothing else uses it.
            let _ = unsafe { (context.verbs.ibv_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
