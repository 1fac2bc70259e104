//! Changes the emulated network while the program runs, for programs that measure themselves over
//! several networks.

use std::ffi::{CStr, c_char};

use outboard_api::CUresult;
use outboard_wire::network::Network;

use crate::{
    done::Done,
    log,
    observe::guard,
    state::{driver, drivers},
};

/// Sends all further messages over this network, given in the words of `outboard run --emulate`;
/// `""` delays nothing. Returns `CUDA_ERROR_NOT_SUPPORTED` if the program was not started with
/// `--emulate`, and `CUDA_ERROR_INVALID_VALUE` for an invalid network.
///
/// # Safety
/// `network` must be a C string, or NULL, which is refused.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outboard_emulate(network: *const c_char) -> CUresult {
    guard::enter_own("outboard_emulate", || {
        if network.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so it is a C string by this function's contract.
        let text = unsafe { CStr::from_ptr(network) };
        change(&text.to_string_lossy())
    })
}

fn change(text: &str) -> Done {
    let network = Network::try_from(text.to_owned()).map_err(|error| {
        log::warn(format_args!("outboard_emulate: {error}"));
        CUresult::CUDA_ERROR_INVALID_VALUE
    })?;
    driver()?;
    drivers()
        .iter()
        .try_for_each(|driver| driver.session.change_network(&network))
}
