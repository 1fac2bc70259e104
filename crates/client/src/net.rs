//! The interface for `liboutboard_net.so`: calls of `net.h` whose endpoint is where the GPU is.
//!
//! Queues and registered memory are pinned memory of the program, of which the server has a mirror
//! at the same address. Each call brings what the program has changed there before, and what
//! adapters have written is there when it returns.

use std::{collections::BTreeMap, slice};

use outboard_api::{
    CUresult,
    net::{NET_VERSION, PLACE_PROGRAM, PLACE_SERVER, Request, Table},
};
use outboard_wire::{
    doc::{self, NetCall},
    messages,
};
use parking_lot::Mutex;

use crate::{
    done::Done,
    log,
    observe::guard,
    state::{Driver, HostMemory, are_several, driver, drivers, wire_context},
};

pub(crate) static TABLE: Table = Table {
    version: NET_VERSION,
    place,
    is_copied,
    keep,
    call,
    address,
};

/// Memory that endpoints have: first byte, end and the endpoint's place, and how often.
static KEPT: Mutex<BTreeMap<(u64, u64, u32), usize>> = Mutex::new(BTreeMap::new());

extern "C" fn place() -> u32 {
    match drivers() {
        [] => PLACE_PROGRAM,
        [only] => u32::from(!only.session.shares_memory()),
        _ => 2,
    }
}

extern "C" fn is_copied(address: u64, bytes: u64) -> u32 {
    let is_copied = |driver: &Driver| {
        let mirrored = |host: &HostMemory| host.within(address, bytes).any(|range| !range.shared);
        driver.session.shares_memory() && mirrored(&driver.host.read())
    };
    u32::from(drivers().iter().any(is_copied))
}

extern "C" fn keep(address: u64, bytes: u64, place: u32, is_kept: u32) {
    let range = (address, address.saturating_add(bytes), place);
    let mut kept = KEPT.lock();
    match (kept.get_mut(&range), is_kept) {
        (Some(count), 0) if *count > 1 => *count -= 1,
        (_, 0) => drop(kept.remove(&range)),
        (Some(count), _) => *count += 1,
        (None, _) => drop(kept.insert(range, 1)),
    }
}

/// Returns true if an endpoint at a place has some of these bytes.
fn keeps(place: u32, address: u64, bytes: u64) -> bool {
    let end = address.saturating_add(bytes);
    let kept = KEPT.lock();
    let mut ranges = kept.keys();
    ranges.any(|&(start, until, at)| at == place && start < end && address < until)
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
            if matches!(doc::from_bytes(call), Ok(NetCall::Create { .. })) {
                driver.lends_queue(request.address);
            }
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
    /// Refuses to register memory that an endpoint in the program has: kernels would have a copy.
    pub(crate) fn may_register(&self, address: u64, bytes: u64) -> Done {
        if !self.session.shares_memory() || !keeps(PLACE_PROGRAM, address, bytes) {
            return Ok(());
        }
        log::warn(format_args!(
            "cuMemHostRegister of memory at {address:#x} that an endpoint of outboard/net.h has is not supported: the GPU's server would have a copy of it while a kernel runs, and the endpoint would not see it; take memory of cuMemHostAlloc"
        ));
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// Refuses a call that ends the pinning of memory which an endpoint at the server has: it would
    /// keep a copy that is no longer compared with the program's memory.
    pub(crate) fn may_unpin(&self, call: &str, address: u64) -> Done {
        let bytes = self
            .host
            .read()
            .find(address)
            .map_or(0, |range| range.bytes);
        if self.session.shares_memory() || !keeps(PLACE_SERVER, address, bytes) {
            return Ok(());
        }
        log::warn(format_args!(
            "{call} of memory at {address:#x} that an endpoint of outboard/net.h has is not supported: the endpoint is where the GPU is, and has a copy of it; close the endpoint first"
        ));
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    /// Lets the server's adapters use memory of the program until it is freed.
    fn lend(&self, address: u64, bytes: u64) -> Done {
        self.lends_range(address, bytes)?;
        self.make_reachable(address)
    }
}
