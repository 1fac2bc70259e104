//! Another network while the program runs, for programs that measure themselves over many.

use std::ffi::{CStr, c_char};

use outboard_api::CUresult;
use outboard_wire::network::Network;

use crate::{calls::Done, guard, log, state::driver};

/// From when it returns, messages travel over this network, in the words of `outboard run --emulate`; `""` delays nothing.
/// Only where the program was started with `--emulate`: `CUDA_ERROR_NOT_SUPPORTED` elsewhere, `CUDA_ERROR_INVALID_VALUE` for
/// what is no network.
///
/// # Safety
/// `network` is a C string, or null, which is refused.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outboard_emulate(network: *const c_char) -> CUresult {
    guard::enter_own("outboard_emulate", || {
        if network.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(network) };
        change(&text.to_string_lossy())
    })
}

fn change(text: &str) -> Done {
    let network = Network::try_from(text.to_owned()).map_err(|error| {
        log::warn(format_args!("outboard_emulate: {error}"));
        CUresult::CUDA_ERROR_INVALID_VALUE
    })?;
    driver()?.session.change_network(&network)
}
