//! One reliable connection: its queue pair, the one completion queue of both work queues, and the
//! channel that wakes a thread which sleeps on it. One half of a link owns it; threads share
//! nothing here.
//!
//! Requests are completed in order. Only some are signalled: the completion of a signalled request
//! stands for all before it, so that most acknowledgements cost the processor nothing.

use std::{
    collections::VecDeque,
    ffi::CStr,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    abi::*,
    counts::RdmaCounts,
    device::{Chosen, mtu_code},
    domain::{Domain, OwnRegion, Piece},
    error::RdmaError,
};
use crate::Error;

/// Requests that may be outstanding.
pub(super) const SEND_DEPTH: usize = 256;
/// A request is signalled after this many that were not.
const SIGNAL_EVERY: usize = SEND_DEPTH / 4;
/// Wake-ups that may arrive before the last ones were looked at; further ones wait at their sender.
const RECEIVE_DEPTH: usize = 16;
/// Asked of the device, which may grant less: a small frame then travels in the request itself and
/// need not be fetched.
const INLINE_BYTES: u32 = 220;
/// Requests per doorbell, at most.
pub(super) const POSTED_MAX: usize = 16;

/// Times that an unacknowledged packet is sent again; then an adapter gives its peer up. Software
/// RoCE takes 7 for endless, and must have it: it counts every loss since the last acknowledgement,
/// with progress or not, and at a few per cent of losses a long write has more than six. There
/// [`check_progress`](Queue::check_progress) ends a wait.
pub(super) const RETRIES: u8 = 7;
/// Time before another attempt at a peer's device that has no request posted for a wake-up: 0.64
/// ms. Seven retries mean endless: such a device lives, and its process is watched by other means.
const NOT_READY_TIMER: u8 = 12;
const NOT_READY_RETRIES: u8 = 7;
/// Longest time that requests may make no progress.
pub(super) const STALLED_MS_MAX: u64 = 8_000;
const HOP_LIMIT: u8 = 64;
pub(super) const PSN_MASK: u32 = 0xff_ffff;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Write,
    /// Writes, and wakes the peer if it sleeps.
    WriteAndWake,
    Read,
}

/// One request: bytes of ours to memory of the peer's, or the reverse for a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    /// Part of a region that the queue was made with.
    pub(super) piece: Piece,
    pub(super) remote: u64,
    pub(super) rkey: u32,
}

/// Address and settings of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) number: u32,
    pub(super) psn: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u16,
}

pub(super) struct Queue {
    qp: NonNull<ibv_qp>,
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    domain: Arc<Domain>,
    /// Memory that the device reads and writes for this queue.
    _regions: Vec<Arc<OwnRegion>>,
    pub(super) psn: u32,
    inline_bytes: usize,
    posted: u64,
    completed: u64,
    /// Signalled requests: the number of requests that each completes, and its mark.
    signals: VecDeque<(u64, u64)>,
    unsignalled: usize,
    /// Mark of the last completed signal.
    mark: u64,
    /// Time at which something was last known to be complete.
    progress_at: Option<Instant>,
    woken: u64,
    failed: Option<RdmaError>,
    /// Time after which the device gives its peer up, at most.
    unanswered_ms: u64,
    events: u32,
    counts: RdmaCounts,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation; the queue has one
// owner.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(
        domain: &Arc<Domain>,
        chosen: &Chosen,
        regions: Vec<Arc<OwnRegion>>,
        psn: u32,
    ) -> Result<Self, RdmaError> {
        let verbs = domain.context.verbs;
        // SAFETY: the context is open.
        let channel = unsafe { (verbs.ibv_create_comp_channel)(domain.context.raw) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| RdmaError::last("making an RDMA completion channel"))?;
        let parts = Parts::new(domain, channel)?;
        let queue = Self {
            qp: parts.qp,
            cq: parts.cq,
            channel,
            domain: Arc::clone(domain),
            _regions: regions,
            psn,
            inline_bytes: parts.inline_bytes,
            posted: 0,
            completed: 0,
            signals: VecDeque::new(),
            unsignalled: 0,
            mark: 0,
            progress_at: None,
            woken: 0,
            failed: None,
            unanswered_ms: chosen.ack_timeout.unanswered_ms(RETRIES),
            events: 0,
            counts: RdmaCounts::default(),
        };
        queue.initialise(chosen)?;
        (0..RECEIVE_DEPTH).try_for_each(|_| queue.post_receive())?;
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(queue.channel(), flags).map_err(|errno| RdmaError::Verbs {
            doing: "preparing an RDMA completion channel",
            errno: errno.raw_os_error(),
        })?;
        Ok(queue)
    }

    /// Returns the number of the queue pair, which the peer addresses.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: made by `new`; the library does not change it.
        unsafe { self.qp.as_ref().qp_num }
    }

    fn initialise(&self, chosen: &Chosen) -> Result<(), RdmaError> {
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

    /// Connects the queue pair: afterwards it receives and sends.
    pub(super) fn connect(&self, chosen: &Chosen, remote: &Remote) -> Result<(), RdmaError> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: mtu_code(chosen.mtu.min(remote.mtu)),
            dest_qp_num: remote.number,
            rq_psn: remote.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NOT_READY_TIMER,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr.port_num = chosen.port;
        attr.ah_attr.dlid = remote.lid;
        // RoCE has no other addresses; InfiniBand needs them between subnets.
        if chosen.is_ethernet || remote.gid[..8] != chosen.gid[..8] {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh = ibv_global_route {
                dgid: ibv_gid(remote.gid),
                flow_label: 0,
                sgid_index: chosen.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: chosen.traffic_class,
            };
        }
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
            sq_psn: self.psn,
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

    fn modify(
        &self,
        attr: &mut ibv_qp_attr,
        mask: i32,
        doing: &'static str,
    ) -> Result<(), RdmaError> {
        // SAFETY: the queue pair is ours, and `attr` has the members that `mask` names.
        let rc = unsafe { (self.domain.context.verbs.ibv_modify_qp)(self.qp.as_ptr(), attr, mask) };
        RdmaError::of(rc, doing)
    }

    /// Returns true if `count` more requests may be posted, as far as is known;
    /// [`poll`](Self::poll) may learn of more room.
    #[inline]
    pub(super) fn has_room(&self, count: usize) -> bool {
        (self.posted - self.completed) as usize + count <= SEND_DEPTH
    }

    /// Returns true if everything posted is known to be done. Only signalled requests can be known.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == self.completed
    }

    /// Posts `requests` by one doorbell; there is room for them. The last is signalled if
    /// `is_signalled`, or when one is due, and [`done`](Self::done) is `mark` once it is complete.
    /// Returns true if it was signalled.
    #[inline]
    pub(super) fn post(
        &mut self,
        requests: &[Request],
        is_signalled: bool,
        mark: u64,
    ) -> Result<bool, Error> {
        // A launch is one request, so its description takes no more stack than for one.
        match requests.len() {
            1 => self.post_some::<1>(requests, is_signalled, mark),
            _ => self.post_some::<POSTED_MAX>(requests, is_signalled, mark),
        }
    }

    #[inline]
    fn post_some<const ROOM: usize>(
        &mut self,
        requests: &[Request],
        is_signalled: bool,
        mark: u64,
    ) -> Result<bool, Error> {
        debug_assert!(requests.len() <= ROOM);
        debug_assert!(requests.len() <= POSTED_MAX && self.has_room(requests.len()));
        self.check()?;
        let Some(last) = requests.len().checked_sub(1) else {
            return Ok(false);
        };
        let is_signalled = is_signalled || self.unsignalled + requests.len() >= SIGNAL_EVERY;
        let mut pieces = [ibv_sge::default(); ROOM];
        let mut raw = [NOTHING; ROOM];
        for (at, request) in requests.iter().enumerate() {
            let piece = request.piece;
            pieces[at] = ibv_sge {
                addr: piece.address,
                length: piece.len,
                lkey: piece.lkey,
            };
            let is_inline = request.verb != Verb::Read && piece.len as usize <= self.inline_bytes;
            let signal = if at == last && is_signalled {
                IBV_SEND_SIGNALED
            } else {
                0
            };
            let inline = if is_inline { IBV_SEND_INLINE } else { 0 };
            raw[at] = ibv_send_wr {
                opcode: match request.verb {
                    Verb::Write => IBV_WR_RDMA_WRITE,
                    Verb::WriteAndWake => IBV_WR_RDMA_WRITE_WITH_IMM,
                    Verb::Read => IBV_WR_RDMA_READ,
                },
                sg_list: &raw mut pieces[at],
                num_sge: 1,
                send_flags: signal | inline,
                remote_addr: request.remote,
                rkey: request.rkey,
                ..NOTHING
            };
            self.counts.inline += u64::from(is_inline);
            self.counts.wakes += u64::from(request.verb == Verb::WriteAndWake);
        }
        for at in 0..last {
            raw[at].next = &raw mut raw[at + 1];
        }
        self.counts.requests += requests.len() as u64;
        self.counts.doorbells += 1;
        let mut bad = ptr::null_mut();
        // SAFETY: the chain of requests and their pieces outlive the call, which copies them; the
        // memory that they name belongs to regions that the queue's owner keeps registered for
        // longer than the queue lives.
        let rc = unsafe {
            let Some(post) = self.ops().post_send else {
                return Err(broken("it has no call to post requests"));
            };
            post(self.qp.as_ptr(), raw.as_mut_ptr(), &mut bad)
        };
        if let Err(error) = RdmaError::of(rc, "posting an RDMA request") {
            return Err(self.fail(error));
        }
        self.posted += requests.len() as u64;
        self.unsignalled += requests.len();
        if is_signalled {
            let count = std::mem::take(&mut self.unsignalled) as u64;
            self.signals.push_back((count, mark));
        }
        Ok(is_signalled)
    }

    /// Returns an error if a request that will be signalled, posted at `since`, has made no
    /// progress for longer than any adapter takes to do it or give it up. Some devices do neither:
    /// software RoCE whose own port is down.
    pub(super) fn check_progress(&self, since: Instant) -> Result<(), Error> {
        let still = self.progress_at.map_or(since, |at| at.max(since)).elapsed();
        if self.is_idle() || still < Duration::from_millis(STALLED_MS_MAX) {
            return Ok(());
        }
        let ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
        Err(Error::Vanished { ms })
    }

    /// Mark of the last completed signal.
    #[inline]
    pub(super) fn done(&self) -> u64 {
        self.mark
    }

    /// Wake-ups that have arrived.
    pub(super) fn wakes(&self) -> u64 {
        self.woken
    }

    pub(super) fn counts(&self) -> RdmaCounts {
        self.counts
    }

    pub(super) fn counts_mut(&mut self) -> &mut RdmaCounts {
        &mut self.counts
    }

    /// Number of requests posted, and number of these known to be done.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.posted, self.completed)
    }

    /// Processes completions. An error is the connection's, which is unusable afterwards.
    pub(super) fn poll(&mut self) -> Result<(), Error> {
        loop {
            let mut found = [ibv_wc::default(); 8];
            // SAFETY: there is room for as many completions as are asked for, and the queue is
            // ours.
            let count = unsafe {
                let Some(poll) = self.ops().poll_cq else {
                    return Err(broken("it has no call to poll completions"));
                };
                poll(self.cq.as_ptr(), found.len() as i32, found.as_mut_ptr())
            };
            let Ok(count) = usize::try_from(count) else {
                return Err(self.fail(RdmaError::last("polling RDMA completions")));
            };
            for completion in &found[..count] {
                self.take(completion)?;
            }
            if count < found.len() {
                return self.check();
            }
        }
    }

    fn take(&mut self, completion: &ibv_wc) -> Result<(), Error> {
        if completion.status != IBV_WC_SUCCESS {
            self.note_failure(completion);
            return Ok(());
        }
        if completion.wr_id == RECEIVE {
            self.woken += 1;
            return self.post_receive().map_err(|error| self.fail(error));
        }
        if let Some((count, mark)) = self.signals.pop_front() {
            self.completed += count;
            self.mark = mark;
            self.progress_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Records a failed completion. The first failure gives the reason; the others follow from it.
    fn note_failure(&mut self, completion: &ibv_wc) {
        let is_consequence = completion.status == IBV_WC_WR_FLUSH_ERR;
        let is_better = match &self.failed {
            None => true,
            Some(RdmaError::Failed { status, .. }) => !is_consequence && status.is_empty(),
            Some(_) => false,
        };
        if !is_better {
            return;
        }
        let verbs = self.domain.context.verbs;
        // SAFETY: the library returns a constant C string for every number.
        let status = unsafe { CStr::from_ptr((verbs.ibv_wc_status_str)(completion.status)) };
        let status = status.to_string_lossy().into_owned();
        let vendor = completion.vendor_err;
        self.failed = Some(match completion.status {
            // No more is known: the peer, or its device, broke the connection.
            IBV_WC_WR_FLUSH_ERR => RdmaError::Failed {
                status: String::new(),
                vendor,
            },
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => RdmaError::Unanswered { status },
            IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR => {
                RdmaError::AccessRefused { status }
            }
            _ => RdmaError::Failed { status, vendor },
        });
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(error.clone().into_link_error(self.unanswered_ms)),
        }
    }

    fn fail(&mut self, error: RdmaError) -> Error {
        let error = self.failed.get_or_insert(error).clone();
        error.into_link_error(self.unanswered_ms)
    }

    fn post_receive(&self) -> Result<(), RdmaError> {
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
                Some(post) => post(self.qp.as_ptr(), &mut request, &mut bad),
                None => libc::ENOSYS,
            }
        };
        RdmaError::of(rc, "posting an RDMA receive request")
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the queue pair and its context live; the library fills the table before it
        // returns them.
        unsafe { &(*self.qp.as_ref().context).ops }
    }

    /// Makes the next completion turn [`channel`](Self::channel) readable.
    pub(super) fn arm(&mut self) -> Result<(), Error> {
        let rc = match self.ops().req_notify_cq {
            // SAFETY: the queue is ours.
            Some(notify) => unsafe { notify(self.cq.as_ptr(), 0) },
            None => libc::ENOSYS,
        };
        RdmaError::of(rc, "asking for RDMA completion events").map_err(|error| self.fail(error))
    }

    /// Readable after something has completed since [`arm`](Self::arm).
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and so does its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes the event that made the channel readable.
    pub(super) fn take_event(&mut self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.domain.context.verbs;
        // SAFETY: both pointers outlive the call, which does not block.
        let rc = unsafe { (verbs.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) };
        if rc == 0 {
            self.events += 1;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.is_ours() {
            return;
        }
        // SAFETY: `new` made all three and nothing else uses them; in this order nothing is
        // destroyed before its users are, and every event was taken, which the library waits for.
        unsafe {
            let _ = (context.verbs.ibv_destroy_qp)(self.qp.as_ptr());
            (context.verbs.ibv_ack_cq_events)(self.cq.as_ptr(), self.events);
            let _ = (context.verbs.ibv_destroy_cq)(self.cq.as_ptr());
            let _ = (context.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Marks the ids of receive requests.
const RECEIVE: u64 = 1;

const NOTHING: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
    opcode: IBV_WR_RDMA_WRITE,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    _others: [0; 9],
};

fn broken(what: &'static str) -> Error {
    Error::Misuse(what)
}

/// A queue pair and its completion queue, made together or not at all.
struct Parts {
    cq: NonNull<ibv_cq>,
    qp: NonNull<ibv_qp>,
    inline_bytes: usize,
}

impl Parts {
    fn new(domain: &Arc<Domain>, channel: NonNull<ibv_comp_channel>) -> Result<Self, RdmaError> {
        let verbs = domain.context.verbs;
        // A connection in error completes every request, signalled or not.
        let entries = (SEND_DEPTH + RECEIVE_DEPTH + 1) as i32;
        // SAFETY: the context is open and the channel is its.
        let cq = unsafe {
            (verbs.ibv_create_cq)(
                domain.context.raw,
                entries,
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = RdmaError::last("making an RDMA completion queue");
            // SAFETY: nothing was made with it.
            let _ = unsafe { (verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        // The bytes that a device takes in a request are found by trying.
        for inline_bytes in [INLINE_BYTES, 64, 32, 0] {
            let mut attr = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: cq.as_ptr(),
                recv_cq: cq.as_ptr(),
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
            // SAFETY: the domain is of the context that the queue is of, and `attr` outlives the
            // call.
            let qp = unsafe { (verbs.ibv_create_qp)(domain.raw, &mut attr) };
            if let Some(qp) = NonNull::new(qp) {
                let inline_bytes = attr.cap.max_inline_data as usize;
                return Ok(Self {
                    cq,
                    qp,
                    inline_bytes,
                });
            }
        }
        let error = RdmaError::last("making an RDMA queue pair");
        // SAFETY: nothing was made with either.
        unsafe {
            let _ = (verbs.ibv_destroy_cq)(cq.as_ptr());
            let _ = (verbs.ibv_destroy_comp_channel)(channel.as_ptr());
        }
        Err(error)
    }
}
