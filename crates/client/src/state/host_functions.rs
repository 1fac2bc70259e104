//! Functions of the program that streams run: registered when they are sent, run when the server
//! reports that their stream has reached them.

use std::{
    collections::{HashMap, VecDeque},
    ffi::c_void,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUDA_HOST_NODE_PARAMS, CUhostFn, CUstream, CUstreamCallback},
};
use outboard_wire::messages;
use parking_lot::{Condvar, Mutex};

use super::drivers;
use crate::{
    callbacks::{self, Job},
    observe::optimise,
    session::{Origin, Session},
};

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

/// A registered function.
#[derive(Clone)]
struct Registered {
    call: HostCall,
    /// A graph may run it again.
    repeats: bool,
    /// The session whose stream runs it.
    session: &'static Session,
}

struct Queue {
    registered: HashMap<u64, Registered>,
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

/// Set once a function was registered for a graph.
static IN_GRAPHS: AtomicBool = AtomicBool::new(false);

/// Returns whether a function is registered that has not run, or that a graph may run again.
#[inline(always)]
pub(crate) fn any_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed) > 0
}

/// Returns whether a graph may have a host function.
pub(crate) fn any_in_graphs() -> bool {
    IN_GRAPHS.load(Ordering::Relaxed)
}

/// Registers a function and returns its number. `repeats` means that a graph may run it again.
/// Fails with CUDA_ERROR_OPERATING_SYSTEM if the system gives no thread that could run it.
pub(crate) fn register(
    session: &'static Session,
    call: HostCall,
    repeats: bool,
) -> Result<u64, CUresult> {
    let (queue, _) = queue();
    let mut queue = queue.lock();
    if !queue.running {
        let mut current = None;
        queue.running =
            callbacks::spawn(c"outboard-host-f", move || next_host_function(&mut current));
    }
    if !queue.running {
        return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    session.attend();
    let number = queue.next;
    queue.next += 1;
    let registered = Registered {
        call,
        repeats,
        session,
    };
    queue.registered.insert(number, registered);
    IN_GRAPHS.fetch_or(repeats, Ordering::Relaxed);
    REGISTERED.store(queue.registered.len(), Ordering::Release);
    Ok(number)
}

/// Lets a function run: its stream has reached it, or has failed.
pub(super) fn is_due(number: u64, status: CUresult) {
    let (queue, wake) = queue();
    queue.lock().ready.push_back((number, status));
    wake.notify_one();
}

/// Returns a registered function of the program as graph nodes describe it.
pub(crate) fn function_of(call: u64) -> Option<CUDA_HOST_NODE_PARAMS> {
    match queue().0.lock().registered.get(&call) {
        Some(Registered {
            call:
                HostCall::Function {
                    function,
                    user_data,
                },
            ..
        }) => Some(CUDA_HOST_NODE_PARAMS {
            func: *function,
            user_data: *user_data,
        }),
        _ => None,
    }
}

/// Forgets a function that has run, or that no message has told the server of.
pub(crate) fn forget(session: &Session, number: u64) {
    let mut queue = queue().0.lock();
    queue.registered.remove(&number);
    REGISTERED.store(queue.registered.len(), Ordering::Release);
    drop(queue);
    session.attended();
}

/// Returns whether a host function is waiting to run: it may write any memory of the program.
#[inline]
pub(crate) fn host_functions_pending() -> bool {
    REGISTERED.load(Ordering::Acquire) > 0 && program_functions_pending()
}

#[cold]
fn program_functions_pending() -> bool {
    let is_program = |known: &Registered| !matches!(known.call, HostCall::Library(_));
    queue().0.lock().registered.values().any(is_program)
}

/// Waits for the next function of the program that is to run. The one before it, `current`, has
/// returned.
fn next_host_function(current: &mut Option<(u64, Registered)>) -> Option<Job> {
    optimise::exempt_thread();
    loop {
        if let Some((number, done)) = current.take() {
            host_function_done(number, &done);
        }
        let (number, status, next) = next_host_call();
        *current = Some((number, next.clone()));
        // A host function is skipped when its stream has failed; a callback is told.
        let job = match next.call {
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

fn next_host_call() -> (u64, CUresult, Registered) {
    let (queue, wake) = queue();
    let mut queue = queue.lock();
    loop {
        let Some((number, status)) = queue.ready.pop_front() else {
            wake.wait(&mut queue);
            continue;
        };
        if let Some(known) = queue.registered.get(&number) {
            return (number, status, known.clone());
        }
    }
}

fn host_function_done(number: u64, done: &Registered) {
    // Later work may read what the function has written to mirrored memory.
    for driver in drivers() {
        if let Err(error) = driver.push_visible() {
            driver.session.set_fault(error, Origin::CLIENT);
        }
    }
    let session = done.session;
    if !done.repeats {
        forget(session, number);
    }
    let _ = session.tell(&messages::HostFuncDone { call: number });
}
