//! The functions of libmlx5 that are served: memory, doorbell pages, and completion queues and
//! queue pairs that are made by commands (DEVX). One lock holds what was made; the adapter's is
//! taken inside of it.

use std::{
    collections::HashMap,
    env,
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    slice,
    sync::{Arc, LazyLock},
};

use outboard_net::{
    CQN_FIRST, CompletionsSetup, Error, Mapped, PairSetup, Registered, Retries, State, Watch,
    is_mapped, remote::is_copied,
};
use outboard_verbs::abi::ibv_context;
use parking_lot::Mutex;

use crate::{
    abi::{mlx5dv_devx_uar, mlx5dv_devx_umem},
    address::ELSEWHERE,
    command::{NUMBER, OP_MOD, OPCODE, cq, opcode, qp},
    cq::say_overrun,
    gpu,
    host::{Refusal, connect, gid, leave, with},
    pages,
    refused::{fail, refuse, set_errno},
    srq::{Shared, shared_of},
};

const DOORBELL: usize = 0x800;
/// Objects that a program may have of each kind.
const OBJECTS_MAX: usize = 1 << 16;
const RELIABLE: u64 = 0;
/// The initiator of dynamic connections: it goes through its states, and fails what is posted.
const DYNAMIC: u64 = 5;
const SHARED_RECEIVES: u64 = 1;
const NO_RECEIVES: u64 = 3;
const BLOCK_BYTES: usize = 64;
const CQE_BYTES: usize = 64;
const RECEIVE_BYTES: usize = 16;
const MTU_4096: u64 = 5;
const STATES: [(State, u64); 3] = [(State::Reset, 0), (State::Ready, 3), (State::Error, 6)];

static MADE: LazyLock<Mutex<Made>> = LazyLock::new(Mutex::default);

/// Objects by their numbers.
#[derive(Default)]
struct Made {
    last: u32,
    memory: HashMap<u32, Registered>,
    pages: HashMap<u32, Mapped>,
    /// Memory of completion queues, by their numbers in the adapter.
    completions: HashMap<u32, Registered>,
    pairs: HashMap<u32, Queues>,
}

/// A queue pair that was made by a command.
struct Queues {
    setup: PairSetup,
    shared: Option<Arc<Shared>>,
    is_dynamic: bool,
}

/// An object of a program: `struct mlx5dv_devx_obj`.
pub struct Object {
    kind: Kind,
    number: u32,
}

enum Kind {
    Completions,
    Pair,
}

/// Names a variable by which the adapter takes no commands (DEVX), as old ones do, if it is `0`.
pub const COMMANDS_VARIABLE: &str = "OUTBOARD_NIC_COMMANDS";

/// Returns true if the adapter takes no commands; then `errno` says so.
fn takes_none() -> bool {
    static TAKES_NONE: LazyLock<bool> =
        LazyLock::new(|| env::var_os(COMMANDS_VARIABLE).is_some_and(|said| said == "0"));
    if *TAKES_NONE {
        set_errno(libc::EOPNOTSUPP);
    }
    *TAKES_NONE
}

pub(crate) fn unserved<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err((libc::EOPNOTSUPP, what.into()))
}

pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Refusal> {
    Err((libc::EINVAL, what.into()))
}

/// Says why, if the function is not served or was called wrongly. Returns the number of the error.
pub(crate) fn say(name: &str, (number, why): Refusal) -> c_int {
    refuse(name, &why);
    set_errno(number)
}

impl Made {
    fn number(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn part(&self, memory: u64, offset: u64, bytes: usize) -> Result<Registered, Refusal> {
        let part = self.memory.get(&(memory as u32)).and_then(|of| {
            let offset = usize::try_from(offset).ok()?;
            of.part(offset, bytes)
        });
        match part {
            Some(part) => Ok(part),
            None => wrong(format!(
                "{bytes} bytes at {offset:#x} of memory {memory} are not there"
            )),
        }
    }

    fn create_completions(&mut self, command: &[u8]) -> Result<u32, Refusal> {
        if cq::CQE_SIZE.of(command) != 0 {
            return unserved("completions of other than 64 bytes are not served");
        }
        let log_entries = cq::LOG_SIZE.of(command) as u32;
        let collapsed = cq::COLLAPSED.of(command) != 0;
        let count = if collapsed { 1 } else { 1usize << log_entries };
        let (memory, offset) = (cq::MEMORY.of(command), cq::OFFSET.of(command));
        let entries = self.part(memory, offset, count * CQE_BYTES)?;
        let record = match collapsed || cq::OVERRUN_IGNORED.of(command) != 0 {
            true => None,
            false => {
                let (memory, offset) =
                    (cq::RECORD_MEMORY.of(command), cq::RECORD_OFFSET.of(command));
                Some(self.part(memory, offset, 8)?)
            }
        };
        let setup = CompletionsSetup {
            entries: entries.clone(),
            log_entries,
            collapsed,
            record,
        };
        let watch = Arc::new(Watch::new(|| {}).or_overrun(say_overrun));
        let number = with(|adapter| {
            let number = adapter.create_completions(setup)?;
            adapter.watch(number, watch)?;
            Ok(number)
        })?;
        self.completions.insert(number, entries);
        Ok(number + CQN_FIRST)
    }

    fn create_pair(&mut self, command: &[u8]) -> Result<u32, Refusal> {
        let service = qp::SERVICE.of(command);
        if !matches!(service, RELIABLE | DYNAMIC) || qp::NO_SENDS.of(command) != 0 {
            return unserved("queue pairs of this service are not served");
        }
        if qp::RECORD_MODE.of(command) != 0 {
            return unserved("queue pairs without a doorbell record are not served");
        }
        let (receives, shared) = receives_of(command)?;
        let log_blocks = qp::LOG_BLOCKS.of(command) as u32;
        let (memory, offset) = (qp::MEMORY.of(command), qp::OFFSET.of(command));
        let receive_bytes = receives.map_or(0, |log| RECEIVE_BYTES << log);
        // Receives come first; the send queue begins at a block.
        let ring_at = offset.saturating_add(receive_bytes.next_multiple_of(BLOCK_BYTES) as u64);
        let ring = self.part(memory, ring_at, BLOCK_BYTES << log_blocks)?;
        let receives = match receives {
            Some(log) => match self.part(memory, offset, receive_bytes)? {
                Registered::Mapped(receives) => Some((receives, log)),
                Registered::Distant { .. } => {
                    return unserved("receives in a GPU's memory are not served");
                }
            },
            None => None,
        };
        let (memory, offset) = (qp::RECORD_MEMORY.of(command), qp::RECORD_OFFSET.of(command));
        let record = self.part(memory, offset, 8)?;
        let completions = |number: u64| (number as u32).wrapping_sub(CQN_FIRST);
        let sent = qp::SEND_COMPLETIONS.of(command);
        // Who receives nothing may name no queue for it.
        let received = match (qp::RECEIVE_COMPLETIONS.of(command), &receives, &shared) {
            (0, None, None) => sent,
            (number, _, _) => number,
        };
        let page = qp::PAGE.of(command) as u32;
        let Some(page) = self.pages.get(&page).cloned() else {
            return wrong(format!("there is no doorbell page {page}"));
        };
        let setup = PairSetup {
            domain: qp::DOMAIN.of(command) as u32,
            send_completions: completions(sent),
            receive_completions: completions(received),
            ring,
            log_blocks,
            receives,
            record,
            page,
            retries: Retries::default(),
        };
        let number = with(|adapter| {
            let number = adapter.create_pair(setup.clone())?;
            if let Some(shared) = &shared {
                adapter.share_receives(number, shared.receives.clone())?;
            }
            Ok(number)
        })?;
        let is_dynamic = service == DYNAMIC;
        let queues = Queues {
            setup,
            shared,
            is_dynamic,
        };
        self.pairs.insert(number, queues);
        Ok(number)
    }

    fn reset_pair(&self, number: u32) -> Result<(), Refusal> {
        let Some(queues) = self.pairs.get(&number) else {
            return wrong(format!("there is no queue pair {number:#x}"));
        };
        leave(number);
        with(|adapter| {
            adapter.reset(number, queues.setup.clone())?;
            match &queues.shared {
                Some(shared) => adapter.share_receives(number, shared.receives.clone()),
                None => Ok(()),
            }
        })
    }

    fn modify_pair(&self, number: u32, command: &[u8]) -> Result<(), Refusal> {
        match OPCODE.of(command) {
            opcode::RST2INIT | opcode::INIT2INIT | opcode::RTS2RTS => Ok(()),
            opcode::RTR2RTS => {
                let retries = Retries {
                    not_ready_count_max: qp::NOT_READY_RETRIES.of(command) as u32,
                    ..Retries::default()
                };
                with(|adapter| adapter.set_retries(number, retries))
            }
            opcode::INIT2RTR if self.pairs.get(&number).is_some_and(|of| of.is_dynamic) => {
                with(|adapter| adapter.fail(number))
            }
            opcode::INIT2RTR if !is_here(command) => wrong(ELSEWHERE.to_owned()),
            opcode::INIT2RTR => connect(number, qp::REMOTE.of(command) as u32),
            opcode::TO_ERROR => with(|adapter| adapter.fail(number)),
            opcode::TO_RESET => self.reset_pair(number),
            other => unserved(format!("command {other:#x} is not served")),
        }
    }
}

/// Returns true if the peer has the address of the adapters of this folder.
fn is_here(command: &[u8]) -> bool {
    let peer = qp::PEER.map(|half| half.of(command).to_be_bytes());
    gid().is_ok_and(|own| own == peer.concat()[..])
}

/// Returns the power of two of a queue pair's own receives, or the queue that it shares.
fn receives_of(command: &[u8]) -> Result<(Option<u32>, Option<Arc<Shared>>), Refusal> {
    match qp::RECEIVES_KIND.of(command) {
        NO_RECEIVES => Ok((None, None)),
        0 if qp::LOG_STRIDE.of(command) == 0 => {
            Ok((Some(qp::LOG_RECEIVES.of(command) as u32), None))
        }
        SHARED_RECEIVES => {
            let number = qp::SHARED_RECEIVES.of(command) as u32;
            match shared_of(number) {
                Some(shared) => Ok((None, Some(shared))),
                None => wrong(format!("there is no shared queue {number}")),
            }
        }
        _ => unserved("receives of more than one segment are not served"),
    }
}

/// # Safety
///
/// `bytes` bytes at `at` are the caller's for this call, or `at` is null.
pub(crate) unsafe fn lent<'a>(at: *const c_void, bytes: usize) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: lent for this call.
    unsafe { slice::from_raw_parts(at.cast(), bytes) }
}

/// # Safety
///
/// As [`lent`], to be written to.
pub(crate) unsafe fn lent_to<'a>(at: *mut c_void, bytes: usize) -> &'a mut [u8] {
    if at.is_null() {
        return &mut [];
    }
    // SAFETY: lent for this call.
    unsafe { slice::from_raw_parts_mut(at.cast(), bytes) }
}

/// # Safety
///
/// `context` is open, and the memory stays mapped until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_umem_reg(
    _context: *mut ibv_context,
    memory: *mut c_void,
    bytes: usize,
    _access: u32,
) -> *mut mlx5dv_devx_umem {
    if takes_none() {
        return ptr::null_mut();
    }
    let Some(at) = NonNull::new(memory.cast::<u8>()).filter(|_| bytes > 0) else {
        return fail(libc::EINVAL);
    };
    let address = at.as_ptr() as u64;
    let memory = if let Some(at) = gpu::memory(address, bytes) {
        Registered::Distant { address, bytes, at }
    } else if is_copied(address, bytes as u64) {
        // A kernel's entries and doorbells would not be heard until it ends.
        refuse("mlx5dv_devx_umem_reg", &Error::Copied(address).to_string());
        return ptr::null_mut();
    } else if is_mapped(memory as usize, bytes, true) {
        // The adapter writes completions, and orders words of rings by atomics.
        // SAFETY: mapped, as was looked up, and it stays so by the caller's duty.
        unsafe { Mapped::new(at, bytes, address) }.into()
    } else {
        return fail(libc::EFAULT);
    };
    let mut made = MADE.lock();
    if made.memory.len() >= OBJECTS_MAX {
        return fail(libc::ENOMEM);
    }
    let umem_id = made.number();
    made.memory.insert(umem_id, memory);
    Box::into_raw(Box::new(mlx5dv_devx_umem { umem_id }))
}

/// # Safety
///
/// `memory` is null or was registered, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_umem_dereg(
    memory: *mut mlx5dv_devx_umem,
) -> c_int {
    // SAFETY: null, or of a registration.
    let Some(of) = (unsafe { memory.as_ref() }) else {
        return libc::EINVAL;
    };
    let mut made = MADE.lock();
    let Some(mapped) = made.memory.get(&of.umem_id) else {
        return libc::EINVAL;
    };
    let holds = |part: &Registered| mapped.offset_of(part.address(), 1).is_some();
    let mut pairs = made.pairs.values().map(|of| &of.setup);
    if pairs.any(|pair| holds(&pair.ring) || holds(&pair.record))
        || made.completions.values().any(holds)
    {
        return libc::EBUSY;
    }
    made.memory.remove(&of.umem_id);
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(memory) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn outboard_nic_mlx5dv_devx_alloc_uar(
    _context: *mut ibv_context,
    _flags: u32,
) -> *mut mlx5dv_devx_uar {
    if takes_none() {
        return ptr::null_mut();
    }
    let mut made = MADE.lock();
    let is_room = made.pages.len() < OBJECTS_MAX;
    let Some(page) = is_room.then(pages::take).flatten() else {
        return fail(libc::ENOMEM);
    };
    let base = page.address() as usize;
    let page_id = made.number();
    made.pages.insert(page_id, page);
    Box::into_raw(Box::new(mlx5dv_devx_uar {
        reg_addr: (base + DOORBELL) as *mut c_void,
        base_addr: base as *mut c_void,
        page_id,
        mmap_off: 0,
        comp_mask: 0,
    }))
}

/// # Safety
///
/// `page` is null or was allocated, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_free_uar(page: *mut mlx5dv_devx_uar) {
    if !page.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once.
        let page = unsafe { Box::from_raw(page) };
        let mut made = MADE.lock();
        let is_used = |page: &Mapped| {
            let mut pairs = made.pairs.values();
            pairs.any(|of| of.setup.page.address() == page.address())
        };
        let freed = made.pages.get(&page.page_id).filter(|page| !is_used(page));
        // The page of a queue pair stays as it is until the program ends.
        if let Some(page) = freed.cloned() {
            pages::give_back(page);
        }
        made.pages.remove(&page.page_id);
    }
}

/// # Safety
///
/// `input` and `output` are null or lent with their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_obj_create(
    _context: *mut ibv_context,
    input: *const c_void,
    input_bytes: usize,
    output: *mut c_void,
    output_bytes: usize,
) -> *mut Object {
    if takes_none() {
        return ptr::null_mut();
    }
    // SAFETY: lent by the caller.
    let (command, answer) = unsafe { (lent(input, input_bytes), lent_to(output, output_bytes)) };
    let mut made = MADE.lock();
    let kind = OPCODE.of(command);
    let created = match kind {
        _ if OP_MOD.of(command) != 0 => unserved("other forms of commands are not served"),
        opcode::CREATE_CQ if command.len() >= cq::BYTES => made
            .create_completions(command)
            .map(|number| (Kind::Completions, number)),
        opcode::CREATE_QP if command.len() >= qp::BYTES => {
            made.create_pair(command).map(|number| (Kind::Pair, number))
        }
        opcode::CREATE_CQ | opcode::CREATE_QP => wrong("the command is too short"),
        other => unserved(format!("command {other:#x} is not served")),
    };
    match created {
        Ok((kind, number)) => {
            answer.fill(0);
            NUMBER.set(answer, number.into());
            Box::into_raw(Box::new(Object { kind, number }))
        }
        Err(refusal) => {
            say("mlx5dv_devx_obj_create", refusal);
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// `object` is null or was created; `input` and `output` are null or lent with their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_obj_modify(
    object: *mut Object,
    input: *const c_void,
    input_bytes: usize,
    output: *mut c_void,
    output_bytes: usize,
) -> c_int {
    // SAFETY: lent by the caller.
    let (command, answer) = unsafe { (lent(input, input_bytes), lent_to(output, output_bytes)) };
    // SAFETY: null, or created.
    let modified = match unsafe { object.as_ref() } {
        Some(of) if matches!(of.kind, Kind::Pair) => MADE.lock().modify_pair(of.number, command),
        _ => unserved(format!("command {:#x} is not served", OPCODE.of(command))),
    };
    match modified {
        Ok(()) => {
            answer.fill(0);
            0
        }
        Err(refusal) => say("mlx5dv_devx_obj_modify", refusal),
    }
}

/// # Safety
///
/// As of `mlx5dv_devx_obj_modify`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_obj_query(
    object: *mut Object,
    input: *const c_void,
    input_bytes: usize,
    output: *mut c_void,
    output_bytes: usize,
) -> c_int {
    // SAFETY: lent by the caller.
    let (command, answer) = unsafe { (lent(input, input_bytes), lent_to(output, output_bytes)) };
    // SAFETY: null, or created.
    let state = match unsafe { object.as_ref() } {
        Some(of) if matches!(of.kind, Kind::Pair) && OPCODE.of(command) == opcode::QUERY_QP => {
            with(|adapter| adapter.status(of.number)).map(|status| status.state)
        }
        _ => unserved(format!("command {:#x} is not served", OPCODE.of(command))),
    };
    match state {
        Ok(state) => {
            answer.fill(0);
            let number = STATES.iter().find(|(of, _)| *of == state);
            qp::STATE.set(answer, number.map_or(0, |(_, number)| *number));
            qp::MTU.set(answer, MTU_4096);
            0
        }
        Err(refusal) => say("mlx5dv_devx_obj_query", refusal),
    }
}

/// # Safety
///
/// `object` is null or was created, and is not used again if this succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_obj_destroy(object: *mut Object) -> c_int {
    // SAFETY: null, or created.
    let Some(of) = (unsafe { object.as_ref() }) else {
        return libc::EINVAL;
    };
    let mut made = MADE.lock();
    let ended = match of.kind {
        Kind::Pair => {
            leave(of.number);
            with(|adapter| adapter.destroy_pair(of.number))
        }
        Kind::Completions => {
            let number = of.number - CQN_FIRST;
            let is_used = |of: &Queues| {
                let (sends, receives) = (of.setup.send_completions, of.setup.receive_completions);
                [sends, receives].contains(&number)
            };
            match made.pairs.values().any(is_used) {
                true => Err((
                    libc::EBUSY,
                    "a queue pair has the completion queue".to_owned(),
                )),
                false => with(|adapter| adapter.destroy_completions(number)),
            }
        }
    };
    if let Err(refusal) = ended {
        return say("mlx5dv_devx_obj_destroy", refusal);
    }
    match of.kind {
        Kind::Pair => drop(made.pairs.remove(&of.number)),
        Kind::Completions => drop(made.completions.remove(&(of.number - CQN_FIRST))),
    }
    // SAFETY: made by `Box::into_raw`, and given back once.
    drop(unsafe { Box::from_raw(object) });
    0
}

/// Completions have no events: any vector has the same event queue, which nobody reads.
///
/// # Safety
///
/// `number` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_mlx5dv_devx_query_eqn(
    _context: *mut ibv_context,
    _vector: u32,
    number: *mut u32,
) -> c_int {
    if takes_none() {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: null, or room for a number.
    match unsafe { number.as_mut() } {
        Some(number) => {
            *number = 0;
            0
        }
        None => libc::EINVAL,
    }
}
