//! Device memory that adapters use where it lies: the client's writes it, ours reads it.
//!
//! A mapping is registered whole, or the piece of it that a copy is about where it is long; when a copy out of it is not the
//! first, or when the client asks, which then may write all of it. What is registered is the session's own, and is given up before
//! it is unmapped. Whatever cannot be registered is copied by way of pinned memory.
//!
//! # When the adapter may read
//!
//! A copy out of the device may see what the stream did before, and nothing of what is done behind it. So the adapter reads
//! when a [mark](crate::device::Host::mark) in the stream is reached, and whatever may change memory is not executed before it has.
//! If such a message comes while the mark is not reached, the copies that wait become ordinary ones, which are in the
//! stream before the message's work is.
//!
//! When the client's adapter may write, the client knows: see `CopyPlaced`.

use std::collections::BTreeMap;

use outboard_api::CUresult;
use outboard_link::{GpuMemory, Registered, Registrar};
use outboard_wire::{
    limits::{
        PLACED_BYTES_MIN, RDMA_GPU_BYTES_MAX, RDMA_GPU_PIECE_BYTES_MAX, RDMA_GPU_REGISTRATIONS_MAX,
    },
    messages,
};
use tracing::{debug, info};

use crate::device::{Device, Failure, Way};

/// After so many refusals, and nothing that was registered, nothing more is tried.
const REFUSALS_MAX: u32 = 4;

pub(super) struct Exposed {
    registrar: Option<Registrar>,
    /// What may work; none where adapters are not let at device memory.
    ways: Vec<Way>,
    /// By address: disjoint.
    pieces: BTreeMap<u64, Piece>,
    registered: usize,
    bytes: u64,
    /// The way by which something was registered, which has been said.
    said: Option<Way>,
    refusals: u32,
}

struct Piece {
    len: u64,
    state: State,
}

enum State {
    /// One copy was about it.
    Seen,
    Registered(Registered),
    Refused,
}

/// Memory that our adapter may read.
pub(super) struct Source {
    pub(super) registered: Registered,
    /// The context of the message that asked for it.
    pub(super) context: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) stream: u64,
}

impl Exposed {
    /// What a session over this link has; without a registrar nothing.
    pub(super) fn new(registrar: Option<Registrar>, device: &mut dyn Device) -> Exposed {
        let wanted = registrar
            .as_ref()
            .map_or(GpuMemory::Off, Registrar::gpu_memory);
        let ways = match wanted {
            GpuMemory::Off => Vec::new(),
            wanted => device.expose(wanted).unwrap_or_else(|reason| {
                info!("copies pass through pinned memory, adapters do not use the GPU's: {reason}");
                Vec::new()
            }),
        };
        Exposed {
            registrar,
            ways,
            pieces: BTreeMap::new(),
            registered: 0,
            bytes: 0,
            said: None,
            refusals: 0,
        }
    }

    /// What a copy out of the device takes its data from, where it may.
    pub(super) fn source(
        &mut self,
        device: &mut dyn Device,
        context: u64,
        m: &messages::CopyOut,
    ) -> Option<Source> {
        if m.len < PLACED_BYTES_MIN as u64 || self.ways.is_empty() {
            return None;
        }
        let (base, len) = self.around(device, m.src, m.len)?;
        match self.pieces.get(&base) {
            None => {
                let state = State::Seen;
                self.pieces.insert(base, Piece { len, state });
                None
            }
            Some(_) => self.registered(device, base, len).ok(),
        }
        .map(|registered| Source {
            registered,
            context,
            src: m.src,
            len: m.len,
            stream: m.stream,
        })
    }

    /// Lets the client's adapter write the memory around what it names.
    pub(super) fn expose(
        &mut self,
        device: &mut dyn Device,
        m: &messages::MemoryExpose,
    ) -> Result<messages::MemoryExposeReply, Failure> {
        if self.ways.is_empty() {
            return Err(Failure::unsupported("adapters that write its memory"));
        }
        let (base, bytes) = self.around(device, m.va, m.len).ok_or_else(|| {
            let what = "no memory of one mapping, or not yet";
            Failure::new(CUresult::CUDA_ERROR_NOT_READY, what)
        })?;
        let registered = self.registered(device, base, bytes)?;
        let key = registered.target(base).key;
        Ok(messages::MemoryExposeReply { base, bytes, key })
    }

    /// The client writes it no more.
    pub(super) fn conceal(&mut self, base: u64) {
        if let Some(piece) = self.pieces.remove(&base) {
            self.gave_up(&piece);
        }
    }

    /// These addresses are about to be other memory, or none.
    pub(super) fn forget(&mut self, va: u64, len: u64) {
        let end = va.saturating_add(len);
        let before = self.pieces.range(..end).rev();
        let overlapping: Vec<u64> = before
            .take_while(|(base, piece)| *base + piece.len > va)
            .map(|(base, _)| *base)
            .collect();
        overlapping.into_iter().for_each(|base| self.conceal(base));
    }

    fn gave_up(&mut self, piece: &Piece) {
        if matches!(piece.state, State::Registered(_)) {
            self.registered -= 1;
            self.bytes -= piece.len;
        }
    }

    /// The piece that all of these bytes are in.
    fn around(&self, device: &dyn Device, address: u64, len: u64) -> Option<(u64, u64)> {
        let end = address.checked_add(len)?;
        let known = self.pieces.range(..=address).next_back();
        if let Some((base, piece)) = known
            && end <= base + piece.len
        {
            return Some((*base, piece.len));
        }
        let (base, bytes) = device.mapping(address, len)?;
        let skipped = (address - base) / RDMA_GPU_PIECE_BYTES_MAX * RDMA_GPU_PIECE_BYTES_MAX;
        let (start, left) = (base + skipped, bytes - skipped);
        let bytes = left.min(RDMA_GPU_PIECE_BYTES_MAX);
        (end <= start + bytes).then_some((start, bytes))
    }

    fn registered(
        &mut self,
        device: &mut dyn Device,
        base: u64,
        len: u64,
    ) -> Result<Registered, Failure> {
        let refused = || {
            let what = "this memory cannot be registered with the server's adapter";
            Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what)
        };
        match self.pieces.get(&base).map(|piece| &piece.state) {
            Some(State::Registered(registered)) => return Ok(registered.clone()),
            Some(State::Refused) => return Err(refused()),
            Some(State::Seen) | None => {}
        }
        if self.registered >= RDMA_GPU_REGISTRATIONS_MAX || self.bytes + len > RDMA_GPU_BYTES_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!(
                    "{} bytes of the GPU's memory are registered already (RDMA_GPU_BYTES_MAX, RDMA_GPU_REGISTRATIONS_MAX)",
                    self.bytes
                ),
            ));
        }
        let registered = self.register(device, base, len);
        let state = match &registered {
            Some(registered) => {
                self.registered += 1;
                self.bytes += len;
                State::Registered(registered.clone())
            }
            None => State::Refused,
        };
        self.pieces.insert(base, Piece { len, state });
        registered.ok_or_else(refused)
    }

    fn register(&mut self, device: &mut dyn Device, base: u64, len: u64) -> Option<Registered> {
        let registrar = self.registrar.as_ref()?;
        let mut reasons = Vec::new();
        for (at, way) in self.ways.iter().copied().enumerate() {
            let registered = device
                .reach(base, len, way)
                .map_err(|failure| failure.to_string())
                .and_then(|memory| {
                    let made = registrar.register_device(memory);
                    made.map_err(|error| error.to_string())
                });
            match registered {
                Ok(registered) => {
                    if self.said.replace(way) != Some(way) {
                        let by = way.name();
                        info!("adapters use the GPU's memory where it lies, by {by}");
                    }
                    // What is before it has just failed.
                    self.ways.drain(..at);
                    return Some(registered);
                }
                Err(reason) => reasons.push(format!("by {}: {reason}", way.name())),
            }
        }
        let reasons = reasons.join("; ");
        debug!(bytes = len, reasons, "memory that was not registered");
        self.refusals += 1;
        if self.refusals == 1 {
            info!("copies pass through pinned memory, adapters do not get at the GPU's: {reasons}");
        }
        if self.said.is_none() && self.refusals >= REFUSALS_MAX {
            self.ways.clear();
        }
        None
    }
}
