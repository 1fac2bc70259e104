//! A reliable connection to which any operation on registered memory is posted, one request at a
//! time, and whose completions are polled. Who posts keeps count of what is under way.

use std::{
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use crate::{
    Chosen, Error, Piece, Remote, abi::*, choose::mtu_code, completions::Completions,
    domain::Domain, pair::route,
};

/// Bytes in a request itself that are asked for, until the device grants as many.
const INLINE_BYTES: [u32; 4] = [256, 64, 32, 8];
/// Segments of a request.
pub const SEGMENTS_MAX: usize = 4;
/// Reads and atomics under way.
const READS_MAX: u8 = 16;
/// Software RoCE takes 7 for endless.
const RETRIES: u8 = 6;
const POLLED_MAX: usize = 32;

/// Patience with a peer that has no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// Attempts each 0.64 ms, without end.
    WithoutEnd,
    /// Six attempts more, one each 10.24 ms.
    ForSomeTime,
}

impl NotReady {
    /// Returns the number of the time that this side's peer waits between two attempts.
    fn timer(self) -> u8 {
        match self {
            NotReady::WithoutEnd => 12,
            NotReady::ForSomeTime => 20,
        }
    }

    /// Returns how often this side tries again; 7 is without end.
    fn retries(self) -> u8 {
        match self {
            NotReady::WithoutEnd => 7,
            NotReady::ForSomeTime => 6,
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: u64,
    pub rkey: u32,
}

/// Bytes to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    Gather(&'a [Piece]),
    Inline(&'a [u8]),
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    Write {
        target: Target,
        imm: Option<u32>,
        data: Data<'a>,
    },
    Send {
        imm: Option<u32>,
        data: Data<'a>,
    },
    Read {
        target: Target,
        into: &'a [Piece],
    },
    FetchAdd {
        target: Target,
        add: u64,
        into: Piece,
    },
    CompareSwap {
        target: Target,
        compare: u64,
        swap: u64,
        into: Piece,
    },
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number with which the request was posted.
    pub id: u64,
    /// Of `enum ibv_wc_status`: 0 is success.
    pub status: u32,
    /// Of received ones: a write with a number, rather than a message.
    pub is_write: bool,
    pub imm: Option<u32>,
    pub bytes: u32,
}

/// A queue pair with completion queues of its own.
pub struct Connection {
    raw: NonNull<ibv_qp>,
    sends: Completions,
    receives: Completions,
    domain: Arc<Domain>,
    cap: ibv_qp_cap,
}

// SAFETY: libibverbs's objects may be used from any thread, by its documentation.
unsafe impl Send for Connection {}

impl std::fmt::Debug for Connection {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Makes a queue pair for as many requests of each kind. One without receives has room for one.
    pub fn new(domain: &Arc<Domain>, sends: u32, receives: u32) -> Result<Self, Error> {
        let context = &domain.context;
        let of_sends = Completions::new(context, sends as usize)?;
        let of_receives = Completions::new(context, receives.max(1) as usize)?;
        let made = INLINE_BYTES.into_iter().find_map(|inline_bytes| {
            let mut attr = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: of_sends.raw(),
                recv_cq: of_receives.raw(),
                srq: ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: sends,
                    max_recv_wr: receives.max(1),
                    max_send_sge: SEGMENTS_MAX as u32,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: IBV_QPT_RC,
                sq_sig_all: 1,
            };
            // SAFETY: the domain is of the context that the completion queues are of, and `attr`
            // outlives the call.
            let raw = unsafe { (context.verbs.ibv_create_qp)(domain.raw, &mut attr) };
            Some((NonNull::new(raw)?, attr.cap))
        });
        let (raw, cap) = made.ok_or_else(|| Error::last("ibv_create_qp"))?;
        Ok(Self {
            raw,
            sends: of_sends,
            receives: of_receives,
            domain: Arc::clone(domain),
            cap,
        })
    }

    /// Returns the number of the queue pair, which the peer addresses.
    pub fn number(&self) -> u32 {
        // SAFETY: made by `new`; the library does not change it.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Returns how many bytes a request has room for in itself.
    pub fn inline_bytes_max(&self) -> usize {
        self.cap.max_inline_data as usize
    }

    /// Connects the queue pair, which was made or reset. Its peer does all that keys permit.
    pub fn connect(
        &self,
        chosen: &Chosen,
        psn: u32,
        remote: &Remote,
        patience: NotReady,
    ) -> Result<(), Error> {
        let all = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: chosen.pkey_index,
            port_num: chosen.port,
            qp_access_flags: all as u32,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, "ibv_modify_qp to INIT")?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: mtu_code(chosen.mtu.min(remote.mtu)),
            dest_qp_num: remote.number,
            rq_psn: remote.psn,
            max_dest_rd_atomic: READS_MAX,
            min_rnr_timer: patience.timer(),
            ah_attr: route(chosen, remote),
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let call = "ibv_modify_qp to RTR (is the peer's address reachable from this device?)";
        self.modify(&mut attr, mask, call)?;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: psn,
            timeout: chosen.ack_timeout.code(),
            retry_cnt: RETRIES,
            rnr_retry: patience.retries(),
            max_rd_atomic: READS_MAX,
            ..ibv_qp_attr::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, "ibv_modify_qp to RTS")
    }

    /// Flushes all that is under way.
    pub fn fail(&self) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_ERR,
            ..ibv_qp_attr::default()
        };
        self.modify(&mut attr, IBV_QP_STATE, "ibv_modify_qp to ERR")
    }

    /// Puts the queue pair back to its start, and drops what has not completed.
    pub fn reset(&self) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RESET,
            ..ibv_qp_attr::default()
        };
        self.modify(&mut attr, IBV_QP_STATE, "ibv_modify_qp to RESET")?;
        while !self.poll_sends()?.is_empty() || !self.poll_receives()?.is_empty() {}
        Ok(())
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: i32, doing: &'static str) -> Result<(), Error> {
        // SAFETY: the queue pair is ours, and `attr` has the members that `mask` names.
        let rc =
            unsafe { (self.domain.context.verbs.ibv_modify_qp)(self.raw.as_ptr(), attr, mask) };
        Error::of(rc, doing)
    }

    /// Posts an operation, which completes under this number. The device refuses memory that is not
    /// registered in the connection's domain; whose registration is, has promised that nothing
    /// relies on what is written there.
    pub fn post(&self, id: u64, is_fenced: bool, work: &Work<'_>) -> Result<(), Error> {
        self.domain.context.check()?;
        let mut segments = [ibv_sge::default(); SEGMENTS_MAX];
        let (opcode, imm, target, data) = match *work {
            Work::Write { target, imm, data } => match imm {
                None => (IBV_WR_RDMA_WRITE, imm, Some(target), data),
                Some(_) => (IBV_WR_RDMA_WRITE_WITH_IMM, imm, Some(target), data),
            },
            Work::Send { imm: None, data } => (IBV_WR_SEND, None, None, data),
            Work::Send { imm, data } => (IBV_WR_SEND_WITH_IMM, imm, None, data),
            Work::Read { target, into } => {
                (IBV_WR_RDMA_READ, None, Some(target), Data::Gather(into))
            }
            Work::FetchAdd {
                target, ref into, ..
            } => (
                IBV_WR_ATOMIC_FETCH_AND_ADD,
                None,
                Some(target),
                Data::Gather(std::slice::from_ref(into)),
            ),
            Work::CompareSwap {
                target, ref into, ..
            } => (
                IBV_WR_ATOMIC_CMP_AND_SWP,
                None,
                Some(target),
                Data::Gather(std::slice::from_ref(into)),
            ),
        };
        let (count, inline) = fill(&mut segments, data)?;
        let fence = if is_fenced { IBV_SEND_FENCE } else { 0 };
        let mut request = ibv_send_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: segments.as_mut_ptr(),
            num_sge: count,
            opcode,
            send_flags: IBV_SEND_SIGNALED | inline | fence,
            imm_data: imm.unwrap_or(0).to_be(),
            wr: wr(work, target),
            _others: [0; 7],
        };
        let Some(post) = self.ops().post_send else {
            let what = "has no call to post requests";
            return Err(Error::Incomplete { what });
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is ours, and the request and its segments outlive the call, which copies
        // them, and the bytes of those that are inline.
        let rc = unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) };
        Error::of(rc, "ibv_post_send")
    }

    /// Posts memory for a message, or none.
    pub fn post_receive(&self, id: u64, into: Option<Piece>) -> Result<(), Error> {
        self.domain.context.check()?;
        let mut segment = into.map(segment).unwrap_or_default();
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: &raw mut segment,
            num_sge: into.is_some().into(),
        };
        let Some(post) = self.ops().post_recv else {
            let what = "has no call to post receives";
            return Err(Error::Incomplete { what });
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is ours, and the request and its segment outlive the call, which copies
        // them.
        let rc = unsafe { post(self.raw.as_ptr(), &mut request, &mut bad) };
        Error::of(rc, "ibv_post_recv")
    }

    /// Takes completions of what was posted, in its order; some of those that are there.
    pub fn poll_sends(&self) -> Result<Vec<Done>, Error> {
        poll(&self.sends)
    }

    /// Takes completions of receives.
    pub fn poll_receives(&self) -> Result<Vec<Done>, Error> {
        poll(&self.receives)
    }

    /// Makes the next completion of a receive turn a descriptor of
    /// [`receives_channel`](Self::receives_channel) readable.
    pub fn arm_receives(&self) -> Result<(), Error> {
        self.receives.arm()
    }

    /// Returns a descriptor of its own for the channel of events.
    pub fn receives_channel(&self) -> Result<OwnedFd, Error> {
        let channel = self.receives.channel().try_clone_to_owned();
        channel.map_err(|error| Error::System {
            doing: "taking an RDMA completion channel",
            errno: error.raw_os_error().unwrap_or(libc::EMFILE),
        })
    }

    /// Takes the event that has made the channel readable. Returns false if there is none.
    pub fn take_receives_event(&mut self) -> bool {
        self.receives.take_event()
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the queue pair and its context live; the library fills the table before it
        // returns them.
        unsafe { &(*self.raw.as_ref().context).ops }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if context.is_ours() {
            // SAFETY: `new` made it, and nothing else uses it.
            let _ = unsafe { (context.verbs.ibv_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}

fn poll(of: &Completions) -> Result<Vec<Done>, Error> {
    let mut found = [ibv_wc::default(); POLLED_MAX];
    let count = of.poll(&mut found)?;
    let done = |of: &ibv_wc| Done {
        id: of.wr_id,
        status: of.status,
        is_write: of.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
        imm: (of.wc_flags & IBV_WC_WITH_IMM != 0).then_some(u32::from_be(of.imm_data)),
        bytes: of.byte_len,
    };
    Ok(found[..count.min(POLLED_MAX)].iter().map(done).collect())
}

fn segment(piece: Piece) -> ibv_sge {
    ibv_sge {
        addr: piece.address,
        length: piece.len,
        lkey: piece.lkey,
    }
}

/// Lays out the memory of a request. Returns the number of its segments, and a flag if they are
/// inline.
fn fill(segments: &mut [ibv_sge], data: Data<'_>) -> Result<(i32, u32), Error> {
    match data {
        Data::Inline(bytes) => {
            segments[0] = ibv_sge {
                addr: bytes.as_ptr() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            };
            Ok((1, IBV_SEND_INLINE))
        }
        Data::Gather(pieces) if pieces.len() > segments.len() => Err(Error::Incomplete {
            what: "takes fewer segments of memory",
        }),
        Data::Gather(pieces) => {
            for (to, piece) in segments.iter_mut().zip(pieces) {
                *to = segment(*piece);
            }
            Ok((pieces.len() as i32, 0))
        }
    }
}

fn wr(work: &Work<'_>, target: Option<Target>) -> ibv_wr {
    let target = target.unwrap_or(Target {
        address: 0,
        rkey: 0,
    });
    let (remote_addr, rkey) = (target.address, target.rkey);
    let atomic = |compare_add, swap| ibv_wr {
        atomic: ibv_wr_atomic {
            remote_addr,
            compare_add,
            swap,
            rkey,
        },
    };
    match *work {
        Work::FetchAdd { add, .. } => atomic(add, 0),
        Work::CompareSwap { compare, swap, .. } => atomic(compare, swap),
        _ => ibv_wr {
            rdma: ibv_wr_rdma { remote_addr, rkey },
        },
    }
}
