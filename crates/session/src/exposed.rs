//! Exposed memory: device memory that adapters use in place. The client's adapter writes it, the
//! server's adapter reads it.
//!
//! A mapping is registered as a whole, or, if it is long, the piece of it that a copy uses. That
//! happens at the second copy out of it, or when the client asks, which then may write all of it.
//! Every registration belongs to the session and ends before the memory is unmapped. Memory that
//! cannot be registered is copied through pinned memory.
//!
//! # When the adapter may read
//!
//! A copy out of the device may see the work that its stream did before, and nothing of the work
//! after it. So the adapter reads once a [mark](outboard_device::Host::mark) in the stream is
//! reached, and no message that may change memory is executed before that. If such a message comes
//! before the mark is reached, the waiting copies become ordinary copies, which the stream executes
//! before the message's work.
//!
//! The client knows when its own adapter may write: see `CopyPlaced`.

use std::collections::BTreeMap;

use outboard_api::CUresult;
use outboard_device::{Device, Failure, Way};
use outboard_link::{GpuMemory, Registered, Registrar};
use outboard_wire::{
    limits::{
        PLACED_BYTES_MIN, RDMA_GPU_BYTES_MAX, RDMA_GPU_PIECE_BYTES_MAX, RDMA_GPU_REGISTRATIONS_MAX,
    },
    messages,
};
use tracing::{debug, info};

/// Refusals after which the session stops trying to register, if no registration ever succeeded.
const REFUSALS_MAX: u32 = 4;

pub(super) struct Exposed {
    registrar: Option<Registrar>,
    /// Ways of registering that may still work; empty if adapters may not use device memory.
    ways: Vec<Way>,
    /// Registered and refused pieces by address. They never overlap.
    pieces: BTreeMap<u64, Piece>,
    registered: usize,
    bytes: u64,
    /// The way by which a registration succeeded and which was logged.
    said: Option<Way>,
    refusals: u32,
}

struct Piece {
    len: u64,
    state: PieceState,
}

enum PieceState {
    /// One copy has used it.
    Seen,
    Registered(Registered),
    Refused,
}

/// Device memory that the server's adapter may read.
pub(super) struct Source {
    pub(super) registered: Registered,
    /// Context of the message that asked for the copy.
    pub(super) context: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) stream: u64,
}

impl Exposed {
    /// Creates the session's state. Without a registrar nothing is ever exposed.
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

    /// Returns the registered memory that a copy out of the device may be read from, if there is
    /// any.
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
                let state = PieceState::Seen;
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

    /// Registers the mapping around the named address, so that the client's adapter may write it.
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

    /// Ends the registration at `base`: the client's adapter no longer writes there.
    pub(super) fn conceal(&mut self, base: u64) {
        if let Some(piece) = self.pieces.remove(&base) {
            self.gave_up(&piece);
        }
    }

    /// Ends all registrations in a range that is about to be unmapped or mapped anew.
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
        if matches!(piece.state, PieceState::Registered(_)) {
            self.registered -= 1;
            self.bytes -= piece.len;
        }
    }

    /// Returns the piece that holds all of these bytes: its base and length.
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
            Some(PieceState::Registered(registered)) => return Ok(registered.clone()),
            Some(PieceState::Refused) => return Err(refused()),
            Some(PieceState::Seen) | None => {}
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
                PieceState::Registered(registered.clone())
            }
            None => PieceState::Refused,
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
                    // The ways before this one have just failed.
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
