//! One reliable connection: its queue pair, and the one completion queue of both work queues. One
//! half of a link owns it; threads share nothing here.
//!
//! Requests are completed in order. Only some are signalled: the completion of a signalled request
//! stands for all before it, so that most acknowledgements cost the processor nothing.
//!
//! Errors of the calls that every request makes are boxed: a long error type would cost every
//! request some instructions.

use std::{
    collections::VecDeque,
    ffi::CStr,
    os::fd::BorrowedFd,
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Error, OwnRegion,
    abi::*,
    choose::Chosen,
    completions::Completions,
    domain::Domain,
    pair::{Pair, RECEIVE, RECEIVE_DEPTH, RETRIES, Remote, SEND_DEPTH},
    request::{Request, Verb},
};

/// A request is signalled after this many that were not.
const SIGNAL_EVERY: usize = SEND_DEPTH / 4;
/// Requests per doorbell, at most.
pub const POSTED_MAX: usize = 16;
/// Longest time that requests may make no progress.
pub const STALLED_MS_MAX: u64 = 8_000;

/// Counts of what was posted since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Work requests posted.
    pub requests: u64,
    /// Calls that posted them.
    pub doorbells: u64,
    /// Requests whose bytes travelled in the request itself.
    pub inline: u64,
    /// Requests that wake the peer.
    pub wakes: u64,
}

/// A reliable connection to the peer's queue.
pub struct Queue {
    // Dropped, and so destroyed, before its completion queue.
    pair: Pair,
    completions: Completions,
    domain: Arc<Domain>,
    /// Memory that the device reads and writes for this queue.
    _regions: Vec<Arc<OwnRegion>>,
    /// Number of the first packet sent.
    psn: u32,
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
    failed: Option<Error>,
    /// Time after which the device gives its peer up, at most.
    unanswered_ms: u64,
    counts: Counts,
}

impl Queue {
    /// Makes a queue that has no peer yet. It keeps `regions` registered while it lives.
    pub fn new(
        domain: &Arc<Domain>,
        chosen: &Chosen,
        regions: Vec<Arc<OwnRegion>>,
        psn: u32,
    ) -> Result<Self, Error> {
        // A connection in error completes every request, signalled or not.
        let completions = Completions::new(&domain.context, SEND_DEPTH + RECEIVE_DEPTH + 1)?;
        let pair = Pair::new(domain, chosen, &completions)?;
        pair.initialise(chosen)?;
        (0..RECEIVE_DEPTH).try_for_each(|_| pair.post_receive())?;
        Ok(Self {
            pair,
            completions,
            domain: Arc::clone(domain),
            _regions: regions,
            psn,
            posted: 0,
            completed: 0,
            signals: VecDeque::new(),
            unsignalled: 0,
            mark: 0,
            progress_at: None,
            woken: 0,
            failed: None,
            unanswered_ms: chosen.ack_timeout.unanswered_ms(RETRIES),
            counts: Counts::default(),
        })
    }

    /// Returns what the peer addresses: the queue pair's number, and that of its first packet.
    pub fn numbers(&self) -> (u32, u32) {
        (self.pair.number(), self.psn)
    }

    /// Connects the queue to its peer: afterwards it receives and sends.
    pub fn connect(&self, chosen: &Chosen, remote: &Remote) -> Result<(), Error> {
        self.pair.connect(chosen, self.psn, remote)
    }

    /// Returns true if `count` more requests may be posted, as far as is known;
    /// [`poll`](Self::poll) may learn of more room.
    #[inline]
    pub fn has_room(&self, count: usize) -> bool {
        (self.posted - self.completed) as usize + count <= SEND_DEPTH
    }

    /// Returns true if everything posted is known to be done. Only signalled requests can be known.
    pub fn is_idle(&self) -> bool {
        self.posted == self.completed
    }

    /// Posts `requests` by one doorbell; there is room for them. The last is signalled if
    /// `is_signalled`, or when one is due, and [`done`](Self::done) is `mark` once it is complete.
    /// Returns true if it was signalled.
    #[inline]
    pub fn post(
        &mut self,
        requests: &[Request],
        is_signalled: bool,
        mark: u64,
    ) -> Result<bool, Box<Error>> {
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
    ) -> Result<bool, Box<Error>> {
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
            let is_inline =
                request.verb != Verb::Read && piece.len as usize <= self.pair.inline_bytes;
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
                wr: ibv_wr {
                    rdma: ibv_wr_rdma {
                        remote_addr: request.remote,
                        rkey: request.rkey,
                    },
                },
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
        // SAFETY: the chain and its pieces outlive the call. The device knows the pieces' keys, and
        // uses no memory whose registration has ended; `self` keeps its own regions registered.
        let posted = unsafe { self.pair.post(raw.as_mut_ptr()) };
        posted.map_err(|error| self.fail(error))?;
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
    pub fn check_progress(&self, since: Instant) -> Result<(), Box<Error>> {
        let still = self.progress_at.map_or(since, |at| at.max(since)).elapsed();
        if self.is_idle() || still < Duration::from_millis(STALLED_MS_MAX) {
            return Ok(());
        }
        let ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
        Err(Box::new(Error::Stalled { ms }))
    }

    /// Mark of the last completed signal.
    #[inline]
    pub fn done(&self) -> u64 {
        self.mark
    }

    /// Wake-ups that have arrived.
    pub fn wakes(&self) -> u64 {
        self.woken
    }

    /// Counts of what was posted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of requests posted, and number of these known to be done.
    pub fn progress(&self) -> (u64, u64) {
        (self.posted, self.completed)
    }

    /// Processes completions. An error is the connection's, which is unusable afterwards.
    pub fn poll(&mut self) -> Result<(), Box<Error>> {
        loop {
            let mut found = [ibv_wc::default(); 8];
            let polled = self.completions.poll(&mut found);
            let count = polled.map_err(|error| self.fail(error))?;
            for completion in &found[..count] {
                self.take(completion)?;
            }
            if count < found.len() {
                return self.check();
            }
        }
    }

    fn take(&mut self, completion: &ibv_wc) -> Result<(), Box<Error>> {
        if completion.status != IBV_WC_SUCCESS {
            self.note_failure(completion);
            return Ok(());
        }
        if completion.wr_id == RECEIVE {
            self.woken += 1;
            return self.pair.post_receive().map_err(|error| self.fail(error));
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
            Some(Error::Ended) => !is_consequence,
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
            IBV_WC_WR_FLUSH_ERR => Error::Ended,
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR => Error::Unanswered {
                status,
                ms: self.unanswered_ms,
            },
            IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR => {
                Error::AccessRefused { status }
            }
            _ => Error::Failed { status, vendor },
        });
    }

    #[inline]
    fn check(&self) -> Result<(), Box<Error>> {
        match &self.failed {
            None => Ok(()),
            Some(error) => Err(Box::new(error.clone())),
        }
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Box<Error> {
        Box::new(self.failed.get_or_insert(error).clone())
    }

    /// Makes the next completion turn [`channel`](Self::channel) readable.
    pub fn arm(&mut self) -> Result<(), Box<Error>> {
        let armed = self.completions.arm();
        armed.map_err(|error| self.fail(error))
    }

    /// Readable after something has completed since [`arm`](Self::arm).
    pub fn channel(&self) -> BorrowedFd<'_> {
        self.completions.channel()
    }

    /// Takes the event that made the channel readable.
    pub fn take_event(&mut self) {
        self.completions.take_event();
    }
}

const NOTHING: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
    opcode: IBV_WR_RDMA_WRITE,
    send_flags: 0,
    imm_data: 0,
    wr: ibv_wr {
        rdma: ibv_wr_rdma {
            remote_addr: 0,
            rkey: 0,
        },
    },
    _others: [0; 7],
};
