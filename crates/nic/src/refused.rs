//! Functions that are declared and not served: an error that names the function.

use std::{
    collections::HashSet,
    ffi::{CStr, c_char, c_int, c_void},
    ptr,
    sync::LazyLock,
};

use parking_lot::Mutex;

/// Different lines that are written, each once.
const SAID_MAX: usize = 256;

/// Says that a function is not served, and sets `errno`. Returns the error's number.
pub(crate) fn refuse(name: &str, why: &str) -> c_int {
    say(&format!("outboard nic: {name}: {why}"));
    set_errno(libc::EOPNOTSUPP)
}

/// Writes a line to standard error, once.
pub(crate) fn say(line: &str) {
    static SAID: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let mut said = SAID.lock();
    if said.len() < SAID_MAX && said.insert(line.to_owned()) {
        eprintln!("{line}");
    }
}

/// Sets `errno`, and returns it.
pub(crate) fn set_errno(number: c_int) -> c_int {
    // SAFETY: the address of this thread's number is valid for as long as the thread.
    unsafe { *libc::__errno_location() = number };
    number
}

/// Fails as calls that return a pointer do.
pub(crate) fn fail<T>(number: c_int) -> *mut T {
    set_errno(number);
    ptr::null_mut()
}

fn name_of<'a>(name: *const c_char) -> std::borrow::Cow<'a, str> {
    // SAFETY: the jumps of build.rs pass a string of their own.
    unsafe { CStr::from_ptr(name) }.to_string_lossy()
}

/// # Safety
///
/// `name` is a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_no_pointer(name: *const c_char) -> *mut c_void {
    refuse(&name_of(name), "not served");
    ptr::null_mut()
}

/// # Safety
///
/// `name` is a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_no_status(name: *const c_char) -> c_int {
    refuse(&name_of(name), "not served")
}

/// # Safety
///
/// `name` is a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outboard_nic_no_count(name: *const c_char) -> isize {
    -(refuse(&name_of(name), "not served") as isize)
}
