//! Data that the adapter takes from the program's memory, or that the server's adapter writes there: over rdma, and only where that
//! memory is registered. Nothing of it is copied here.

use std::sync::atomic::Ordering;

use outboard_link::{
    Bulk, Error, GpuMemory, Lasting, RdmaCounts, RdmaTarget, RdmaUse, Registered, Registrar,
};
use outboard_wire::{
    Message as _, Op,
    frame::{encode_request, encode_request_head, request_len},
    messages::CopyPlaced,
};

use super::{Landing, Session, send::DATA_HEAD_BYTES_MAX};
use crate::{
    activity, calls::Done, guard, optimise, record, state::written_by_adapter, stats, times,
};

/// What was posted, registered and written so far.
pub(crate) struct RdmaFigures {
    pub(crate) posted: RdmaCounts,
    pub(crate) registrations: u64,
    pub(crate) registered_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) to_gpu_bytes: u64,
    pub(crate) from_gpu_bytes: u64,
}

impl Session {
    /// Over rdma; not while another thread posts.
    pub(crate) fn rdma_figures(&self) -> Option<RdmaFigures> {
        let (registrations, registered_bytes) = self.registrar.as_ref()?.figures();
        Some(RdmaFigures {
            posted: self.sender.try_lock()?.rdma_counts()?,
            registrations,
            registered_bytes,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            to_gpu_bytes: self.to_gpu_bytes.load(Ordering::Relaxed),
            from_gpu_bytes: self.from_gpu_bytes.load(Ordering::Relaxed),
        })
    }

    /// Whether memory can be registered, at the level of optimisation that is asked for.
    pub(crate) fn registers(&self) -> bool {
        self.registrar.is_some() && !optimise::is_lowered()
    }

    /// This memory as the adapter knows it; `None` where that cannot be, and data goes through the ring.
    pub(crate) fn register(&self, memory: Lasting, use_: RdmaUse) -> Option<Registered> {
        self.registrar.as_ref()?.register(memory, use_)
    }

    /// The program gives this memory up.
    pub(crate) fn forget(&self, address: u64, bytes: u64) {
        if let Some(registrar) = &self.registrar {
            registrar.forget(address, bytes as usize);
        }
    }

    /// Sends a message that nobody answers and that ends in data, which is read later from where it lies.
    pub(crate) fn submit_from<'a, M: Op<'a>>(
        &self,
        context: u64,
        message: &M,
        source: &Registered,
    ) -> Done {
        self.check()?;
        stats::sent();
        self.send_batch()?;
        if guard::is_recorded() {
            record::sent(request_len(message));
        }
        let mut room = [0; DATA_HEAD_BYTES_MAX];
        let sent = times::sending(|| {
            let (len, data) = encode_request_head(&mut room, 0, activity::tagged(context), message)
                .ok_or(Error::Misuse("a message that has no data"))?;
            let bulk = Bulk {
                data,
                source: Some(source),
                target: None,
            };
            self.sender.lock().send_bulk(&[&room[..len]], bulk)
        });
        sent.map_err(|error| self.lost(format_args!("{}: {error}", M::NAME)))
    }

    /// Sends data to where the message says that it is, in the GPU's memory, and the message behind it. It is read later from
    /// where it lies, or with no source taken along.
    pub(crate) fn submit_placed(
        &self,
        context: u64,
        message: &CopyPlaced,
        data: &[u8],
        source: Option<&Registered>,
        target: RdmaTarget,
    ) -> Done {
        self.check()?;
        stats::sent();
        self.send_batch()?;
        if guard::is_recorded() {
            record::sent(request_len(message) + data.len());
        }
        let mut room = [0; DATA_HEAD_BYTES_MAX];
        let len = request_len(message);
        let sent = times::sending(|| {
            encode_request(&mut room[..len], 0, activity::tagged(context), message)
                .map_err(|_| Error::Misuse("a message longer than it said"))?;
            let target = Some(target);
            let bulk = Bulk {
                data,
                source,
                target,
            };
            self.sender.lock().send_bulk(&[&room[..len]], bulk)
        });
        sent.map_err(|error| self.lost(format_args!("{}: {error}", CopyPlaced::NAME)))?;
        self.to_gpu_bytes
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// What the options of this side say of the GPU's memory.
    pub(crate) fn gpu_memory(&self) -> GpuMemory {
        let registrar = self.registrar.as_ref();
        registrar.map_or(GpuMemory::Off, Registrar::gpu_memory)
    }

    /// Waits until all data was read that was sent so: the program may change it.
    pub(crate) fn wait_until_read(&self) -> Done {
        stats::waited();
        let read = times::waiting(|| self.sender.lock().wait_until_read());
        read.map_err(|error| self.lost(error))
    }

    /// The server's adapter took an answer's data from the GPU's memory.
    pub(super) fn was_read_from_gpu(&self, landing: &Landing) {
        let bytes = landing.rows.bytes() as u64;
        self.from_gpu_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The data of an answer is in the program's memory already, as its message had asked.
    pub(super) fn was_written(&self, landing: &Landing) -> Done {
        let bytes = landing.rows.bytes() as u64;
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        written_by_adapter(landing.address as u64, landing.rows.spanned_bytes() as u64);
        Ok(())
    }
}
