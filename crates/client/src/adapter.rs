//! The adapter in software of `outboard nic run`, in this process: it reaches the memory of all
//! GPUs, by copies.

use std::sync::LazyLock;

/// Where `outboard nic run` has put the adapter's files.
const VARIABLE: &str = "OUTBOARD_NIC_FILES";

/// Returns true if the program was started with such an adapter.
pub(crate) fn is_there() -> bool {
    static IS_THERE: LazyLock<bool> = LazyLock::new(|| std::env::var_os(VARIABLE).is_some());
    *IS_THERE
}
