//! Data that adapters read from the program's memory, or write to it, without a copy: over rdma, if
//! the memory is registered.

use std::sync::atomic::Ordering;

use outboard_link::{
    Bulk, Error, GpuMemory, Lasting, RdmaCounts, RdmaTarget, RdmaUse, Registered, Registrar,
};
use outboard_wire::{
    Encode as _, Op, Writer,
    frame::{encode_request, encode_request_head, request_len},
    messages::CopyPlaced,
};

use super::{Numbered, ReceiveBuffer, Session, send::DATA_HEAD_BYTES_MAX};
use crate::{
    done::Done,
    observe::{conditions, optimise, profile, record, stats, times},
};

/// Counts of what was posted, registered and written so far.
pub(crate) struct RdmaFigures {
    pub(crate) posted: RdmaCounts,
    pub(crate) registrations: u64,
    pub(crate) registered_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) to_gpu_bytes: u64,
    pub(crate) from_gpu_bytes: u64,
}

impl Session {
    /// Returns the counts of an rdma link, unless another thread is posting.
    pub(crate) fn rdma_figures(&self) -> Option<RdmaFigures> {
        let (registrations, registered_bytes) = self.registrar.as_ref()?.figures();
        Some(RdmaFigures {
            posted: self.sender.try_lock()?.remote_memory()?.counts(),
            registrations,
            registered_bytes,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            to_gpu_bytes: self.to_gpu_bytes.load(Ordering::Relaxed),
            from_gpu_bytes: self.from_gpu_bytes.load(Ordering::Relaxed),
        })
    }

    /// Returns whether memory can be registered at the current level of optimisation.
    pub(crate) fn registers(&self) -> bool {
        self.registrar.is_some() && !optimise::is_lowered()
    }

    /// Registers memory with the adapter; `None` if that is not possible and data must go through
    /// the ring.
    pub(crate) fn register(&self, memory: Lasting, use_: RdmaUse) -> Option<Registered> {
        let registrar = self.registrar.as_ref()?;
        registrar.register_beside(memory, use_, || self.awaited_memory())
    }

    /// Deregisters memory that the program gives up.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        if let Some(registrar) = &self.registrar {
            registrar.forget(address, bytes as usize);
        }
    }

    /// Sends a message without a reply that ends in data, which the adapter reads later in place.
    pub(crate) fn submit_from<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        source: &Registered,
    ) -> Done {
        self.check_in(context)?;
        stats::sent();
        self.send_batch()?;
        if conditions::is_recorded() {
            record::sent(request_len(message));
        }
        let mut room = [0; DATA_HEAD_BYTES_MAX];
        let sent = times::sending(|| {
            let (len, data) = encode_request_head(&mut room, 0, profile::tagged(context), message)
                .ok_or(Error::Misuse("a message that has no data"))?;
            let bulk = Bulk {
                data,
                source: Some(source),
                target: None,
            };
            self.send_bulk(numbered, &room[..len], bulk)
        });
        sent.map_err(|error| self.lost(format_args!("{}: {error}", M::NAME)))
    }

    /// Sends data to its destination in the GPU's memory, and then the message that names it. With
    /// a source the adapter reads the data later in place, without one it is copied first.
    pub(crate) fn submit_placed(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &CopyPlaced,
        data: &[u8],
        source: Option<&Registered>,
        target: RdmaTarget,
    ) -> Done {
        self.check_in(context)?;
        stats::sent();
        self.send_batch()?;
        if conditions::is_recorded() {
            record::sent(request_len(message) + data.len());
        }
        let mut room = [0; DATA_HEAD_BYTES_MAX];
        let len = request_len(message);
        let sent = times::sending(|| {
            let writer = &mut Writer::new(&mut room);
            encode_request(writer, 0, profile::tagged(context), message)
                .map_err(|_| Error::Misuse("a message longer than it said"))?;
            let target = Some(target);
            let bulk = Bulk {
                data,
                source,
                target,
            };
            self.send_bulk(numbered, &room[..len], bulk)
        });
        sent.map_err(|error| self.lost(format_args!("{}: {error}", CopyPlaced::NAME)))?;
        self.to_gpu_bytes
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn send_bulk(&self, numbered: Numbered<'_>, head: &[u8], bulk: Bulk<'_>) -> Result<(), Error> {
        let mut sender = self.sender.lock();
        match sender.remote_memory() {
            Some(remote) => {
                self.progress.number(numbered);
                remote.send_bulk(&[head], bulk)
            }
            None => Err(Error::lacks("data that is written from afar", self.kind)),
        }
    }

    /// Returns this side's option for the GPU's memory.
    pub(crate) fn gpu_memory(&self) -> GpuMemory {
        let registrar = self.registrar.as_ref();
        registrar.map_or(GpuMemory::Off, Registrar::gpu_memory)
    }

    /// Waits until adapters have read all such data, so that the program may change it.
    pub(crate) fn wait_until_read(&self) -> Done {
        stats::waited();
        let read = times::waiting(|| {
            let mut sender = self.sender.lock();
            let remote = sender.remote_memory();
            remote.map_or(Ok(()), |remote| remote.wait_until_read())
        });
        read.map_err(|error| self.lost(error))
    }

    /// Counts data of a reply that the server's adapter read from the GPU's memory.
    pub(super) fn was_read_from_gpu(&self, buffer: &ReceiveBuffer) {
        let bytes = buffer.rows.bytes() as u64;
        self.from_gpu_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the data of a reply is already in the program's memory, where its request asked
    /// for it.
    pub(super) fn was_written(&self, buffer: &ReceiveBuffer) -> Done {
        let bytes = buffer.rows.bytes() as u64;
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.handler
            .written_by_adapter(buffer.address as u64, buffer.rows.spanned_bytes() as u64);
        Ok(())
    }
}
