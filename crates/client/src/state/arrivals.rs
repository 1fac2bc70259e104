//! Messages of the server that no request asked for, brought to the state that they change.

use std::ffi::c_int;

use outboard_api::CUresult;
use outboard_wire::runs::Runs;

use super::{Driver, drivers, host_functions};
use crate::{callbacks, log, session::Handler};

/// Handles them for the driver of the server with this number.
pub(crate) struct Arrivals(pub(super) u8);

impl Arrivals {
    fn driver(&self) -> Option<&'static Driver> {
        drivers().get(usize::from(self.0))
    }
}

impl Handler for Arrivals {
    fn host_call(&self, call: u64, status: CUresult) {
        if !callbacks::are_skipped() {
            host_functions::is_due(call, status);
        }
    }

    /// As with a GPU, text that the program has not waited for is lost when the process ends.
    fn print(&self, fd: u8, text: &[u8]) {
        if !callbacks::are_skipped() {
            print_text(fd, text);
        }
    }

    fn host_pages(&self, runs: Runs<'_>) {
        if let Some(driver) = self.driver() {
            let host = driver.host.read();
            let lost = driver.mirrors.take_pages(&host, runs.clone());
            driver.stand_ins.take_pages(runs);
            let status = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
            if let Some(at) = lost
                && driver.session.set_first_fault(status)
            {
                log::warn(format_args!(
                    "a kernel wrote to registered memory at {at:#x}, which the program has unmapped, moved or protected before it unregistered it"
                ));
            }
        }
    }

    fn written_by_adapter(&self, address: u64, bytes: u64) {
        if let Some(driver) = self.driver() {
            driver.mirrors.written_by_adapter(address, bytes);
        }
    }
}

unsafe extern "C" {
    /// The C library's streams, so that kernels' text is in order with the program's.
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

fn print_text(fd: u8, text: &[u8]) {
    // SAFETY: a whole buffer to an open stream of the C library, which locks it.
    unsafe {
        let stream = if i32::from(fd) == libc::STDERR_FILENO {
            stderr
        } else {
            stdout
        };
        libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream);
        let _: c_int = libc::fflush(stream);
    }
}
