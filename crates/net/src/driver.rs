//! Questions to the CUDA driver of this process, if the program has loaded one.

use std::ops::Range;

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

/// `RTLD_NOLOAD`: a library that is not there already stays so.
const NOT_ANEW: i32 = 4;
const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: i32 = 0;

type GetAddressRange = unsafe extern "C" fn(*mut u64, *mut usize, u64) -> i32;

/// Returns the allocation of GPU memory that has this address; `None` if there is none.
pub(crate) fn range_of(address: u64) -> Option<Range<u64>> {
    // SAFETY: a library that is loaded already runs no code now.
    let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | NOT_ANEW) }.ok()?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<GetAddressRange> =
        unsafe { library.get(b"cuMemGetAddressRange_v2\0") }.ok()?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both places are there.
    let status = unsafe { call(&raw mut base, &raw mut bytes, address) };
    (status == SUCCESS).then(|| base..base + bytes as u64)
}
