//! Records the ranges that the program marks with NVTX.
//!
//! NVTX is a header that is compiled into programs. At its first use it loads the library named by
//! `NVTX_INJECTION64_PATH` and calls its `InitializeInjectionNvtx2` with a function that returns
//! the tables of NVTX's functions; the library puts its own into them. Names and numbers are those
//! of `nvtxDetail/nvtxTypes.h` and `nvToolsExt.h`, version 3.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::live;

/// `NVTX_ETID_CALLBACKS`.
const ETID_CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE` and `_CORE2`.
const MODULE_CORE: c_int = 1;
const MODULE_CORE2: c_int = 5;
/// Depth beyond which a thread's ranges are counted, not named.
const DEPTH_MAX: usize = 1_000;
/// Ranges that were started and not ended, at most.
const STARTED_MAX: usize = 100_000;
/// `NVTX_MESSAGE_TYPE_ASCII`, `_UNICODE`, `_REGISTERED`.
const MESSAGE_ASCII: i32 = 1;
const MESSAGE_UNICODE: i32 = 2;
const MESSAGE_REGISTERED: i32 = 3;

/// `NvtxGetExportTableFunc_t`.
pub type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module_function_table:
        Option<unsafe extern "C" fn(c_int, *mut *mut *mut *const c_void, *mut u32) -> c_int>,
}

/// `nvtxEventAttributes_t`, version 2.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// Number of the recorder's functions, for [`live::begin`].
static FUNCTIONS: OnceLock<usize> = OnceLock::new();

/// Replaces NVTX's functions; returns 1 if that worked, as NVTX asks.
///
/// # Safety
/// Called by NVTX with its own function.
pub unsafe fn initialize(get_table: Option<GetExportTable>, functions: usize) -> c_int {
    if !live::is_wanted() {
        return 0;
    }
    let _ = FUNCTIONS.set(functions);
    let Some(get_table) = get_table else { return 0 };
    // SAFETY: NVTX's function, which returns null or its table.
    let callbacks = unsafe { get_table(ETID_CALLBACKS).cast::<Callbacks>().as_ref() };
    let table = callbacks
        .filter(|callbacks| callbacks.struct_size >= size_of::<Callbacks>())
        .and_then(|callbacks| callbacks.module_function_table);
    let Some(table) = table else { return 0 };
    // SAFETY: NVTX's own function and its tables' numbers.
    unsafe { take_over(table, MODULE_CORE, CORE) && take_over(table, MODULE_CORE2, CORE2) }.into()
}

/// Puts our functions into a module's table, at their numbers.
unsafe fn take_over(
    module_table: unsafe extern "C" fn(c_int, *mut *mut *mut *const c_void, *mut u32) -> c_int,
    module: c_int,
    ours: &[(usize, Function)],
) -> bool {
    let (mut slots, mut len) = (ptr::null_mut(), 0u32);
    // SAFETY: NVTX's own function of this type; it writes two local variables.
    if unsafe { module_table(module, &mut slots, &mut len) } == 0 || slots.is_null() {
        return false;
    }
    for (number, function) in ours {
        if *number < len as usize {
            // SAFETY: the table has `len` entries, each null or the address at which NVTX keeps a
            // function.
            unsafe {
                let slot = *slots.add(*number);
                if !slot.is_null() {
                    *slot = function.0;
                }
            }
        }
    }
    true
}

struct Function(*const c_void);

// SAFETY: the address of a function.
unsafe impl Sync for Function {}

const CORE: &[(usize, Function)] = &[
    (4, Function(start_ex as *const c_void)),
    (5, Function(start_a as *const c_void)),
    (6, Function(start_w as *const c_void)),
    (7, Function(end as *const c_void)),
    (8, Function(push_ex as *const c_void)),
    (9, Function(push_a as *const c_void)),
    (10, Function(push_w as *const c_void)),
    (11, Function(pop as *const c_void)),
];
const CORE2: &[(usize, Function)] = &[
    (2, Function(domain_start_ex as *const c_void)),
    (3, Function(domain_end as *const c_void)),
    (4, Function(domain_push_ex as *const c_void)),
    (5, Function(domain_pop as *const c_void)),
    (10, Function(domain_register_a as *const c_void)),
    (11, Function(domain_register_w as *const c_void)),
    (12, Function(domain_create_a as *const c_void)),
    (13, Function(domain_create_w as *const c_void)),
];

thread_local! {
    /// Ranges that the thread has pushed, with their domains.
    static PUSHED: RefCell<Vec<(usize, String)>> = const { RefCell::new(Vec::new()) };
}

static STARTED: Mutex<Option<HashMap<u64, String>>> = Mutex::new(None);
static NEXT_RANGE: AtomicU64 = AtomicU64::new(1);
/// Strings that domains have registered, by the handle that we returned.
static REGISTERED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static NEXT_DOMAIN: AtomicU64 = AtomicU64::new(1);

fn mark(name: &str, is_end: bool) {
    let functions = FUNCTIONS.get().copied().unwrap_or(0);
    if let Some(live) = live::begin(functions) {
        live.mark(name, is_end);
    }
}

/// Begins a range and returns its depth, from 0.
fn push_range(domain: usize, name: String) -> c_int {
    mark(&name, false);
    let pushed = PUSHED.try_with(|pushed| {
        let mut pushed = pushed.borrow_mut();
        if pushed.len() < DEPTH_MAX {
            pushed.push((domain, name));
        }
        pushed.iter().filter(|(of, _)| *of == domain).count() as c_int - 1
    });
    pushed.unwrap_or(-1)
}

fn pop_range(domain: usize) -> c_int {
    let popped = PUSHED.try_with(|pushed| {
        let mut pushed = pushed.borrow_mut();
        let at = pushed.iter().rposition(|(of, _)| *of == domain)?;
        let (_, name) = pushed.remove(at);
        let left = pushed.iter().filter(|(of, _)| *of == domain).count();
        Some((name, left))
    });
    match popped {
        Ok(Some((name, left))) => {
            mark(&name, true);
            left as c_int
        }
        _ => -1,
    }
}

fn start_range(name: String) -> u64 {
    mark(&name, false);
    let number = NEXT_RANGE.fetch_add(1, Ordering::Relaxed);
    let mut started = STARTED.lock();
    let started = started.get_or_insert_default();
    if started.len() < STARTED_MAX {
        started.insert(number, name);
    }
    number
}

fn end_range(number: u64) {
    let name = STARTED.lock().as_mut().and_then(|all| all.remove(&number));
    if let Some(name) = name {
        mark(&name, true);
    }
}

/// # Safety
/// `name` must be NULL or a C string.
unsafe fn text(name: *const c_char) -> String {
    if name.is_null() {
        return "?".into();
    }
    // SAFETY: not NULL, so it is a C string by this function's contract.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// # Safety
/// `name` must be NULL or a string of `wchar_t`, which ends with a 0.
unsafe fn wide(name: *const u32) -> String {
    if name.is_null() {
        return "?".into();
    }
    let mut out = String::new();
    let mut at = name;
    // SAFETY: no character before this one was the 0 at the end.
    while let Some(c) = Some(unsafe { *at }).filter(|c| *c != 0) {
        out.push(char::from_u32(c).unwrap_or('?'));
        // SAFETY: another character or the 0 follows this one, which is not 0.
        at = unsafe { at.add(1) };
    }
    out
}

/// # Safety
/// `attributes` must be NULL or NVTX's attributes of an event.
unsafe fn message(attributes: *const Attributes) -> String {
    // SAFETY: NULL or such attributes, by this function's contract.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else {
        return "?".into();
    };
    if usize::from(attributes.size) < size_of::<Attributes>() {
        return "?".into();
    }
    match attributes.message_type {
        // SAFETY: the type says that the message is such a string.
        MESSAGE_ASCII => unsafe { text(attributes.message.cast()) },
        // SAFETY: the type says that the message is such a string.
        MESSAGE_UNICODE => unsafe { wide(attributes.message.cast()) },
        MESSAGE_REGISTERED => {
            let handle = attributes.message as usize;
            let registered = REGISTERED.lock();
            let known = handle.checked_sub(1).and_then(|at| registered.get(at));
            known.map_or_else(|| "?".into(), Clone::clone)
        }
        _ => "?".into(),
    }
}

fn register(name: String) -> usize {
    let mut registered = REGISTERED.lock();
    registered.push(name);
    registered.len()
}

fn create_domain() -> usize {
    NEXT_DOMAIN.fetch_add(1, Ordering::Relaxed) as usize
}

// Functions that NVTX calls.

unsafe extern "C" fn start_ex(attributes: *const Attributes) -> u64 {
    // SAFETY: NULL or attributes: NVTX asks it of its callers.
    start_range(unsafe { message(attributes) })
}

unsafe extern "C" fn start_a(name: *const c_char) -> u64 {
    // SAFETY: NULL or a C string: NVTX asks it of its callers.
    start_range(unsafe { text(name) })
}

unsafe extern "C" fn start_w(name: *const u32) -> u64 {
    // SAFETY: NULL or a string that ends with a 0: NVTX asks it of its callers.
    start_range(unsafe { wide(name) })
}

extern "C" fn end(range: u64) {
    end_range(range);
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    // SAFETY: NULL or attributes: NVTX asks it of its callers.
    push_range(0, unsafe { message(attributes) })
}

unsafe extern "C" fn push_a(name: *const c_char) -> c_int {
    // SAFETY: NULL or a C string: NVTX asks it of its callers.
    push_range(0, unsafe { text(name) })
}

unsafe extern "C" fn push_w(name: *const u32) -> c_int {
    // SAFETY: NULL or a string that ends with a 0: NVTX asks it of its callers.
    push_range(0, unsafe { wide(name) })
}

extern "C" fn pop() -> c_int {
    pop_range(0)
}

unsafe extern "C" fn domain_start_ex(_domain: usize, attributes: *const Attributes) -> u64 {
    // SAFETY: NULL or attributes: NVTX asks it of its callers.
    start_range(unsafe { message(attributes) })
}

extern "C" fn domain_end(_domain: usize, range: u64) {
    end_range(range);
}

unsafe extern "C" fn domain_push_ex(domain: usize, attributes: *const Attributes) -> c_int {
    // SAFETY: NULL or attributes: NVTX asks it of its callers.
    push_range(domain, unsafe { message(attributes) })
}

extern "C" fn domain_pop(domain: usize) -> c_int {
    pop_range(domain)
}

unsafe extern "C" fn domain_register_a(_domain: usize, name: *const c_char) -> usize {
    // SAFETY: NULL or a C string: NVTX asks it of its callers.
    register(unsafe { text(name) })
}

unsafe extern "C" fn domain_register_w(_domain: usize, name: *const u32) -> usize {
    // SAFETY: NULL or a string that ends with a 0: NVTX asks it of its callers.
    register(unsafe { wide(name) })
}

extern "C" fn domain_create_a(_name: *const c_char) -> usize {
    create_domain()
}

extern "C" fn domain_create_w(_name: *const u32) -> usize {
    create_domain()
}
