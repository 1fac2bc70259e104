//! The interface for `liboutboard_net.so`: calls of `net.h` whose endpoint is where the GPU is.
//!
//! Queues and registered memory are pinned memory of the program, of which the server has a mirror
//! at the same address. Each call brings what the program has changed there before, and what
//! adapters have written is there when it returns.

use std::slice;

use outboard_api::{
    CUresult,
    net::{NET_VERSION, Request, Table},
};
use outboard_wire::messages;

use crate::{
    done::Done,
    observe::guard,
    state::{Driver, are_several, driver, drivers, wire_context},
};

pub(crate) static TABLE: Table = Table {
    version: NET_VERSION,
    place,
    is_copied,
    call,
    address,
};

extern "C" fn place() -> u32 {
    match drivers() {
        [] => 0,
        [only] => u32::from(!only.session.shares_memory()),
        _ => 2,
    }
}

extern "C" fn is_copied(address: u64) -> u32 {
    let is_copied = |driver: &Driver| {
        let host = driver.host.read();
        driver.session.shares_memory() && host.find(address).is_some_and(|range| !range.shared)
    };
    u32::from(drivers().iter().any(is_copied))
}

unsafe extern "C" fn call(request: *mut Request) -> CUresult {
    guard::enter_own("liboutboard_net", || {
        // SAFETY: the library's record, which outlives this function.
        let request = unsafe { request.as_mut() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the library's buffer, which outlives this function.
        let call = unsafe { slice::from_raw_parts(request.call, request.call_bytes) };
        let driver = driver()?;
        if are_several() || driver.session.shares_memory() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if request.bytes > 0 {
            driver.lend(request.address, request.bytes)?;
        }
        driver.push_visible()?;
        let message = messages::NetCall {
            endpoint: request.endpoint,
            call,
        };
        let answer = driver
            .session
            .call(wire_context(), &message, |reply| reply.data.to_vec())?;
        if answer.len() > request.answer_bytes_max {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        request.answer_bytes = answer.len();
        // SAFETY: the library's buffer has room for as many bytes.
        unsafe { request.answer.copy_from(answer.as_ptr(), answer.len()) };
        Ok(())
    })
}

unsafe extern "C" fn address(at: *mut u8, bytes_max: usize) -> usize {
    let own = driver()
        .ok()
        .and_then(|driver| driver.peer_address.as_deref());
    let own = own.unwrap_or_default().as_bytes();
    if own.len() > bytes_max {
        return 0;
    }
    // SAFETY: the library's buffer has room for as many bytes.
    unsafe { at.copy_from(own.as_ptr(), own.len()) };
    own.len()
}

impl Driver {
    /// Lets the server's adapters use memory of the program until it is freed.
    fn lend(&self, address: u64, bytes: u64) -> Done {
        self.lends_range(address, bytes)?;
        self.make_visible(address)
    }
}
