//! Messages that the server sends without a request. Errors are the session's own; the layers above
//! hand in a handler for the rest.

use outboard_api::CUresult;
use outboard_wire::{
    messages::{self, Note},
    runs::Runs,
};

use super::{Origin, Session};
use crate::log;

/// Handles what arrives without a request. It is called on the thread that reads the link, so it
/// must not wait for the server.
pub(crate) trait Handler: Send + Sync {
    /// Runs a host function: its stream has reached it, or has failed.
    fn host_call(&self, call: u64, status: CUresult);

    /// Prints text of a kernel.
    fn print(&self, fd: u8, text: &[u8]);

    /// Takes bytes that kernels wrote to mirrored memory.
    fn host_pages(&self, runs: Runs<'_>);

    /// Notes that an adapter has written the data of a reply into this memory.
    fn written_by_adapter(&self, address: u64, bytes: u64);
}

impl Session {
    /// Handles a note, on the thread that reads.
    pub(super) fn take_note(&self, note: Note<'_>) -> Result<(), CUresult> {
        match note {
            Note::Fault(fault) => {
                let name = messages::OPS
                    .get(usize::from(fault.op))
                    .map_or("a message", |(name, _)| name);
                let of = Origin::of(fault.context, fault.ended);
                self.fail(name, CUresult(fault.status), fault.message, of);
            }
            Note::HostCall(call) => self.handler.host_call(call.call, CUresult(call.status)),
            Note::Print(print) => self.handler.print(print.fd, print.text),
            Note::HostPages(pages) => {
                let runs = Runs::one(pages.va, pages.data).map_err(|error| self.lost(error))?;
                self.handler.host_pages(runs);
            }
            Note::HostRuns(note) => {
                let runs = Runs::of(note.va, note.runs, note.data);
                self.handler
                    .host_pages(runs.map_err(|error| self.lost(error))?);
            }
        }
        Ok(())
    }

    /// Records and prints the error of a message without a reply.
    pub(super) fn fail(&self, name: &str, status: CUresult, why: &[u8], of: Origin) {
        if status.is_sticky() && of.context != 0 {
            self.lose_context(status, why, of);
        } else {
            // What follows the loss of a context mostly fails by it.
            if self.check_in(of.context).is_ok() {
                log::warn(format_args!(
                    "{name} failed: {status}: {}",
                    String::from_utf8_lossy(why)
                ));
            }
            self.set_fault(status, of);
        }
    }

    /// Records an error that loses the context. It is printed once, whether it came with a reply or
    /// without: which of them comes first is chance.
    pub(super) fn lose_context(&self, status: CUresult, why: &[u8], of: Origin) {
        if self.set_fault(status, of) {
            log::warn(format_args!(
                "the context is lost: {status}: {}",
                String::from_utf8_lossy(why)
            ));
        }
    }
}
