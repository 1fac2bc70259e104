//! Completion queues of verbs, and the channels by which programs sleep until a completion comes.
//!
//! A queue's lock is taken before those of its queue pairs. The adapter calls a channel while it is
//! locked itself.

use std::{
    collections::VecDeque,
    ffi::{c_char, c_int, c_void},
    fs::File,
    io::{Read, Write},
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_net::{
    CQN_FIRST, CompletionsSetup, Mapped, STATUSES, Watch,
    cqe::{CQE_BYTES, Completion, Kind},
};
use outboard_verbs::abi::*;
use parking_lot::Mutex;

use crate::{
    abi::mlx5dv_cq,
    domain::{Domain, Given},
    events::{self, Raising},
    host::{Refusal, with},
    pair::pair_of,
    refused::{fail, refuse, say, set_errno},
};

/// Most completions of a queue.
pub(crate) const ENTRIES_MAX: c_int = 1 << 15;
const CONSUMER_MASK: u32 = 0x00ff_ffff;
const OPCODE_NONE: u8 = 15;
const EVENT_BYTES: usize = 8;
/// Names of the states of completions, in their order.
const STATUS: [&str; 22] = [
    "success\0",
    "local length error\0",
    "local QP operation error\0",
    "local EE context operation error\0",
    "local protection error\0",
    "Work Request Flushed Error\0",
    "memory management operation error\0",
    "bad response error\0",
    "local access error\0",
    "remote invalid request error\0",
    "remote access error\0",
    "remote operation error\0",
    "transport retry counter exceeded\0",
    "RNR retry counter exceeded\0",
    "local RDD violation error\0",
    "remote invalid RD request\0",
    "aborted error\0",
    "invalid EE context number\0",
    "invalid EE context state\0",
    "fatal error\0",
    "response timeout error\0",
    "general error\0",
];

/// A completion queue; programs have the address of its first field.
#[repr(C)]
pub(crate) struct Queue {
    cq: ibv_cq,
    newer: Newer,
    /// Memory that is the program's, of this domain, or null.
    given: Given,
    domain: *mut Domain,
    pub(crate) number: u32,
    /// Queue pairs that complete here.
    pub(crate) pairs: AtomicU32,
    watch: Option<Arc<Watch>>,
    /// Number by which its events name it.
    event_number: u64,
    consumer: Mutex<Consumer>,
}

/// The rest of `struct ibv_cq_ex`: completions are polled by the older call.
#[repr(C)]
struct Newer {
    comp_mask: u32,
    status: u32,
    wr_id: u64,
    start_poll: extern "C" fn() -> c_int,
    others: [*mut c_void; 18],
}

extern "C" fn start_poll() -> c_int {
    refuse("ibv_start_poll", "not served")
}

struct Consumer {
    entries: Mapped,
    record: Mapped,
    log_entries: u32,
    index: u32,
    /// Completions that were read while those of one queue pair were dropped.
    kept: VecDeque<ibv_wc>,
}

/// A completion channel; programs have the address of its first field.
#[repr(C)]
struct Channel {
    channel: ibv_comp_channel,
    events: Arc<File>,
    queues: AtomicU32,
}

/// # Safety
///
/// `cq` is null or from `ibv_create_cq`, and is not destroyed meanwhile.
pub(crate) unsafe fn queue_of<'a>(cq: *mut ibv_cq) -> Option<&'a Queue> {
    // SAFETY: null, or the beginning of a queue of ours.
    unsafe { cq.cast::<Queue>().as_ref() }
}

impl Queue {
    /// Describes the queue as adapters' formats have it.
    pub(crate) fn described(&self) -> mlx5dv_cq {
        let consumer = self.consumer.lock();
        mlx5dv_cq {
            buf: consumer.entries.address() as *mut c_void,
            dbrec: consumer.record.address() as *mut c_void,
            cqe_cnt: 1 << consumer.log_entries,
            cqe_size: CQE_BYTES as u32,
            cq_uar: ptr::null_mut(),
            cqn: self.number + CQN_FIRST,
            comp_mask: 0,
        }
    }

    /// Forgets the completions of a queue pair that is no more, or starts again.
    pub(crate) fn clean(&self, qpn: u32) {
        let mut consumer = self.consumer.lock();
        let mut kept: VecDeque<_> = std::mem::take(&mut consumer.kept);
        while let Some(completion) = consumer.next() {
            kept.extend(completed(&completion));
        }
        kept.retain(|of| of.qp_num != qpn);
        consumer.kept = kept;
    }
}

impl Consumer {
    fn next(&mut self) -> Option<Completion> {
        let size = 1 << self.log_entries;
        let at = (self.index & (size - 1)) as usize * CQE_BYTES;
        let last = self.entries.u64(at + 56).load(Ordering::Acquire);
        let own = last.to_ne_bytes()[7];
        let owner = u8::from(self.index & size != 0);
        if own & 1 != owner || own >> 4 == OPCODE_NONE {
            return None;
        }
        let mut bytes = [0; CQE_BYTES];
        self.entries.read(at, &mut bytes);
        self.index = self.index.wrapping_add(1);
        let consumed = (self.index & CONSUMER_MASK).to_be();
        self.record.u32(0).store(consumed, Ordering::Release);
        Completion::parse(&bytes).map(|(completion, _)| completion)
    }
}

/// Says what a program asked for by the entry that is complete; `None` if its queue pair is gone.
fn completed(of: &Completion) -> Option<ibv_wc> {
    let pair = pair_of(of.qpn)?;
    let is_receive = !matches!(of.kind, Kind::Requester | Kind::RequesterError);
    let (wr_id, opcode) = match is_receive {
        true => (pair.received(of.index), IBV_WC_RECV),
        false => pair.sent(of.index),
    };
    let status = match of.is_error() {
        false => IBV_WC_SUCCESS,
        true => {
            let known = STATUSES.iter().find(|(code, _)| *code == of.syndrome);
            known.map_or(IBV_WC_GENERAL_ERR, |(_, status)| *status)
        }
    };
    let has_imm = matches!(of.kind, Kind::ReceivedImm | Kind::ReceivedWriteImm);
    Some(ibv_wc {
        wr_id,
        status,
        opcode: match of.kind {
            Kind::ReceivedWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
            _ => opcode,
        },
        vendor_err: of.vendor_syndrome.into(),
        byte_len: of.bytes,
        imm_data: of.imm.to_be(),
        qp_num: of.qpn,
        src_qp: if is_receive { pair.peer() } else { 0 },
        wc_flags: if has_imm { IBV_WC_WITH_IMM } else { 0 },
        ..ibv_wc::default()
    })
}

/// # Safety
///
/// `cq` is a completion queue, and `out` has room for `count`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: null, or a queue that the program has not destroyed.
    let Some(queue) = (unsafe { queue_of(cq) }) else {
        return -libc::EINVAL;
    };
    let mut consumer = queue.consumer.lock();
    let mut polled = 0;
    while polled < count {
        let next = match consumer.kept.pop_front() {
            Some(kept) => Some(kept),
            None => match consumer.next() {
                None => break,
                Some(completion) => completed(&completion),
            },
        };
        if let Some(next) = next {
            // SAFETY: fewer than `count` were written.
            unsafe { out.add(polled as usize).write(next) };
            polled += 1;
        }
    }
    drop(consumer);
    if polled == 0 {
        // Programs spin here, and the adapter's threads need a processor, too.
        std::thread::yield_now();
    }
    polled
}

/// # Safety
///
/// `cq` is a completion queue.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: null, or a queue that the program has not destroyed.
    match unsafe { queue_of(cq) }.map(|queue| &queue.watch) {
        Some(Some(watch)) => {
            match solicited_only {
                0 => watch.arm(),
                _ => watch.arm_solicited(),
            }
            0
        }
        Some(None) => 0,
        None => libc::EINVAL,
    }
}

/// # Safety
///
/// `context` is open; `channel` is null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_create_cq(
    context: *mut ibv_context,
    count: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let asked = ibv_cq_init_attr_ex {
        cqe: count as u32,
        cq_context,
        channel,
        comp_vector: vector as u32,
        wc_flags: 0,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: the caller's duties are the same.
    unsafe { make(context, &asked) }
}

/// # Safety
///
/// `context` is open; `asked` is null or what the program asks for.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    asked: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq {
    // SAFETY: null, or the program's.
    let Some(asked) = (unsafe { asked.as_ref() }) else {
        return fail(libc::EINVAL);
    };
    let unknown = asked.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD);
    if unknown != 0 || asked.wc_flags != 0 {
        let why = format!(
            "attributes {unknown:#x} or completions with {:#x} are not served",
            asked.wc_flags
        );
        refuse("ibv_create_cq_ex", &why);
        return ptr::null_mut();
    }
    // SAFETY: the caller's duties are the same.
    unsafe { make(context, asked) }
}

/// # Safety
///
/// `context` is open; what is asked for names null or the program's objects.
unsafe fn make(context: *mut ibv_context, asked: &ibv_cq_init_attr_ex) -> *mut ibv_cq {
    let flags = match asked.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => asked.flags,
    };
    let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let is_count = (1..=ENTRIES_MAX as u32).contains(&asked.cqe);
    if !is_count || asked.comp_vector != 0 || flags & !known != 0 {
        return fail(libc::EINVAL);
    }
    let domain = match asked.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
        0 => ptr::null_mut(),
        _ => asked.parent_domain.cast::<Domain>(),
    };
    let mut given = Given::default();
    // SAFETY: null, or a domain of the program's.
    let of = unsafe { domain.as_ref() };
    let is_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0;
    let (number, consumer) = match create(asked.cqe, is_overrun, of, &mut given) {
        Ok(made) => made,
        Err((number, _)) => return fail(number),
    };
    if let Some(of) = of {
        of.uses.fetch_add(1, Ordering::AcqRel);
    }
    let channel = asked.channel;
    let queue = Box::into_raw(Box::new(Queue {
        cq: ibv_cq {
            context,
            channel,
            cq_context: asked.cq_context,
            handle: number,
            cqe: (1 << consumer.log_entries) - 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            comp_events_completed: 0,
            async_events_completed: 0,
        },
        newer: Newer {
            comp_mask: 0,
            status: 0,
            wr_id: 0,
            start_poll,
            others: [ptr::null_mut(); 18],
        },
        given,
        domain,
        number,
        pairs: AtomicU32::new(0),
        watch: None,
        event_number: 0,
        consumer: Mutex::new(consumer),
    }));
    let event_number = events::enter(queue as usize);
    // SAFETY: null, or the beginning of a channel of ours; null, or the program's open device.
    let (channel, context) = unsafe { (channel.cast::<Channel>().as_ref(), context.as_ref()) };
    let watch = watch(channel, context.map(Raising::of), event_number);
    let _ = with(|adapter| adapter.watch(number, watch.clone()));
    // SAFETY: made above, and not yet the program's.
    unsafe { ((*queue).watch, (*queue).event_number) = (Some(watch), event_number) };
    queue.cast()
}

/// Makes the calls to a program about its queue whose events have this number.
fn watch(channel: Option<&Channel>, raising: Option<Raising>, number: u64) -> Arc<Watch> {
    let watch = match channel {
        Some(channel) => {
            let events = channel.events.clone();
            channel.queues.fetch_add(1, Ordering::AcqRel);
            Watch::new(move || {
                // A full pipe wakes its reader as well.
                let _ = (&*events).write(&number.to_ne_bytes());
            })
        }
        None => Watch::new(|| {}),
    };
    Arc::new(watch.or_overrun(move || {
        say_overrun();
        if let Some(raising) = &raising {
            raising.queue_failed(number);
        }
    }))
}

/// Says why nothing completes any more.
pub(crate) fn say_overrun() {
    say(
        "outboard nic: a completion queue is overrun: more has completed than it has room for and \
         the program has taken, so that nothing completes there any more",
    );
}

/// Makes a queue that has room for `count` completions, and one more than that.
fn create(
    count: u32,
    is_overrun: bool,
    domain: Option<&Domain>,
    given: &mut Given,
) -> Result<(u32, Consumer), Refusal> {
    let log_entries = (count + 1).next_power_of_two().ilog2();
    let mut memory = |bytes, kind| {
        let memory = match domain {
            Some(domain) => given.take(domain, bytes, kind),
            None => Mapped::allocate(bytes),
        };
        memory.ok_or_else(|| (libc::ENOMEM, "no memory".to_owned()))
    };
    let entries = memory(CQE_BYTES << log_entries, MLX5DV_RES_TYPE_CQ)?;
    let record = memory(8, MLX5DV_RES_TYPE_DBR)?;
    let setup = CompletionsSetup {
        entries: entries.clone().into(),
        log_entries,
        collapsed: false,
        record: (!is_overrun).then(|| record.clone().into()),
    };
    let number = with(|adapter| adapter.create_completions(setup))?;
    let consumer = Consumer {
        entries,
        record,
        log_entries,
        index: 0,
        kept: VecDeque::new(),
    };
    Ok((number, consumer))
}

/// # Safety
///
/// `cq` is null or from `ibv_create_cq`, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: null, or the beginning of a queue of ours.
    let Some(queue) = (unsafe { queue_of(cq) }) else {
        return libc::EINVAL;
    };
    if queue.pairs.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    if let Err((number, _)) = with(|adapter| adapter.destroy_completions(queue.number)) {
        return number;
    }
    events::leave(queue.event_number);
    // SAFETY: null, or a channel that has this queue.
    if let Some(channel) = unsafe { queue.cq.channel.cast::<Channel>().as_ref() } {
        channel.queues.fetch_sub(1, Ordering::AcqRel);
    }
    let domain = queue.domain;
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(cq.cast::<Queue>()) });
    // SAFETY: null, or a domain that has no fewer lives than its queues.
    if let Some(domain) = unsafe { domain.as_ref() } {
        domain.uses.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return ptr::null_mut();
    }
    // SAFETY: both were opened now.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: open; the adapter's thread must not wait for a program that reads no events.
    unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    Box::into_raw(Box::new(Channel {
        channel: ibv_comp_channel {
            context,
            fd: read.into_raw_fd(),
            refcnt: 0,
        },
        events: Arc::new(write.into()),
        queues: AtomicU32::new(0),
    }))
    .cast()
}

/// # Safety
///
/// `channel` is null or from `ibv_create_comp_channel`, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_destroy_comp_channel(
    channel: *mut ibv_comp_channel,
) -> c_int {
    let channel = channel.cast::<Channel>();
    // SAFETY: null, or the beginning of a channel of ours.
    match unsafe { channel.as_ref() } {
        None => libc::EINVAL,
        Some(of) if of.queues.load(Ordering::Acquire) > 0 => libc::EBUSY,
        Some(of) => {
            // SAFETY: opened with the channel, and closed once.
            drop(unsafe { OwnedFd::from_raw_fd(of.channel.fd) });
            // SAFETY: made by `Box::into_raw`, and given back once.
            drop(unsafe { Box::from_raw(channel) });
            0
        }
    }
}

/// # Safety
///
/// `channel` is a channel; `cq` and `cq_context` have room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: null, or the program's channel.
    let Some(channel) = (unsafe { channel.as_ref() }) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: open for as long as the channel; it is not closed here.
    let mut events = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(channel.fd) });
    loop {
        let mut event = [0; EVENT_BYTES];
        if let Err(error) = events.read_exact(&mut event) {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            return -1;
        }
        if let Some(address) = events::find(u64::from_ne_bytes(event)) {
            let of = address as *mut ibv_cq;
            // SAFETY: a queue that the program has, and room for what is told.
            unsafe { (*cq, *cq_context) = (of, (*of).cq_context) };
            return 0;
        }
    }
}

/// Events are over once they are read: nothing waits for their acknowledgement.
#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_ack_cq_events(_cq: *mut ibv_cq, _count: u32) {}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_ibv_wc_status_str(status: u32) -> *const c_char {
    let name = STATUS.get(status as usize).copied().unwrap_or("unknown\0");
    name.as_ptr().cast()
}
