//! The counters that `-C instrument-coverage` puts into each region of the code, one for all
//! threads. Only `tools/fuzz_coverage.py` builds with them.

use std::slice;

unsafe extern "C" {
    // The profiler's runtime, which the compiler links with instrumented code.
    fn __llvm_profile_begin_counters() -> *mut u64;
    fn __llvm_profile_end_counters() -> *mut u64;
}

/// Sets all counters to zero, does something, and calls `see` with the number of each counter that
/// is not zero afterwards. No other thread may run instrumented code.
pub(crate) fn during(action: impl FnOnce(), see: impl FnMut(usize)) {
    clear();
    action();
    let counted = counters().iter().enumerate();
    counted
        .filter(|(_, count)| **count != 0)
        .map(|(number, _)| number)
        .for_each(see);
}

/// Forgets what was counted, such as by making the targets' seeds.
pub(crate) fn clear() {
    counters().fill(0);
}

pub(crate) fn count() -> usize {
    counters().len()
}

fn counters() -> &'static mut [u64] {
    // SAFETY: the two are begin and end of one section of this executable, of 64-bit counters. This
    // module's functions are called by one thread and none of them while a slice lives. Compiled
    // code only adds to counters, by their addresses, so what it counts in between is not lost.
    unsafe {
        let begin = __llvm_profile_begin_counters();
        let len = __llvm_profile_end_counters().offset_from(begin);
        slice::from_raw_parts_mut(begin, usize::try_from(len).unwrap_or(0))
    }
}
