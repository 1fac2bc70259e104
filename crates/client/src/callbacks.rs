//! Threads that run functions of the program: host functions, callbacks of streams, destructors of
//! user objects.
//!
//! Such a function may end its thread: CPython before 3.14 does so (`pthread_exit`) with every
//! thread that enters it while it ends. The C library then unwinds the thread's stack. No frame on
//! it may catch that, or have anything to drop, so these threads are the C library's, not the
//! standard library's, and have one frame of ours, which holds plain values. What such a thread had
//! left to do, another one does.

use std::{
    ffi::{CStr, c_void},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUhostFn, CUstream, CUstreamCallback},
};

use crate::{library_thread, log};

/// A function of the program, with its arguments. It may unwind, by the end of its thread.
#[derive(Clone, Copy)]
pub(crate) struct Job(Call);

#[derive(Clone, Copy)]
enum Call {
    Function(unsafe extern "C-unwind" fn(*mut c_void), *mut c_void),
    Callback(
        unsafe extern "C-unwind" fn(CUstream, u32, *mut c_void),
        CUstream,
        CUresult,
        *mut c_void,
    ),
}

impl Job {
    pub(crate) fn function(function: CUhostFn, user_data: *mut c_void) -> Option<Job> {
        type Given = unsafe extern "C" fn(*mut c_void);
        type MayUnwind = unsafe extern "C-unwind" fn(*mut c_void);
        function.map(|function| {
            // SAFETY: the same function by the same convention, but that it may unwind.
            let function = unsafe { mem::transmute::<Given, MayUnwind>(function) };
            Job(Call::Function(function, user_data))
        })
    }

    pub(crate) fn callback(
        function: CUstreamCallback,
        stream: CUstream,
        status: CUresult,
        user_data: *mut c_void,
    ) -> Option<Job> {
        type Given = unsafe extern "C" fn(CUstream, u32, *mut c_void);
        type MayUnwind = unsafe extern "C-unwind" fn(CUstream, u32, *mut c_void);
        function.map(|function| {
            // SAFETY: the same function by the same convention, but that it may unwind.
            let function = unsafe { mem::transmute::<Given, MayUnwind>(function) };
            Job(Call::Callback(function, stream, status, user_data))
        })
    }
}

/// Waits for the next function of a thread. Called again when that one has returned, or has ended
/// its thread.
type Next = Box<dyn FnMut() -> Option<Job> + Send>;

/// The functions that a thread runs, until there is no more. The thread owns it; if the thread is
/// ended, the next one does.
struct Source {
    name: &'static CStr,
    next: Next,
}

/// The process ends: functions of the program are skipped from now on, whose interpreter or library
/// may be gone.
static ENDING: AtomicBool = AtomicBool::new(false);

pub(crate) fn skip_all() {
    ENDING.store(true, Ordering::Release);
}

/// Returns whether the process ends.
pub(crate) fn are_skipped() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// Starts a thread that runs one function after another. The name has 15 bytes at most.
pub(crate) fn spawn(
    name: &'static CStr,
    next: impl FnMut() -> Option<Job> + Send + 'static,
) -> bool {
    let next = Box::new(next);
    let source = Box::into_raw(Box::new(Source { name, next }));
    let started = start(source);
    if !started {
        // SAFETY: made above, and no thread has it.
        drop(unsafe { Box::from_raw(source) });
    }
    started
}

/// Starts a thread, which takes no signals but those of its own faults: others are the program's.
fn start(source: *mut Source) -> bool {
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    let old = library_thread::block_signals();
    // SAFETY: attributes and a thread that the calls themselves fill. The thread's function is what
    // the C library calls, but that it may unwind, which the C library's threads may.
    let status = unsafe {
        let (mut attributes, mut thread) = (mem::zeroed(), mem::zeroed());
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let serve: Start = mem::transmute(serve as extern "C-unwind" fn(_) -> _);
        let status = libc::pthread_create(&mut thread, &attributes, serve, source.cast());
        libc::pthread_attr_destroy(&mut attributes);
        status
    };
    library_thread::block_again(&old);
    if status != 0 {
        let error = std::io::Error::from_raw_os_error(status);
        log::warn(format_args!(
            "no thread for functions of the program: {error}"
        ));
    }
    status == 0
}

/// The thread. Nothing in it may need dropping while a function of the program runs.
extern "C-unwind" fn serve(source: *mut c_void) -> *mut c_void {
    begin(source);
    while let Some(Job(call)) = next(source) {
        match call {
            // SAFETY: the program's own function, of this type, with its own argument.
            Call::Function(function, user_data) => unsafe { function(user_data) },
            Call::Callback(function, stream, status, user_data) => {
                // SAFETY: the program's own function, of this type, with its own argument.
                unsafe { function(stream, status.0, user_data) };
            }
        }
    }
    end(source);
    ptr::null_mut()
}

/// The value that a thread has as long as it has a source.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: an output, and a function for the values given below.
        let status = unsafe { libc::pthread_key_create(&mut key, Some(died)) };
        (status == 0).then_some(key)
    })
}

fn set_value(source: *mut c_void) {
    if let Some(key) = key() {
        // SAFETY: a key of this process, and a value for `died`.
        unsafe { libc::pthread_setspecific(key, source) };
    }
}

fn begin(source: *mut c_void) {
    // SAFETY: this thread's source, see `spawn`.
    let name = unsafe { &*source.cast::<Source>() }.name;
    // SAFETY: a name that is there for ever.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    set_value(source);
}

fn next(source: *mut c_void) -> Option<Job> {
    // SAFETY: this thread's source, which it alone has.
    let source = unsafe { &mut *source.cast::<Source>() };
    loop {
        let job = catch_unwind(AssertUnwindSafe(|| (source.next)()));
        let job = job.unwrap_or_else(|_| {
            log::warn("a thread for functions of the program panicked: a bug of Outboard");
            None
        })?;
        if !are_skipped() {
            return Some(job);
        }
    }
}

fn end(source: *mut c_void) {
    set_value(ptr::null_mut());
    // SAFETY: this thread's source, which nobody uses any more.
    drop(unsafe { Box::from_raw(source.cast::<Source>()) });
}

/// A function of the program has ended its thread: another one goes on.
unsafe extern "C" fn died(source: *mut c_void) {
    // Where none can be started, the source is left as it is: its streams wait for ever, as the
    // driver's would.
    let _ = start(source.cast());
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::AtomicU32,
            mpsc::{self, RecvTimeoutError},
        },
        time::Duration,
    };

    use super::*;

    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut c_void) -> !;
    }

    unsafe extern "C-unwind" fn ends_its_thread(counter: *mut c_void) {
        // SAFETY: the test's own counter.
        unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
        // SAFETY: nothing here needs dropping.
        unsafe { pthread_exit(ptr::null_mut()) }
    }

    #[test]
    fn a_function_may_end_its_thread() {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let (all_run, wait) = mpsc::channel();
        let mut left = 3;
        let spawned = spawn(c"test", move || {
            if left == 0 {
                let _ = all_run.send(());
                return None;
            }
            left -= 1;
            let counter = (&raw const RUN).cast_mut().cast();
            Some(Job(Call::Function(ends_its_thread, counter)))
        });
        assert!(spawned);
        assert_eq!(wait.recv_timeout(Duration::from_secs(20)), Ok(()));
        assert_eq!(RUN.load(Ordering::SeqCst), 3);
        // The source is dropped by the thread that came to its end.
        let gone = wait.recv_timeout(Duration::from_secs(20));
        assert_eq!(gone, Err(RecvTimeoutError::Disconnected));
    }
}
