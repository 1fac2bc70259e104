//! The interface between the session engine and a device, and what the devices share.
//!
//! - [`Device`]: the trait, one method per message. The engine calls it; a device knows nothing of
//!   the engine.
//! - [`Host`]: the methods that no message calls.
//! - [`images`]: module images by their hash, kept across sessions.
//! - [`handle_table`]: the client's handles and the device's objects.
//! - [`office`]: shares memory and events with other sessions of this machine.
//! - [`activity`]: bounds and clock of records for profilers.
//! - [`pass_fd`]: descriptors between the server's own processes.
//! - [`log`]: the server's own log, even while a device redirects standard error.

pub mod activity;
mod changed_words;
mod failure;
pub mod handle_table;
pub mod images;
pub mod log;
mod memory_in_use;
pub mod office;
pub mod pass_fd;
pub mod session_exports;

use std::{borrow::Cow, cell::Cell, os::fd::OwnedFd, sync::Arc};

use outboard_api::CUresult;
use outboard_link::{DeviceMemory, GpuMemory, Granted, Lasting, Segment, Tail};
use outboard_net::{Registered, remote::Borrower};
use outboard_wire::{
    Data, Message,
    codec::Writer,
    doc::DeviceCard,
    messages::{self, Request},
};

pub use changed_words::changed_words;
pub use failure::Failure;
use images::ImageStore;
pub use memory_in_use::{Charge, MemoryInUse};

include!(concat!(env!("OUT_DIR"), "/device.rs"));

/// Text that kernels have printed, for the program's standard output and standard error.
#[derive(Debug, Default)]
pub struct Printed {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// The methods of a device that no message of a client calls.
pub trait Host: Send {
    /// Does slow preparations before a client comes.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    /// Returns the constant answers of the management library, as a document of `NVML_FACTS`.
    fn nvml_facts(&mut self) -> Result<Vec<u8>, Failure> {
        Err(Failure::unsupported("the management library"))
    }
    /// Returns one card for each device, in order. A card's quota is the memory that this session
    /// may allocate there: the free memory, less the contexts of `workers_to_come` workers that
    /// have yet to start.
    fn cards(&mut self, workers_to_come: u32) -> Result<Vec<DeviceCard>, Failure>;
    /// Returns the CUDA version of the driver: 13000 is 13.0.
    fn driver_version(&mut self) -> u32;
    /// Names the program's call that the next messages belong to, while the client profiles; 0 for
    /// none.
    fn of_call(&mut self, call: u32) {
        let _ = call;
    }
    /// Reserves the address window of a number below [`SERVERS_MAX`], in which the client will
    /// place device memory; returns base and length. Windows of different numbers do not overlap.
    ///
    /// [`SERVERS_MAX`]: outboard_wire::limits::SERVERS_MAX
    fn reserve_window(&mut self, number: u8) -> Result<(u64, u64), Failure>;
    /// Whether the client must give every allocation memory of its own:
    /// [`ServerWelcome::exact_memory`].
    ///
    /// [`ServerWelcome::exact_memory`]: outboard_wire::handshake::ServerWelcome::exact_memory
    fn exact_memory(&self) -> bool {
        false
    }
    /// Appends what kernels have printed since the last call. Called before a wait is answered.
    /// `lost` says that a fault has just ended the context, about which the driver may print
    /// something.
    fn take_printed(&mut self, out: &mut Printed, lost: bool);
    /// Appends the host functions that streams have reached since the last call: number, and status
    /// for the client.
    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>);
    /// Hands over the words of watched mirrors that kernels have changed. Called before a wait is
    /// answered.
    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8]));
    /// Returns true if the client would not notice a fence that is made now and never answered: of
    /// a context's stream, or of all of its work. No later work may wait for anything by it.
    fn can_fence_early(&mut self, context: u64, stream: Option<u64>) -> bool {
        let _ = (context, stream);
        false
    }
    /// Whether host functions are queued, so that the session must keep polling for them.
    fn awaits_host_calls(&self) -> bool;
    /// Returns memory for exactly `len` bytes of data about to be received, which the message then
    /// carries as [`Cx::placed`]. A device that copies from there need not copy the bytes first.
    /// With `None` the session uses memory of its own.
    fn room(&mut self, len: usize) -> Option<Box<dyn Segment>> {
        let _ = len;
        None
    }
    /// Returns memory for `len` bytes at most of data that the client's adapter will write, which a
    /// message then carries as [`Cx::placed`].
    fn grantable(&mut self, len: usize) -> Option<Box<dyn Granted>> {
        let _ = len;
        None
    }
    /// Returns the ways in which an RDMA adapter can use device memory, the best first. Called once
    /// before memory is mapped, because it may then have to be mapped differently. The error says
    /// why there is no way.
    fn expose(&mut self, wanted: GpuMemory) -> Result<Vec<Way>, String> {
        let _ = wanted;
        Err("this device has no memory that an adapter could reach".into())
    }
    /// Fails if kernels do not surely see what an adapter has written, without the session's help.
    fn sees_writes(&self) -> Result<(), String> {
        Ok(())
    }
    /// Returns the mapping that holds all of these bytes: base and length. It stays unchanged until
    /// the client unmaps it or sets its access. `None` if there is no such mapping, or if an
    /// adapter cannot use it now.
    fn mapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let _ = (address, len);
        None
    }
    /// Exports a range of one mapping for an adapter.
    fn reach(&mut self, address: u64, len: u64, way: Way) -> Result<DeviceMemory, Failure> {
        let _ = (address, len, way);
        Err(Failure::unsupported("adapters that use its memory"))
    }
    /// Returns the count of device memory that the session has allocated, for other threads.
    fn memory_in_use(&self) -> Option<MemoryInUse> {
        None
    }
    /// Lends memory of the session to an adapter in software, or to a device: all of these bytes.
    /// Host memory stays mapped as long as the result, and is reported whenever it is written; a
    /// GPU's is looked up at each use.
    fn lend(&mut self, address: u64, len: u64, to: Borrower) -> Result<Registered, Failure> {
        let _ = (address, len, to);
        Err(Failure::unsupported("endpoints of net.h"))
    }
    /// Marks a point in a stream, ordered there as a copy out of device memory would be.
    fn mark(&mut self, cx: &mut Cx<'_>, stream: u64) -> Result<Pending, Failure> {
        let _ = (cx, stream);
        Err(Failure::unsupported("marks"))
    }
    /// Returns the allocator behind [`room`](Host::room), for threads that receive data beside the
    /// session's.
    fn rooms(&self) -> Option<Arc<dyn Rooms>> {
        None
    }
}

/// How an adapter's driver finds device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through a dma-buf of the device's driver.
    DmaBuf,
    /// Through its address alone.
    Address,
}

impl Way {
    /// Returns the way's name in the log, where the device is a GPU.
    pub fn name(self) -> &'static str {
        match self {
            Way::DmaBuf => "dma-buf",
            Way::Address => "its address (nvidia-peermem, on an NVIDIA GPU)",
        }
    }
}

/// An allocator of device memory for data about to be received; see [`Host::room`].
pub trait Rooms: Send + Sync {
    fn room(&self, len: usize) -> Option<Box<dyn Segment>>;
}

/// Memory in which a message's data was received.
#[derive(Clone)]
pub enum Placed {
    /// Memory of [`Host::room`], or of the session's own.
    Own(Arc<dyn Segment>),
    /// Memory of [`Host::grantable`].
    Granted(Arc<dyn Granted>),
}

impl Placed {
    /// Returns the data as a message that carries it has it.
    pub fn data(&self) -> Data<'_> {
        match self {
            Placed::Own(memory) => Data::Here(memory.bytes()),
            Placed::Granted(memory) => Data::Granted(memory.len()),
        }
    }
}

impl From<Tail> for Placed {
    fn from(tail: Tail) -> Placed {
        match tail {
            Tail::Own(memory) => Placed::Own(memory.into()),
            Tail::Granted(memory) => Placed::Granted(memory.into()),
        }
    }
}

/// The parts of a message's execution beside its fields.
pub struct Cx<'s> {
    /// Context current for the calling thread, or 0.
    pub context: u64,
    pub images: &'s mut ImageStore,
    /// Memory that holds the message's data, if it was received beside the message.
    pub placed: Option<&'s Placed>,
    /// Takes a file descriptor that the client sent beside its messages.
    pub fds: &'s mut dyn FnMut(u64) -> Result<OwnedFd, Failure>,
    /// Serves the client during a device call that cannot return before it has run host functions.
    pub service: &'s mut Service<'s>,
    /// `None` if `service` reaches the client. Otherwise it serves nobody, and a call that has to
    /// serve the client sets this and fails, before it has changed anything.
    pub unserved: Option<&'s Cell<bool>>,
}

impl Cx<'_> {
    /// Refuses a call that has to serve the client where nobody does. The session may then execute
    /// the message again, with a service.
    pub fn has_service(&self) -> Result<(), Failure> {
        match self.unserved {
            None => Ok(()),
            Some(unserved) => {
                unserved.set(true);
                let what = "a call that would wait while its client is not served";
                Err(Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, what))
            }
        }
    }

    /// Returns a message's data as bytes: a copy of those that the client's adapter may still
    /// write.
    pub fn bytes<'d>(&self, data: Data<'d>) -> Result<Cow<'d, [u8]>, Failure> {
        match (data, self.placed) {
            (Data::Here(bytes), _) => Ok(bytes.into()),
            (Data::Granted(len), Some(Placed::Granted(memory))) if memory.len() == len => {
                Ok(memory.copied().into())
            }
            (Data::Granted(_), _) => {
                let what = "data in granted memory that did not come with it";
                Err(Failure::new(CUresult::CUDA_ERROR_UNKNOWN, what))
            }
        }
    }
}

/// A device while a call of its own is held up, as far as its client needs it.
pub trait HeldUp {
    /// Appends what kernels have printed, as [`Host::take_printed`] does.
    fn take_printed(&mut self, out: &mut Printed);
    /// Appends the host functions that streams have reached, as [`Host::take_host_calls`] does.
    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>);
    /// Hands over words that kernels have changed, as [`Host::take_host_pages`] does.
    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8]));
    /// Writes what the program has changed to a mirror. Returns false if there is none at `va`.
    fn host_write(&mut self, va: u64, data: &[u8]) -> bool;
}

/// Sends the client what the device has for it, and appends the host functions that it has run.
/// Returns whether the client is there.
pub type Service<'s> = dyn FnMut(&mut dyn HeldUp, &mut Vec<u64>) -> bool + 's;

/// How a message's execution ends.
pub enum Outcome {
    Done,
    /// The message is answered when the GPU is done.
    Wait(Pending),
}

pub type Pending = Box<dyn Wait>;

/// A point in the GPU's work that a client waits for.
pub trait Wait: Send {
    /// Whether the point is reached. An error means that the GPU failed before it. Never blocks.
    fn ready(&mut self) -> Result<bool, Failure>;
    /// Returns the reply's `data` once ready, if the message's reply has data.
    fn data(&self) -> Option<&[u8]> {
        None
    }
    /// Returns the memory that this data is part of, if that memory outlives the session.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

fn encode<'a, M: Message<'a>>(reply: &M, out: &mut Vec<u8>) -> Result<(), Failure> {
    let start = out.len();
    out.resize(start + reply.encoded_len(), 0);
    reply
        .encode(&mut Writer::new(&mut out[start..]))
        .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, format!("{}: {e}", M::NAME)))
}
