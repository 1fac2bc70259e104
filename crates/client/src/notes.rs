//! Messages that the server sends without a request: faults, host functions to run, text that
//! kernels printed, pages that they wrote.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{c_int, c_void},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUDA_HOST_NODE_PARAMS, CUhostFn, CUstream, CUstreamCallback},
};
use outboard_wire::messages::{self, Note};
use parking_lot::{Condvar, Mutex};

use crate::{
    callbacks::{self, Job},
    log, optimise,
    session::Session,
    state,
};

/// Handles a note. It runs on the thread that reads, so it must not wait for the server.
pub(crate) fn take(session: &Session, note: Note<'_>) {
    match note {
        Note::Fault(fault) => {
            let name = messages::OPS
                .get(usize::from(fault.op))
                .map_or("a message", |(name, _)| name);
            self::fault(session, name, CUresult(fault.status), fault.message);
        }
        Note::HostCall(call) => {
            let (queue, wake) = queue();
            queue
                .lock()
                .ready
                .push_back((call.call, CUresult(call.status)));
            wake.notify_one();
        }
        Note::Print(print) => print_text(print.fd, print.text),
        Note::HostPages(pages) => state::host_pages(pages.va, pages.data),
    }
}

/// Records the error of a message without a reply.
pub(crate) fn fault(session: &Session, name: &str, status: CUresult, why: &[u8]) {
    log::warn(format_args!(
        "{name} failed: {status}: {}",
        String::from_utf8_lossy(why)
    ));
    session.set_fault(status);
}

/// A function for a stream to run.
#[derive(Clone)]
pub(crate) enum HostCall {
    /// A function of this library, for a graph.
    Library(Arc<dyn Fn() + Send + Sync>),
    Function {
        function: CUhostFn,
        user_data: *mut c_void,
    },
    Callback {
        function: CUstreamCallback,
        stream: CUstream,
        user_data: *mut c_void,
    },
}

// SAFETY: the program gave these pointers for a call on another thread.
unsafe impl Send for HostCall {}

struct Queue {
    registered: HashMap<u64, (HostCall, bool)>,
    ready: VecDeque<(u64, CUresult)>,
    next: u64,
    running: bool,
}

fn queue() -> &'static (Mutex<Queue>, Condvar) {
    static QUEUE: OnceLock<(Mutex<Queue>, Condvar)> = OnceLock::new();
    QUEUE.get_or_init(|| {
        (
            Mutex::new(Queue {
                registered: HashMap::new(),
                ready: VecDeque::new(),
                next: 1,
                running: false,
            }),
            Condvar::new(),
        )
    })
}

/// Number of host functions that have not run, readable without a lock. Changed under the queue's
/// lock.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// Registers a function and returns its number. `repeats` means that a graph may run it again.
pub(crate) fn register(session: &'static Session, call: HostCall, repeats: bool) -> u64 {
    session.attend();
    let (queue, _) = queue();
    let mut queue = queue.lock();
    let number = queue.next;
    queue.next += 1;
    queue.registered.insert(number, (call, repeats));
    REGISTERED.store(queue.registered.len(), Ordering::Release);
    if !queue.running {
        let mut current = None;
        queue.running = callbacks::spawn(c"outboard-host-f", move || {
            next_host_function(session, &mut current)
        });
    }
    number
}

/// Returns a registered function of the program as graph nodes describe it.
pub(crate) fn function_of(call: u64) -> Option<CUDA_HOST_NODE_PARAMS> {
    match queue().0.lock().registered.get(&call) {
        Some((
            HostCall::Function {
                function,
                user_data,
            },
            _,
        )) => Some(CUDA_HOST_NODE_PARAMS {
            func: *function,
            user_data: *user_data,
        }),
        _ => None,
    }
}

/// Returns whether a host function is waiting to run: it may write any memory of the program.
#[inline]
pub(crate) fn host_functions_pending() -> bool {
    REGISTERED.load(Ordering::Acquire) > 0 && program_functions_pending()
}

#[cold]
fn program_functions_pending() -> bool {
    let is_program = |(call, _): &(HostCall, bool)| !matches!(call, HostCall::Library(_));
    queue().0.lock().registered.values().any(is_program)
}

/// Waits for the next function of the program that is to run. The one before it, `current`, has
/// returned.
fn next_host_function(session: &'static Session, current: &mut Option<(u64, bool)>) -> Option<Job> {
    optimise::exempt_thread();
    loop {
        if let Some((number, repeats)) = current.take() {
            host_function_done(session, number, repeats);
        }
        let (number, status, call, repeats) = next_host_call();
        *current = Some((number, repeats));
        // A host function is skipped when its stream has failed; a callback is told.
        let job = match call {
            HostCall::Library(function) => {
                if status == CUresult::CUDA_SUCCESS {
                    function();
                }
                None
            }
            HostCall::Function {
                function,
                user_data,
            } => Job::function(function, user_data).filter(|_| status == CUresult::CUDA_SUCCESS),
            HostCall::Callback {
                function,
                stream,
                user_data,
            } => Job::callback(function, stream, status, user_data),
        };
        if job.is_some() {
            return job;
        }
    }
}

fn next_host_call() -> (u64, CUresult, HostCall, bool) {
    let (queue, wake) = queue();
    let mut queue = queue.lock();
    loop {
        let Some((number, status)) = queue.ready.pop_front() else {
            wake.wait(&mut queue);
            continue;
        };
        if let Some((call, repeats)) = queue.registered.get(&number) {
            return (number, status, call.clone(), *repeats);
        }
    }
}

fn host_function_done(session: &Session, number: u64, repeats: bool) {
    // Later work may read what the function has written to mirrored memory.
    if let Ok(driver) = state::driver() {
        let _ = driver.push_visible();
    }
    if !repeats {
        let mut queue = queue().0.lock();
        queue.registered.remove(&number);
        REGISTERED.store(queue.registered.len(), Ordering::Release);
        drop(queue);
        session.attended();
    }
    let _ = session.tell(&messages::HostFuncDone { call: number });
}

/// Starts a thread of the library. It blocks all signals, which are for the program.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: a signal set filled by the calls themselves; the old mask is restored.
    let spawned = unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        spawned
    };
    if let Err(error) = &spawned {
        log::warn(format_args!("the thread {name} cannot be started: {error}"));
    }
    spawned.is_ok()
}

unsafe extern "C" {
    /// The C library's streams, so that kernels' text is in order with the program's.
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

fn print_text(fd: u8, text: &[u8]) {
    // SAFETY: a whole buffer to an open stream of the C library, which locks it.
    unsafe {
        let stream = if i32::from(fd) == libc::STDERR_FILENO {
            stderr
        } else {
            stdout
        };
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream);
        let _: c_int = libc::fflush(stream);
    }
}
